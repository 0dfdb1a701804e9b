from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.support.pipeline_fixtures import Make
from tidings.errors import InvalidOption, LogMismatch
from tidings.stages import Stage, make
from tidings.stages import state as state_module
from tidings.stages.latest import LatestStage
from tidings.stages.map import MapStage
from tidings.stages.reshard import ReshardStage
from tidings.stages.state import State
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import check_log, held, make_updates, read_table, run_stage

Rows = list[dict[str, Any]]


def rows_of(table: pa.Table) -> Rows:
    rows: Rows = table.to_pylist(maps_as_pydicts="lossy")
    return rows


# filter


def test_filter_lets_through_what_passes(spark: SparkSession) -> None:
    rows: list[Any] = [{"object": "a", "attributes": {"region": "eu"}}, {"object": "b"}, {"object": "c", "version": 3}]
    out = run_stage(make("filter", {"filter": "region = eu or version in 2.."}), rows, spark=spark)
    assert out["object"].to_pylist() == ["a", "c"]


def test_filter_names_the_place_of_a_mistake() -> None:
    with pytest.raises(InvalidOption, match="stage 'filter': filter: column 8: expected"):
        make("filter", {"filter": "region xists"})


# map


def mapped(spark: SparkSession, options: dict[str, Any], **row: Any) -> dict[str, Any]:
    [out] = rows_of(run_stage(make("map", options), [{"object": "o", "version": 7, **row}], spark=spark, repeat=False))
    return out


def test_map_sets_columns_from_columns_attributes_constants_and_texts(spark: SparkSession) -> None:
    out = mapped(
        spark,
        {
            "set": {
                "object": {"concat": ["user/", {"attribute": "user"}, "/", {"column": "version"}]},
                "version": {"attribute": "rev"},
                "payload": {"attribute": "user"},
                "source": {"constant": "importer"},
                "attributes.from": {"column": "stream"},
                "attributes.was": {"column": "object"},
            }
        },
        attributes={"user": "alice", "rev": "12"},
        payload=b"old",
    )
    assert (out["object"], out["version"], out["payload"]) == ("user/alice/7", 12, b"alice")
    assert out["source"] == "importer"
    assert out["attributes"] == {"user": "alice", "rev": "12", "from": "input", "was": "o"}


def test_map_drops_and_renames(spark: SparkSession) -> None:
    options = {"drop": ["payload", "attributes.secret"], "rename": {"user": "owner", "none": "a"}}
    out = mapped(spark, options, attributes={"user": "alice", "owner": "bob", "secret": "x", "a": "1"}, payload=b"p")
    assert out["payload"] is None
    assert out["attributes"] == {"owner": "alice", "a": "1"}
    assert mapped(spark, {"drop": ["attributes"], "rename": {"a": "b"}}, attributes={"a": "1"})["attributes"] in (
        {},
        None,
    )
    swapped = mapped(spark, {"rename": {"a": "b", "b": "a"}}, attributes={"a": "1", "b": "2"})
    assert swapped["attributes"] == {"b": "1", "a": "2"}


def test_map_makes_null_of_what_does_not_fit(spark: SparkSession) -> None:
    options = {
        "set": {"version": {"attribute": "rev"}, "time": {"attribute": "rev"}, "attributes.x": {"attribute": "no"}}
    }
    out = mapped(spark, options, attributes={"rev": "7a"})
    assert (out["version"], out["time"], out["attributes"]) == (None, None, {"rev": "7a"})


def test_map_writes_attributes_as_json_and_times_in_utc(spark: SparkSession) -> None:
    options = {"set": {"payload": {"column": "attributes"}, "attributes.p": {"column": "payload"}}}
    assert mapped(spark, options, attributes={"a": "1"}, payload=b"\xff")["payload"] == b'{"a":"1"}'
    assert mapped(spark, options, attributes={"a": "1"}, payload=b"\xff")["attributes"] == {"a": "1"}
    assert mapped(spark, options, payload="né".encode())["attributes"] == {"p": "né"}
    out = mapped(
        spark, {"set": {"time": {"constant": "2026-01-01T01:00:00+01:00"}, "attributes.t": {"column": "time"}}}
    )
    assert out["time"].isoformat() == "2026-01-01T00:00:00+00:00"
    assert out["attributes"]["t"].endswith("Z")


