from __future__ import annotations

import contextlib
import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tidings.errors import InvalidOption, InvalidPosition, LogMismatch, LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.logs import Transaction, WritableLog
from tidings.positions import START, Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings.updates import SCHEMA, from_rows
from tidings_connectors.delta.log import DeltaLog
from tidings_connectors.delta.segments import stamp


def folder_of(definition: StreamDefinition) -> Path:
    return Path(definition.log.removeprefix("delta:"))


@given(st.lists(st.lists(st.integers(0, 7))))
def test_stamps_are_dense_in_every_shard_and_follow_the_order_of_the_rows(appends: list[list[int]]) -> None:
    heads = np.full(8, -1, np.int64)
    seen: dict[int, list[int]] = {shard: [] for shard in range(8)}
    for rows in appends:
        shards = np.array(rows, np.int32)
        seqs = stamp(shards, heads)
        for shard, seq in zip(rows, seqs.tolist(), strict=True):
            seen[shard].append(seq)
        np.maximum.at(heads, shards, seqs)
    assert all(seqs == list(range(len(seqs))) for seqs in seen.values())


def test_the_delta_log_is_a_writable_log(log: DeltaLog) -> None:
    assert isinstance(log, WritableLog)


def test_a_new_log_is_empty_from_the_start(log: DeltaLog) -> None:
    assert all(bounds.empty and bounds.head == START for bounds in log.bounds().values())
    assert log.tail(Positions(), 10).num_rows == 0
    assert log.slices(Positions(), Positions()) == []


