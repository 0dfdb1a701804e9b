"""Sprinkler's garbage collection, for one stream, as the paper says it and no more.

Section 2.1 says what events are, when one matches another, and what every client is promised; figure 1 has `filter(H)`;
figure 3 has what may be delivered to a client. There is nothing here of how this project does it, and nothing is fast:
histories are lists, predicates are looked at event by event, and whether one covers another is tried on all events that
there could be.

`Walk` is a state machine that publishes, collects and subscribes, and checks after each step what the paper promises.
It walks the model itself; a test that has a real system behind the face of `System` lets it walk that, beside the
model.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

OBJECTS = ("a", "b", "c")
GC_OBJECT = "gc/0"  # what an explicit gc event is about
KINDS = ("data", "gc")

# ---- events (2.1) ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Conditions that must all hold: the object is one of these, the kind is this, the position lies between these."""

    objects: frozenset[str] | None = None
    kind: str | None = None
    below: int | None = None
    least: int | None = None

    def holds(self, event: Event) -> bool:
        return (
            (self.objects is None or event.object in self.objects)
            and (self.kind is None or event.kind == self.kind)
            and (self.below is None or event.seq < self.below)
            and (self.least is None or event.seq >= self.least)
        )

    def __str__(self) -> str:
        parts = [f"object in ({', '.join(sorted(self.objects))})"] if self.objects is not None else []
        parts += [f"kind = {self.kind}"] if self.kind is not None else []
        parts += [f"seq < {self.below}"] if self.below is not None else []
        parts += [f"seq >= {self.least}"] if self.least is not None else []
        return " and ".join(parts) or "everything"


@dataclass(frozen=True)
class Says:
    """A predicate: any of its parts holds. Its text is what a real system reads."""

    parts: tuple[Part, ...]

    def holds(self, event: Event) -> bool:
        return any(part.holds(event) for part in self.parts)

    def __or__(self, other: Says) -> Says:
        return Says(self.parts + other.parts)

    def __str__(self) -> str:
        return " or ".join(f"({part})" for part in self.parts)


@dataclass(frozen=True)
class Event:
    """An event of the stream. What has a predicate is a garbage collection event; a policy can make an update one.

    `collects` is the text of the predicate, as far as it was published. `number` tells published events apart, each of
    which is unique.
    """

    kind: str
    object: str = ""
    predicate: Says | None = None
    collects: str | None = None
    seq: int = -1
    range: int = 1
    number: int = -1

    @property
    def places(self) -> Sequence[int]:
        return range(self.seq - self.range + 1, self.seq + 1)


def matches(later: Event, event: Event) -> bool:
    """Whether a garbage collection event matches an event: it holds for it, and the event is earlier."""
    return later.predicate is not None and event.seq < later.seq and later.predicate.holds(event)


def covers(later: Event, earlier: Event) -> bool:
    """Whether the later one matches all that the earlier one does, of all events that there could be."""
    if earlier.predicate is None or later.predicate is None:
        return earlier.predicate is None
    return implied_before(earlier.seq, earlier.predicate, later.predicate)


@functools.lru_cache(maxsize=10_000)
def implied_before(seq: int, narrow: Says, wide: Says) -> bool:
    possible = itertools.product(KINDS, (*OBJECTS, GC_OBJECT, "another"), range(seq))
    events = (Event(kind, object, seq=at) for kind, object, at in possible)
    return all(wide.holds(event) for event in events if narrow.holds(event))


def uncovered(later: Event, history: Iterable[Event]) -> list[Event]:
    """The garbage collection events that this one matches and does not cover; an application publishes no such one.

    One that is collected already is no more to be collected: only those that are still there count.
    """
    return [event for event in history if event.predicate and matches(later, event) and not covers(later, event)]


# ---- histories (3.1, figure 1) ---------------------------------------------------------------------------------------


def tombstone(first: int, last: int) -> Event:
    return Event("tombstone", seq=last, range=last - first + 1)


def matched(history: Iterable[Event]) -> set[int]:
    """The positions of events that a garbage collection event of the history matches."""
    events = [event for event in history if event.kind != "tombstone"]
    return {event.seq for event in events if any(matches(later, event) for later in events)}


def collected(history: Iterable[Event], seqs: Collection[int]) -> list[Event]:
    """The history with a tombstone in the place of each of these events."""
    return [tombstone(e.seq, e.seq) if e.seq in seqs and e.kind != "tombstone" else e for e in history]