def test_map_takes_no_text_for_sql(spark: SparkSession) -> None:
    nasty = "`x`') or 1=1 -- ${y} \\"
    options = {
        "set": {"object": {"concat": [nasty]}, f"attributes.{nasty}": {"constant": nasty}},
        "rename": {nasty: "n"},
    }
    out = mapped(spark, options, attributes={nasty: "v"})
    assert out["object"] == nasty
    assert out["attributes"] == {nasty: nasty, "n": "v"}


def test_map_chooses_updates(spark: SparkSession) -> None:
    stage = MapStage(where="user exists", set={"object": {"attribute": "user"}})
    out = run_stage(stage, [{"object": "a"}, {"object": "b", "attributes": {"user": "u"}}], spark=spark)
    assert out["object"].to_pylist() == ["u"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"set": {"shard": {"constant": 1}}}, "set.shard.*'shard' cannot be set"),
        ({"set": {"object": "x"}}, r"set.object: must be \{column"),
        ({"set": {"object": {"column": "colour"}}}, "there is no column 'colour'"),
        ({"set": {"object": {"expr": "1+1"}}}, "'expr' is no form of value"),
        ({"set": {"object": {"constant": 1.5}}}, "a constant is text"),
        ({"set": {"object": {"concat": []}}}, "concat takes a list"),
        ({"set": {"object": {"concat": [{"concat": ["a"]}]}}}, "concat within a concat"),
        ({"drop": ["object"]}, "drop.0: 'object' cannot be dropped"),
        ({"rename": {"a": "b", "c": "b"}}, "two attributes one name"),
        ({"where": "a ="}, "where: column"),
    ],
)
def test_map_refuses_what_it_does_not_know(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        make("map", options)


# reshard


def test_reshard_keeps_the_order_of_each_object(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make
) -> None:
    for seed in range(3):
        contacts.writable_log.append(make_updates(200, objects=9, seed=seed))
    make(stage=ReshardStage(shards=2), max_rows=70).run(spark, once=True)
    check_log(copies.log, 2)

    def sequences(log: Any) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for row in held(log).to_pylist():
            found.setdefault(row["object"], []).append(row["payload"])
        return found

    assert sequences(copies.log) == sequences(contacts.log)


def test_reshard_wants_the_shards_that_it_was_told() -> None:
    wide = StreamDefinition("wide", 8, "delta:/x")
    with pytest.raises(InvalidOption, match="stream 'wide' has 8 shards, not 4"):
        ReshardStage(shards=4).check([wide], wide)


# latest


def kept(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {row["object"]: (row["version"], row["payload"], row["deleted"]) for row in read_table(folder, "latest")}


def test_latest_keeps_the_newest_version_and_ignores_older_and_repeated_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: list[Rows] = [
        [{"object": "a", "version": v, "payload": b"%d" % v} for v in (3, 5, 4)] + [{"object": "b", "payload": b"x"}],
        [
            {"object": "a", "version": 5, "payload": b"again"},
            {"object": "a", "payload": b"unknown"},
            {"object": "b", "payload": b"y"},
            {"object": "b", "payload": b"z"},
            {"object": "c", "version": 0, "attributes": {"k": "v"}},
        ],
        [{"object": "a", "version": 6, "payload": b"6"}],
    ]
    for number, rows in enumerate(batches):
        assert len(run_stage(LatestStage(), rows, state=tmp_path, batch_id=number, spark=spark)) == 0
        if number == 1:
            assert kept(tmp_path) == {"a": (5, b"5", False), "b": (None, b"z", False), "c": (0, None, False)}
    assert kept(tmp_path) == {"a": (6, b"6", False), "b": (None, b"z", False), "c": (0, None, False)}
    assert next(r for r in read_table(tmp_path, "latest") if r["object"] == "c")["attributes"] == {"k": "v"}


def test_latest_marks_what_was_deleted_and_an_older_version_does_not_bring_it_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = LatestStage(deletes="op = d or kind = gc")
    batches: list[Rows] = [
        [{"object": "a", "version": 1, "payload": b"1"}, {"object": "b", "version": 1, "payload": b"1"}],
        [{"object": "a", "version": 3, "payload": b"x", "attributes": {"op": "d"}}],
        [{"object": "a", "version": 2, "payload": b"2"}, {"object": "b", "version": 2, "kind": "gc"}],
        [{"object": "b", "version": 3, "payload": b"3"}],
    ]
    for number, rows in enumerate(batches):
        run_stage(stage, rows, state=tmp_path, batch_id=number, spark=spark)
    assert kept(tmp_path) == {"a": (3, None, True), "b": (3, b"3", False)}


def test_latest_refuses_a_table_with_other_buckets(spark: SparkSession, tmp_path: Path) -> None:
    run_stage(LatestStage(), [{"object": "a", "version": 1}], state=tmp_path, spark=spark, repeat=False)
    with pytest.raises(LogMismatch, match="was made with buckets = 16, not 32: set that back"):
        run_stage(LatestStage(buckets=32), [{"object": "a", "version": 2}], state=tmp_path, batch_id=1, spark=spark)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 4)), min_size=1, max_size=8), max_size=3
    )
)
def test_latest_does_as_if_updates_came_one_by_one(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[str, int | None]]]
) -> None:
    folder = tmp_path_factory.mktemp("latest")
    expected: dict[str, tuple[Any, ...]] = {}
    for number, batch in enumerate(batches):
        rows: Rows = []
        for at, (name, version) in enumerate(batch):
            payload = b"%d.%d" % (number, at)
            rows.append({"object": name, "version": version, "payload": payload})
            old = expected.get(name)
            known = -1 if version is None else version
            if old is None or known > (-1 if old[0] is None else old[0]) or (version is None and old[0] is None):
                expected[name] = (version, payload, False)
        run_stage(LatestStage(buckets=2), rows, state=folder, batch_id=number, spark=spark, repeat=number == 0)
    assert not batches or kept(folder) == expected


