"""The model of collection keeps what the paper promises; and its checks see it when a promise is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from tests.plugins.gc_tombstones.model import (
    Client,
    Event,
    LazyWalk,
    Model,
    Part,
    Refused,
    Says,
    Walk,
    check_history,
    check_promises,
    covers,
    filtered,
    merged,
    predicates,
    tombstone,
)
from tidings.filters import parse
from tidings_gc_tombstones.covering import implies
from tidings_gc_tombstones.predicates import Predicate

WALKS = settings(max_examples=100, stateful_step_count=40, deadline=None)

TestTheModel = Walk.TestCase
TestTheModel.settings = WALKS
TestAModelThatCollectsAnything = LazyWalk.TestCase
TestAModelThatCollectsAnything.settings = WALKS


def about(*objects: str) -> Says:
    return Says((Part(frozenset(objects)),))


def test_the_histories_of_the_paper() -> None:
    model = Model()
    for event in (Event("data", "a"), Event("data", "b"), Event("gc", "gc/0", about("a")), Event("data", "a")):
        model.publish(event)
    model.collect()
    assert [(event.kind, event.seq, event.range) for event in model.history] == [
        ("tombstone", 0, 1), ("data", 1, 1), ("gc", 2, 1), ("data", 3, 1),
    ]  # fmt: skip
    model.publish(Event("gc", "gc/0", about("a", "b", "gc/0")))
    model.collect()
    assert [(event.kind, event.seq, event.range) for event in model.history] == [("tombstone", 3, 4), ("gc", 4, 1)]
    with pytest.raises(Refused):
        model.publish(Event("gc", "gc/0", about("gc/0")))
    assert len(model.read(-1)) == 2


def test_tombstones_that_follow_each_other_or_overlap_are_aggregated() -> None:
    assert merged([tombstone(0, 2), tombstone(3, 3)]) == [tombstone(0, 3)]
    assert merged([tombstone(0, 5), tombstone(3, 9), Event("data", seq=10)]) == [tombstone(0, 9), Event("data", seq=10)]
    assert merged([tombstone(0, 2), tombstone(4, 4)]) == [tombstone(0, 2), tombstone(4, 4)]


def test_a_client_gets_only_what_comes_next() -> None:
    client = Client(4)
    for early in (Event("data", seq=4), Event("data", seq=6), tombstone(6, 9), tombstone(1, 4)):
        with pytest.raises(AssertionError):
            client.deliver(early)
    client.deliver(tombstone(1, 7))
    client.deliver(Event("data", seq=8))
    assert (client.count, client.received) == (8, [tombstone(1, 7), Event("data", seq=8)])


@given(predicates, predicates, st.integers(0, 8))
def test_what_the_plugin_says_is_covered_is_covered(narrow: Says, wide: Says, before: int) -> None:
    """Predicates of the model read as predicates of the plugin."""
    texts = [str(Predicate.parse(str(one))) for one in (narrow, wide)]
    if implies(parse(texts[0]), parse(texts[1]), before=before):
        assert covers(Event("gc", predicate=wide, seq=20), Event("gc", predicate=narrow, seq=before))


# ---- what the checks see -------------------------------------------------------------------------------------------


class Greedy(Model):
    """Collects the newest event, too."""

    def collect(self) -> None:
        super().collect()
        if self.history:
            self.history = merged([*self.history[:-1], tombstone(self.history[-1].seq, self.history[-1].seq)])


class Forgetful(Model):
    """Tells nobody of what was collected."""

    def read(self, after: int) -> Sequence[Event]:
        return [event for event in super().read(after) if event.kind != "tombstone"]


class Holed(Model):
    """Lets a tombstone stand for what is there."""

    def collect(self) -> None:
        super().collect()
        if len(self.history) > 3 and self.history[0].kind == self.history[2].kind == "tombstone":
            self.history = [tombstone(0, self.history[2].seq), *self.history[3:]]


class Reviving(Model):
    """Brings back what was collected."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Event] = []

    def publish(self, event: Event) -> int:
        seq = super().publish(event)
        self.all.append(self.history[-1])
        return seq

    def collect(self) -> None:
        super().collect()
        if self.count % 4 == 0:
            self.history = list(self.all)


class Eager(Model):
    """Takes gc events that do not cover what they match."""

    def publish(self, event: Event) -> int:
        self.history.append(replace(event, seq=self.count))
        self.count += 1
        return self.count - 1


class Stale(Model):
    """Gives each event as it was before."""

    def read(self, after: int) -> Sequence[Event]:
        found = super().read(after)
        return [replace(event, number=max(0, event.number - 1)) for event in found]


@pytest.mark.parametrize("broken", [Greedy, Forgetful, Holed, Reviving, Eager, Stale])
def test_a_system_that_breaks_a_promise_is_found_out(broken: type[Model]) -> None:
    class Broken(Walk):
        def begin(self) -> Model:
            return broken()

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Broken, settings=settings(WALKS, max_examples=2000, phases=[Phase.generate]))


class Slow(Model):
    """Collects every other time, and refuses all predicates of more than one part."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def publish(self, event: Event) -> int:
        if event.kind == "gc" and event.predicate and len(event.predicate.parts) > 1:
            raise Refused(str(event.predicate))
        return super().publish(event)

    def collect(self) -> None:
        self.asked += 1
        if self.asked % 2:
            super().collect()


def test_a_system_may_collect_less_and_refuse_more_than_the_model() -> None:
    class Beside(Walk):
        def begin(self) -> Model:
            return Slow()

    run_state_machine_as_test(Beside, settings=settings(WALKS, max_examples=50))


def test_a_client_that_has_only_a_tombstone_has_been_promised_more() -> None:
    published = [Event("data", "a", seq=0, number=0), Event("gc", "gc/0", about("a"), seq=1, number=1)]
    client = Client(-1)
    client.deliver(tombstone(0, 0))
    check_promises(client, published)
    client.deliver(published[1])
    check_promises(client, published)
    without = Client(-1)
    without.deliver(tombstone(0, 1))
    with pytest.raises(AssertionError, match="nothing matches"):
        check_promises(without, published)
    assert check_history(filtered(published), published) == {0}
