"""Streams of a MariaDB that have a snapshot, and what is read of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mysql_server import Scene, Server, drain, floors, now
from tidings.log_opening import create_log, open_log
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.mysql.log import MysqlLog

BASE = 2**30


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    own = Scene(server)
    own.may_read()
    yield own
    own.close()


def with_snapshot(scene: Scene, folder: Path, *tables: str, **options: Any) -> StreamDefinition:
    made: StreamDefinition = scene.definition(*tables, snapshot=True, snapshot_folder=str(folder), **options)
    return made


@contextlib.contextmanager
def opened(stream: StreamDefinition, make: bool = True) -> Iterator[MysqlLog]:
    with contextlib.closing((create_log if make else open_log)(stream)) as log:
        assert isinstance(log, MysqlLog)
        yield log


def whole(stream: StreamDefinition, limit: int = 10_000, make: bool = True) -> list[Any]:
    """All rows of the snapshot, when it is complete, and of the log after it."""
    with opened(stream, make) as log, contextlib.closing(log.reader()) as reader:
        assert log._snapshot is not None
        eventually(lambda: log._snapshot.note().complete)  # type: ignore[union-attr]
        return drain(reader, floors(log), now(log), limit)[0]


def operations(rows: list[Any]) -> list[str]:
    return [row["attributes"]["operation"] for row in rows]


def replayed(rows: list[Any]) -> dict[str, Any]:
    """What someone has who applies the updates one after the other."""
    state: dict[str, Any] = {}
    for row in rows:
        if row["attributes"]["operation"] == "delete":
            state.pop(row["object"], None)
        else:
            state[row["object"]] = row["payload"]
    return state


def stored(scene: Scene, *tables: str) -> dict[str, Any]:
    """The same, from the tables as they are."""
    rows = [
        (table, row) for table in tables for row in scene.server.sql(f"SELECT id, name FROM {scene.database}.{table}")
    ]
    return {f"{scene.database}.{table}/{key}": {"id": key, "name": name} for table, (key, name) in rows}


def state_of(log: MysqlLog) -> tuple[int, set[int]]:
    """The place of a state, and the keys that are in its only table."""
    with log._tables.state() as state:
        (table,) = state.tables
        pieces = [piece.columns[0].values.to_pylist() for piece in table.pieces(None)]
    return state.seq, {int(key) for piece in pieces for key in piece}
