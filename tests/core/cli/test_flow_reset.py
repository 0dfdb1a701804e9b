"""`tidings flows reset`: where flows go on, planned, executed and read back; and who is not overwritten by it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tests.support.commands import Run, lags, publish
from tidings import Handler
from tidings.cluster import Cluster
from tidings.controls import resume, stop
from tidings.errors import FlowOwned, PlanOutdated
from tidings.flow_reset import ResetTarget, execute_reset, plan_reset
from tidings.flow_status import flows_of, status
from tidings.flows import Flow
from tidings.log_opening import identity_of
from tidings.positions import START, Position, Positions
from tidings.publisher.ownership import Ownership, Wanted
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually
from tidings.updates import Update

FLOW = Flow("cache", "contacts", 0)


@pytest.fixture
def ten(cache: Cluster) -> Cluster:
    """The cluster with ten updates in shard 0, and nobody who owns a flow."""
    alice = next(f"o-{n}" for n in range(100) if cache.stream("contacts").shard_of(f"o-{n}") == 0)
    for version in range(10):
        publish(cache, version, objects=(alice,))
    return cache


def take(cluster: Cluster, name: str = "east") -> int:
    (taken,) = Ownership(cluster.coordination, name).take([Wanted(FLOW, lambda before: before or START)], {"pid": 7})
    assert taken is not None
    return taken.epoch


def stands(cluster: Cluster) -> Position | None:
    marker = status(cluster, shard=0)[0].datamarker
    return marker.position if marker else None


def test_a_flow_is_set_to_each_target_and_shown_before_and_after(ten: Cluster, run: Run) -> None:
    def reset(*target: str) -> tuple[object, object]:
        (one,) = run("flows", "reset", "cache/contacts/0", *target, "--execute", "--json").json
        assert one["error"] is None
        return one["before"], one["after"]

    assert reset("--to-position", "3") == (None, 3)  # nobody has ever owned it
    assert stands(ten) == Position(3)
    assert reset("--shift-by", "4") == (3, 7)
    assert reset("--shift-by", "-2") == (7, 5)
    assert reset("--to-latest") == (5, 9)
    assert reset("--to-earliest") == (9, -1)
    assert reset("--to-current") == (-1, -1)
    assert reset("--to-datetime", "2020-01-01T00:00:00") == (-1, -1)
    assert reset("--to-datetime", dt.datetime.now(dt.UTC).isoformat()) == (-1, 9)
    assert reset("--by-duration", "P1D") == (9, -1)
    assert reset("--shift-by", "100") == (-1, 9)
    header, row = run("flows", "reset", "cache/contacts/0", "--to-position", "2", "--execute").out.splitlines()
    assert header.split() == ["APPLICATION", "STREAM", "SHARD", "BEFORE", "AFTER", "NOTE"]
    assert row.split() == ["cache", "contacts", "0", "9", "2", "7", "updates", "are", "sent", "again"]


def test_a_plan_changes_nothing_and_its_export_is_what_a_file_brings_back(
    ten: Cluster, run: Run, tmp_path: Path
) -> None:
    run("flows", "reset", "--application", "cache", "--to-earliest", "--execute")
    planned = run("flows", "reset", "--application", "cache", "--to-latest", "--dry-run", "--export")
    heads = [one.head for one in status(ten)]
    stream = ten.stream("contacts")
    log = identity_of(stream.log, stream.definition)
    assert planned.out.splitlines() == [
        "application,stream,shard,position,log",
        *(f"cache,contacts,{shard},{head},{log}" for shard, head in enumerate(heads)),
    ]
    assert stands(ten) == START
    (tmp_path / "plan.csv").write_text(planned.out)
    done = run("flows", "reset", "--from-file", "plan.csv", "--execute", "--json").json
    assert [one["after"] for one in done] == [head and head.to_json() for head in heads]
    current = run("flows", "reset", "--application", "cache", "--to-current", "--dry-run", "--export")
    assert current.out == planned.out


def test_what_a_reset_leaves_out_of_a_log_that_was_made_anew_is_said_and_a_plan_of_the_old_one_refused(
    ten: Cluster, run: Run, tmp_path: Path
) -> None:
    run("flows", "reset", "cache/contacts/0", "--to-position", "5", "--execute")
    exported = run("flows", "reset", "cache/contacts/0", "--to-position", "7", "--dry-run", "--export")
    (tmp_path / "plan.csv").write_text(exported.out)
    stream = ten.stream("contacts")
    ten.drop_stream("contacts", purge=True)
    ten.create_stream("contacts", stream.shards, stream.definition.log)
    alice = next(f"o-{n}" for n in range(100) if stream.shard_of(f"o-{n}") == 0)
    for version in range(12):
        publish(ten, version, objects=(alice,))
    old = run("flows", "reset", "--from-file", "plan.csv", "--execute")
    assert (old.code, "in a log that was there before this one" in old.err) == (1, True)
    (one,) = run("flows", "reset", "cache/contacts/0", "--to-position", "7", "--dry-run", "--json").json
    assert one["warnings"] == [
        "its datamarker is of another log, which was there before this one",
        "8 updates are left out",
    ]
    (first,) = run("flows", "reset", "cache/contacts/0", "--to-earliest", "--dry-run", "--json").json
    assert len(first["warnings"]) == 1


def test_what_is_typed_wrong_is_refused_and_told(ten: Cluster, run: Run, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        result = run("flows", "reset", *arguments)
        assert (result.code, result.out) == (2, "")
        return result.err

    flow = "cache/contacts/0"
    assert "say either --dry-run" in refused(flow, "--to-latest")
    assert "say either --dry-run" in refused(flow, "--to-latest", "--dry-run", "--execute")
    assert "by exactly one of" in refused(flow, "--dry-run")
    assert "by exactly one of" in refused(flow, "--dry-run", "--to-latest", "--to-earliest")
    assert "is no time" in refused(flow, "--dry-run", "--to-datetime", "yesterday")
    assert "is no duration" in refused(flow, "--dry-run", "--by-duration", "1h")
    assert "is no number of updates" in refused(flow, "--dry-run", "--shift-by", "some")
    assert "is no position" in refused(flow, "--dry-run", "--to-position", "x")
    assert "name either flows, as in" in refused("--dry-run", "--to-latest")
    assert "take one of them" in refused(flow, "--dry-run", "--to-latest", "--export", "--json")
    file = tmp_path / "plan.csv"
    for text, told in (
        ("cache,contacts,0", "line 1 is no line of a plan"),
        ("cache,contacts,0,1\ncache,contacts,0,2", "line 2 names flow cache/contacts/0 twice"),
        ("", "names no flow"),
    ):
        file.write_text(text)
        assert told in refused("--from-file", "plan.csv", "--dry-run")
    file.write_text("cache,contacts,9,1")
    assert "names the flows" in refused(flow, "--from-file", "plan.csv", "--dry-run")
    assert "has shards 0 to 1, not 9" in run("flows", "reset", "--from-file", "plan.csv", "--dry-run").err
    beyond = run("flows", "reset", flow, "--to-position", "10", "--execute")
    assert (beyond.code, "cannot go on at 10: the log ends at 9" in beyond.err) == (1, True)
    never = run("flows", "reset", flow, "--to-current", "--dry-run")
    assert (never.code, "has no datamarker" in never.err) == (1, True)


def test_the_zone_of_a_time_is_told(ten: Cluster, run: Run) -> None:
    assert "to 2026-01-01T12:00:00+02:00 (UTC+02:00)" in (
        run("flows", "reset", "cache/contacts/0", "--dry-run", "--to-datetime", "2026-01-01T12:00:00+02:00").err
    )
    assert "to 2026-01-01T12:00:00+00:00 (UTC)" in (
        run("flows", "reset", "cache/contacts/0", "--dry-run", "--to-datetime", "2026-01-01T12:00:00").err
    )


def test_what_the_log_does_not_hold_any_more_is_told_before_it_is_done(ten: Cluster, run: Run) -> None:
    ten.stream("contacts").writable_log.truncate(Positions({0: Position(5)}))
    (planned,) = run("flows", "reset", "cache/contacts/0", "--to-position", "1", "--dry-run", "--json").json
    assert planned["warnings"] == ["what comes after 1 up to 4 is not held any more: it hears on_data_loss"]
    (earliest,) = run("flows", "reset", "cache/contacts/0", "--to-earliest", "--dry-run", "--json").json
    assert (earliest["after"], earliest["warnings"]) == (4, [])


def test_a_flow_that_is_owned_is_not_reset_and_it_is_said_by_whom(ten: Cluster, publisher: Publisher, run: Run) -> None:
    with ten.subscribe("cache", Handler(), id="one"):
        eventually(lambda: lags(ten) == [0, 0] and {one.subscriber for one in status(ten)} == {"one"})
        planned = run("flows", "reset", "cache/contacts/0", "--to-earliest", "--dry-run")
        assert (planned.code, "--execute is refused until it is stopped" in planned.err) == (0, True)
        refused = run("flows", "reset", "--application", "cache", "--to-earliest", "--execute")
        assert (refused.code, refused.out) == (1, "")
        assert "is owned by publisher 'here' (host " in refused.err
        assert ", for subscriber 'one' (the first of 2 that are owned): stop it first" in refused.err
    assert stands(ten) == Position(9)


def test_a_plan_is_refused_once_the_flow_was_taken_or_acknowledged(ten: Cluster) -> None:
    ownership = Ownership(ten.coordination, "east")
    target = ResetTarget.parse("position", "4")
    untaken = plan_reset(ten, [FLOW], target)
    epoch = take(ten)
    with pytest.raises(FlowOwned, match=r"publisher 'east' \(pid 7\)"):
        execute_reset(ten, untaken)
    ownership.release(FLOW, epoch)
    with pytest.raises(PlanOutdated, match="make it again"):
        execute_reset(ten, untaken)
    (done,) = execute_reset(ten, plan_reset(ten, [FLOW], target))
    assert (done.before, done.after, done.error) == (START, Position(4), None)
    old = plan_reset(ten, [FLOW], target)
    execute_reset(ten, plan_reset(ten, [FLOW], ResetTarget.parse("earliest")))
    with pytest.raises(PlanOutdated):
        execute_reset(ten, old)
    assert stands(ten) == START


@pytest.mark.parametrize("owned_before", [True, False])
def test_a_take_and_a_reset_at_one_moment_do_not_overwrite_each_other(
    ten: Cluster, monkeypatch: pytest.MonkeyPatch, owned_before: bool
) -> None:
    """Whoever comes first, the other does nothing, and finds what is there when it tries again."""
    ownership = Ownership(ten.coordination, "east")
    if owned_before:
        ownership.release(FLOW, take(ten))
    plan = plan_reset(ten, [FLOW], ResetTarget.parse("position", "4"))

    def reset_meanwhile(before: Position | None) -> Position:
        """The datamarker is read by now, and the transaction not begun."""
        (done,) = execute_reset(ten, plan)
        assert done.error is None
        return before or START

    assert ownership.take([Wanted(FLOW, reset_meanwhile)], {}) == [None]
    (taken,) = ownership.take([Wanted(FLOW, lambda before: before or START)], {})
    assert taken is not None
    assert taken.position == Position(4)
    ownership.release(FLOW, taken.epoch)
    late = plan_reset(ten, [FLOW], ResetTarget.parse("earliest"))
    monkeypatch.setattr("tidings.flow_reset.check_plan", lambda *_: take(ten))  # just after it was looked at
    (done,) = execute_reset(ten, late)
    assert done.error == "it was taken or acknowledged at that moment, and is left alone"
    assert stands(ten) == Position(4)


def test_flows_that_are_reset_get_their_updates_again_from_there_and_no_others(
    ten: Cluster, publisher: Publisher
) -> None:
    seen: list[int] = []

    class Notes(Handler):
        def on_update(self, update: Update) -> None:
            if update.shard == 0:
                seen.append(update.seq)

    flows = flows_of(ten, application="cache")
    with ten.subscribe("cache", Notes()):
        eventually(lambda: lags(ten) == [0, 0])
        for target, expected in (("6", [7, 8, 9]), ("-1", list(range(10)))):
            stop(ten, flows)
            eventually(lambda: {one.state for one in status(ten)} == {"stopped"})
            seen.clear()
            execute_reset(ten, plan_reset(ten, [FLOW], ResetTarget.parse("position", target)))
            resume(ten, flows)
            eventually(lambda: lags(ten) == [0, 0] and seen == expected)  # noqa: B023


def test_a_realtime_application_without_an_age_is_not_reset(ten: Cluster, run: Run) -> None:
    ten.create_application("live", ["contacts"], mode="realtime")
    refused = run("flows", "reset", "live/contacts/0", "--to-earliest", "--execute")
    assert (refused.code, "begins at the head whatever its datamarkers say" in refused.err) == (1, True)