def merged(history: Iterable[Event]) -> list[Event]:
    """The history with tombstones that follow each other, or overlap, aggregated into one."""
    found: list[Event] = []
    for event in history:
        last = found[-1] if found else None
        if last and event.kind == last.kind == "tombstone" and event.places[0] <= last.seq + 1:
            found[-1] = tombstone(min(last.places[0], event.places[0]), max(last.seq, event.seq))
        else:
            found.append(event)
    return found


def filtered(history: Sequence[Event]) -> list[Event]:
    """`filter(H)`: all that is matched is collected, and tombstones are aggregated."""
    return merged(collected(history, matched(history)))


# ---- clients (3.2, figure 3) -----------------------------------------------------------------------------------------


@dataclass
class Client:
    """Whoever is delivered events, from a position on. `count` is the last position that it has."""

    start: int
    count: int = -1
    delivered: list[Event] = field(default_factory=list)
    received: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = self.start

    def deliver(self, event: Event) -> None:
        """`deliverEvent`, with its precondition."""
        assert event.seq - event.range <= self.count < event.seq, (event, self.count)
        self.delivered.append(event)
        self.received = filtered([*self.received, event])
        self.count = event.seq


def check_promises(client: Client, published: Sequence[Event]) -> None:
    """What 2.1 promises a client, of all that was published after its start and that it has got up to now."""
    places: set[int] = set()
    for event in client.delivered:
        if event.kind == "tombstone":
            assert 0 <= event.places[0] <= event.seq < len(published), "a tombstone is of what was published"
            for seq in event.places:
                assert any(matches(later, published[seq]) for later in published), f"nothing matches {published[seq]}"
        else:
            assert same(event, published[event.seq]), f"{event} is not what was published"
        places |= set(event.places)
    assert [event.seq for event in client.delivered] == sorted({event.seq for event in client.delivered})
    assert set(range(client.start + 1, client.count + 1)) <= places, "each is delivered, or a tombstone for it"
    if client.count == len(published) - 1:
        check_followed(client, published)


def check_followed(client: Client, published: Sequence[Event]) -> None:
    """A client that has all has each event itself, or a tombstone for it that is followed by what matches the event."""
    live = {event.seq: at for at, event in enumerate(client.delivered) if event.kind != "tombstone"}
    for at, event in enumerate(client.delivered):
        if event.kind == "tombstone":
            for seq in event.places:
                followed = any(live.get(later.seq, -1) > at and matches(later, published[seq]) for later in published)
                assert followed or seq in live or seq <= client.start, f"nothing follows that matches {published[seq]}"


def same(event: Event, other: Event) -> bool:
    """Whether two are one event, as far as a real system gives it back."""
    return (event.kind, event.object, event.seq, event.number) == (other.kind, other.object, other.seq, other.number)


# ---- systems ---------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A system does not take a garbage collection event."""


class System(Protocol):
    """One stream, of one shard, that collects: the model, or a real one."""

    def publish(self, event: Event) -> int:
        """Publish an event, and return its position; or raise `Refused`, and leave all as it was."""

    def collect(self) -> None:
        """Collect what the system finds worth while, of what may be collected."""

    def read(self, after: int) -> Sequence[Event]:
        """All that there is after a position, in order; a tombstone may begin before it."""