def test_latest_runs_in_a_pipeline_without_an_output(spark: SparkSession, contacts: Stream, make: Make) -> None:
    contacts.writable_log.append(make_updates(300))
    pipeline = make(stage="latest", output=None)
    pipeline.run(spark, once=True)
    newest: dict[str, int] = {}
    for row in make_updates(300).to_pylist():
        newest[row["object"]] = row["version"]
    assert {name: one[0] for name, one in kept(pipeline.tables).items()} == newest
    with pytest.raises(InvalidOption, match="the stage writes no stream"):
        make(stage="latest")
    table = spark.read.format("delta").load(str(pipeline.tables / "latest"))
    assert table.where("not deleted").count() == len(newest)


# what a stage keeps

COUNTS = pa.schema([("object", pa.string()), ("seen", pa.int64())])


class Numbered(Stage):
    """Numbers the updates of an object: what it writes depends on what it kept."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        from pyspark.sql import Window

        counts = state.table("counts", COUNTS)
        known = batch.sparkSession.createDataFrame(counts.read())
        number = sf.row_number().over(Window.partitionBy("object").orderBy("seq"))
        rows = batch.join(sf.broadcast(known), "object", "left")
        rows = rows.withColumn("version", (sf.coalesce("seen", sf.lit(0)) + number).cast("long")).drop("seen")
        counts.merge(rows.groupBy("object").agg(sf.max("version").alias("seen")), ["object"])
        return rows


def test_a_stage_s_state_is_as_it_was_before_when_a_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        out = run_stage(Numbered(), [{"object": "a"}, {"object": "a"}], state=tmp_path, batch_id=number, spark=spark)
        assert out["version"].to_pylist() == [2 * number + 1, 2 * number + 2]
    assert read_table(tmp_path, "counts") == [{"object": "a", "seen": 6}]


def test_a_stage_whose_repeated_batch_differs_is_found_out(spark: SparkSession) -> None:
    class Random(Stage):
        def apply(self, batch: DataFrame, state: State) -> DataFrame:
            return batch.withColumn("version", (sf.rand() * 2**40).cast("long"))

    with pytest.raises(AssertionError, match="the repeated batch gives"):
        run_stage(Random(), [{"object": "a"}], spark=spark)


def append_row(folder: Path, app: str, batch_id: int, partition_by: tuple[str, ...] = ()) -> None:
    state = State(folder, app, batch_id)
    rows = pa.table({"object": ["a"], "seen": [1]}, COUNTS)
    state.table("counts", COUNTS, partition_by=partition_by).append(rows)
    state.commit()


@pytest.mark.parametrize("partition_by", [(), ("object",)])
def test_what_a_stale_driver_writes_changes_nothing(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    for batch_id in (4, 4, 3, 5):
        append_row(tmp_path, "app", batch_id, partition_by)
    assert len(read_table(tmp_path, "counts")) == 2
    append_row(tmp_path, "another-app", 0, partition_by)
    assert len(read_table(tmp_path, "counts")) == 3


def test_of_two_drivers_that_write_a_batch_at_once_one_changes_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = state_module._written

    def overtaken(*arguments: Any) -> Any:
        """Is called when the first driver has seen that the table lacks the batch."""
        monkeypatch.setattr(state_module, "_written", write)
        append_row(tmp_path, "app", 1)
        return write(*arguments)

    append_row(tmp_path, "app", 0)
    monkeypatch.setattr(state_module, "_written", overtaken)
    append_row(tmp_path, "app", 1)
    assert len(read_table(tmp_path, "counts")) == 2


def test_a_table_is_written_once_in_a_batch(tmp_path: Path) -> None:
    table = State(tmp_path, "app", 0).table("counts", COUNTS)
    table.append(COUNTS.empty_table())
    with pytest.raises(InvalidOption, match="table 'counts' once in a batch"):
        table.replace(COUNTS.empty_table())


def test_a_table_is_read_as_it_was_before_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    for batch_id, name in enumerate("ab"):
        state = State(tmp_path, "app", batch_id)
        state.table("t", COUNTS).replace(pa.table({"object": [name], "seen": [1]}, COUNTS))
        state.commit()
    assert State(tmp_path, "app", 2).table("t", COUNTS).read()["object"].to_pylist() == ["b"]
    assert State(tmp_path, "app", 1).table("t", COUNTS).read(["object"]).to_pylist() == [{"object": "a"}]
    assert State(tmp_path, "app", 0).table("t", COUNTS).read().num_rows == 0
    assert [row["object"] for row in State(tmp_path, "app", 1).table("t", COUNTS).scan(spark).collect()] == ["a"]
    assert State(tmp_path, "app", 1).table("other", COUNTS).scan(spark).count() == 0


def test_a_table_that_is_written_for_long_keeps_few_files(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    commits = 70
    for batch_id in range(commits):
        state = State(tmp_path, "app", batch_id)
        state.table("t", COUNTS).replace(pa.table({"object": ["a"], "seen": [batch_id]}, COUNTS))
        state.commit()
        for path in tmp_path.rglob("*"):  # as if a batch came every two hours
            if path.is_file():
                age = path.stat().st_mtime - 7200
                os.utime(path, (age, age))
    table = DeltaTable(tmp_path / "t")
    assert table.version() == commits
    assert State(tmp_path, "app", commits - 1).table("t", COUNTS).read()["seen"].to_pylist() == [commits - 2]
    assert len(list((tmp_path / "t" / "_delta_log").glob("*.json"))) < 2 * 16 + 2
