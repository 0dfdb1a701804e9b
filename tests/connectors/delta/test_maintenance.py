from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tidings.log_opening import create_log, open_log, redefine_log
from tidings.logs import Transaction
from tidings.positions import Position, Positions
from tidings.storage.delta_commits import milliseconds
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings.updates import from_rows, shard_of
from tidings_connectors.delta import maintenance
from tidings_connectors.delta.log import DeltaLog
from tidings_connectors.delta.maintenance import plan_compaction
from tidings_connectors.delta.segments import Segment, write_segment

sizes = st.lists(st.integers(1, 3000), max_size=60)


def age(folder: Path, seconds: float) -> None:
    """Make the files look as if they had been there for longer."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def append_many(log: DeltaLog, commits: int) -> pa.Table:
    for seed in range(commits):
        log.append(make_updates(5, seed=seed))
    return held(log)


@given(sizes, st.integers(2, 8))
def test_planned_runs_are_apart_long_enough_and_within_the_target(some: list[int], fan_in: int) -> None:
    end = 0
    for run in plan_compaction(some, fan_in, target=2000):
        assert run.start >= end
        end = run.stop
        assert run.stop - run.start >= fan_in
        assert sum(some[run]) <= 2000
        assert max(some[run]) < 1000


@given(st.lists(st.integers(1, 20), min_size=1, max_size=400))
def test_compaction_again_and_again_rewrites_each_byte_a_few_times_only(appends: list[int]) -> None:
    held_sizes: list[int] = []
    rewritten = 0
    for size in appends:
        held_sizes.append(size)
        for run in reversed(plan_compaction(held_sizes, 4, target=4000)):
            rewritten += sum(held_sizes[run])
            held_sizes[run] = [sum(held_sizes[run])]
    assert rewritten <= 8 * sum(appends)
    assert len(held_sizes) <= 60


def test_compaction_changes_no_row_and_is_no_change_of_data(log: DeltaLog) -> None:
    before = append_many(log, 30)
    files = len(DeltaTable(log.folder).file_uris())
    gone = log.compact()
    assert gone > 20
    assert len(DeltaTable(log.folder).file_uris()) == files - gone
    assert held(log) == before
    commit = (log.folder / "_delta_log" / f"{DeltaTable(log.folder).version():020}.json").read_text()
    assert '"dataChange": true' not in commit


def test_segments_that_two_writers_compact_at_once_are_compacted_once(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = append_many(log, maintenance.FAN_IN_SEGMENTS)
    other = DeltaLog.open(str(log.folder), definition)

    def overtaken(*arguments: Any) -> Any:
        """Is called when the rows of the old segments have been read."""
        monkeypatch.setattr(maintenance, "write_segment", write_segment)
        assert other.compact() == maintenance.FAN_IN_SEGMENTS - 1
        return write_segment(*arguments)

    monkeypatch.setattr(maintenance, "write_segment", overtaken)
    assert log.compact() == 0
    assert held(log) == held(open_log(definition)) == before


def test_every_so_many_commits_a_writer_compacts_and_checkpoints_by_itself(log: DeltaLog) -> None:
    before = append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert len(DeltaTable(log.folder).file_uris()) < 10
    assert (log.folder / "_delta_log" / "_last_checkpoint").exists()
    assert held(log) == before


def test_a_reader_follows_through_compaction_and_vacuum(log: DeltaLog, definition: StreamDefinition) -> None:
    reader = open_log(definition)
    seen: list[pa.Table] = []
    stop = threading.Event()

    def follow() -> None:
        after = Positions()
        while not stop.is_set() or after != reader.reach(after, None):
            rows = reader.tail(after, 50)
            seen.append(rows)
            last = rows.group_by("shard").aggregate([("seq", "max")]).to_pylist()
            after = Positions({**after, **{row["shard"]: Position(row["seq_max"]) for row in last}})

    thread = threading.Thread(target=follow)
    thread.start()
    for seed in range(60):
        log.append(make_updates(5, seed=seed))
        if seed % 10 == 9:
            log.compact()
            log.maintenance.vacuum(grace_hours=0)
    stop.set()
    thread.join()
    rows = pa.concat_tables(seen).sort_by([("shard", "ascending"), ("seq", "ascending")])
    assert rows == held(log)
    check_log(log, 4)


def test_what_was_compacted_can_be_read_for_an_hour_by_who_had_planned_to(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = append_many(log, 20)
    age(log.folder, 2 * 3600)
    slices = log.slices(Positions(), log.reach(Positions(), None))

    def read() -> int:
        return sum(batch.num_rows for piece in slices for batch in piece.read())

    assert log.compact() > 10
    log.maintenance.vacuum()
    assert read() == rows.num_rows
    now = time.time()
    monkeypatch.setattr("tidings.storage.delta_commits.milliseconds", lambda: int((now - 2 * 3600) * 1000))
    append_many(log, 20)
    assert log.compact() > 10
    files = len(list(log.folder.glob("*.parquet")))
    log.maintenance.vacuum()
    assert len(list(log.folder.glob("*.parquet"))) < files, "what went two hours ago"


def test_a_reader_that_slept_through_a_clean_up_of_the_delta_log_goes_on(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    append_many(log, 3)
    sleeper = open_log(definition)
    append_many(log, 30)
    log.compact()
    log.maintenance.checkpoint()
    age(log.folder, 2 * 3600)
    log.append(make_updates(5))
    log.maintenance.checkpoint()
    commits = sorted((log.folder / "_delta_log").glob("*.json"))
    assert len(commits) < 10, "the commits that the sleeper would have read next are gone"
    assert held(sleeper) == held(log)
    check_log(sleeper, 4)


def test_a_log_of_which_only_a_checkpoint_is_left_knows_its_heads_and_transactions(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    log.append(make_updates(100), Transaction("query", 7))
    log.maintenance.checkpoint()
    log.append(make_updates(1))
    log.maintenance.checkpoint()
    fresh = open_log(definition)
    assert isinstance(fresh, DeltaLog)
    assert fresh.append(make_updates(100), Transaction("query", 7)) is None
    assert fresh.bounds() == log.bounds()
    fresh.append(make_updates(10))
    check_log(fresh, 4)


def test_truncation_drops_whole_segments_and_moves_the_floors(log: DeltaLog) -> None:
    append_many(log, 10)
    middle = log.reach(Positions(), 25)
    before = log.bounds()
    after = log.truncate(Positions({shard: Position(at.seq + 1) for shard, at in middle.items()}))
    assert all(after[shard].head == before[shard].head for shard in range(4))
    assert any(after[shard].floor > before[shard].floor for shard in range(4))
    assert all(after[shard].floor <= middle[shard] for shard in range(4))
    check_log(log, 4)


def test_a_log_that_is_truncated_whole_still_knows_where_its_shards_end(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    append_many(log, 3)
    heads = log.bounds()
    log.truncate(Positions({shard: Position(bounds.head.seq + 1) for shard, bounds in heads.items()}))
    fresh = open_log(definition)
    assert {shard: bounds.head for shard, bounds in fresh.bounds().items()} == {
        shard: bounds.head for shard, bounds in heads.items()
    }
    assert all(bounds.empty for bounds in fresh.bounds().values())
    log.append(make_updates(20))
    assert held(fresh).num_rows == 20
    check_log(fresh, 4)


def test_retention_by_size_keeps_the_newest_and_never_less_than_was_asked_for(log: DeltaLog) -> None:
    append_many(log, 10)
    files = [path.stat().st_size for path in map(Path, DeltaTable(log.folder).file_uris())]
    log.retain(max_bytes=sum(files) // 2)
    left = [path.stat().st_size for path in map(Path, DeltaTable(log.folder).file_uris())]
    assert sum(files) // 2 <= sum(left) <= sum(files) // 2 + max(files)
    check_log(log, 4)
    log.retain(max_bytes=1)
    assert held(log).num_rows == 5
    check_log(log, 4)


def test_what_another_writes_this_moment_is_not_deleted_by_one_whose_clock_is_ahead(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_many(log, 3)
    draft = log.folder / "part-of-an-append.parquet"
    draft.write_bytes(b"rows")
    age(log.folder, 5400)  # for us; where the files are it is two hours earlier
    monkeypatch.setattr("tidings.storage.durable.time_in", lambda _: time.time() - 7200)
    log.maintenance.vacuum()
    assert draft.exists()
    monkeypatch.undo()
    log.maintenance.vacuum()
    assert not draft.exists()


def test_a_commit_whose_rows_somebody_has_deleted_is_not_made_and_the_rows_are_written_anew(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, gone = log._table.commit, list[Segment]()

    def commits(snapshot: Any, drafts: list[Segment], **more: Any) -> bool:
        if not gone:
            gone.extend(drafts)
            for draft in drafts:
                draft.path.unlink()
        return commit(snapshot, drafts, **more)

    monkeypatch.setattr(log._table, "commit", commits)
    log.append(make_updates(10))
    assert gone
    assert held(log).num_rows == 10
    check_log(log, 4)


def test_retention_by_age_drops_what_is_older(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(make_updates(10))
    now = milliseconds()
    monkeypatch.setattr("tidings_connectors.delta.log.time_in", lambda _: now / 1000 + 3600)
    monkeypatch.setattr("tidings_connectors.delta.log.milliseconds", lambda: now + 3_600_000)
    log.append(make_updates(7))
    log.retain(max_age=1800)
    assert held(log).num_rows == 7
    log.retain(max_age=1800)
    assert held(log).num_rows == 7


def test_a_streams_own_retention_is_kept_by_its_writers(definition: StreamDefinition) -> None:
    limited = StreamDefinition(definition.name, definition.shards, definition.log, retention_bytes=20_000)
    log = DeltaLog.create(definition.log.removeprefix("delta:"), limited)
    append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert any(bounds.floor.seq >= 0 for bounds in log.bounds().values())
    check_log(log, 4)


def limited_to(definition: StreamDefinition, size: int | None) -> StreamDefinition:
    return StreamDefinition(definition.name, definition.shards, definition.log, retention_bytes=size)


@pytest.mark.parametrize(("before", "after"), [(None, 20_000), (20_000, None)])
def test_a_writer_goes_by_the_retention_that_was_set_after_it_had_opened_the_log(
    definition: StreamDefinition, before: int | None, after: int | None
) -> None:
    writer = create_log(limited_to(definition, before))
    assert isinstance(writer, DeltaLog)
    redefine_log(limited_to(definition, after))
    assert append_many(writer, maintenance.MAINTENANCE_INTERVAL_VERSIONS).num_rows > 0
    writer.close()
    dropped = any(bounds.floor.seq >= 0 for bounds in writer.bounds().values())
    assert dropped == (after is not None)
    check_log(writer, 4)


def test_nothing_is_dropped_by_a_retention_that_is_changed_at_that_moment(
    definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create_log(limited_to(definition, 1))
    assert isinstance(log, DeltaLog)
    append_many(log, 5)

    def changing(segments: list[Segment], *limits: float | None) -> int:
        assert list(limits)[:2] == [None, 1]
        redefine_log(limited_to(definition, None))
        return len(segments) - 1

    monkeypatch.setattr(maintenance, "plan_retention", changing)
    log.maintenance._retain()
    assert all(bounds.floor.seq == -1 for bounds in log.bounds().values())


def test_a_table_that_does_not_say_its_retention_is_kept_as_its_writer_was_told(definition: StreamDefinition) -> None:
    log = create_log(limited_to(definition, 20_000))
    assert isinstance(log, DeltaLog)
    first = log.folder / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines[1:]:
        line.get("metaData", {}).get("configuration", {}).pop("tidings.retention", None)
    del lines[0]["commitInfo"]["tidings.crc32"]
    first.write_text("\n".join(map(json.dumps, lines)))
    assert log._table.refresh().retention is None
    append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert any(bounds.floor.seq >= 0 for bounds in log.bounds().values())


def test_a_table_whose_retention_was_set_is_the_same_table_to_all_who_read_it(
    spark: SparkSession, log: DeltaLog, definition: StreamDefinition
) -> None:
    rows = append_many(log, 3)
    before, identity = DeltaTable(log.folder), log.identity()
    log.redefine(limited_to(definition, 10**9))
    after = DeltaTable(log.folder)
    assert (after.version(), after.schema()) == (before.version() + 1, before.schema())
    log.maintenance.checkpoint()
    again = open_log(definition)
    assert isinstance(again, DeltaLog)
    assert (again.identity(), again._table.refresh().retention) == (identity, (None, 10**9))
    assert held(again) == rows
    assert spark.read.format("delta").load(str(log.folder)).count() == len(rows)


def test_the_files_of_a_writer_that_died_are_vacuumed_and_those_in_use_are_not(log: DeltaLog) -> None:
    rows = append_many(log, 3)
    orphan, draft = log.folder / "orphan.parquet", log.folder / "_delta_log" / ".dead.tmp"
    log.staging.mkdir()
    staged = log.staging / "dead.arrow"
    for path in (orphan, draft, staged):
        path.write_bytes(b"half")
    log.maintenance.vacuum()
    assert orphan.exists()
    assert draft.exists(), "younger than the grace"
    age(log.folder, 2 * 3600)
    log.maintenance.vacuum()
    assert not any(path.exists() for path in (orphan, draft, staged))
    assert held(log) == rows


def test_those_who_write_on_delete_the_files_of_a_writer_that_died_once_they_are_an_hour_old(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, younger = log.folder / "orphan.parquet", log.folder / "younger.parquet"
    orphan.write_bytes(b"half")
    age(log.folder, 2 * 3600)
    younger.write_bytes(b"half")
    append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert (orphan.exists(), younger.exists()) == (False, True)
    age(log.folder, 2 * 3600)
    append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert younger.exists(), "a look is not taken each time"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3601)
    append_many(log, maintenance.MAINTENANCE_INTERVAL_VERSIONS)
    log.close()
    assert not younger.exists()
    assert held(log).num_rows == 3 * maintenance.MAINTENANCE_INTERVAL_VERSIONS * 5


def test_a_table_that_another_engine_compacted_is_still_the_same_log(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    rows = append_many(log, 20)
    DeltaTable(log.folder).optimize.compact()
    for each in (log, open_log(definition)):
        assert held(each) == rows
        check_log(each, 4)
    log.append(make_updates(50))
    check_log(log, 4)


def test_what_another_engine_compacted_tells_no_loss_and_no_new_beginning_of_shards_without_rows(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    append_many(log, 5)
    everything = Positions({shard: Position(bounds.head.seq + 1) for shard, bounds in log.bounds().items()})
    log.truncate(everything)
    rows = [{"object": f"o{number}"} for number in range(100) if shard_of(f"o{number}", 4) == 1]
    for row in rows[:3]:
        log.append(from_rows([row]))
    before = log.bounds()
    DeltaTable(log.folder).optimize.compact()
    for each in (log, open_log(definition)):
        assert each.bounds() == before
    log.append(make_updates(50))
    check_log(log, 4)
    log.compact()
    fresh = open_log(definition)
    log.maintenance.vacuum(grace_hours=0)
    for each in (log, fresh, open_log(definition)):
        assert {shard: bounds.floor for shard, bounds in each.bounds().items()} == {
            shard: bounds.floor for shard, bounds in before.items()
        }
        check_log(each, 4)


def test_rows_that_another_engine_mixed_are_read_in_order_and_dropped_in_order(
    log: DeltaLog, definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, rows in enumerate([400, 10, 400, 10, 400, 10, 400, 10]):  # it puts files of one size together
        log.append(make_updates(rows, seed=seed, payload_bytes=100))
    before = held(log)
    DeltaTable(log.folder).optimize.compact(target_size=90_000)
    reader = open_log(definition)
    assert len(DeltaTable(log.folder).file_uris()) > 1
    for each in (log, reader):
        rows = each.tail(Positions(), 10_000)
        for shard in range(4):
            seqs = rows.filter(pa.compute.equal(rows["shard"], shard))["seq"].to_pylist()
            assert seqs == list(range(len(seqs)))
        assert held(each) == before
    log.retain(max_bytes=1)
    check_log(log, 4)
    log.compact()
    check_log(log, 4)


def test_after_a_full_truncation_retention_drops_what_is_empty_and_not_what_came_after(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    append_many(log, 3)
    log.truncate(Positions({shard: Position(bounds.head.seq + 1) for shard, bounds in log.bounds().items()}))
    log.append(make_updates(5))
    for each in (DeltaLog.open(str(log.folder), definition), log):  # which know the segments in another order
        each.retain(max_bytes=1)
        assert held(each).num_rows == 5


def test_what_is_dead_is_deleted_long_before_it_outgrows_what_is_held(
    definition: StreamDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.storage.delta_commits.milliseconds", lambda: int((time.time() - 7200) * 1000))
    monkeypatch.setattr(maintenance, "MAINTENANCE_INTERVAL_VERSIONS", 8)
    monkeypatch.setattr(maintenance, "VACUUM_PAUSE_S", 0)
    limited = StreamDefinition(definition.name, definition.shards, definition.log, retention_bytes=30_000)
    log = DeltaLog.create(definition.log.removeprefix("delta:"), limited)
    for seed in range(100):
        log.append(make_updates(10, seed=seed, payload_bytes=1000))
        log.close()
        age(log.folder, 7200)
    live = sum(segment.size for segment in log._table.refresh().segments)
    assert sum(path.stat().st_size for path in log.folder.glob("*.parquet")) < 5 * live


@pytest.mark.slow
def test_a_table_that_spark_optimized_is_still_the_same_log(spark: SparkSession, log: DeltaLog) -> None:
    rows = append_many(log, 20)
    spark.sql(f"OPTIMIZE delta.`{log.folder}`")
    assert held(log) == rows
    log.append(make_updates(50))
    check_log(log, 4)