def test_what_was_appended_is_read_back_row_by_row(log: DeltaLog) -> None:
    updates = make_updates(500)
    appended = log.append(updates)
    assert appended is not None
    rows = held(log)
    assert rows.schema == SCHEMA
    at = {place: n for n, place in enumerate(zip(appended.shards.tolist(), appended.seqs.tolist(), strict=True))}
    places = list(zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    assert rows.select(updates.column_names) == updates.take([at[place] for place in places])
    check_log(log, 4)


def test_another_process_sees_what_was_appended(log: DeltaLog, definition: StreamDefinition) -> None:
    other = open_log(definition)
    for seed in range(5):
        log.append(make_updates(10, seed=seed))
        assert held(other) == held(log)
    assert held(open_log(definition)) == held(log)


def test_a_tail_in_small_bites_gives_every_row_once_and_in_order(log: DeltaLog) -> None:
    for seed in range(7):
        log.append(make_updates(100, seed=seed))
    after, bites = Positions(), []
    while (bite := log.tail(after, 33)).num_rows:
        assert bite.num_rows <= 33
        bites.append(bite)
        last = bite.group_by("shard").aggregate([("seq", "max")]).to_pylist()
        after = Positions({**after, **{row["shard"]: Position(row["seq_max"]) for row in last}})
    together = pa.concat_tables(bites)
    assert together.num_rows == 700
    for shard in range(4):
        seqs = together.filter(np.equal(together["shard"], shard))["seq"].to_pylist()
        assert seqs == list(range(len(seqs)))


def test_a_slice_can_be_read_elsewhere_and_again(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings_connectors.delta.log.SLICE_ROWS", 100)
    log.append(make_updates(400))
    upto = log.reach(Positions(), 300)
    slices = log.slices(Positions(), upto)
    assert len(slices) > 1
    log.append(make_updates(50))
    log.compact()
    for _ in range(2):
        read = [batch for piece in slices for batch in pickle.loads(pickle.dumps(piece)).read()]
        assert pa.Table.from_batches(read).num_rows == 300


def test_a_transaction_is_appended_once(log: DeltaLog, definition: StreamDefinition) -> None:
    assert log.append(make_updates(5), Transaction("query", 0)) is not None
    assert log.append(make_updates(5), Transaction("query", 0)) is None
    assert open_log(definition).append(make_updates(5), Transaction("query", 0)) is None  # type: ignore[attr-defined]
    assert log.append(make_updates(5), Transaction("other", 0)) is not None
    assert log.append(make_updates(5), Transaction("query", 1)) is not None
    assert held(log).num_rows == 15


def test_an_append_of_nothing_makes_no_version(log: DeltaLog) -> None:
    assert log.append(make_updates(0)) is not None
    assert DeltaTable(log.folder).version() == 0


def test_a_big_append_is_one_commit_of_several_segments(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings_connectors.delta.log.SEGMENT_ROWS", 100)
    log.append(make_updates(950))
    assert DeltaTable(log.folder).version() == 1
    assert len(DeltaTable(log.folder).file_uris()) == 10
    check_log(log, 4)
    assert held(log).num_rows == 950


def test_threads_that_append_at_once_do_not_lose_a_row(log: DeltaLog) -> None:
    threads = [
        threading.Thread(target=lambda seed=seed: [log.append(make_updates(7, seed=seed)) for _ in range(20)])
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_log(log, 4)
    assert held(log).num_rows == 4 * 20 * 7


def test_a_position_before_the_floor_is_reported_as_lost_with_exact_seqs(log: DeltaLog) -> None:
    log.append(make_updates(100))
    heads = {shard: bounds.head for shard, bounds in log.bounds().items()}
    log.append(make_updates(100))
    log.truncate(Positions({shard: Position(head.seq + 1) for shard, head in heads.items()}))
    after = Positions({shard: Position(head.seq - 3) for shard, head in heads.items()})
    expected = {shard: (Position(head.seq - 2), head) for shard, head in heads.items()}
    for read in (lambda: log.tail(after, 10), lambda: log.reach(after, 10), lambda: log.slices(after, after)):
        with pytest.raises(PositionsLost, match="no longer holds") as caught:
            read()
        assert caught.value.lost == expected
    assert log.tail(Positions(heads), 1000).num_rows == 100


def test_a_position_beyond_the_head_is_reported_too(log: DeltaLog) -> None:
    log.append(make_updates(10))
    head = log.bounds()[2].head.seq
    with pytest.raises(PositionsLost, match="made anew, or restored") as caught:
        log.tail(Positions({2: Position(head + 5)}), 10)
    assert caught.value.lost == {2: (Position(head + 1), Position(head + 5))}


def test_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"stream 'contacts' has options \(a, b\), and a log of ours takes none"):
        create_log(StreamDefinition("contacts", 4, f"delta:{tmp_path / 'x'}", options={"b": 1, "a": 2}))
    assert not (tmp_path / "x").exists()


def test_a_shard_that_the_stream_does_not_have_is_refused(log: DeltaLog) -> None:
    with pytest.raises(InvalidPosition, match="shards 0 to 3, not 4"):
        log.tail(Positions({4: Position(0)}), 10)


def test_a_folder_that_holds_another_stream_is_refused(log: DeltaLog, definition: StreamDefinition) -> None:
    with pytest.raises(LogMismatch, match="holds stream 'contacts' with 4 shards, not stream 'invoices' with 4"):
        create_log(StreamDefinition("invoices", 4, definition.log))
    with pytest.raises(LogMismatch, match="with 8 shards"):
        create_log(StreamDefinition("contacts", 8, definition.log))
    with pytest.raises(LogMismatch, match="with 8 shards"):
        open_log(StreamDefinition("contacts", 8, definition.log))


def test_a_folder_that_holds_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("sir")
    with pytest.raises(LogMismatch, match="not empty and holds no log"):
        create_log(StreamDefinition("contacts", 4, f"delta:{tmp_path / 'letters'}"))
    DeltaTable.create(tmp_path / "table", pa.schema([("id", pa.int64())]))
    with pytest.raises(LogMismatch, match="a table that is no log of tidings"):
        create_log(StreamDefinition("contacts", 4, f"delta:{tmp_path / 'table'}"))
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


def test_a_folder_that_cannot_be_used_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogUnavailable, match=r"the log of stream 'contacts' in .*file/log"):
        create_log(StreamDefinition("contacts", 4, f"delta:{tmp_path / 'file' / 'log'}"))
    with pytest.raises(LogUnavailable, match="is not to be found"):
        open_log(StreamDefinition("contacts", 4, f"delta:{tmp_path / 'nowhere'}"))
    with pytest.raises(InvalidOption, match="lives on a file system"):
        create_log(StreamDefinition("contacts", 4, "delta:s3://bucket/log"))


def test_making_a_log_again_adopts_it(log: DeltaLog, definition: StreamDefinition) -> None:
    log.append(make_updates(10))
    assert held(create_log(definition)) == held(log)


def test_spark_scans_a_range_with_its_own_readers(spark: SparkSession, log: DeltaLog) -> None:
    for seed in range(3):
        log.append(make_updates(100, seed=seed))
    assert log.scan(spark).count() == 300
    after, upto = log.reach(Positions(), 90), log.reach(Positions(), 220)
    between = log.scan(spark, after, upto).orderBy("shard", "seq").toArrow()
    expected = pa.Table.from_batches(batch for piece in log.slices(after, upto) for batch in piece.read())
    order = [("shard", "ascending"), ("seq", "ascending")]
    assert between.select(["shard", "seq", "object"]) == expected.sort_by(order).select(["shard", "seq", "object"])
    assert log.scan(spark, upto, upto).count() == 0


def test_sparks_delta_reader_sees_the_same_rows(spark: SparkSession, log: DeltaLog) -> None:
    for seed in range(20):
        log.append(make_updates(10, seed=seed))
    log.compact()
    log.maintenance.checkpoint()
    theirs = spark.read.format("delta").load(str(log.folder)).orderBy("shard", "seq").toArrow()
    ours = held(log)
    assert theirs["payload"].to_pylist() == ours["payload"].to_pylist()
    assert theirs["attributes"].to_pylist() == ours["attributes"].to_pylist()


def test_a_log_that_is_destroyed_is_gone(log: DeltaLog, definition: StreamDefinition) -> None:
    log.append(make_updates(10))
    log.destroy()
    assert not folder_of(definition).exists()


def test_large_rows_are_read_a_few_at_a_time_and_none_is_left_out(log: DeltaLog) -> None:
    small = [{"object": f"small-{number}"} for number in range(20_000)]
    large = [{"object": f"large-{number}", "payload": random.Random(number).randbytes(2**20)} for number in range(80)]
    log.append(from_rows([*small[:10_000], *large, *small[10_000:]]))
    [segment] = DeltaTable(log.folder).file_uris()
    metadata = pq.read_metadata(segment)
    groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    assert max(groups) < 17 * 2**20
    after, reads = Positions(), []
    with contextlib.closing(log.reader()) as reader:
        while (read := reader.read(Positions({shard: after[shard] for shard in range(4)}), 1_000_000)).rows.num_rows:
            assert read.rows.nbytes < 33 * 2**20
            after = read.upto
            reads.append(read.rows)
    rows = pa.concat_tables(reads).sort_by([("shard", "ascending"), ("seq", "ascending")])
    assert len(reads) >= 3
    assert rows.num_rows == 20_080
    assert log.reach(Positions(), None) == after


def test_a_row_that_is_larger_than_a_read_is_read_alone(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings_connectors.delta.log.READ_BYTES", 1000)
    log.append(from_rows([{"object": f"o{number}", "payload": bytes(5000)} for number in range(3)]))
    after = Positions()
    for _ in range(3):
        rows, after = log.reader().read(Positions({shard: after[shard] for shard in range(4)}), 100)
        assert rows.num_rows == 1
    assert log.tail(after, 100).num_rows == 0
