"""A stream as a DataFrame, by `tidings.read` and `tidings.read_stream`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import tidings
from tests.support.avro_table import DAY, PRICE, items
from tests.support.burying import bury
from tidings.cluster import Cluster
from tidings.errors import (
    CoordinationUnavailable,
    InvalidOption,
    InvalidPosition,
    LogRestored,
    PositionsLost,
    UnknownStream,
)
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import held, make_updates
from tidings.tombstones import Tombstones
from tidings_connectors.delta.log import DeltaLog

PEOPLE: list[dict[str, Any]] = [
    {"name": "Alice", "age": 30},
    {"name": "Bob", "age": None},
    {"name": "Cecilia", "age": 41},
]


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    made = cluster.create_stream("contacts", shards=2)
    with made.producer() as producer:
        producer.publish_many(make_updates(40)).result(30)
    return made


@pytest.fixture
def people(cluster: Cluster) -> Stream:
    """A stream whose payloads are JSON, but for one that is broken and one that is not there."""
    made = cluster.create_stream("people", shards=1)
    with made.producer() as producer:
        for each in PEOPLE:
            producer.publish(f"people/{each['name']}", 1, payload=json.dumps(each).encode())
        producer.publish("people/broken", 1, payload=b'{"name": ')
        producer.publish("people/none", 1)
    return made


def places(rows: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.shard, row.seq) for row in rows.select("shard", "seq").collect())


def all_places(stream: Stream) -> list[tuple[int, int]]:
    rows = held(stream.log)
    return list(zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True))


def heads(stream: Stream) -> dict[int, int]:
    return {shard: bounds.head.seq for shard, bounds in stream.log.bounds().items()}


def followed(rows: DataFrame, checkpoint: Path) -> list[Any]:
    """All that a query finds, until there is no more."""
    found: list[Any] = []
    writer = rows.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return found


def test_a_stream_is_read_whole_in_the_canonical_row(spark: SparkSession, cluster: Cluster, stream: Stream) -> None:
    ours, theirs = held(stream.log), tidings.read(spark, "contacts", cluster=cluster).orderBy("shard", "seq").toArrow()
    assert theirs.column_names == ours.column_names
    for name in ours.column_names:
        assert theirs[name].to_pylist() == ours[name].to_pylist(), name


def test_no_row_of_a_delta_log_passes_through_python(spark: SparkSession, stream: Stream) -> None:
    rows = tidings.read(spark, stream, after={0: 3, 1: 3}, payload="json", schema="a INT").where("payload.a > 1")
    plan = rows._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "Python" not in plan
    assert "tidings" not in plan.replace(str(stream.log.folder), ""), "its own source is in Python"  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", [dict, Positions, str])
def test_a_read_begins_after_positions_and_ends_with_positions(spark: SparkSession, stream: Stream, form: Any) -> None:
    def made(first: int, second: int) -> Any:
        seqs = {0: first, 1: second}
        return {
            dict: seqs,
            Positions: Positions({shard: Position(seq) for shard, seq in seqs.items()}),
            str: json.dumps(seqs),
        }[form]

    found = places(tidings.read(spark, stream, after=made(4, -1), upto=made(9, 2)))
    assert found == [(0, seq) for seq in range(5, 10)] + [(1, seq) for seq in range(3)]


def test_a_dataframe_is_of_the_moment_when_it_was_made(spark: SparkSession, stream: Stream) -> None:
    rows, before = tidings.read(spark, stream), all_places(stream)
    with stream.producer() as producer:
        producer.publish("late", 1).result(30)
    assert places(rows) == before
    assert len(places(tidings.read(spark, stream))) == len(before) + 1


def test_collected_updates_leave_no_row_unless_tombstones_are_asked_for(spark: SparkSession, stream: Stream) -> None:
    log = stream.log
    assert isinstance(log, DeltaLog)
    bury(log, Tombstones.runs([0], [2], [5]))
    left = [place for place in all_places(stream) if place not in {(0, seq) for seq in range(2, 6)}]
    assert places(tidings.read(spark, stream)) == left
    kinds = tidings.read(spark, stream, tombstones=True).groupBy("kind").count().collect()
    assert {row["kind"]: row["count"] for row in kinds} == {"data": len(left), "tombstone": 1}


def test_the_cluster_is_the_one_that_is_named_or_that_of_the_environment(
    spark: SparkSession, cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tidings.read(spark, "contacts", zookeeper=cluster.address).count() == 40
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    assert tidings.read(spark, "contacts").count() == 40
    with pytest.raises(InvalidOption, match="both zookeeper and cluster say where the stream is"):
        tidings.read(spark, "contacts", zookeeper=cluster.address, cluster=cluster)
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", "127.0.0.1:1")
    with pytest.raises(CoordinationUnavailable):
        tidings.read(spark, "contacts")


@pytest.mark.parametrize(
    "schema",
    [
        "name STRING, age INT",
        StructType([StructField("name", StringType()), StructField("age", IntegerType())]),
    ],
)
def test_json_payloads_are_a_struct_and_what_is_no_json_is_null(
    spark: SparkSession, people: Stream, schema: StructType | str
) -> None:
    rows = tidings.read(spark, people, payload="json", schema=schema)
    assert rows.columns == tidings.read(spark, people).columns
    found = [row.asDict() for row in rows.orderBy("seq").select("payload.*").collect()]
    assert found == [*PEOPLE, *[{"name": None, "age": None}] * 2]


def test_a_field_for_corrupt_records_has_the_json_that_could_not_be_read(spark: SparkSession, people: Stream) -> None:
    rows = tidings.read(spark, people, payload="json", schema="name STRING, _corrupt_record STRING")
    corrupt = rows.where("payload._corrupt_record is not null").select("object", "payload._corrupt_record")
    assert [tuple(row) for row in corrupt.collect()] == [("people/broken", '{"name": ')]


def test_payloads_of_a_database_in_avro_are_a_struct_by_the_schema_of_the_stream(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    stream = items(cluster, tmp_path, "pen", "ink")
    with_payload = tidings.read(spark, stream, payload="avro").where("payload is not null")
    assert with_payload.select("payload.*").dtypes == [
        ("id", "bigint"),
        ("name", "string"),
        ("price", "decimal(10,2)"),
        ("day", "date"),
        ("raw", "binary"),
    ]
    expected = [(1, "pen", PRICE, DAY, b"\x00\xff"), (2, "ink", PRICE, DAY, b"\x00\xff")]
    assert [tuple(row) for row in with_payload.select("payload.*").orderBy("id").collect()] == expected
    of_table = tidings.read_stream(spark, stream, payload="avro", table="shop.item")
    found = followed(of_table.select("payload.id", "payload.name"), tmp_path / "checkpoint")
    assert sorted(tuple(row) for row in found) == [(1, "pen"), (2, "ink")]
    with pytest.raises(InvalidOption, match=r"has no table 'shop\.customer'; it has shop\.item"):
        tidings.read(spark, stream, payload="avro", table="shop.customer")


def test_of_a_stream_of_several_tables_one_is_read_as_avro(spark: SparkSession) -> None:
    schema = {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}]}
    schemas = {"public.item": schema, "public.order": {**schema, "name": "Order"}}
    options = {"publication": "tidings", "payload": "avro", "schemas": schemas}
    shop = Stream(StreamDefinition("shop", 1, "postgres:postgresql://tail@db.example/shop", options=options))
    with pytest.raises(InvalidOption, match=r"has rows of public\.item, public\.order: say which you want"):
        tidings.read(spark, shop, payload="avro")


def test_a_query_follows_a_stream_with_decoded_payloads_and_restarts_from_its_checkpoint(
    spark: SparkSession, people: Stream, tmp_path: Path
) -> None:
    def run() -> list[str]:
        rows = tidings.read_stream(spark, people, after={0: 0}, payload="json", schema="name STRING")
        return [row.name for row in followed(rows.select("payload.name"), tmp_path / "checkpoint")]

    assert run() == ["Bob", "Cecilia", None, None]
    with people.producer() as producer:
        producer.publish("people/dan", 1, payload=b'{"name": "Dan"}').result(30)
    assert run() == ["Dan"]


def test_a_query_begins_with_what_comes_if_it_is_told_so(spark: SparkSession, people: Stream, tmp_path: Path) -> None:
    def run() -> int:
        rows = tidings.read_stream(spark, people, after="latest", max_rows_per_batch=10)
        return len(followed(rows, tmp_path / "checkpoint"))

    assert run() == 0
    with people.producer() as producer:
        producer.publish("people/dan", 1).result(30)
    assert run() == 1


def test_what_was_read_and_what_is_followed_after_it_are_the_whole(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    upto = heads(stream)
    with stream.producer() as producer:
        producer.publish_many(make_updates(7, seed=1)).result(30)
    past = places(tidings.read(spark, stream, upto=upto))
    new = [(row.shard, row.seq) for row in followed(tidings.read_stream(spark, stream, after=upto), tmp_path / "new")]
    assert sorted(past + new) == all_places(stream)
    assert len(new) == 7


def test_updates_that_were_truncated_are_told_and_not_skipped(spark: SparkSession, stream: Stream) -> None:
    ends = heads(stream)
    stream.writable_log.truncate(Positions({shard: Position(seq + 1) for shard, seq in ends.items()}))
    with pytest.raises(PositionsLost, match="no longer holds 0 to"):
        tidings.read(spark, stream, after={0: -1, 1: -1})
    assert tidings.read(spark, stream).count() == 0


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"after": {0: 1}}, InvalidPosition, "after leaves out shard 1: stream 'contacts' has shards 0 to 1, name each"),
    ({"upto": {0: 1, 1: 1, 7: 1}}, InvalidPosition, "upto names shard 7"),
    ({"after": {0: -9, 1: 0}}, InvalidPosition, "-9 is no position"),
    ({"after": {"x": 1}}, InvalidPosition, "'x' is no shard"),
    ({"after": 7}, InvalidPosition, "7 is no set of positions"),
    ({"after": "newest"}, InvalidPosition, "after is 'newest'; write 'earliest'"),
    ({"after": "latest"}, InvalidPosition, "after is 'latest'; write 'earliest'"),
    ({"after": '{"0": 1'}, InvalidPosition, "is no set of positions"),
    ({"after": {0: 5, 1: 0}, "upto": {0: 4, 1: 0}}, InvalidPosition, "after is 5 in shard 0, which is past upto, 4"),
    ({"upto": {0: 10**6, 1: 0}}, LogRestored, "the log ends at"),
    ({"payload": "xml"}, InvalidOption, "payload is 'xml'; write one of 'raw', 'json', 'avro'"),
    ({"payload": "json"}, InvalidOption, "payload='json' needs the schema"),
    ({"schema": "a INT"}, InvalidOption, "a schema is for payload='json'"),
    ({"table": "public.item"}, InvalidOption, "a table is for payload='avro'"),
    ({"payload": "avro"}, InvalidOption, "stream 'contacts' does not say that its payloads are Avro"),
    ({"stream": "nobody"}, UnknownStream, "there is no stream 'nobody'"),
]


@pytest.mark.parametrize(("given", "kind", "reason"), REFUSED)
def test_a_mistake_is_refused_at_once_by_one_sentence(
    spark: SparkSession, cluster: Cluster, stream: Stream, given: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    options = {"stream": "contacts", "cluster": cluster, **given}
    with pytest.raises(kind) as caught:
        tidings.read(spark, **options)
    assert type(caught.value) is kind
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_mistake_in_a_streaming_read_is_refused_at_once(spark: SparkSession, stream: Stream) -> None:
    with pytest.raises(InvalidPosition, match="leaves out shard 1"):
        tidings.read_stream(spark, stream, after={0: 1})
    with pytest.raises(InvalidOption, match="max_rows_per_batch is 0, not a number above 0"):
        tidings.read_stream(spark, stream, max_rows_per_batch=0)
