"""The power goes: what was acknowledged is there when the disk is read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import power_loss
from tidings.errors import LogUnavailable
from tidings.stages.state import MAINTENANCE_INTERVAL_VERSIONS, State, Table
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings_connectors.delta.log import DeltaLog

SCHEMA = pa.schema([("part", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])


def log_in(folder: Path, make: Callable[[str, StreamDefinition], DeltaLog]) -> DeltaLog:
    return make(str(folder / "contacts"), StreamDefinition("contacts", 4, f"delta:{folder / 'contacts'}"))


def age(folder: Path) -> None:
    """Make the files look as if they had been there for two hours."""
    then = time.time() - 7200
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def table_in(folder: Path, batch_id: int, partition_by: tuple[str, ...] = ()) -> tuple[State, Table]:
    state = State(folder / "state", "query", batch_id)
    return state, state.table("counts", SCHEMA, partition_by=partition_by)


def rows(batch_id: int) -> pa.Table:
    return pa.table({"part": [batch_id % 3], "key": [batch_id], "value": [batch_id]}, SCHEMA)


@pytest.mark.parametrize("names", [False, True])
def test_a_log_outlives_a_power_loss_right_after_its_first_append(tmp_path: Path, names: bool) -> None:
    with power_loss.disk(tmp_path) as disk:
        log = log_in(disk.folder, DeltaLog.create)
        log.append(make_updates(20))
        with disk.after_power_loss(names=names) as folder:
            assert held(log_in(folder, DeltaLog.open)) == held(log)


@pytest.mark.parametrize("names", [False, True])
def test_a_log_outlives_a_power_loss_after_its_maintenance(tmp_path: Path, names: bool) -> None:
    with power_loss.disk(tmp_path) as disk:
        log = log_in(disk.folder, DeltaLog.create)
        for seed in range(5):
            log.append(make_updates(5, seed=seed))
            age(disk.folder)
        log.maintenance.checkpoint()
        log.maintenance.vacuum(grace_hours=0)
        assert len(list((log.folder / "_delta_log").glob("*.json"))) < 5, "commits were deleted"
        with disk.after_power_loss(names=names) as folder:
            again = log_in(folder, DeltaLog.open)
            assert held(again) == held(log)
            again.append(make_updates(5))
            check_log(again, 4)


@pytest.mark.parametrize("names", [False, True])
def test_a_checkpoint_that_is_seen_is_on_the_disk(tmp_path: Path, names: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltalake.DeltaTable.cleanup_metadata", lambda table: None)
    with power_loss.disk(tmp_path) as disk:
        log = log_in(disk.folder, DeltaLog.create)
        log.append(make_updates(5))
        log.maintenance.checkpoint()
        with disk.after_power_loss(names=names) as folder:
            assert held(log_in(folder, DeltaLog.open)) == held(log)


@pytest.mark.parametrize("names", [False, True])
def test_a_stage_table_outlives_a_power_loss_after_its_maintenance(tmp_path: Path, names: bool) -> None:
    with power_loss.disk(tmp_path) as disk:
        for batch_id in range(MAINTENANCE_INTERVAL_VERSIONS + 1):
            state, table = table_in(disk.folder, batch_id)
            table.merge(rows(batch_id), ["key"])
            age(disk.folder)
            state.commit()
        assert (table.folder / "_delta_log" / "_last_checkpoint").exists()
        with disk.after_power_loss(names=names) as folder:
            again = table_in(folder, MAINTENANCE_INTERVAL_VERSIONS + 1)[1]
            assert sorted(again.read()["key"].to_pylist()) == list(range(MAINTENANCE_INTERVAL_VERSIONS + 1))


WRITES: dict[str, Callable[[Table, int], None]] = {
    "merge": lambda table, batch_id: table.merge(rows(batch_id), ["key"]),
    "replace": lambda table, batch_id: table.replace(pa.concat_tables(map(rows, range(batch_id + 1)))),
    "append": lambda table, batch_id: table.append(rows(batch_id)),
}


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("partition_by", [(), ("part",)])
@pytest.mark.parametrize("write", WRITES)
def test_a_batch_of_a_stage_table_outlives_a_power_loss(
    tmp_path: Path, names: bool, partition_by: tuple[str, ...], write: str
) -> None:
    with power_loss.disk(tmp_path) as disk:
        for batch_id in range(5):
            state, table = table_in(disk.folder, batch_id, partition_by)
            WRITES[write](table, batch_id)
            state.commit()
        with disk.after_power_loss(names=names) as folder:
            assert sorted(table_in(folder, 5, partition_by)[1].read()["key"].to_pylist()) == list(range(5))


def test_a_commit_without_a_byte_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for batch_id in range(3):
        state, table = table_in(tmp_path, batch_id)
        table.merge(rows(batch_id), ["key"])
        state.commit()
    newest = table.folder / "_delta_log" / f"{3:020}.json"
    whole = newest.read_bytes()
    for torn in (b"", b"\n", whole[: len(whole) // 2]):
        newest.write_bytes(torn)
        with pytest.raises(LogUnavailable, match=newest.name):
            table_in(tmp_path, 3)[1].read()
        state, table = table_in(tmp_path, 3)
        table.merge(rows(3), ["key"])
        with pytest.raises(LogUnavailable, match=newest.name):
            state.commit()
