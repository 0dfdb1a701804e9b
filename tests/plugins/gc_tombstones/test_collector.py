"""The collector on a real log, beside a model that looks at all updates each time."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidings.errors import InvalidFilter, InvalidOption, PluginBroken
from tidings.filters import Filter
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held
from tidings.updates import TOMBSTONE, from_rows, timed
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones import collector, policies
from tidings_gc_tombstones.collector import APPLICATION, Collector
from tidings_gc_tombstones.events import gc_events
from tidings_gc_tombstones.index import KeyPlaces

LATEST: dict[str, Any] = {"latest_per_key": True}
SHARDS = 2

Row = dict[str, Any]


class Scene:
    """A stream, its collector, and all that was ever published."""

    def __init__(self, folder: Path) -> None:
        self.stream = StreamDefinition("contacts", SHARDS, f"delta:{folder / 'contacts'}", collect=LATEST)
        self.log = DeltaLog.create(str(folder / "contacts"), self.stream)
        self.published: dict[tuple[int, int], Row] = {}

    def collected_by(self, **policies: Any) -> Scene:
        self.stream = replace(self.stream, collect=policies)
        return self

    def publish(self, *rows: Row) -> None:
        table = timed(from_rows(rows))
        appended = self.log.append(table)
        assert appended is not None
        places = zip(appended.shards.tolist(), appended.seqs.tolist(), strict=True)
        for place, row in zip(places, table.to_pylist(maps_as_pydicts="lossy"), strict=True):
            self.published[place] = row

    def collect(self, spark: SparkSession | None = None, **options: Any) -> list[str]:
        """Collect all that is obsolete; the gc events that were refused."""
        with Collector(self.stream, self.log, **options) as collecting:
            steps = collecting.run((lambda: spark) if spark else None)
            return [one.reason for step in steps for one in step.refused]

    def held(self) -> set[tuple[int, int]]:
        """Which updates are there."""
        check_log(self.log, SHARDS)
        rows = held(self.log).to_pylist()
        return {(row["shard"], row["seq"]) for row in rows if row["kind"] != TOMBSTONE}

    def objects(self) -> list[str]:
        """The objects whose updates are there, one for each update."""
        return sorted(self.published[place]["object"] for place in self.held())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with contextlib.closing(scene.log):
        yield scene


def some(count: int, seed: int, objects: int = 20) -> list[Row]:
    rng = random.Random(seed)
    return [{"object": f"o{rng.randrange(objects)}", "version": number} for number in range(count)]


def latest(scene: Scene) -> set[tuple[int, int]]:
    newest = {(shard, row["object"]): seq for (shard, seq), row in sorted(scene.published.items())}
    return {(shard, seq) for (shard, _), seq in newest.items()}


def test_of_each_object_the_latest_update_is_left_whatever_is_collected_in_between(scene: Scene) -> None:
    for seed in range(6):
        scene.publish(*some(200, seed))
        scene.collect()
        assert scene.held() == latest(scene)
        if seed % 2:
            scene.log.compact()
            assert scene.held() == latest(scene)


def test_keys_with_one_hash_are_not_taken_for_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = classmethod(lambda cls, shard, seq, key: cls(shard, seq, key, np.zeros(len(seq), np.int64)))
    monkeypatch.setattr(KeyPlaces, "at", alike)
    for seed in range(4):
        scene.publish(*some(100, seed))
        scene.collect()
        assert latest(scene) <= scene.held()


def test_a_step_is_bounded_in_bytes_and_nothing_is_left_out(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "STEP_BYTES", 100_000)
    for seed in range(4):
        scene.publish(*({**row, "attributes": {"note": "x" * 5_000}} for row in some(100, seed)))
    with Collector(scene.stream, scene.log) as collecting:
        assert len(list(collecting.run())) > 3
    assert scene.held() == latest(scene)


def test_a_collection_without_anything_new_collects_nothing(scene: Scene) -> None:
    scene.publish(*some(100, 1))
    scene.collect()
    with Collector(scene.stream, scene.log) as collecting:
        steps = list(collecting.run())
    assert [(len(step.gone), step.read_rows) for step in steps] == [(0, 0)]


def test_the_key_is_what_the_policy_names_and_who_has_none_stays(scene: Scene) -> None:
    scene.collected_by(latest_per_key={"key": ["attributes.user"]})
    users = ["ann", "bob", None]
    scene.publish(
        *({"object": "x", "version": n, "attributes": {"user": u} if u else {}} for n in range(10) for u in users)
    )
    scene.collect()
    left = [(scene.published[place]["attributes"] or {}).get("user") for place in scene.held()]
    assert sorted(left, key=str) == [None] * 10 + ["ann", "bob"]


def test_a_delete_collects_the_updates_of_its_object_and_stays(scene: Scene) -> None:
    scene.collected_by(temporary_keys=True)
    scene.publish(*({"object": name, "version": n} for n in range(5) for name in ("a", "b")))
    scene.collect()
    assert scene.objects() == ["a"] * 5 + ["b"] * 5
    scene.publish({"object": "a", "kind": "gc"}, {"object": "b", "version": 9})
    scene.collect()
    assert scene.objects() == ["a"] + ["b"] * 6
    scene.publish({"object": "a", "version": 10})
    scene.collect()
    assert scene.objects() == ["a"] * 2 + ["b"] * 6


def test_so_many_of_the_newest_positions_of_a_shard_stay(scene: Scene) -> None:
    scene.collected_by(keep_last=7)
    for seed in range(3):
        scene.publish(*some(50, seed))
        scene.collect()
    heads = {shard: bounds.head.seq for shard, bounds in scene.log.bounds().items()}
    assert scene.held() == {(shard, seq) for shard, head in heads.items() for seq in range(head - 6, head + 1)}


def test_what_is_older_is_collected_up_to_the_first_that_is_not_and_the_newest_stays(scene: Scene) -> None:
    scene.collected_by(max_age="P7D")
    now = dt.datetime(2031, 5, 20, tzinfo=dt.UTC)
    ages = [30, 20, 3, 40, 10]
    for age in ages:
        scene.publish(*({"object": name, "time": now - dt.timedelta(days=age)} for name in ("a", "b", "c")))
    scene.collect(clock=now.timestamp)
    left = sorted((now - row["time"]).days for place, row in scene.published.items() if place in scene.held())
    assert left == [3] * 3 + [10] * 3 + [40] * 3
    scene.collect(clock=lambda: now.timestamp() + 365 * 86400)
    assert len(scene.held()) == SHARDS


def test_the_newest_of_a_shard_stays_only_until_there_is_a_newer_one(scene: Scene) -> None:
    scene.collected_by(max_age="P7D")
    now = dt.datetime(2031, 5, 20, tzinfo=dt.UTC)
    for _ in range(3):
        scene.publish(*({"object": f"o{n}", "time": now - dt.timedelta(days=30)} for n in range(20)))
        scene.collect(clock=now.timestamp)
        assert len(scene.held()) == SHARDS


def test_what_was_collected_is_not_counted_again_by_a_policy_that_comes_later(scene: Scene) -> None:
    scene.publish(*some(200, 1))
    scene.collect()
    left = len(scene.held())
    scene.collected_by(latest_per_key=True, keep_last=2)
    with Collector(scene.stream, scene.log) as collecting:
        gone = sum(step.gone.count for step in collecting.run())
    assert gone == left - len(scene.held()) > 0


@pytest.mark.parametrize(
    ("policies", "predicates"),
    [
        ({"latest_per_key": True, "events": True}, ["object in (o1, o2)", "object matches 'o[3-5]'"]),
        ({"events": True}, ["version < 20", "object in (o1, o2)", "version < 150", "object in (o1, o2, o3)"]),
        ({"latest_per_key": True, "keep_last": 9, "events": True}, ["object in (o1, o2)"]),
    ],
    ids=["latest", "events", "three"],
)
def test_each_update_is_counted_once_whoever_collects_it(
    scene: Scene, policies: dict[str, Any], predicates: list[str]
) -> None:
    scene.collected_by(**policies)
    scene.publish(*some(200, 1))
    told = 0
    for predicate in [*predicates, *predicates]:
        scene.publish(*gc_events(scene.stream, scene.log, predicate).to_pylist(maps_as_pydicts="lossy"))
        scene.publish(*some(30, 2))
        with Collector(scene.stream, scene.log) as collecting:
            told += sum(step.gone.count for step in collecting.run())
        scene.log.compact()
        assert told == len(scene.published) - len(scene.held())
        sizes = scene.log.sizes()
        assert (sizes.updates, sizes.collected) == (len(scene.held()), told)


def test_a_gc_event_collects_what_it_matches_before_it_and_nothing_after_it(scene: Scene) -> None:
    scene.collected_by(events=True)
    scene.publish(*({"object": name, "version": n} for n in range(3) for name in ("tmp/1", "tmp/2", "kept")))
    scene.publish(*gc_events(scene.stream, scene.log, "object matches 'tmp/.*'").to_pylist(maps_as_pydicts="lossy"))
    scene.publish({"object": "tmp/1", "version": 7})
    assert scene.collect() == []
    assert [name for name in scene.objects() if not name.startswith("gc/")] == ["kept"] * 3 + ["tmp/1"]


def test_a_gc_event_that_names_objects_finds_them_by_the_index(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.collected_by(events=True)
    scene.publish(*({"object": f"o{n}", "version": v} for v in range(3) for n in range(50)))
    scene.collect()
    events = gc_events(scene.stream, scene.log, "object in (o1, o7)").to_pylist(maps_as_pydicts="lossy")
    monkeypatch.setattr(DeltaLog, "find", lambda *_: pytest.fail("the history is scanned"))
    scene.publish(*events)
    scene.collect()
    left = scene.objects()
    assert {"o1", "o7"}.isdisjoint(left)
    assert len(left) == 48 * 3 + SHARDS


@pytest.mark.parametrize(
    ("policies", "predicate", "reason"),
    [
        ({"latest_per_key": True}, "object = a", "add the policy `events`"),
        ({"events": True}, "object =", "expected a value"),
        ({"events": True}, " or ".join(f"object matches 'a{n}.*'" for n in range(7)), "costs 70; the limit is 64"),
        ({"events": True, "latest_per_key": True}, "version < 3", "speaks of object and of seq"),
        ({"events": True}, "kind = gc", "not clear that it matches all"),
    ],
)
def test_a_predicate_that_cannot_be_is_refused_with_a_reason_and_nothing_is_published(
    scene: Scene, policies: dict[str, Any], predicate: str, reason: str
) -> None:
    scene.collected_by(events=True)
    scene.publish(*gc_events(scene.stream, scene.log, "object = z").to_pylist(maps_as_pydicts="lossy"))
    scene.collected_by(**policies)
    with pytest.raises((InvalidFilter, InvalidOption), match=reason):
        gc_events(scene.stream, scene.log, predicate)


def test_a_gc_event_that_was_published_all_the_same_collects_nothing_and_is_named(scene: Scene) -> None:
    scene.collected_by(events=True)
    scene.publish({"object": "a"}, {"object": "b"})
    for text in ("object =", "object = nobody"):
        scene.publish({"object": "gc/0", "kind": "gc", "attributes": {"collects": text}})
    scene.publish({"object": "gc/0", "kind": "gc", "attributes": {"collects": "kind = gc"}})
    before = scene.held()
    assert len(refused := scene.collect()) == 2
    assert "expected a value" in refused[0]
    assert "not clear that it matches all" in refused[1]
    assert scene.held() == before


def test_what_a_flow_has_not_passed_is_protected(scene: Scene) -> None:
    scene.collected_by(latest_per_key=True, protect_flows=True)
    scene.publish(*some(100, 1))
    passed = Positions({shard: Position(20) for shard in range(SHARDS)})
    scene.collect(passed=lambda: passed)
    assert all((shard, seq) in scene.held() for shard, seq in scene.published if seq > 20)
    assert len(scene.held()) < len(scene.published)
    scene.collect(passed=lambda: Positions({}))
    assert scene.held() == latest(scene)


def test_an_index_that_was_lost_or_is_of_another_key_is_made_anew(scene: Scene) -> None:
    scene.collected_by(latest_per_key={"key": ["object", "source"]})
    scene.publish(*({**row, "source": "app"} for row in some(100, 3)))
    scene.collect()
    for path in scene.log.collection_folder.iterdir():
        path.unlink()
    scene.publish(*({**row, "source": "app"} for row in some(100, 4)), *some(100, 5))
    scene.collect()
    assert len(scene.held()) > len(latest(scene))
    scene.collected_by(**LATEST)
    scene.collect()
    assert scene.held() == latest(scene)


def test_an_index_that_has_seen_more_than_the_log_is_made_anew(scene: Scene, tmp_path: Path) -> None:
    import shutil

    scene.publish(*some(50, 1))
    scene.collect()
    shutil.copytree(scene.log.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("_collection"))
    scene.publish(*some(50, 2))
    scene.collect()
    copied = tmp_path / "index"
    shutil.copytree(scene.log.collection_folder, copied)
    scene.log.destroy()
    shutil.copytree(tmp_path / "copy", scene.log.folder)
    shutil.copytree(copied, scene.log.collection_folder)
    scene.log = DeltaLog.open(str(scene.log.folder), scene.stream)
    scene.published = {
        (row["shard"], row["seq"]): row for row in held(scene.log).to_pylist() if row["kind"] != TOMBSTONE
    }
    scene.publish(*({"object": f"new-{n}"} for n in range(200)), *some(10, 3))
    scene.collect()
    assert scene.held() == latest(scene)


@pytest.mark.parametrize("died", ["before", "after"])
def test_a_collector_that_dies_around_its_commit_leaves_nothing_undone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    scene.publish(*some(100, 1))
    scene.collect()
    scene.publish(*some(100, 2))
    real = DeltaLog.collect

    def dying(self: DeltaLog, *arguments: Any) -> None:
        if died == "after":
            real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "collect", dying)
        with pytest.raises(KeyboardInterrupt):
            scene.collect()
    number = scene.log.last_transaction(APPLICATION)
    scene.publish(*some(100, 3))
    scene.collect()
    assert scene.log.last_transaction(APPLICATION) != number
    assert scene.held() == latest(scene)


@pytest.mark.parametrize(
    "policies",
    [
        {"latest_per_key": True},
        {"latest_per_key": {"key": ["object", "attributes.user"]}, "keep_last": 150},
        {"temporary_keys": {"deletes": "op = d"}, "events": True},
    ],
    ids=["latest", "key", "deletes"],
)
def test_spark_finds_the_same_in_a_history_as_step_after_step_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: dict[str, Any]
) -> None:
    scenes = [Scene(tmp_path / name).collected_by(**policies) for name in ("spark", "steps")]
    rng = random.Random(3)
    rows: list[Row] = [
        {**row, "attributes": {"op": rng.choice("cud"), "user": rng.choice(["ann", "a", "nn"])}}
        for row in some(500, 1, objects=30)
    ]
    rows[7]["attributes"] = rows[9]["attributes"] = {}
    for one in scenes:
        one.publish(*rows[:250])
        if "events" in policies:
            one.publish(*gc_events(one.stream, one.log, "object in (o1, o2)").to_pylist(maps_as_pydicts="lossy"))
        one.publish(*rows[250:])
    monkeypatch.setattr(collector, "HISTORY_ROWS", 1)
    with Collector(scenes[0].stream, scenes[0].log) as collecting:
        assert collecting.plan(lambda: spark).gone == collecting.plan().gone
    assert scenes[0].collect(spark=spark) == scenes[1].collect() == []
    assert scenes[0].held() == scenes[1].held()
    assert len(scenes[0].held()) < 400
    for one in scenes:
        one.publish(*rows[:100])
    with Collector(scenes[0].stream, scenes[0].log) as collecting:
        assert collecting.plan(lambda: spark).gone == collecting.plan().gone
    for one in scenes:  # the index is the same, too
        one.collect()
    assert scenes[0].held() == scenes[1].held()
    for one in scenes:
        one.log.close()


def test_a_policy_that_comes_later_collects_what_was_there_before_it(scene: Scene) -> None:
    scene.collected_by(temporary_keys=True)
    scene.publish(*some(200, 1))
    scene.collect()
    assert len(scene.held()) == 200
    scene.collected_by(latest_per_key=True)
    scene.collect()
    assert scene.held() == latest(scene)


def test_a_gc_event_that_had_no_effect_has_it_once_the_stream_takes_gc_events(scene: Scene) -> None:
    scene.collected_by(events=True)
    scene.publish(*some(100, 1))
    scene.publish(*gc_events(scene.stream, scene.log, "object = o1").to_pylist(maps_as_pydicts="lossy"))
    scene.collected_by(keep_last=1000)
    scene.collect()
    assert "o1" in scene.objects()
    scene.collected_by(events=True)
    scene.collect()
    assert "o1" not in scene.objects()


def test_another_key_is_refused_once_updates_have_collected_others(scene: Scene) -> None:
    def rows(*clients: str) -> list[Row]:
        return [{"object": "a", "attributes": {"client": client}} for client in clients]

    scene.publish(*rows("x", "y"))
    scene.collect()
    scene.collected_by(latest_per_key={"key": ["attributes.client"]})
    scene.publish({"object": "b", "attributes": {"client": "y"}})
    with pytest.raises(InvalidOption, match=r"was collected by the key object, and cannot be by attributes\.client"):
        scene.collect()
    scene.collected_by(events=True)
    scene.publish(*gc_events(scene.stream, scene.log, "client = y").to_pylist(maps_as_pydicts="lossy"))
    assert all("speaks of object and of seq" in reason for reason in scene.collect())
    assert scene.objects().count("a") == 1
    scene.collected_by(latest_per_key=True)
    scene.collect()
    assert scene.objects().count("a") == 1


def test_an_index_that_is_damaged_is_made_anew_by_a_run_and_passed_over_by_a_plan(scene: Scene) -> None:
    scene.publish(*some(300, 1))
    scene.collect()
    for run in scene.log.collection_folder.glob("*.arrow"):
        content = bytearray(run.read_bytes())
        content[len(content) // 2] ^= 1
        run.write_bytes(content)
    scene.publish(*some(50, 2))
    with Collector(scene.stream, scene.log) as collecting:
        planned = collecting.plan().gone.count
    before = len(scene.held())
    scene.collect()
    assert scene.held() == latest(scene)
    assert planned == before - len(scene.held())


def test_many_gc_events_are_several_commits_and_few_scans(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.collected_by(events=True)
    scene.publish(*some(100, 1))
    scene.collect()
    for n in range(150):
        scene.publish({"object": "gc/0", "kind": "gc", "attributes": {"collects": f"version = {n} and kind = data"}})
    real, scans = DeltaLog.find, list[int]()

    def find(log: DeltaLog, *wanted: Filter) -> Iterator[pa.Table]:
        scans.append(len(wanted))
        return real(log, *wanted)

    monkeypatch.setattr(DeltaLog, "find", find)
    with Collector(scene.stream, scene.log) as collecting:
        steps = [step.gone.count for step in collecting.run()]
    assert len(steps) == 3
    assert scans == [64, 64, 22]
    assert steps[0] > 0
    shard = next(place[0] for place, row in scene.published.items() if row["object"] == "gc/0")
    assert all(place[0] != shard or scene.published[place]["object"] == "gc/0" for place in scene.held())


def test_gc_events_that_name_objects_need_no_scan_in_the_first_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.collected_by(events=True)
    scene.publish(*some(100, 1))
    scene.publish(*gc_events(scene.stream, scene.log, "object in (o1, o2)").to_pylist(maps_as_pydicts="lossy"))
    scene.publish({"object": "o1", "version": 1000})
    monkeypatch.setattr(DeltaLog, "find", lambda *_: pytest.fail("the history is scanned"))
    scene.collect()
    assert scene.objects().count("o1") == 1
    assert "o2" not in scene.objects()


def test_what_others_collect_in_a_step_does_not_keep_what_is_old(scene: Scene) -> None:
    scene.collected_by(latest_per_key=True, max_age="P7D")
    now = dt.datetime(2031, 5, 20, tzinfo=dt.UTC)
    old = now - dt.timedelta(days=30)
    for name, time in [("a", now), ("b", old), ("c", old), ("a", now), ("d", now)]:
        scene.publish({"object": name, "time": time})
    scene.collect(clock=now.timestamp)
    left = scene.held()
    scene.collect(clock=now.timestamp)
    assert scene.held() == left


def test_a_run_with_nothing_to_do_commits_nothing(scene: Scene) -> None:
    scene.publish(*some(100, 1))
    scene.collect()
    number = scene.log.last_transaction(APPLICATION)
    scene.collect()
    assert scene.log.last_transaction(APPLICATION) == number


@pytest.mark.parametrize("answer", [None, "x", float("nan"), ZeroDivisionError()], ids=str)
def test_a_policy_that_fails_is_blamed_by_name(scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    def leading(*_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(policies, "load", lambda group, name: lambda value: policies.Prefix(leading))
    scene.collected_by(odd=True)
    scene.publish(*some(10, 1))
    with pytest.raises(PluginBroken, match="collection policy 'odd' failed"):
        scene.collect()
