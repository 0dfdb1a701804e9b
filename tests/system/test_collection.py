"""Collection under faults and beside everything else that reads and writes a log."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.pipeline_fixtures import Make
from tests.support.places import SUPPORT
from tidings.cluster import Cluster
from tidings.errors import LogMismatch, LogUnavailable
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import check_log, eventually, held, make_updates
from tidings.tombstones import Tombstones
from tidings.updates import TOMBSTONE, from_rows
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones.collector import Collector

LATEST: dict[str, Any] = {"latest_per_key": True}
Place = tuple[int, int]


def collect(stream: StreamDefinition, log: Any) -> None:
    with Collector(replace(stream, collect=LATEST), log) as collector:
        for _ in collector.run():
            pass


def left(log: Any) -> dict[Place, tuple[str, int]]:
    """The updates that are there, by their places: object and version."""
    rows = [row for row in held(log).to_pylist() if row["kind"] != TOMBSTONE]
    return {(row["shard"], row["seq"]): (row["object"], row["version"]) for row in rows}


def latest(published: dict[Place, tuple[str, int]]) -> dict[Place, tuple[str, int]]:
    newest = {name: place for place, (name, _) in sorted(published.items())}
    return {place: published[place] for place in newest.values()}


class Publishing:
    """Appends updates, and keeps what it has appended."""

    def __init__(self, log: DeltaLog, seed: int) -> None:
        self.log = log
        self.published: dict[Place, tuple[str, int]] = {}
        self._rng = random.Random(seed)
        self._number = 0

    def some(self, count: int = 50) -> None:
        rows = []
        for _ in range(count):
            rows.append({"object": f"o{self._rng.randrange(40)}", "version": self._number})
            self._number += 1
        appended = self.log.append(from_rows(rows))
        assert appended is not None
        places = zip(appended.shards.tolist(), appended.seqs.tolist(), strict=True)
        self.published |= {place: (row["object"], row["version"]) for place, row in zip(places, rows, strict=True)}

    def check(self) -> None:
        """What is there is what was published, and the latest of each object is there."""
        there = left(self.log)
        assert there.items() <= self.published.items()
        assert latest(self.published).items() <= there.items()
        check_log(self.log, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_collector_that_is_killed_at_any_moment_changes_nothing_or_everything(
    log: DeltaLog, definition: StreamDefinition, seed: int
) -> None:
    rng = random.Random(seed)
    publishing = Publishing(log, seed)
    publishing.some(200)
    for _ in range(6):
        command = [sys.executable, str(SUPPORT / "collect_forever.py"), str(log.folder), str(definition.shards)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert victim.stdout is not None
            victim.stdout.readline()
            deadline = time.monotonic() + rng.random() * 0.5
            while time.monotonic() < deadline:
                publishing.some()
        finally:
            victim.kill()
            victim.wait()
        publishing.check()
    collect(definition, log)
    assert left(log) == latest(publishing.published)
    log.compact()
    assert left(log) == latest(publishing.published)


@pytest.mark.slow
def test_collections_race_appends_compactions_truncations_and_each_other(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    publishing = Publishing(log, 5)
    publishing.some(500)
    stop, failures = threading.Event(), list[BaseException]()

    def again_and_again(work: Callable[[DeltaLog], object]) -> threading.Thread:
        def run() -> None:
            own = DeltaLog.open(str(log.folder), definition)
            try:
                while not stop.is_set():
                    work(own)
            except BaseException as error:  # noqa: BLE001 - told by the test
                failures.append(error)
            finally:
                own.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def collect_or_lose(own: DeltaLog) -> None:
        with contextlib.suppress(LogUnavailable, LogMismatch):  # the other collector has taken over, or come first
            collect(definition, own)

    threads = [again_and_again(collect_or_lose), again_and_again(collect_or_lose), again_and_again(DeltaLog.compact)]
    threads.append(again_and_again(lambda own: own.maintenance.checkpoint()))
    try:
        for _ in range(40):
            publishing.some(30)
            publishing.check()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    heads = {shard: bounds.head.seq for shard, bounds in log.bounds().items()}
    log.truncate(Positions({shard: Position(head // 2) for shard, head in heads.items()}))
    floors = {shard: bounds.floor.seq for shard, bounds in log.bounds().items()}
    publishing.published = {place: row for place, row in publishing.published.items() if place[1] > floors[place[0]]}
    collect(definition, log)
    assert left(log) == latest(publishing.published)


class Everything(Handler):
    """Keeps each position that it was told of, and the newest version of each object."""

    def __init__(self, slow: float = 0.0) -> None:
        self.told: dict[int, list[tuple[int, int]]] = {}
        self.versions: dict[str, int] = {}
        self.updates = 0
        self._slow = slow

    def on_batch(self, rows: pa.RecordBatch) -> None:
        time.sleep(self._slow)
        self.updates += len(rows)
        for shard, seq, name, version in zip(
            *(rows[column].to_pylist() for column in ("shard", "seq", "object", "version")), strict=True
        ):
            self.told.setdefault(shard, []).append((seq, seq))
            self.versions[name] = version

    def on_tombstone(self, flow: Flow, first: Position, last: Position, count: int) -> None:
        self.told.setdefault(flow.shard, []).append((first.seq, last.seq))

    def check(self, heads: dict[int, int]) -> None:
        for shard, head in heads.items():
            runs = self.told[shard]
            told = Tombstones.runs([0] * len(runs), [first for first, _ in runs], [last for _, last in runs])
            assert told == Tombstones.runs([0], [0], [head]), f"shard {shard} was not told of all"
            lasts = [last for _, last in runs]
            assert lasts == sorted(lasts)


@pytest.mark.slow
def test_flows_in_front_and_far_behind_go_on_while_their_stream_is_collected(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2, collect=LATEST)
    for name in ("lead", "trail"):
        cluster.create_application(name, ["contacts"], start="earliest")
    lead, trail = Everything(), Everything(slow=0.05)
    expected: dict[str, int] = {}
    with cluster.publisher(token_interval=0.2), cluster.subscribe("lead", lead), cluster.subscribe("trail", trail):
        with stream.producer() as producer:
            for number in range(60):
                rows = [{"object": f"o{n}", "version": number} for n in range(50)]
                producer.publish_many(rows).result()
                expected |= {row["object"]: row["version"] for row in rows}  # type: ignore[misc]
                if number % 5 == 4:
                    collect(stream.definition, stream.log)
        eventually(lambda: all(flow.lag == 0 for flow in status(cluster)), timeout=90)
    heads = {shard: bounds.head.seq for shard, bounds in stream.log.bounds().items()}
    for handler in (lead, trail):
        handler.check(heads)
        assert handler.versions == expected
    newcomer = Everything()
    cluster.create_application("newcomer", ["contacts"], start="earliest")
    collect(stream.definition, stream.log)
    with cluster.publisher(token_interval=0.2), cluster.subscribe("newcomer", newcomer):
        eventually(lambda: newcomer.versions == expected, timeout=60)
        eventually(lambda: all(newcomer.told[shard][-1][1] == head for shard, head in heads.items()), timeout=60)
    newcomer.check(heads)
    assert newcomer.updates == len(expected)  # one a key


@pytest.mark.slow
def test_a_query_and_a_pipeline_that_stand_within_a_collected_run_go_on(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make, tmp_path: Path
) -> None:
    def query(name: str, **options: str) -> list[tuple[int, int, int]]:
        """What a query gets that goes on where it ended: shard, first and last position of each row."""
        reader = spark.readStream.format("tidings").option("definition", definition)
        for key, value in options.items():
            reader = reader.option(key, value)
        got: list[tuple[int, int, int]] = []

        def keep(batch: Any, number: int) -> None:
            rows = batch.select("shard", "seq", "range").toArrow().to_pylist()
            got.extend((row["shard"], row["seq"] - row["range"] + 1, row["seq"]) for row in rows)

        writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(got)

    definition = json.dumps(contacts.definition.to_json())
    contacts.writable_log.append(make_updates(100, objects=3))
    assert len(query("whole")) == len(query("bare", tombstones="false")) == 100
    pipeline: dict[str, Any] = {"stage": "filter", "options": {"filter": "object exists"}}
    make(**pipeline).run(spark, once=True)
    before = {shard: bounds.head.seq for shard, bounds in contacts.log.bounds().items()}
    contacts.writable_log.append(make_updates(400, seed=1, objects=3))
    collect(contacts.definition, contacts.log)
    newest = left(contacts.log)
    assert len(newest) == 3
    # A gc event speaks of the positions of its own stream, and goes into no other.
    contacts.writable_log.append(
        from_rows([{"object": "gc/0", "kind": "gc", "attributes": {"collects": "everything"}}])
    )
    newest = left(contacts.log)
    heads = {shard: bounds.head.seq for shard, bounds in contacts.log.bounds().items()}
    for shard, first, last in query("whole"):
        assert first > before[shard]
        before[shard] = last
    assert before == heads
    assert {(shard, last) for shard, _, last in query("bare", tombstones="false")} == set(newest)
    make(**pipeline).run(spark, once=True)
    assert len(held(copies.log)) == 100 + 3
    check_log(copies.log, 2)


@pytest.mark.slow
def test_a_pipeline_collects_its_input_as_updates_come(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    stream = cluster.create_stream("contacts", shards=2, collect=LATEST)
    pipeline = cluster.pipeline(
        "collecting", input="contacts", stage="collect", options={"every": "PT1S"}, storage=tmp_path
    )
    with pipeline.start(spark), stream.producer() as producer:
        for number in range(20):
            rows = [{"object": f"o{n}", "version": number} for n in range(10)]
            producer.publish_many(rows).result()
        eventually(lambda: len(left(stream.log)) < 100, timeout=60)

        def settled() -> bool:
            producer.publish("o0", version=99).result()
            return len(left(stream.log)) <= 20

        eventually(settled, timeout=60, every=0.2)
        assert pipeline.stage.figures()["collect_collected_updates_total"] >= 100
    check_log(stream.log, 2)


@pytest.mark.slow
def test_a_collected_stream_is_copied_by_its_updates(spark: SparkSession, contacts: Stream, copies: Stream) -> None:
    contacts.writable_log.append(make_updates(200, objects=5))
    collect(contacts.definition, contacts.log)
    rows = spark.read.format("tidings").option("definition", json.dumps(contacts.definition.to_json())).load()
    assert rows.where("kind = 'tombstone'").count() > 0
    sink = rows.drop("shard", "seq", "index").write.format("tidings")
    sink.option("definition", json.dumps(copies.definition.to_json())).mode("append").save()
    assert sorted(left(copies.log).values()) == sorted(left(contacts.log).values())
