"""What is read is what was written, or an error that names the file."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tidings.errors import LogUnavailable
from tidings.log_opening import open_log
from tidings.logs import Transaction
from tidings.stream_definition import StreamDefinition
from tidings.testing import held, make_updates
from tidings_connectors.delta import maintenance
from tidings_connectors.delta.log import DeltaLog


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """What is done may fail, if the error names the file."""
    try:
        yield
    except LogUnavailable as error:
        if path.name not in str(error):
            raise


def segment_of(log: DeltaLog) -> Path:
    [path] = DeltaTable(log.folder).file_uris()
    return Path(path)


def test_a_flipped_bit_of_a_segment_is_an_error_that_names_it_or_changes_nothing(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    log.append(make_updates(60, payload_bytes=20))
    rows, path = held(log), segment_of(log)
    bits = range(path.stat().st_size * 8)
    for bit in random.Random(1).sample(bits, 1500):
        flip(path, bit)
        with refusing(path):
            assert held(open_log(definition)) == rows, f"bit {bit}"
        flip(path, bit)


def test_a_flipped_bit_of_a_commit_is_an_error_that_names_it_or_changes_nothing(
    log: DeltaLog, definition: StreamDefinition
) -> None:
    log.append(make_updates(20))
    rows, path = held(log), log.folder / "_delta_log" / f"{1:020}.json"
    for bit in range(0, path.stat().st_size * 8, 5):
        flip(path, bit)
        with refusing(path):
            assert held(open_log(definition)) == rows, f"bit {bit}"
        flip(path, bit)


@pytest.mark.parametrize("name", [f"{3:020}.checkpoint.parquet", "_last_checkpoint"])
def test_a_flipped_bit_of_a_checkpoint_is_an_error_that_names_it_or_changes_nothing(
    log: DeltaLog, definition: StreamDefinition, name: str
) -> None:
    for number in range(3):
        log.append(make_updates(10), Transaction("query", number))
    log.maintenance.checkpoint()
    rows, path = held(log), log.folder / "_delta_log" / name
    for bit in random.Random(1).sample(range(path.stat().st_size * 8), 400):
        flip(path, bit)
        with refusing(path):
            fresh = DeltaLog.open(str(log.folder), definition)
            assert held(fresh) == rows, f"bit {bit}"
            assert fresh.append(make_updates(10), Transaction("query", 2)) is None, f"bit {bit}"
        flip(path, bit)


def test_nothing_is_made_of_a_damaged_checkpoint_and_nothing_deleted(log: DeltaLog) -> None:
    log.append(make_updates(10))
    log.maintenance.checkpoint()
    log.append(make_updates(10))
    path = log.folder / "_delta_log" / f"{1:020}.checkpoint.parquet"
    flip(path, path.stat().st_size * 4)
    there = set(log.folder.rglob("*"))
    for work in (log.maintenance.checkpoint, lambda: log.maintenance.vacuum(grace_hours=0)):
        with pytest.raises(LogUnavailable, match=path.name):
            work()
        assert set(log.folder.rglob("*")) == there


def test_spark_does_not_read_a_flipped_bit_either(spark: SparkSession, log: DeltaLog) -> None:
    log.append(make_updates(1000, payload_bytes=200))
    path = segment_of(log)
    flip(path, path.stat().st_size * 4)  # in the middle, where the payloads are
    with pytest.raises(Exception, match=path.name):
        log.scan(spark).collect()


@pytest.mark.parametrize(("first", "end"), [(1, 20), (0, 19)])
def test_a_row_that_is_missing_in_a_segment_is_an_error(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch, first: int, end: int
) -> None:
    write = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        pq.ParquetWriter, "write_table", lambda writer, rows: write(writer, rows.slice(first, end - first))
    )
    log.append(make_updates(20))
    with pytest.raises(LogUnavailable, match=segment_of(log).name):
        held(log)


def test_a_segment_that_is_missing_is_an_error(log: DeltaLog, definition: StreamDefinition) -> None:
    for seed in range(3):
        log.append(make_updates(5, seed=seed))
    middle = log._table.refresh().segments[1]
    assert log._table.commit(log._table.refresh(), remove=[middle])
    with pytest.raises(LogUnavailable, match="a segment is missing between"):
        open_log(definition)


class PanicException(BaseException):
    """As delta-rs raises it."""


@pytest.fixture
def checkpointed(log: DeltaLog) -> Path:
    """The checkpoint of a log of which little else is left."""
    for seed in range(5):
        log.append(make_updates(20, seed=seed))
    then = time.time() - 7200
    for path in (log.folder / "_delta_log").iterdir():
        os.utime(path, (then, then))
    log.append(make_updates(20))
    log.maintenance.checkpoint()
    [path] = (log.folder / "_delta_log").glob("*.checkpoint.parquet")
    return path


def test_a_flipped_bit_of_a_checkpoint_is_an_error_that_names_it(
    log: DeltaLog, definition: StreamDefinition, checkpointed: Path
) -> None:
    truth = held(log)
    rng = random.Random(4)
    for bit in rng.sample(range(checkpointed.stat().st_size * 8), 20):
        flip(checkpointed, bit)
        with pytest.raises(LogUnavailable, match=checkpointed.name):
            open_log(definition)
        flip(checkpointed, bit)
    assert held(open_log(definition)) == truth


@pytest.mark.parametrize("method", ["__init__", "metadata", "get_add_actions", "transaction_version"])
def test_a_panic_of_delta_rs_is_an_error_that_names_the_folder_and_the_checkpoint(
    definition: StreamDefinition, checkpointed: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(DeltaTable, method, panic)
    with pytest.raises(LogUnavailable, match=rf"{checkpointed.parent.parent} .*{checkpointed.name}.*unwrap"):
        DeltaLog.open(str(checkpointed.parent.parent), definition).last_transaction("query")


@pytest.mark.parametrize("method", ["create_checkpoint", "cleanup_metadata", "vacuum"])
def test_maintenance_outlives_a_panic(
    log: DeltaLog, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def panic(*_: object, **__: object) -> None:
        raise PanicException("attempt to subtract with overflow")

    monkeypatch.setattr(DeltaTable, method, panic)
    monkeypatch.setattr(maintenance, "MAINTENANCE_INTERVAL_VERSIONS", 1)
    monkeypatch.setattr(maintenance, "VACUUM_INTERVAL_VERSIONS", 1)
    log.append(make_updates(5))
    log.close()
    assert "maintenance of stream 'contacts' failed" in caplog.text
    assert "with overflow" in caplog.text
