from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tidings import sink
from pyspark_tidings.options import WriteOptions
from pyspark_tidings.sink import StreamWriter
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogMismatch
from tidings.logs import UNKNOWN_ENDS, Transaction
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import check_log, held, make_updates
from tidings.updates import MAX_DELIVERABLE_BYTES
from tidings_connectors.delta.log import DeltaLog


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    return cluster.create_stream("contacts", shards=4)


@pytest.fixture
def options(cluster: Cluster, stream: Stream) -> dict[str, str]:
    return {"stream": stream.name, "zookeeper": cluster.address}


def rows_of(spark: SparkSession, count: int, seed: int = 0) -> DataFrame:
    return spark.createDataFrame(make_updates(count, seed=seed))


def test_a_dataframe_is_appended_with_all_its_columns(
    spark: SparkSession, stream: Stream, options: dict[str, str]
) -> None:
    rows_of(spark, 100).coalesce(1).write.format("tidings").options(**options).mode("append").save()
    rows = held(stream.log)
    assert rows.num_rows == 100
    check_log(stream.log, 4)
    written = make_updates(100)
    order = [("object", "ascending"), ("version", "ascending")]
    for name in ("object", "version", "attributes", "payload"):
        assert rows.sort_by(order)[name].to_pylist() == written.sort_by(order)[name].to_pylist(), name


def test_the_largest_payload_that_a_producer_may_publish_is_appended(
    spark: SparkSession, stream: Stream, options: dict[str, str]
) -> None:
    rows = spark.range(1).selectExpr(
        "'alice' as object", f"cast(repeat('x', {MAX_DELIVERABLE_BYTES}) as binary) as payload"
    )
    rows.write.format("tidings").options(**options).mode("append").save()
    assert [len(payload) for payload in held(stream.log)["payload"].to_pylist()] == [MAX_DELIVERABLE_BYTES]


def test_columns_that_are_left_out_get_their_defaults(
    spark: SparkSession, stream: Stream, options: dict[str, str]
) -> None:
    spark.createDataFrame([("alice",), ("bob",)], "object string").write.format("tidings").options(**options).mode(
        "append"
    ).save()
    rows = held(stream.log)
    assert sorted(rows["object"].to_pylist()) == ["alice", "bob"]
    assert rows["kind"].to_pylist() == ["data", "data"]
    assert rows["time"].null_count == 0


def test_a_bad_row_fails_the_write_and_nothing_is_appended(
    spark: SparkSession, stream: Stream, options: dict[str, str]
) -> None:
    rows = spark.createDataFrame([("alice", 1), ("bob", -1)], "object string, version long")
    with pytest.raises(PySparkException, match="version -1 of object 'bob' is negative"):
        rows.write.format("tidings").options(**options).mode("append").save()
    with pytest.raises(PySparkException, match=r"time 253402300800000000 .* of object 'a' is not in the years"):
        spark.sql("select 'a' as object, timestamp_micros(253402300800000000) as time").write.format("tidings").options(
            **options
        ).mode("append").save()
    with pytest.raises(PySparkException, match="no column 'colour'"):
        spark.sql("select 'a' as object, 'red' as colour").write.format("tidings").options(**options).mode(
            "append"
        ).save()
    assert held(stream.log).num_rows == 0


