from __future__ import annotations

import dataclasses
import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.scene import STREAM, Scene
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.flow_status import status
from tidings.positions import Position, Positions
from tidings.testing import eventually

SHARDS = 4


def odd(row: dict[str, Any]) -> bool:
    return bool(row["attributes"]["parity"] == "odd")


def even(row: dict[str, Any]) -> bool:
    return not odd(row)


@pytest.mark.slow
def test_an_application_that_is_added_while_all_runs_is_served_from_its_start(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"), scene.load():
        eventually(lambda: scene.delivered("r1") > 100)
        scene.cluster.create_application("late", [STREAM], start="earliest", filter="parity = odd")
        scene.cluster.create_application("later", [STREAM], start="latest")
        with scene.subscriber("late", "late"), scene.subscriber("later", "later"):
            eventually(lambda: scene.delivered("late") > 100)
            eventually(lambda: scene.delivered("later") > 100)
            first = {shard: min(seq for at, seq in scene.record("later").seen() if at == shard) for shard in range(4)}
            assert all(seq > 0 for seq in first.values())
    with scene.subscriber("cache", "r2"), scene.subscriber("late", "late-too"):
        scene.finish("r1", "r2")
        scene.finish("late", "late-too", passes=odd)


@pytest.mark.slow
def test_a_filter_that_is_changed_applies_to_what_comes_next(scene: Scene) -> None:
    scene.prepare(SHARDS, filter="parity = odd")
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"):
        scene.publish(0, 200)
        scene.finish("r1", passes=odd)
        changed = dataclasses.replace(scene.cluster.application("cache"), filter="parity = even")
        scene.cluster.coordination.write(changed.to_json(), "applications", "cache")
        probe = 1000

        def noticed() -> bool:
            nonlocal probe
            scene.publish(probe, 20)
            probe += 20
            return any(int(version) >= 1000 and int(version) % 2 == 0 for *_, version in scene.record("r1").rows)

        eventually(noticed, timeout=10, every=0.2)
        scene.publish(5000, 200)
        scene.publish(6000, 200)
        eventually(lambda: sum(int(version) >= 5000 for *_, version in scene.record("r1").rows) >= 200)
    late = {int(version) for *_, version in scene.record("r1").rows if int(version) >= 5000}
    assert late == {n for first in (5000, 6000) for n in range(first, first + 200, 2)}


@pytest.mark.slow
def test_filters_may_change_at_any_time_and_nothing_that_all_of_them_want_is_missed(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.cluster.create_application("steady", [STREAM], start="earliest")
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"), scene.subscriber("steady", "r2"):
        with scene.load(rows=5, every=0.01):
            for number in range(40):
                text = f"parity = odd or object = never-{number}"
                changed = dataclasses.replace(scene.cluster.application("cache"), filter=text)
                scene.cluster.coordination.write(changed.to_json(), "applications", "cache")
                before = scene.delivered("r2")
                eventually(lambda: scene.delivered("r2") > before + 10)  # noqa: B023
        scene.finish("r2")
        wanted = {(row["shard"], row["seq"]) for row in scene.published().to_pylist() if row["version"] % 2}
        eventually(lambda: wanted <= scene.record("r1").seen())


@pytest.mark.slow
def test_flows_of_an_application_that_is_dropped_end_and_it_can_be_made_again(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.publisher("p1")
    scene.publisher("p2")
    with scene.load(), scene.subscriber("cache", "r1") as subscriber:
        eventually(lambda: scene.delivered("r1") > 100)
        for _ in range(5):
            scene.cluster.drop_application("cache")
            eventually(lambda: not subscriber.flows)
            eventually(lambda: scene.children("flows") == [])
            assert scene.cluster.applications() == []
            again = len(scene.record("r1").rows)
            # It starts from the beginning, since nothing is left of the one before.
            scene.cluster.create_application("cache", [STREAM], start="earliest")

            def first(again: int = again) -> dict[int, int]:
                return {shard: seq for shard, seq, *_ in reversed(scene.record("r1").rows[again:])}

            eventually(lambda: len(first()) == SHARDS)
            assert first() == dict.fromkeys(range(SHARDS), 0)
    assert len(scene.record("r1").events("closed")) == len(scene.record("r1").events("notice"))


@pytest.mark.slow
def test_what_was_truncated_after_the_datamarker_is_reported_exactly_and_the_flow_goes_on(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"):
        scene.publish(0, 100)
        scene.finish("r1")
        heads = [bounds.head.seq for bounds in scene.stream.log.bounds().values()]
        eventually(lambda: scene.markers("cache", SHARDS) == heads)
    marked = scene.markers("cache", SHARDS)
    for first in range(100, 400, 50):
        scene.publish(first, 50)
    before = scene.published()
    cut = Positions({shard: Position(marker + 60) for shard, marker in enumerate(marked)})
    floors = [bounds.floor.seq for bounds in scene.stream.writable_log.truncate(cut).values()]
    assert all(floor > marker for floor, marker in zip(floors, marked, strict=True))
    with scene.subscriber("cache", "r2"):
        scene.finish("r1", "r2", published=before)
        told = {event.shard: event.numbers for event in scene.record("r2").events("loss")}
        assert told == {shard: (marked[shard] + 1, floors[shard]) for shard in range(SHARDS)}
        shown = {one.flow.shard: (one.state, one.reason) for one in status(scene.cluster)}
        assert shown == {
            shard: ("running", f"{marked[shard] + 1} to {floors[shard]} were lost") for shard in range(SHARDS)
        }
        scene.publish(400, 50)
        after = pa.concat_tables([before, scene.published()])
        table = after.group_by(["shard", "seq", "object", "version"]).aggregate([])
        scene.finish("r1", "r2", published=with_attributes(table))


def with_attributes(table: pa.Table) -> pa.Table:
    """The columns that the invariants look at, for rows that were held at one time or another."""
    return table.append_column("attributes", pa.nulls(len(table), pa.map_(pa.string(), pa.string())))


@pytest.mark.slow
def test_applications_with_different_filters_each_get_theirs_from_one_read(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.cluster.create_application("odd", [STREAM], start="earliest", filter="parity = odd")
    scene.cluster.create_application("some", [STREAM], start="earliest", filter="version in 0..150 or shard = 3")
    scene.publisher("p1")
    with scene.subscriber("cache", "all"), scene.subscriber("odd", "odd"), scene.subscriber("some", "some"):
        with scene.load(rows=30):
            eventually(lambda: scene.delivered("all") > 1000)
        scene.finish("all")
        scene.finish("odd", passes=odd)
        scene.finish("some", passes=lambda row: row["version"] <= 150 or row["shard"] == 3)


def test_a_realtime_application_skips_what_is_too_old_and_is_told_how_much(scene: Scene) -> None:
    scene.prepare(SHARDS, mode="realtime", max_age=60, filter="parity = even")
    scene.publish(0, 100)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"):
        # It begins at the head: nothing of what is there already.
        eventually(lambda: len(scene.record("r1").events("notice")) == SHARDS)
        old = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        scene.publish(1000, 100)
        scene.publish(2000, 100, time=old)
        scene.publish(3000, 100)
        eventually(lambda: scene.delivered("r1") >= 100)
        eventually(lambda: sum(event.numbers[0] for event in scene.record("r1").events("skipped")) >= 50)
        scene.publish(4000, 100, time=old)
        eventually(lambda: sum(event.numbers[0] for event in scene.record("r1").events("skipped")) >= 100)
    record = scene.record("r1")
    expected = {n for first in (1000, 3000) for n in range(first, first + 100, 2)}
    assert {int(version) for *_, version in record.rows} == expected
    assert sum(event.numbers[0] for event in record.events("skipped")) == 100


def test_an_application_may_start_at_named_positions(scene: Scene) -> None:
    scene.prepare(2, start={STREAM: {"0": 7}})
    scene.publish(0, 100)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"):
        expected = {(r["shard"], r["seq"]) for r in scene.published().to_pylist() if r["shard"] or r["seq"] >= 7}
        eventually(lambda: scene.record("r1").seen() >= expected)
        assert scene.record("r1").seen() == expected


def test_a_stream_whose_log_is_gone_does_not_keep_the_flows_of_others_waiting(scene: Scene, tmp_path: Path) -> None:
    scene.prepare(2)
    scene.cluster.create_stream("broken", 2)
    shutil.rmtree(tmp_path / "streams" / "broken")
    scene.cluster.create_application("another", ["broken", STREAM], start="earliest")
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"), scene.subscriber("another", "r2"):
        scene.publish(0, 100)
        scene.finish("r1")
        scene.finish("r2")


@pytest.mark.slow
def test_a_stream_that_is_dropped_and_made_anew_elsewhere_is_served_from_there(scene: Scene, tmp_path: Path) -> None:
    scene.prepare(SHARDS)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1"):
        scene.publish(0, 100)
        scene.finish("r1")
    scene.cluster.drop_application("cache")
    scene.cluster.drop_stream(STREAM)
    scene.stream = scene.cluster.create_stream(STREAM, SHARDS, f"delta:{tmp_path / 'elsewhere'}")
    scene.cluster.create_application("cache", [STREAM], start="earliest")
    with scene.subscriber("cache", "r2"):
        scene.publish(1000, 100)
        scene.finish("r2")


@pytest.mark.slow
def test_a_flow_whose_log_was_restored_from_an_older_copy_is_parked_where_operators_see_it(
    scene: Scene, tmp_path: Path
) -> None:
    scene.prepare(1)
    shutil.copytree(scene.folder / "streams" / STREAM, tmp_path / "copy")
    with scene.subscriber("cache", "r1"):
        with Cluster(Coordination(scene.address, session_timeout=2)) as own, own.publisher(token_interval=0.2):
            scene.publish(0, 100)
            eventually(lambda: scene.markers("cache", 1) == [99])
        shutil.rmtree(scene.folder / "streams" / STREAM)
        shutil.copytree(tmp_path / "copy", scene.folder / "streams" / STREAM)
        scene.publisher("p2")
        found = eventually(lambda: [one for one in status(scene.cluster) if one.state == "failed"])
        assert "made anew or restored" in (found[0].reason or "")
        assert scene.markers("cache", 1) == [99]


@pytest.mark.slow
def test_a_realtime_application_is_told_how_much_passed_while_nobody_sent(scene: Scene) -> None:
    scene.prepare(1, mode="realtime", start="latest")
    with scene.subscriber("cache", "r1"):
        with Cluster(Coordination(scene.address, session_timeout=2)) as own, own.publisher(token_interval=0.2):
            eventually(lambda: scene.record("r1").events("notice"))
            scene.publish(0, 10)
            eventually(lambda: scene.markers("cache", 1) == [9])
        scene.publish(10, 25)
        scene.publisher("p2")
        eventually(lambda: scene.record("r1").events("skipped"))
        scene.publish(35, 5)
        eventually(lambda: {seq for _, seq in scene.record("r1").seen()} == {*range(10), *range(35, 40)})
    assert [event.numbers for event in scene.record("r1").events("skipped")] == [(25,)]
