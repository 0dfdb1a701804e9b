"""`tidings flows pause`, `stop`, `skip` and `history`: what operators do with flows, and what becomes of these."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.support.commands import PATIENCE_S, Result, Run, ended, lags, publish, started
from tidings import Handler
from tidings.cluster import Cluster
from tidings.controls import pause, pin, resume, say, stop
from tidings.errors import InvalidOption, PlanOutdated
from tidings.flow_history import flow_history
from tidings.flow_skip import execute_skip, plan_skip
from tidings.flow_status import flows_of, status
from tidings.flows import MAX_SKIPS, Flow, FlowControl
from tidings.positions import START, Position
from tidings.publisher.ownership import Ownership, Wanted
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually
from tidings.updates import Update

FLOW = Flow("cache", "contacts", 0)


class Notes(Handler):
    """Notes each update by its shard, and fails at those whose objects are poison."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.poison: set[str] = set()
        self.skipped = 0

    def on_update(self, update: Update) -> None:
        if update.object in self.poison:
            raise ValueError(f"{update.object} is poison")
        self.seen.append((update.shard, update.seq))

    def on_skipped(self, flow: Flow, count: int) -> None:
        self.skipped += count

    def of(self, shard: int) -> list[int]:
        return [seq for at, seq in self.seen if at == shard]


def states(cluster: Cluster) -> list[str]:
    return [one.state for one in status(cluster)]


def names(cluster: Cluster, shard: int, count: int) -> list[str]:
    """Objects that lie in a shard."""
    found = (f"o-{n}" for n in range(1000) if cluster.stream("contacts").shard_of(f"o-{n}") == shard)
    return [next(found) for _ in range(count)]


def test_flows_are_paused_under_load_keep_their_holders_and_go_on_in_order(cache: Cluster, run: Run) -> None:
    notes, done = Notes(), threading.Event()
    published = 0

    def load() -> None:
        nonlocal published
        with cache.stream("contacts").producer(linger=0.005) as producer:
            while not done.wait(0.01):
                producer.publish(f"o-{published}")
                published += 1

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    with cache.subscribe("cache", notes, id="one"):
        with cache.publisher(name="first", token_interval=0.1):
            eventually(lambda: len(notes.seen) > 50)
            assert run("flows", "pause", "--application", "cache", "--json").json == {
                "paused": ["cache/contacts/0", "cache/contacts/1"]
            }
            eventually(lambda: states(cache) == ["paused", "paused"])
            eventually(
                lambda: all(
                    one.datamarker and one.datamarker.position == _last(notes, one.flow.shard) for one in status(cache)
                )
            )
            held = len(notes.seen)
            before = published
            eventually(lambda: published > before + 20)
            assert len(notes.seen) == held, "nothing is sent"
            assert {(one.owner, one.subscriber) for one in status(cache)} == {("first", "one")}
        with cache.publisher(name="second", token_interval=0.1):
            eventually(lambda: {(one.owner, one.subscriber) for one in status(cache)} == {("second", "one")})
            assert states(cache) == ["paused", "paused"], "it holds whoever owns the flow"
            assert len(notes.seen) == held
            assert "2 flows are resumed now" in run("flows", "resume", "--application", "cache").err
            done.set()
            thread.join()
            eventually(lambda: len(notes.seen) >= published and lags(cache) == [0, 0])
    for shard in (0, 1):
        assert notes.of(shard) == list(range(len(notes.of(shard)))), "in order, and each once"


def _last(notes: Notes, shard: int) -> Position:
    return Position(max(notes.of(shard), default=-1))


def test_pause_and_stop_take_each_others_place(cache: Cluster, publisher: Publisher, run: Run) -> None:
    flows = flows_of(cache)
    with cache.subscribe("cache", Handler()):
        eventually(lambda: states(cache) == ["running", "running"])
        assert pause(cache, flows) == flows
        assert pause(cache, flows) == []
        eventually(lambda: states(cache) == ["paused", "paused"])
        assert stop(cache, flows[:1]) == flows[:1]
        eventually(lambda: states(cache) == ["stopped", "paused"])
        pin(cache, flows, "here")
        assert resume(cache, flows) == flows
        eventually(lambda: states(cache) == ["running", "running"])
        assert {one.control for one in status(cache)} == {FlowControl(pin="here")}
        for wrong in ((), ("cache/contacts/0", "--application", "cache"), ("--stream", "contacts")):
            assert run("flows", "pause", *wrong).code == 2
        assert run("flows", "pause", "cache/contacts/7").code == 1


