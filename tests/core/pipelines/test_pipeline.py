from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.support.pipeline_fixtures import Make
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogMismatch, PipelineFailed, PluginMissing
from tidings.stages import Stage
from tidings.stages.filter import FilterStage
from tidings.stages.state import State
from tidings.streams import Stream
from tidings.testing import check_log, eventually, held, make_updates
from tidings.updates import MAX_DELIVERABLE_BYTES, from_rows

EVERYTHING = FilterStage(filter="object exists")


def forget_last_batch(checkpoint: Path) -> None:
    """As if the driver had died before Spark could note its last batch as done."""
    max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


def test_a_pipeline_writes_what_its_stage_returns_and_goes_on_where_it_ended(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make
) -> None:
    contacts.writable_log.append(make_updates(200))
    make(stage="filter", options={"filter": "region = eu"}).run(spark, once=True)
    expected = [row for row in make_updates(200).to_pylist() if dict(row["attributes"])["region"] == "eu"]
    rows = held(copies.log)
    assert len(rows) == len(expected)
    assert sorted(rows["payload"].to_pylist()) == sorted(row["payload"] for row in expected)
    check_log(copies.log, 2)

    contacts.writable_log.append(make_updates(50, seed=1))
    make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == len(expected) + 50


def test_a_pipeline_passes_on_the_largest_payload_that_a_producer_may_publish(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make
) -> None:
    with contacts.producer(max_payload_bytes=MAX_DELIVERABLE_BYTES) as producer:
        producer.publish("alice", 1, payload=bytes(MAX_DELIVERABLE_BYTES)).result(60)
    make(stage=EVERYTHING).run(spark, once=True)
    assert [len(payload) for payload in held(copies.log)["payload"].to_pylist()] == [MAX_DELIVERABLE_BYTES]


def test_a_repeated_batch_is_written_once(spark: SparkSession, contacts: Stream, copies: Stream, make: Make) -> None:
    contacts.writable_log.append(make_updates(60))
    pipeline = make(stage=EVERYTHING)
    pipeline.run(spark, once=True)
    forget_last_batch(pipeline.checkpoint)
    contacts.writable_log.append(make_updates(10, seed=1))
    make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == 70
    check_log(copies.log, 2)


class Shuffled(Stage):
    """Loses the order of the rows, as a join or a grouping does."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        return batch.repartition(5, sf.rand(7)).sortWithinPartitions(sf.rand(8))


def test_rows_of_an_object_leave_in_order_though_the_stage_lost_it(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make
) -> None:
    contacts.writable_log.append(make_updates(500, objects=7))
    make(stage=Shuffled()).run(spark, once=True)
    versions: dict[str, list[int]] = {}
    for row in held(copies.log).to_pylist():
        versions.setdefault(row["object"], []).append(row["version"])
    assert len(versions) == 7
    assert all(seen == sorted(seen) for seen in versions.values())


class Origins(Stage):
    """Says of each row which stream it comes from."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        return batch.withColumn("attributes", sf.create_map(sf.lit("from"), sf.col("stream")))


def test_a_pipeline_reads_several_streams_as_one(
    spark: SparkSession, cluster: Cluster, contacts: Stream, copies: Stream, make: Make
) -> None:
    clicks = cluster.create_stream("clicks", shards=3)
    contacts.writable_log.append(make_updates(20))
    clicks.writable_log.append(make_updates(30, seed=1))
    make(input=["contacts", "clicks"], stage=Origins()).run(spark, once=True)
    origins = [dict(row)["from"] for row in held(copies.log)["attributes"].to_pylist()]
    assert (origins.count("contacts"), origins.count("clicks")) == (20, 30)


