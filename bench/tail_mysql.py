"""Tailing a MariaDB's binary log, beside a bare loop of the client library over the same log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from unittest import mock

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from bench.report import Row, more_is_better
from tests.support.mysql_install import missing
from tests.support.mysql_server import PASSWORD, Scene, running
from tidings.positions import Position, Positions
from tidings_connectors.mysql.log import MysqlLog

TABLE = (
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT UNSIGNED, state ENUM('new', 'paid', 'sent'), "
    "amount DECIMAL(12,2), note VARCHAR(200), placed DATETIME(3))"
)
VALUES = "seq, seq % 1000, 'new', seq / 100, CONCAT('order number ', seq, REPEAT('.', 60)), '2024-01-02 03:04:05.678'"


def tail(log: MysqlLog, after: Position, count: int) -> float:
    """The seconds that a reader takes for so many rows."""
    positions = Positions(dict.fromkeys(range(log.shards), after))
    start = time.perf_counter()
    with contextlib.closing(log.reader()) as reader:
        while count > 0:
            rows, positions = reader.read(positions, 50_000)
            count -= len(rows)
    assert count == 0
    return time.perf_counter() - start


def bare(log: MysqlLog, after: Position, count: int) -> float:
    """The same for the client library, which makes Python dictionaries of the rows; nothing is done with them."""
    state = log._state_before(after.seq)
    start = time.perf_counter()
    stream = BinLogStreamReader(
        log._place.settings(),
        server_id=log._server_id(),
        auto_position=",".join(map(str, state.values())),
        is_mariadb=True,
        blocking=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=["orders"],
        enable_logging=False,
    )
    with contextlib.closing(stream):
        while count > 0:
            count -= len(stream.fetchone().rows)
    assert count == 0
    return time.perf_counter() - start


def measured(scene: Scene, times: int, count: int, write: Callable[[], None]) -> tuple[float, float]:
    """Rows a second, ours and the library's, the best of some runs taken in turns."""
    scene.sql("FLUSH BINARY LOGS")  # so that both begin at the rows, not at what was written before them
    log = scene.log("orders", shards=16)
    after = log.bounds()[0].head
    write()
    runs = [(tail(log, after, count), bare(log, after, count)) for _ in range(times)]
    ours, theirs = (min(seconds) for seconds in zip(*runs, strict=True))
    return count / ours, count / theirs


@contextlib.contextmanager
def database() -> Iterator[Scene]:
    with mock.patch.dict(os.environ, {"MYSQL_PWD": PASSWORD}), running() as server:
        scene = Scene(server)
        scene.sql(TABLE)
        yield scene
        scene.close()


def run(quick: bool) -> list[Row]:
    if lacking := missing():
        raise SystemExit(f"tail-mysql: {lacking}")
    large, small = (100_000, 5_000) if quick else (300_000, 20_000)
    times = 2 if quick else 3
    peer = "bare BinLogStreamReader"
    with database() as scene:

        def one_large() -> None:
            scene.sql(f"INSERT INTO orders SELECT {VALUES} FROM seq_1_to_{large}")

        def many_small() -> None:
            numbers = range(large + 1, large + small + 1)
            scene.sql(*(f"INSERT INTO orders SELECT {VALUES} FROM seq_{n}_to_{n}" for n in numbers))

        ours, theirs = measured(scene, times, large, one_large)
        rows = [more_is_better(f"one transaction of {large:,} rows", ours, "rows/s", peer, theirs)]
        ours, theirs = measured(scene, times, small, many_small)
        rows.append(more_is_better(f"{small:,} transactions of one row", ours, "rows/s", peer, theirs))
    return rows