class Busy(Handler):
    """Is busy with shard 0 until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def on_update(self, update: Update) -> None:
        self.begun.set()
        self.let_go.wait(PATIENCE_S)


@pytest.fixture
def busy(cache: Cluster, publisher: Publisher) -> Iterator[Busy]:
    """A subscriber of both flows, of which one is not acknowledged."""
    handler = Busy()
    publish(cache, 1, objects=tuple(names(cache, 0, 1)))
    with cache.subscribe("cache", handler, workers=2):
        eventually(lambda: states(cache) == ["running", "running"])
        assert handler.begun.wait(PATIENCE_S)
        try:
            yield handler
        finally:
            handler.let_go.set()


def told_on_the_way(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr
    return process.stderr.readline().decode()


def test_stop_waits_until_nobody_owns_the_flows(cache: Cluster, busy: Busy, run: Run) -> None:
    assert run("flows", "stop", "cache/contacts/1", "--wait").err.endswith("1 flow is stopped\n")
    assert states(cache) == ["running", "stopped"]
    with started("flows", "stop", "--application", "cache", "--wait") as process:
        assert told_on_the_way(process) == "1 flow is still owned: cache/contacts/0\n"
        busy.let_go.set()
        assert ended(process) == Result(0, "", "2 flows are stopped\n")
    assert states(cache) == ["stopped", "stopped"]


def test_who_waits_for_no_longer_than_a_time_is_told_which_flows_are_left(cache: Cluster, busy: Busy, run: Run) -> None:
    assert run("flows", "stop", "cache/contacts/1", "--wait", "--json").json == {
        "stopped": ["cache/contacts/1"],
        "owned": [],
    }
    late = run("flows", "stop", "--application", "cache", "--wait", "--timeout", "1.5", "--json")
    assert (late.code, late.json) == (1, {"stopped": ["cache/contacts/0"], "owned": ["cache/contacts/0"]})
    on_the_way, error = late.err.splitlines()
    assert on_the_way == "1 flow is still owned: cache/contacts/0"
    assert error.startswith("error: after 1.5 s 1 flow is still owned, cache/contacts/0: each is given up once its ")
    assert status(cache)[0].control.stopped, "that was said all the same"
    resume(cache, [FLOW])
    late = run("publishers", "drain", "here", "--force", "--wait", "--timeout", "0.5")
    assert late.code == 1
    assert late.err.splitlines()[-1].startswith("error: after 0.5 s publisher 'here' still owns cache/contacts/0: it ")


def test_nobody_waits_for_a_stop_that_was_taken_back(cache: Cluster, busy: Busy) -> None:
    with started("flows", "stop", "--application", "cache", "--wait") as process:
        assert " still owned: cache/contacts/0" in told_on_the_way(process)
        resume(cache, [FLOW])
        told = ended(process)
    assert told.code == 1
    assert told.err.startswith(
        "error: cache/contacts/0 is not to be stopped any more: somebody has resumed or dropped "
    )


def test_what_a_later_version_says_of_a_flow_stays_when_this_one_says_something(cache: Cluster) -> None:
    cache.coordination.create({"shards": {"0": {"later": 7}}, "more": 1}, *FLOW.controls_place)
    stop(cache, [FLOW, Flow("cache", "contacts", 1)])
    resume(cache, [FLOW, Flow("cache", "contacts", 1)])
    assert cache.coordination.read(*FLOW.controls_place) == {"shards": {"0": {"later": 7}}, "more": 1}


def test_many_who_say_something_at_once_do_not_undo_each_other(cache: Cluster) -> None:
    cache.create_stream("wide", 40, f"delta:{os.getcwd()}/wide")
    cache.create_application("all", ["wide"])
    flows = flows_of(cache, application="all")
    threads = [threading.Thread(target=stop, args=(cache, [flow])) for flow in flows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states(cache)[:40] == ["stopped"] * 40


def test_exactly_the_update_that_is_poison_is_skipped_and_the_flow_goes_on_by_itself(
    cache: Cluster, publisher: Publisher, run: Run
) -> None:
    notes, objects = Notes(), names(cache, 0, 6)
    notes.poison = {objects[3]}
    with cache.stream("contacts").producer() as producer:
        for number, name in enumerate(objects):
            producer.publish(name, number, payload=b'{"n": %d}' % number, attributes={"a\x1b": "b\nc"}).result()
    with cache.subscribe("cache", notes, retries=0, id="one"):
        eventually(lambda: status(cache)[0].state == "failed")
        (failed, _) = status(cache)
        assert failed.failed_at == Position(3)
        assert failed.reason == f"at 3, on_update: ValueError: {objects[3]} is poison"
        with pytest.raises(InvalidOption, match="cache/contacts/0 failed, and is not paused"):
            pause(cache, [FLOW])
        assert run("flows", "skip", "cache/contacts/0").code == 2
        shown = run("flows", "skip", "cache/contacts/0", "--dry-run")
        for told in (objects[3], '{"n": 3}', r"a\x1b=b\nc", "position           3", "is poison"):
            assert told in shown.out
        assert status(cache)[0].state == "failed"
        for position, told in (("99", "there is no update at 99"), ("0.1", "there is no update at 0.1")):
            wrong = run("flows", "skip", "cache/contacts/0", "--position", position, "--dry-run")
            assert (wrong.code, told in wrong.err) == (1, True)
        plan = plan_skip(cache, FLOW)
        done = run("flows", "skip", "cache/contacts/0", "--execute", "--json").json
        assert (done["position"], done["object"], done["payload"]) == (
            3,
            objects[3],
            {"as": "json", "value": {"n": 3}, "truncated": False},
        )
        eventually(lambda: lags(cache)[0] == 0)
        assert sorted(set(notes.of(0))) == [0, 1, 2, 4, 5]
        assert notes.skipped == 1
        assert status(cache)[0].state == "running"
        with pytest.raises(PlanOutdated, match="has acknowledged 3 since"):
            execute_skip(cache, plan)
        with pytest.raises(InvalidOption, match="has acknowledged 3 already"):
            plan_skip(cache, FLOW, Position(3))
        publish(cache, 1, objects=(objects[0],))
        eventually(lambda: lags(cache)[0] == 0)
        assert 6 in notes.of(0), "what comes later is sent as ever"


def test_a_skip_is_of_the_log_in_which_it_was_said_and_leaves_nothing_out_of_one_made_anew(
    cache: Cluster, publisher: Publisher
) -> None:
    notes, objects = Notes(), names(cache, 0, 4)
    publish(cache, 1, objects=tuple(objects))
    with cache.subscribe("cache", notes):
        eventually(lambda: lags(cache)[0] == 0)
        pause(cache, [FLOW])
        publish(cache, 2, objects=tuple(objects))
        assert execute_skip(cache, plan_skip(cache, FLOW, Position(5)))
        definition = cache.stream("contacts").definition
        cache.drop_stream("contacts", purge=True)
        cache.create_stream("contacts", definition.shards, definition.log)
        notes.seen.clear()
        for version in (3, 4):
            publish(cache, version, objects=tuple(objects))
        assert execute_skip(cache, plan_skip(cache, FLOW, Position(2))), "which the flow has not passed in this log"
        resume(cache, [FLOW])
        eventually(lambda: notes.of(0) == [0, 1, 3, 4, 5, 6, 7])


def test_an_update_is_skipped_before_it_is_reached_and_what_was_passed_is_forgotten(
    cache: Cluster, publisher: Publisher
) -> None:
    notes, objects = Notes(), names(cache, 0, 4)
    pause(cache, [FLOW])
    publish(cache, 1, objects=tuple(objects))
    with cache.subscribe("cache", notes):
        for seq in (0, 2):
            assert execute_skip(cache, plan_skip(cache, FLOW, Position(seq)))
        assert not execute_skip(cache, plan_skip(cache, FLOW, Position(2)))
        resume(cache, [FLOW])
        eventually(lambda: lags(cache)[0] == 0)
        assert notes.of(0) == [1, 3]
        assert notes.skipped == 2
    stop(cache, [FLOW])
    eventually(lambda: status(cache)[0].state == "stopped")
    publish(cache, 2, objects=(objects[0],))
    execute_skip(cache, plan_skip(cache, FLOW, Position(4)))
    assert status(cache)[0].control.skip == {Position(4)}


def test_no_more_updates_are_skipped_than_can_be_kept(cache: Cluster) -> None:
    publish(cache, *range(2), objects=tuple(names(cache, 0, 1)))
    full = frozenset(Position(seq) for seq in range(1, MAX_SKIPS + 1))
    say(cache, [FLOW], lambda _, said: FlowControl(skip=full))
    with pytest.raises(InvalidOption, match="skips 100 updates already"):
        execute_skip(cache, plan_skip(cache, FLOW, Position(0)))


def test_what_the_filter_leaves_out_is_not_skipped(cache: Cluster) -> None:
    cache.create_application("some", ["contacts"], filter="colour = red", start="earliest")
    publish(cache, 1, objects=tuple(names(cache, 0, 1)))
    with pytest.raises(InvalidOption, match="leaves the update at 0 out anyway"):
        plan_skip(cache, Flow("some", "contacts", 0), Position(0))


def test_the_history_tells_who_owned_and_who_held_a_flow_and_why_also_when_they_are_gone(
    cache: Cluster, run: Run
) -> None:
    notes, objects = Notes(), names(cache, 0, 1)
    notes.poison = set(objects)
    assert run("flows", "history", "cache/contacts/0", "--json").json == []
    with cache.publisher(name="first", token_interval=0.1):
        publish(cache, 1, objects=tuple(objects))
        with cache.subscribe("cache", notes, retries=0, id="one"):
            eventually(lambda: status(cache)[0].state == "failed")
        eventually(lambda: status(cache)[0].state == "waiting")
        reason = status(cache)[0].reason or ""
        assert reason.startswith("subscriber 'one', which had it since ")
        assert reason.endswith(f"it failed before: at 0, on_update: ValueError: {objects[0]} is poison")
        with cache.publisher(name="second", token_interval=0.1):
            pin(cache, [FLOW], "second")
            eventually(lambda: status(cache)[0].owner == "second")
            with cache.subscribe("cache", Handler(), id="two"):
                eventually(lambda: lags(cache) == [0, 0])
                told = run("flows", "history", "cache/contacts/0", "--json").json
    assert [(one["kind"], one["epoch"], one["publisher"] or one["subscriber"], one["reason"]) for one in told] == [
        ("assigned", 2, "two", None),
        ("owned", 2, "second", "it is pinned here"),
        ("failed", 1, "one", f"at 0, on_update: ValueError: {objects[0]} is poison"),
        ("assigned", 1, "one", None),
        ("owned", 1, "first", "it had no owner before"),
    ]
    assert told[1]["pid"] == os.getpid()
    assert str(os.getpid()) in run("flows", "history", "cache/contacts/0").out
    assert run("flows", "history", "cache/contacts/9").code == 1
    assert run("flows", "history", "nonsense").code == 2


def test_a_flow_that_waits_says_who_left_it_and_when(cache: Cluster) -> None:
    with cache.publisher(token_interval=0.1, patience=0.5):
        with cache.subscribe("cache", Handler(), id="one"):
            eventually(lambda: states(cache) == ["running", "running"])
        eventually(lambda: all(" left at " in (one.reason or "") for one in status(cache)))
        assert states(cache) == ["waiting", "waiting"]
        (left, assigned, owned) = flow_history(cache, FLOW)
        assert [one.kind for one in (left, assigned, owned)] == ["left", "assigned", "owned"]
        assert left.subscriber == "one"
        with cache.subscribe("cache", Handler(), id="two"):
            eventually(lambda: {one.subscriber for one in status(cache)} == {"two"})


def test_the_history_of_a_flow_is_bounded(cache: Cluster) -> None:
    for number in range(12):
        ownership = Ownership(cache.coordination, f"p-{number}")
        wanted = Wanted(FLOW, lambda before: before or START, why=lambda before: f"after {before}")
        (taken,) = ownership.take([wanted], {})
        assert taken is not None
        ownership.release(FLOW, taken.epoch)
    found = flow_history(cache, FLOW)
    assert [one.publisher for one in found] == [f"p-{number}" for number in range(11, 1, -1)]
    assert found[0].reason == "after p-10"