class Model:
    """The paper's own system: a history, and a filter that is applied when it is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.history: list[Event] = []

    def publish(self, event: Event) -> int:
        event = replace(event, seq=self.count)
        if uncovered(event, self.history):
            raise Refused(str(event.predicate))
        self.count += 1
        self.history.append(event)
        return event.seq

    def collect(self) -> None:
        self.history = filtered(self.history)

    def read(self, after: int) -> Sequence[Event]:
        return [event for event in self.history if event.seq > after]


def check_history(history: Sequence[Event], published: Sequence[Event]) -> set[int]:
    """That a history is a legal one of what was published; the positions that are collected in it.

    Each event is there, or in one tombstone; what is collected is matched by an event that is still there.
    """
    assert [seq for event in history for seq in event.places] == list(range(len(published)))
    gone = {seq for event in history if event.kind == "tombstone" for seq in event.places}
    there = [published[event.seq] for event in history if event.kind != "tombstone"]
    assert all(same(event, published[event.seq]) for event in history if event.kind != "tombstone")
    for seq in gone:
        assert any(matches(later, published[seq]) for later in there), (
            f"{published[seq]} is gone, and nothing matches it"
        )
    return gone


# ---- the walk --------------------------------------------------------------------------------------------------------

parts = st.builds(
    Part,
    objects=st.none() | st.frozensets(st.sampled_from((*OBJECTS, GC_OBJECT)), min_size=1, max_size=3),
    kind=st.sampled_from([None, None, None, *KINDS]),
    below=st.none() | st.integers(0, 12),
    least=st.sampled_from([None, None, None, 0, 2, 5]),
)
predicates = st.lists(parts, min_size=1, max_size=2).map(lambda found: Says(tuple(found)))


class Walk(RuleBasedStateMachine):
    """Publishes, collects and subscribes in any order, and checks what is promised; subclasses say what is walked.

    A system may refuse more than the model does, and collect less, and never the other way round.
    """

    explicit = True  # gc events with predicates are published
    deletes = False  # and those without one, which a policy makes something of

    def __init__(self) -> None:
        super().__init__()
        self.system = self.begin()
        self.published: list[Event] = []
        self.clients: list[Client] = []
        self.gone: set[int] = set()

    def begin(self) -> System:
        """The system that is walked."""
        return Model()

    def implied(self, event: Event, seq: int) -> Says | None:
        """What the policies of the system make of an event at a position: a predicate of its own, or None."""
        return Says((Part(frozenset({event.object})),)) if event.object in ("b", "c") else None

    @rule(object=st.sampled_from(OBJECTS))
    def publish(self, object: str) -> None:
        self.add(Event("data", object))

    @precondition(lambda self: self.explicit)
    @rule(predicate=predicates)
    def publish_gc(self, predicate: Says) -> None:
        self.add(Event("gc", GC_OBJECT, predicate, collects=str(predicate)))

    @precondition(lambda self: self.deletes)
    @rule(object=st.sampled_from(OBJECTS))
    def publish_delete(self, object: str) -> None:
        self.add(Event("gc", object))

    def add(self, event: Event) -> None:
        seq = len(self.published)
        implied = self.implied(event, seq)
        if implied is not None:
            event = replace(event, predicate=event.predicate | implied if event.predicate else implied)
        event = replace(event, seq=seq, number=seq)
        there = [self.published[one.seq] for one in self.system.read(-1) if one.kind != "tombstone"]
        legal = not uncovered(event, there)
        try:
            got = self.system.publish(event)
        except Refused:
            assert event.collects is not None, f"an update was refused: {event}"
            return
        self.published.append(event)
        assert legal, f"{event.predicate} was let through, and does not cover what it matches"
        assert got == seq

    @rule()
    def collect(self) -> None:
        self.system.collect()

    @rule(back=st.integers(0, 20))
    def subscribe(self, back: int) -> None:
        self.clients.append(Client(max(-1, len(self.published) - 1 - back)))

    @precondition(lambda self: self.clients)
    @rule(which=st.integers(0, 20), most=st.integers(1, 8))
    def deliver(self, which: int, most: int) -> None:
        client = self.clients[which % len(self.clients)]
        for event in self.system.read(client.count)[:most]:
            client.deliver(event)
        check_promises(client, self.published)

    @invariant()
    def what_is_collected_is_matched_and_stays_collected(self) -> None:
        gone = check_history(self.system.read(-1), self.published)
        assert self.gone <= gone, "collection is final"
        assert len(self.published) - 1 not in gone, "nothing can match the newest event"
        self.gone = gone

    def teardown(self) -> None:
        for client in [*self.clients, Client(-1)]:
            for event in self.system.read(client.count):
                client.deliver(event)
            assert client.count == max(client.start, len(self.published) - 1)
            check_promises(client, self.published)


class LazyWalk(Walk):
    """Walks a model that collects any of what it may, and aggregates any of its tombstones."""

    def begin(self) -> System:
        self.model = Model()
        return self.model

    @rule(chosen=st.sets(st.integers(0, 40)))
    def collect_some(self, chosen: set[int]) -> None:
        self.model.history = collected(self.model.history, matched(self.model.history) & chosen)

    @rule(at=st.integers(0, 40))
    def merge_some(self, at: int) -> None:
        history = self.model.history
        self.model.history = history[:at] + merged(history[at : at + 2]) + history[at + 2 :]
