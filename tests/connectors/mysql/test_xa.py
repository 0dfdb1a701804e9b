"""XA transactions of a MariaDB: their rows come when they are committed, and never if they are rolled back."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.connectors.mysql.test_faults import purged
from tests.connectors.mysql.test_losses import heard
from tests.support import mysql_server
from tests.support.mysql_server import Scene, drain, heads, ids, inserts, listed, needs_mariadb, now, places
from tidings.log_opening import open_log
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.mysql import prepared, sequencer
from tidings_connectors.mysql.log import MysqlLog

password, server, scene = mysql_server.password, mysql_server.own_server, mysql_server.scene
pytestmark = needs_mariadb


def prepare(scene: Scene, xid: str, *statements: str) -> None:
    """Prepare a transaction; it outlives its session."""
    with contextlib.closing(scene.connect()) as connection, connection.cursor() as cursor:
        for statement in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
            cursor.execute(statement)


def read(scene: Scene, start: Positions, limit: int = 1000) -> list[Any]:
    """The rows from there to the head, as one reads them who has just started."""
    definition = scene.definition("items", shards=1)
    with contextlib.closing(open_log(definition)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, MysqlLog)
        return drain(reader, start, now(log), limit)[0]


def test_rows_come_when_they_are_committed_and_never_if_they_are_rolled_back(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    prepare(scene, "'kept', 'branch', 7", *inserts(range(3)))
    prepare(scene, "'gone'", *inserts(range(10, 13)))
    scene.sql("INSERT INTO items VALUES (20, 'between')")
    with contextlib.closing(log.reader()) as reader:
        rows, after = drain(reader, start, now(log))
        assert ids(rows) == [20]
        scene.sql("XA ROLLBACK 'gone'", "XA COMMIT 'kept', 'branch', 7", "INSERT INTO items VALUES (21, 'after')")
        more, _ = drain(reader, after, now(log))
    seq = start[0].seq
    assert ids(more) == [0, 1, 2, 21]
    assert places(more) == [(seq + 4, 0), (seq + 4, 1), (seq + 4, 2), (seq + 5, 0)]
    assert read(scene, start) == rows + more


def test_one_phase_and_a_rollback_before_it_is_prepared_are_like_any_transaction(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    scene.sql("XA START 'a'", *inserts(range(2)), "XA END 'a'", "XA COMMIT 'a' ONE PHASE")
    scene.sql("XA START 'b'", *inserts(range(5, 7)), "XA END 'b'", "XA ROLLBACK 'b'")
    assert ids(listed(log.tail(start, 100))) == [0, 1]


def test_who_starts_between_finds_the_rows_again_in_an_older_log(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    prepare(scene, "'x'", *inserts(range(90, 95)))  # the name is used twice
    scene.sql("XA ROLLBACK 'x'", "FLUSH BINARY LOGS")
    prepare(scene, "'other'", *inserts(range(50, 55)))
    prepare(scene, "'x'", *inserts(range(5)))
    scene.sql("FLUSH BINARY LOGS", "INSERT INTO items VALUES (20, 'between')", "FLUSH BINARY LOGS")
    between = now(log)
    scene.sql("XA COMMIT 'x'", "XA ROLLBACK 'other'", "INSERT INTO items VALUES (21, 'after')")
    rows = read(scene, between)
    assert ids(rows) == [0, 1, 2, 3, 4, 21]
    assert read(scene, between, limit=2) == rows
    for number in range(5):
        assert read(scene, Positions({0: Position(between[0].seq, number)})) == rows[number + 1 :]


def test_a_server_that_is_killed_between_costs_nothing(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    prepare(scene, "'x'", *inserts(range(5)))
    scene.server.kill()
    scene.server.start()
    scene.sql("XA COMMIT 'x'")
    assert ids(read(scene, start)) == [0, 1, 2, 3, 4]


def test_what_is_too_large_to_be_kept_is_read_where_it_was_prepared(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    prepare(scene, "'large'", "INSERT INTO items SELECT seq, REPEAT('x', 40) FROM seq_1_to_50000")
    prepare(scene, "'small'", "INSERT INTO items VALUES (0, 'x')")
    scene.sql("XA COMMIT 'small'", "XA COMMIT 'large'")
    rows = read(scene, start)
    assert ids(rows) == list(range(50_001))
    for module in (prepared, sequencer):
        monkeypatch.setattr(module, "KEPT_BYTES", 100_000)
    assert read(scene, start, limit=7000) == rows
    monkeypatch.setattr(prepared, "KEPT_TRANSACTIONS", 0)
    assert read(scene, start) == rows


def test_rows_that_were_purged_before_they_were_committed_are_lost_at_the_commit(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    prepare(scene, "'x'", *inserts(range(5)))
    scene.sql("FLUSH BINARY LOGS")
    start = now(log)
    scene.sql("XA COMMIT 'x'", "INSERT INTO items VALUES (21, 'after')")
    eventually(lambda: purged(scene.server))
    rows, losses = heard(log, start)
    assert rows == [21]
    assert [at for at, _ in losses] == [Position(start[0].seq, 0)]
    assert "commits XA transaction X'78',X'',1, and where it was prepared is purged" in losses[0][1]