def test_overwriting_a_log_is_refused(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(PySparkException, match="only ever appended to"):
        rows_of(spark, 1).write.format("tidings").options(**options).mode("overwrite").save()


def copy(spark: SparkSession, cluster: Cluster, checkpoint: Path) -> None:
    source = spark.readStream.format("tidings").options(stream="contacts", zookeeper=cluster.address).load()
    writer = source.writeStream.format("tidings").options(stream="copy", zookeeper=cluster.address)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


def test_a_query_copies_a_stream_and_a_repeated_batch_is_appended_once(
    spark: SparkSession, cluster: Cluster, stream: Stream, tmp_path: Path
) -> None:
    target = cluster.create_stream("copy", shards=2)
    checkpoint = tmp_path / "checkpoint"
    stream.writable_log.append(make_updates(60))
    copy(spark, cluster, checkpoint)
    assert held(target.log).num_rows == 60

    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as if the driver had died between the sink's commit and its own
    copy(spark, cluster, checkpoint)
    assert held(target.log).num_rows == 60

    stream.writable_log.append(make_updates(40, seed=1))
    copy(spark, cluster, checkpoint)
    assert held(target.log).num_rows == 100

    shutil.rmtree(checkpoint)  # a new query: it has seen nothing, and its first batch is not the old query's
    copy(spark, cluster, checkpoint)
    assert held(target.log).num_rows == 200
    check_log(target.log, 2)


def lose_last_batch(checkpoint: Path) -> None:
    """As if the file system had lost the newest files, and had never been told to keep them."""
    newest = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for folder in ("offsets", "commits"):
        for name in (str(newest), f".{newest}.crc"):
            (checkpoint / folder / name).unlink(missing_ok=True)


@pytest.mark.parametrize("fault", ["restored", "lost"])
def test_a_checkpoint_that_went_back_fails_its_query_and_its_newest_copy_goes_on(
    spark: SparkSession, cluster: Cluster, stream: Stream, tmp_path: Path, fault: str
) -> None:
    target = cluster.create_stream("copy", shards=2)
    checkpoint, older, newest = (tmp_path / name for name in ("checkpoint", "older", "newest"))
    for seed in range(3):
        stream.writable_log.append(make_updates(10, seed=seed))
        copy(spark, cluster, checkpoint)
        if seed == 0:
            shutil.copytree(checkpoint, older)
    shutil.copytree(checkpoint, newest)
    if fault == "restored":
        shutil.rmtree(checkpoint)
        older.rename(checkpoint)
    else:
        lose_last_batch(checkpoint)
    stream.writable_log.append(make_updates(10, seed=3))
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(PySparkException, match=r"stream 'copy' holds batch 2 of .* the checkpoint went back"):
            copy(spark, cluster, checkpoint)
        assert held(target.log).num_rows == 30
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    copy(spark, cluster, checkpoint)
    assert held(target.log).num_rows == 40


def test_a_batch_is_known_by_its_number_and_by_what_it_covers(definition: StreamDefinition, log: DeltaLog) -> None:
    def transact(number: int, ends: int = UNKNOWN_ENDS, count: int = 5) -> bool:
        """Whether the log takes it for a new one; every time it is opened anew."""
        return (
            Stream(definition).writable_log.append(make_updates(count), Transaction("query", number, ends)) is not None
        )

    assert transact(0)
    assert not transact(0, ends=7)  # of a writer that could not say what it covers
    assert transact(3, ends=7)
    for _ in range(2):
        assert not transact(3, ends=7)
        assert not transact(3)
        for number, ends in ((3, 8), (2, 7), (0, UNKNOWN_ENDS)):
            for count in (5, 0):
                with pytest.raises(LogMismatch, match=f"holds batch 3 of 'query', and batch {number} is no"):
                    transact(number, ends, count)
        table = log._table.delta_table()  # and so it stays when Delta has cleaned up
        table.create_checkpoint()
        for commit in (log.folder / "_delta_log").glob("*.json"):
            if int(commit.stem) < table.version():
                commit.unlink()
    assert transact(4)
    assert not transact(4, ends=9)
    assert held(log).num_rows == 15


def test_many_rows_travel_in_files_and_leave_none_behind(
    definition: StreamDefinition, log: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "INLINE_BYTES", 10_000)
    writer = StreamWriter(WriteOptions(definition, "query", None))
    target = Stream(definition)
    staged = [writer.write(iter(make_updates(count, seed=count).to_batches(50))) for count in (10, 1_000)]
    assert [message.file is None for message in staged] == [True, False]
    writer.commit([*staged, None], 0)
    assert held(target.log).num_rows == 1_010
    assert list(target.writable_log.staging.iterdir()) == []
    staged = [writer.write(iter(make_updates(1_000).to_batches(50)))]
    writer.abort([*staged], 1)
    assert list(target.writable_log.staging.iterdir()) == []


def test_a_query_that_cannot_be_told_from_others_is_refused(definition: StreamDefinition, log: object) -> None:
    rows = iter(make_updates(5).to_batches())
    writer = StreamWriter(WriteOptions(definition, None, "s3://bucket/checkpoint"))
    with pytest.raises(InvalidOption, match="txnAppId"):
        writer.commit([writer.write(rows)], 0)


def test_rows_that_say_where_they_were_are_placed_anew(definition: StreamDefinition, log: object) -> None:
    writer = StreamWriter(WriteOptions(definition, "query", None))
    stamped = pa.table(
        {"object": ["a"], "shard": pa.array([3], pa.int32()), "seq": [77], "index": pa.array([5], pa.int32())}
    )
    writer.commit([writer.write(iter(stamped.to_batches()))], 0)
    assert held(Stream(definition).log)["seq"].to_pylist() == [0]


def test_rows_without_a_kind_are_updates_and_gc_events_of_another_stream_are_none(
    definition: StreamDefinition, log: object
) -> None:
    writer = StreamWriter(WriteOptions(definition, "query", None))
    rows = pa.table(
        {
            "object": ["a", "b", "gc/0", "c"],
            "kind": ["data", None, "gc", "gc"],
            "attributes": pa.array(
                [None, [("collects", "everything")], [("collects", "everything")], [("op", "d")]],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    writer.commit([writer.write(iter(rows.to_batches()))], 0)
    assert sorted(held(Stream(definition).log)["object"].to_pylist()) == ["a", "b", "c"]