class NotingLock:
    """A lock that tells when somebody takes it."""

    def __init__(self, taken: threading.Event) -> None:
        self._lock = threading.Lock()
        self._taken = taken

    def __enter__(self) -> None:
        self._lock.acquire()
        self._taken.set()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def test_a_batch_that_comes_while_the_pipeline_stops_is_for_the_next_run_and_no_error(
    spark: SparkSession, make: Make, contacts: Stream, copies: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    contacts.writable_log.append(make_updates(10))
    with make(stage=EVERYTHING).start(spark) as run:
        eventually(lambda: len(held(copies.log)) == 10)
        came = threading.Event()
        monkeypatch.setattr(run, "_busy", NotingLock(came))
        run._stopping.set()  # as `stop` does first
        contacts.writable_log.append(make_updates(5, seed=1))
        assert came.wait(30)
    assert run._query.exception() is None
    assert run.error is None
    make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == 15


def test_a_running_pipeline_follows_its_input_until_it_is_stopped(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make
) -> None:
    with make(stage=EVERYTHING).start(spark) as run:
        for count in range(1, 4):
            contacts.writable_log.append(make_updates(10, seed=count))
            eventually(lambda: len(held(copies.log)) == 10 * count)  # noqa: B023
        was_active = run.active
    assert was_active
    assert not run.active
    assert run.wait()


class Failing(Stage):
    """Fails at a row that it does not like."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        raise ValueError("this batch is no good\nfor a second reason")


class Wrong(Stage):
    """Makes rows that are no updates."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        return batch.withColumn("version", sf.lit(-5).cast("long"))


class Late(Stage):
    """Gives its rows a time that no reader in Python could take."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        return batch.withColumn("time", sf.timestamp_micros(sf.lit(253_402_300_800_000_000)))


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (Failing(), "pipeline 'p' failed: ValueError: this batch is no good$"),
        (Wrong(), "pipeline 'p' failed: version -5 of object 'object-.*' is negative$"),
        (
            Late(),
            "pipeline 'p' failed: time 253402300800000000 .* of object 'object-.*' is not in the years 1 to 9999",
        ),
    ],
)
def test_a_pipeline_that_fails_says_why_and_writes_nothing(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make, stage: Stage, told: str
) -> None:
    contacts.writable_log.append(make_updates(10))
    with pytest.raises(PipelineFailed, match=told):
        make(stage=stage).run(spark, once=True)
    assert len(held(copies.log)) == 0
    make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == 10


def test_an_input_that_lost_what_comes_next_fails_the_pipeline_with_the_log_s_own_words(
    spark: SparkSession, contacts: Stream, make: Make
) -> None:
    contacts.writable_log.append(make_updates(10))
    make(stage=EVERYTHING).run(spark, once=True)
    contacts.writable_log.append(make_updates(10, seed=1))
    contacts.writable_log.append(make_updates(10, seed=2))
    contacts.writable_log.retain(max_bytes=1)
    with pytest.raises(PipelineFailed, match=r"stream 'contacts' no longer holds .* they were truncated$"):
        make(stage=EVERYTHING).run(spark, once=True)


def test_an_input_that_was_made_anew_fails_the_pipeline_with_the_reason(
    spark: SparkSession, cluster: Cluster, contacts: Stream, copies: Stream, make: Make
) -> None:
    contacts.writable_log.append(make_updates(10))
    make(stage=EVERYTHING).run(spark, once=True)
    cluster.drop_stream("contacts", purge=True)
    cluster.create_stream("contacts", shards=4).writable_log.append(make_updates(100, seed=1))
    with pytest.raises(PipelineFailed, match=r"the log of stream 'contacts' was deleted and made anew"):
        make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == 10


def test_a_pipeline_that_cannot_work_is_refused_when_it_is_made(make: Make) -> None:
    with pytest.raises(PluginMissing, match="no stage 'nope' is installed"):
        make(stage="nope")
    with pytest.raises(InvalidOption, match="stage 'filter': filter: is missing"):
        make(stage="filter")
    with pytest.raises(InvalidOption, match="stage 'filter': filtr: unknown key; did you mean filter"):
        make(stage="filter", options={"filter": "a = b", "filtr": "x"})
    with pytest.raises(InvalidOption, match="options twice"):
        make(stage=EVERYTHING, options={"filter": "a = b"})
    with pytest.raises(InvalidOption, match="names an input twice"):
        make(stage=EVERYTHING, input=["contacts", "contacts"])
    with pytest.raises(InvalidOption, match="would read what it writes"):
        make(stage=EVERYTHING, output="contacts")
    with pytest.raises(InvalidOption, match="name it as the output"):
        make(stage=EVERYTHING, output=None)


def test_a_checkpoint_of_other_inputs_is_refused(
    spark: SparkSession, cluster: Cluster, contacts: Stream, make: Make
) -> None:
    cluster.create_stream("clicks", shards=3)
    make(stage=EVERYTHING).run(spark, once=True)
    with pytest.raises(LogMismatch, match=r"has read contacts \(4 shards in .* cannot go on with other inputs"):
        make(stage=EVERYTHING, input=["clicks"]).run(spark, once=True)


def test_which_inputs_a_checkpoint_is_for_is_durable_before_there_is_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (pipeline.folder / "inputs.json").exists()))
        sync(descriptor)

    pipeline = make(stage=EVERYTHING)
    monkeypatch.setattr(os, "fsync", note)
    pipeline.note_inputs()
    assert synced[-2:] == [(str(pipeline.folder / "inputs.json.tmp"), False), (str(pipeline.folder), True)]
    assert {str(folder) for folder in (pipeline.folder.parent, pipeline.folder.parent.parent)} < {
        one for one, _ in synced
    }


def test_what_has_no_place_in_the_log_keeps_the_order_that_it_has() -> None:
    from tidings.pipelines.query import ordered

    rows: list[dict[str, Any]] = [{"object": name} for name in "cab"]
    assert ordered(from_rows(rows))["object"].to_pylist() == ["c", "a", "b"]
    placed = pa.table({"stream": ["s"] * 4, "shard": [1, 0, 1, 0], "seq": [5, 9, 5, 8], "object": ["a", "b", "c", "d"]})
    assert ordered(placed)["object"].to_pylist() == ["d", "b", "a", "c"]
    assert "stream" not in ordered(placed).column_names
