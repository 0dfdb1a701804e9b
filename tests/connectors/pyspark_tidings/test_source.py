from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from pyspark_tidings.options import ReadOptions
from pyspark_tidings.source import SMALL_BATCH_BYTES, SMALL_BATCH_ROWS, StreamReader
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogRestored, TidingsError
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import eventually, held, make_updates
from tidings.updates import MAX_PAYLOAD_BYTES
from tidings_connectors.delta.log import DeltaLog

Rows = list[tuple[int, int]]


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    return cluster.create_stream("contacts", shards=4)


@pytest.fixture
def reader(spark: SparkSession, cluster: Cluster, stream: Stream) -> DataStreamReader:
    return spark.readStream.format("tidings").option("stream", "contacts").option("zookeeper", cluster.address)


def publish(stream: Stream, count: int, seed: int = 0) -> None:
    with stream.producer() as producer:
        producer.publish_many(make_updates(count, seed=seed)).result(30)


def places(rows: DataFrame) -> Rows:
    return [(row.shard, row.seq) for row in rows.select("shard", "seq").collect()]


def all_places(stream: Stream) -> Rows:
    rows = held(stream.log)
    return list(zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True))


class Collector:
    """Keeps the places of all rows that a query saw, batch by batch."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.by_number: dict[int, Rows] = {}

    @property
    def batches(self) -> list[Rows]:
        return [rows for rows in self.by_number.values() if rows]

    @property
    def seen(self) -> Rows:
        return [place for batch in self.batches for place in batch]

    def start(self, reader: DataStreamReader, *, available_now: bool = False) -> StreamingQuery:
        def keep(rows: DataFrame, number: int) -> None:
            found = places(rows)
            # A query that is stopped before it has noted a batch repeats it, under the same number and whole.
            assert self.by_number.setdefault(number, found) == found

        writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, reader: DataStreamReader) -> None:
        """Read all there is, and stop."""
        query = self.start(reader, available_now=True)
        assert query.awaitTermination(120)


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    return Collector(tmp_path / "checkpoint")


def test_spark_finds_the_format_by_itself_and_reads_the_canonical_row(
    spark: SparkSession, cluster: Cluster, stream: Stream
) -> None:
    publish(stream, 50)
    rows = spark.read.format("tidings").options(stream="contacts", zookeeper=cluster.address).load()
    ours = held(stream.log)
    theirs = rows.orderBy("shard", "seq").toArrow()
    for name in ours.column_names:
        assert theirs[name].to_pylist() == ours[name].to_pylist(), name


def test_a_batch_read_takes_a_range_of_positions_and_some_shards(
    spark: SparkSession, cluster: Cluster, stream: Stream
) -> None:
    publish(stream, 200)
    options = {"stream": "contacts", "zookeeper": cluster.address, "shards": "1,3"}
    ranged = spark.read.format("tidings").options(
        **options, startingPosition='{"1": 5, "3": 0}', endingPosition='{"1": 9, "3": 2}'
    )
    assert sorted(places(ranged.load())) == [(1, seq) for seq in range(5, 10)] + [(3, seq) for seq in range(3)]
    whole = spark.read.format("tidings").options(**options).load()
    assert sorted(places(whole)) == [place for place in all_places(stream) if place[0] in (1, 3)]


def test_an_empty_stream_is_an_empty_dataframe(spark: SparkSession, cluster: Cluster, stream: Stream) -> None:
    assert spark.read.format("tidings").options(stream="contacts", zookeeper=cluster.address).load().count() == 0


def test_a_query_sees_updates_as_they_come_in_order_within_a_shard(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    publish(stream, 20)
    query = collector.start(reader)
    try:
        for seed in range(3):
            publish(stream, 20, seed)
            eventually(lambda: query.exception() or len(collector.seen) == len(all_places(stream)), timeout=60)
    finally:
        query.stop()
    assert sorted(collector.seen) == all_places(stream)
    for shard in range(4):
        seqs = [seq for each, seq in collector.seen if each == shard]
        assert seqs == sorted(seqs)


def test_a_restart_from_the_checkpoint_neither_loses_nor_repeats_a_row(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    for seed in range(3):
        publish(stream, 30, seed)
        collector.run(reader)
    assert sorted(collector.seen) == all_places(stream)


def test_a_batch_that_failed_half_way_is_repeated_with_the_very_same_rows(
    reader: DataStreamReader, stream: Stream, tmp_path: Path
) -> None:
    publish(stream, 30)
    seen: list[Rows] = []

    def keep(fail: bool) -> Callable[[DataFrame, int], None]:
        def each(rows: DataFrame, number: int) -> None:
            seen.append(places(rows))
            if fail:
                raise RuntimeError("the power went out")

        return each

    for fail in (True, False):
        writer = reader.load().writeStream.foreachBatch(keep(fail)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        if fail:
            with pytest.raises(PySparkException, match="the power went out"):
                query.awaitTermination(60)
            publish(stream, 30, 1)
        else:
            query.awaitTermination(60)
    assert seen[0] == seen[1]
    assert sorted(seen[1] + seen[2]) == all_places(stream)


def test_the_rows_of_a_batch_can_be_limited(reader: DataStreamReader, stream: Stream, collector: Collector) -> None:
    publish(stream, 100)
    collector.run(reader.option("maxRowsPerBatch", 30))
    assert [len(batch) for batch in collector.batches] == [30, 30, 30, 10]
    assert sorted(collector.seen) == all_places(stream)


def test_a_large_batch_is_read_by_the_executors_and_a_small_one_by_the_driver_alike(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    publish(stream, SMALL_BATCH_ROWS + 1_000)
    collector.run(reader)
    publish(stream, 10, seed=1)
    collector.run(reader)
    assert [len(batch) for batch in collector.batches] == [SMALL_BATCH_ROWS + 1_000, 10]
    assert sorted(collector.seen) == all_places(stream)


def test_latest_starts_at_the_head_and_json_at_the_named_seqs(
    reader: DataStreamReader, stream: Stream, tmp_path: Path
) -> None:
    publish(stream, 40)
    latest = Collector(tmp_path / "latest")
    latest.run(reader.option("startingPosition", "latest"))
    assert latest.seen == []
    publish(stream, 10, 1)
    latest.run(reader.option("startingPosition", "latest"))
    assert len(latest.seen) == 10
    named = Collector(tmp_path / "named")
    named.run(reader.option("startingPosition", '{"0": 3}').option("shards", "0"))
    assert named.seen == [place for place in all_places(stream) if place[0] == 0 and place[1] >= 3]


def test_compaction_and_vacuum_under_a_live_query_lose_and_repeat_nothing(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    log = stream.log
    assert isinstance(log, DeltaLog)
    query = collector.start(reader.option("maxRowsPerBatch", 25))
    try:
        for seed in range(40):
            log.append(make_updates(5, seed=seed))
            if seed % 10 == 9:
                log.compact()
                eventually(lambda: query.exception() or len(collector.seen) > 0, timeout=60)
        eventually(lambda: query.exception() or len(collector.seen) == 200, timeout=60)
    finally:
        query.stop()
    log.compact()
    log.maintenance.vacuum(grace_hours=0)
    collector.run(reader)
    assert sorted(collector.seen) == all_places(stream)


def truncate_half(stream: Stream) -> None:
    log = stream.log
    assert isinstance(log, DeltaLog)
    log.truncate(Positions({shard: Position(at.seq + 1) for shard, at in log.reach(Positions(), 60).items()}))
    assert any(bounds.floor.seq >= 0 for bounds in log.bounds().values())


def test_truncation_behind_a_query_does_not_disturb_it(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    for seed in range(5):
        publish(stream, 20, seed)
    before = all_places(stream)
    collector.run(reader)
    truncate_half(stream)
    publish(stream, 20, 5)
    collector.run(reader)
    assert sorted(collector.seen) == sorted({*before, *all_places(stream)})


def test_updates_truncated_before_a_query_read_them_fail_it_by_name(
    reader: DataStreamReader, stream: Stream, collector: Collector
) -> None:
    publish(stream, 20)
    collector.run(reader.option("maxRowsPerBatch", 20))
    for seed in range(5):
        publish(stream, 20, seed)
    heads = {shard: bounds.head for shard, bounds in stream.log.bounds().items()}
    stream.writable_log.truncate(Positions({shard: Position(head.seq + 1) for shard, head in heads.items()}))
    publish(stream, 7)
    with pytest.raises(PySparkException, match="no longer holds"):
        collector.run(reader)
    collector.run(reader.option("failOnDataLoss", "false"))
    assert len(collector.seen) == 20 + 7


def test_few_rows_of_many_bytes_are_not_handed_over_by_the_driver(cluster: Cluster, stream: Stream) -> None:
    options = {"definition": json.dumps(stream.definition.to_json())}
    own = StreamReader(ReadOptions.parse(options, streaming=True))
    publish(stream, 3)
    first = own.initialOffset()
    some = own.latestOffset(first, ReadAllAvailable())
    handed = own.getCache(first, some)
    assert handed is not None
    assert sum(batch.num_rows for batch in handed) == 3
    with stream.producer() as producer:
        for number in range(SMALL_BATCH_BYTES // MAX_PAYLOAD_BYTES + 1):
            producer.publish(f"o{number}", 1, payload=b"x" * MAX_PAYLOAD_BYTES).result(30)
    assert own.getCache(some, own.latestOffset(some, ReadAllAvailable())) is None


@pytest.mark.parametrize("count", [3, 300, 2 * SMALL_BATCH_ROWS])
def test_a_stream_that_was_made_anew_fails_a_query_that_has_read_the_old_one(
    cluster: Cluster, reader: DataStreamReader, stream: Stream, collector: Collector, count: int
) -> None:
    publish(stream, 100)
    collector.run(reader)
    cluster.drop_stream("contacts", purge=True)
    new = cluster.create_stream("contacts", shards=4)
    publish(new, count, seed=9)
    with pytest.raises(PySparkException, match=r"LogRestored: the log of stream 'contacts' was deleted and made anew"):
        collector.run(reader)
    old = collector.seen
    collector.run(reader.option("failOnDataLoss", "false"))
    assert sorted(collector.seen[len(old) :]) == sorted(all_places(new))


def test_an_offset_tells_in_which_log_it_is_and_one_that_does_not_is_taken_for_this_log(
    cluster: Cluster, stream: Stream
) -> None:
    def read(start: dict[str, Any], end: dict[str, Any], *, fail: bool = True) -> int:
        found = planner(fail).partitions(start, end)
        return sum(batch.num_rows for partition in found for batch in partition.read())

    def planner(fail: bool = True) -> StreamReader:
        definition = json.dumps(cluster.stream("contacts").definition.to_json())
        options = {"definition": definition, "failOnDataLoss": str(fail).lower()}
        return StreamReader(ReadOptions.parse(options, streaming=True))

    publish(stream, 100)
    first = planner().initialOffset()
    last = planner().latestOffset(first, ReadAllAvailable())
    assert first["log"] == last["log"] == stream.log.identity()  # type: ignore[attr-defined]  # a Delta log tells
    unsaid = {shard: at for shard, at in first.items() if shard != "log"}
    assert read(first, last) == read(unsaid, last) == 100
    cluster.drop_stream("contacts", purge=True)
    publish(cluster.create_stream("contacts", shards=4), 300, seed=9)
    for start, end in ((first, last), (last, last)):
        with pytest.raises(LogRestored, match="made anew"):
            read(start, end)
        assert read(start, end, fail=False) == 0, "the batch is that of the old log, of which nothing is left"
    with pytest.raises(LogRestored, match="made anew"):
        planner().latestOffset(last, ReadAllAvailable())
    new = planner(fail=False).latestOffset(last, ReadAllAvailable())
    assert new["log"] != last["log"]
    assert read(last, new, fail=False) == 300


BAD: list[tuple[dict[str, str], str]] = [
    ({"startingPosition": "newest"}, "write earliest or latest"),
    ({"startingPosition": '{"0": 1}'}, "leaves out shard 1"),
    ({"startingPosition": '{"0": 1, "9": 1}', "shards": "0"}, "names shard 9, which is not read"),
    ({"startingPosition": '{"0": -7}', "shards": "0"}, "is no position"),
    ({"shards": "0,4"}, "has shards 0 to 3, not 4"),
    ({"shards": "a-b"}, "write it as in 0,3,5-7"),
    ({"shards": "3-1"}, "no shard at all"),
    ({"maxRowsPerBatch": "0"}, "not a number above 0"),
    ({"failOnDataLoss": "maybe"}, "true or false"),
    ({"startingPositoin": "latest"}, "has no option 'startingpositoin' here"),
]


@pytest.mark.parametrize(("options", "reason"), BAD)
def test_a_bad_option_is_refused_by_name(definition: StreamDefinition, options: dict[str, str], reason: str) -> None:
    known: dict[str, Any] = {"definition": json.dumps(definition.to_json()), **options}
    with pytest.raises(TidingsError, match=reason):
        ReadOptions.parse(known, streaming=True)


def test_a_stream_or_a_zookeeper_that_is_not_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDINGS_ZOOKEEPER", raising=False)
    with pytest.raises(InvalidOption, match="needs the option 'stream'"):
        ReadOptions.parse({}, streaming=True)
    with pytest.raises(InvalidOption, match="needs the option 'zookeeper'"):
        ReadOptions.parse({"stream": "contacts"}, streaming=True)


def test_an_unknown_stream_is_named_in_sparks_error(spark: SparkSession, cluster: Cluster) -> None:
    options = {"stream": "nobody", "zookeeper": cluster.address}
    with pytest.raises(PySparkException, match="there is no stream 'nobody'"):
        spark.read.format("tidings").options(**options).load().count()


HANGING_UP = """
from pyspark_tidings.source import StreamReader

reader = object.__new__(StreamReader)
try:
    try:
        raise {meets}  # as Spark's runner of readers does
    finally:
        reader.stop()
except {meets}:
    raise BrokenPipeError  # it cannot tell Spark of it either
"""


@pytest.mark.parametrize("meets", ["EOFError", "ConnectionResetError"])
def test_a_reader_on_which_spark_hangs_up_prints_nothing(meets: str) -> None:
    code = HANGING_UP.format(meets=meets)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
