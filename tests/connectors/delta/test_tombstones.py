"""Tombstones in a Delta log: what readers get in the place of updates that were collected."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.burying import APPLICATION, bury
from tidings.errors import LogMismatch
from tidings.log_opening import open_log
from tidings.log_reading import ends
from tidings.logs import CollectableLog, Transaction
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings.tombstones import NO_TOMBSTONES, Tombstones
from tidings.updates import SCHEMA, TOMBSTONE
from tidings_connectors.delta import maintenance, segments
from tidings_connectors.delta.log import DeltaLog

Row = tuple[int, int, int, str, str]  # shard, first, last, kind, object


def shown(rows: pa.Table) -> list[Row]:
    """Rows as what they cover, tombstones that adjoin as one: where they are cut is nobody's business."""
    found: list[Row] = []
    columns = (rows[name].to_pylist() for name in ("shard", "seq", "range", "kind", "object"))
    for shard, seq, count, kind, name in sorted(zip(*columns, strict=True)):
        first = seq - count + 1
        if found and kind == TOMBSTONE and found[-1][0] == shard and found[-1][3] == kind and found[-1][2] == first - 1:
            first = found.pop()[1]
        found.append((shard, first, seq, kind, name))
    return found


def over(rows: list[Row], gone: Tombstones) -> list[Row]:
    """The model: each row is replaced by itself, or by a tombstone."""
    model: list[Row] = []
    for shard, first, last, kind, name in rows:
        if gone.covers([shard], [first], [last])[0] or kind == TOMBSTONE:
            kind, name = TOMBSTONE, ""
            if model and model[-1][0] == shard and model[-1][3] == kind and model[-1][2] == first - 1:
                first = model.pop()[1]
        model.append((shard, first, last, kind, name))
    return model


def some_of(log: DeltaLog, share: float, seed: int = 0) -> Tombstones:
    """Some of the updates that are there."""
    rows = held(log)
    rows = rows.filter(pc.not_equal(rows["kind"], TOMBSTONE))
    chosen = np.random.default_rng(seed).random(len(rows)) < share
    return Tombstones.at(rows["shard"].to_numpy()[chosen], rows["seq"].to_numpy()[chosen])


@pytest.fixture
def filled(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> DeltaLog:
    """A log of several segments, each of many row groups."""
    monkeypatch.setattr(segments, "ROW_GROUP_ROWS", 16)
    for number in range(5):
        log.append(make_updates(200, seed=number))
    return log


def test_the_delta_log_is_a_collectable_log(log: DeltaLog) -> None:
    assert isinstance(log, CollectableLog)


def test_what_is_collected_is_read_as_tombstones_and_all_else_as_it_was(
    filled: DeltaLog, definition: StreamDefinition
) -> None:
    before, gone = shown(held(filled)), some_of(filled, 0.7)
    bury(filled, gone)
    assert shown(held(filled)) == over(before, gone)
    assert shown(held(open_log(definition))) == over(before, gone)
    check_log(filled, definition.shards)


def test_a_collection_is_one_commit_and_files_stay_as_they_are(filled: DeltaLog) -> None:
    before = filled._table.refresh()
    number = bury(filled, some_of(filled, 0.1))
    after = filled._table.refresh()
    assert after.version == before.version + 1
    assert len(after.overlays) == 1
    assert [segment.path for segment in after.segments] == [segment.path for segment in before.segments]
    assert filled.last_transaction(APPLICATION) == number


def test_a_collection_of_nothing_still_notes_its_transaction(filled: DeltaLog, definition: StreamDefinition) -> None:
    number = bury(filled, NO_TOMBSTONES)
    assert open_log(definition).last_transaction(APPLICATION) == number  # type: ignore[attr-defined]
    assert not filled._table.refresh().overlays


def test_compaction_puts_tombstones_into_segments_and_changes_nothing_that_is_read(
    filled: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "plan_compaction", lambda sizes: [])
    model = shown(held(filled))
    for seed, share in enumerate((0.05, 0.1, 0.3)):
        gone = some_of(filled, share, seed)
        bury(filled, gone)
        model = over(model, gone)
        filled.compact()
        assert shown(held(filled)) == model
    snapshot = filled._table.refresh()
    assert all(segment.span.rows < segment.span.positions for segment in snapshot.segments)
    assert not snapshot.overlays  # what is in the segments is not kept a second time
    assert shown(held(open_log(definition))) == model


def test_small_segments_are_merged_with_what_lies_over_them(filled: DeltaLog, definition: StreamDefinition) -> None:
    for seed in range(4):
        filled.append(make_updates(200, seed=10 + seed))
    gone = some_of(filled, 0.1)
    model = over(shown(held(filled)), gone)
    bury(filled, gone)  # and what is due to be merged is
    assert len(filled._table.refresh().segments) == 1
    assert shown(held(filled)) == model
    check_log(filled, definition.shards)


def test_what_is_left_between_two_positions_is_read_without_payloads(filled: DeltaLog) -> None:
    gone = some_of(filled, 0.3)
    bury(filled, gone)
    after, upto = Positions({shard: Position(20 + shard) for shard in range(4)}), filled.reach(Positions(), None)
    found = pa.concat_tables(filled.updates(after, upto))
    assert found.schema.equals(SCHEMA)
    assert found["payload"].null_count == len(found)
    expected = pa.concat_tables(
        pa.Table.from_batches(list(piece.read()), SCHEMA) for piece in filled.slices(after, upto)
    )
    expected = expected.filter(pc.not_equal(expected["kind"], TOMBSTONE))
    order = [("shard", "ascending"), ("seq", "ascending")]
    assert found.sort_by(order).drop(["payload"]).equals(expected.sort_by(order).drop(["payload"]))


def test_a_large_overlay_is_left_alone_by_small_ones(filled: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "plan_compaction", lambda sizes: [])
    bury(filled, some_of(filled, 0.12))
    (large,) = filled._table.refresh().overlays
    for seed in range(maintenance.FAN_IN_SEGMENTS):
        bury(filled, some_of(filled, 0.006, seed))
    names = {one.path.name for one in filled._table.refresh().overlays}
    assert large.path.name in names
    assert len(names) == 2


def test_many_overlays_become_one(filled: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "plan_compaction", lambda sizes: [])
    model = shown(held(filled))
    for seed in range(maintenance.FAN_IN_SEGMENTS):
        gone = some_of(filled, 0.01, seed)
        bury(filled, gone)
        model = over(model, gone)
    filled.compact()
    assert len(filled._table.refresh().overlays) == 1
    assert shown(held(filled)) == model


@pytest.mark.parametrize("folded", [False, True])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_reader_within_a_collected_run_gets_its_part_of_the_tombstone(
    filled: DeltaLog, folded: bool, data: Any
) -> None:
    rows = held(filled)
    if not pc.any(pc.equal(rows["kind"], TOMBSTONE)).as_py():
        bury(filled, some_of(filled, 0.9))
        if folded:
            filled.compact()
        rows = held(filled)
    heads = {shard: bounds.head.seq for shard, bounds in filled.bounds().items()}
    after = {shard: data.draw(st.integers(-1, head)) for shard, head in heads.items()}
    upto = {shard: data.draw(st.integers(after[shard], head)) for shard, head in heads.items()}
    positions = [Positions({shard: Position(seq) for shard, seq in one.items()}) for one in (after, upto)]
    read = pa.Table.from_batches(
        [batch for piece in filled.slices(*positions) for batch in pickle.loads(pickle.dumps(piece)).read()], SCHEMA
    )
    whole = {(shard, at): row for row in shown(rows) for shard, at in [(row[0], n) for n in range(row[1], row[2] + 1)]}
    covered = [
        (shard, at, kind, name) for shard, first, last, kind, name in shown(read) for at in range(first, last + 1)
    ]
    expected = [
        (shard, at, *whole[shard, at][3:]) for shard in sorted(heads) for at in range(after[shard] + 1, upto[shard] + 1)
    ]
    assert covered == expected


def test_a_tail_in_small_bites_passes_over_tombstones_and_leaves_nothing_out(filled: DeltaLog) -> None:
    gone = some_of(filled, 0.8)
    model = over(shown(held(filled)), gone)
    bury(filled, gone)
    for _ in range(2):
        after = {shard: bounds.floor for shard, bounds in filled.bounds().items()}
        reads, rng = [], random.Random(1)
        while len(rows := filled.tail(Positions(after), rng.randrange(1, 50))):
            reads.append(rows)
            after.update(ends(rows))
        assert shown(pa.concat_tables(reads)) == model
        filled.compact()


def test_spark_scans_the_same_rows_and_tombstones(spark: SparkSession, filled: DeltaLog) -> None:
    gone = some_of(filled, 0.5)
    model = over(shown(held(filled)), gone)
    bury(filled, gone)
    assert shown(filled.scan(spark).toArrow()) == model
    for cut in (30, 60, 90):
        heads = {shard: bounds.head.seq for shard, bounds in filled.bounds().items()}
        after = Positions({shard: Position(head * (cut - 30) // 100) for shard, head in heads.items()})
        upto = Positions({shard: Position(head * cut // 100) for shard, head in heads.items()})
        expected = pa.concat_tables(
            pa.Table.from_batches(list(piece.read()), SCHEMA) for piece in filled.slices(after, upto)
        )
        assert shown(filled.scan(spark, after, upto).toArrow()) == shown(expected)
        filled.compact()


def test_sparks_delta_reader_sees_updates_and_the_tombstones_that_stand_for_some_of_them(
    spark: SparkSession, filled: DeltaLog
) -> None:
    gone = some_of(filled, 0.9)
    bury(filled, gone)
    model = shown(held(filled))
    seen = spark.read.format("delta").load(str(filled.folder)).toArrow()
    assert Tombstones.from_rows(seen) == gone
    filled.compact()
    assert shown(spark.read.format("delta").load(str(filled.folder)).toArrow()) == model


def test_a_table_that_another_engine_compacted_after_a_collection_is_read_the_same(
    spark: SparkSession, filled: DeltaLog, definition: StreamDefinition
) -> None:
    gone = some_of(filled, 0.6)
    model = over(shown(held(filled)), gone)
    bury(filled, gone)
    spark.sql(f"OPTIMIZE delta.`{filled.folder}`").collect()
    again = open_log(definition)
    assert shown(held(again)) == model
    assert shown(again.scan(spark).toArrow()) == model
    again.compact()  # type: ignore[attr-defined]
    assert shown(held(again)) == model


def test_truncation_and_collection_go_together(filled: DeltaLog, definition: StreamDefinition) -> None:
    gone = some_of(filled, 0.5)
    bury(filled, gone)
    heads = {shard: bounds.head.seq for shard, bounds in filled.bounds().items()}
    filled.truncate(Positions({shard: Position(head // 2) for shard, head in heads.items()}))
    check_log(filled, definition.shards)
    bury(filled, gone)  # most of it is gone altogether
    check_log(filled, definition.shards)
    filled.truncate(Positions({shard: Position(head + 1) for shard, head in heads.items()}))
    filled.compact()
    assert held(filled).num_rows == 0
    assert {shard: bounds.head.seq for shard, bounds in open_log(definition).bounds().items()} == heads


def test_a_collection_that_another_has_overtaken_changes_nothing(filled: DeltaLog) -> None:
    gone = some_of(filled, 0.5)
    bury(filled, some_of(filled, 0.1))
    before = shown(held(filled)), sorted(filled.folder.glob("*.parquet"))
    with pytest.raises(LogMismatch, match="was collected by another, or made anew, meanwhile"):
        filled.collect(gone, Transaction(APPLICATION, 9), -1)
    assert (shown(held(filled)), sorted(filled.folder.glob("*.parquet"))) == before


def test_a_collection_of_a_log_that_was_made_anew_meanwhile_changes_nothing(
    filled: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = some_of(filled, 0.5)
    real = segments.write_overlay

    def remade(*arguments: Any) -> Any:
        filled.destroy()
        again = DeltaLog.create(str(filled.folder), definition)
        again.append(make_updates(1000, seed=9))
        again.close()
        return real(*arguments)

    monkeypatch.setattr("tidings_connectors.delta.log.write_overlay", remade)
    with pytest.raises(LogMismatch, match="made anew"):
        filled.collect(gone, Transaction(APPLICATION, 1), -1)
    assert len(held(open_log(definition))) == 1000
