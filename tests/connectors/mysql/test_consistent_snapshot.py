"""Which transactions a state of a MariaDB has, while others write."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tests.support import mysql_server, mysql_snapshots, snapshot_steps
from tests.support.mysql_server import ITEMS, Scene, drain, heads, listed, needs_mariadb, now, places, running
from tests.support.mysql_snapshots import BASE, opened, operations, replayed, state_of, stored, whole, with_snapshot
from tidings.errors import LogUnavailable
from tidings.log_opening import create_log
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.mysql import consistent_snapshot

password, server = mysql_server.password, mysql_server.own_server
small_chunks, scene = snapshot_steps.small_chunks, mysql_snapshots.scene
pytestmark = needs_mariadb


def test_nothing_is_missed_or_doubled_while_others_write(scene: Scene, tmp_path: Path) -> None:
    scene.sql(ITEMS, "CREATE TABLE others LIKE items")
    for table in ("items", "others"):
        scene.sql(f"INSERT INTO {table} SELECT seq, 'first' FROM seq_1_to_1000")
    stream = with_snapshot(scene, tmp_path, "items", "others")
    stopped = threading.Event()

    def write(salt: int) -> None:
        with contextlib.closing(scene.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            for number in range(1_000_000):
                if stopped.is_set():
                    break
                key = (number * 7 % 333) * 3 + salt + 1  # each has keys of its own, so that none waits for another
                for table in ("items", "others"):
                    cursor.execute(f"UPDATE {table} SET name = %s WHERE id = %s", (f"number {number}", key))
                    cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key + 3,))
                    cursor.execute(f"INSERT INTO {table} VALUES (%s, 'new')", (3 * number + salt + 2000,))
                connection.commit()

    def count() -> int:
        return int(scene.server.value(f"COUNT(*) FROM {scene.database}.items WHERE id >= 2000"))

    writers = [threading.Thread(target=write, args=(salt,)) for salt in range(3)]
    for writer in writers:
        writer.start()
    try:
        eventually(lambda: count() > 50)
        create_log(stream).close()
        held = count()
        eventually(lambda: count() > held + 50)
    finally:
        stopped.set()
        for writer in writers:
            writer.join()
    with opened(stream, make=False) as log, contextlib.closing(log.reader()) as reader:
        assert log._snapshot is not None
        (run,) = log._snapshot.note().runs
        rows, _ = drain(reader, Positions(dict.fromkeys(range(2), run.before)), now(log), limit=500)
    assert set(operations(rows)) == {"snapshot", "insert", "update", "delete"}
    assert places(rows) == sorted(set(places(rows)))
    assert replayed(rows) == stored(scene, "items", "others")
    snapped = {row["object"] for row in rows if row["attributes"]["operation"] == "snapshot"}
    inserted = {row["object"] for row in rows if row["attributes"]["operation"] == "insert"}
    assert not snapped & inserted  # a key is inserted once, so it is either in the state or comes after it


@pytest.mark.slow
def test_a_state_is_that_of_its_place_however_often_the_server_begins_a_new_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistent_snapshot, "VISIBLE_AFTER_S", 0.05)
    with running(max_binlog_size=4096) as hasty:
        scene = Scene(hasty)
        scene.may_read()
        scene.sql("CREATE TABLE items (id BIGINT PRIMARY KEY AUTO_INCREMENT, name TEXT)")
        log = scene.log("items", snapshot_folder=str(tmp_path))
        start, stopped = heads(log), threading.Event()

        def write() -> None:
            with contextlib.closing(scene.connect()) as connection, connection.cursor() as cursor:
                while not stopped.is_set():
                    cursor.execute("INSERT INTO items (name) VALUES (REPEAT('x', 1000))")

        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        try:
            states = [state_of(log) for _ in range(60)]
        finally:
            stopped.set()
            for writer in writers:
                writer.join()
        rows = drain(log.reader(), start, now(log))[0]
        for seq, keys in states:
            assert keys == {row["payload"]["id"] for row in rows if row["seq"] <= seq}
        scene.close()


def test_what_waits_for_a_replica_is_after_a_state_that_does_not_have_it(scene: Scene, tmp_path: Path) -> None:
    scene.sql(ITEMS, "INSERT INTO items VALUES (1, 'seen')")
    log = scene.log("items", snapshot_folder=str(tmp_path))
    late = threading.Thread(target=scene.sql, args=("INSERT INTO items VALUES (2, 'not yet')",))
    seq = scene.server.seq()
    scene.server.sql(
        "FLUSH BINARY LOGS",
        "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC', rpl_semi_sync_master_timeout = 3000",
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
    )
    try:
        late.start()
        eventually(lambda: scene.server.seq() == seq + 1)
        found = state_of(log)
        assert found in ((seq, {1}), (seq + 1, {1, 2}))
    finally:
        late.join()
        scene.server.sql("SET GLOBAL rpl_semi_sync_master_enabled = OFF")


def test_rows_of_an_xa_transaction_are_not_lost_between_the_log_and_the_tables(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistent_snapshot, "MAX_ATTEMPTS", 2)
    scene.sql(ITEMS)
    stream = with_snapshot(scene, tmp_path, "items")
    with contextlib.closing(scene.connect()) as connection, connection.cursor() as cursor:
        for statement in ("XA START 'x'", "INSERT INTO items VALUES (1, 'a')", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
        with pytest.raises(LogUnavailable, match="XA transactions that are prepared"):
            create_log(stream)
        cursor.execute("XA COMMIT 'x'")
    assert replayed(whole(stream)) == stored(scene, "items")


def test_a_table_of_another_domain_is_read_at_its_place_in_ours(scene: Scene, tmp_path: Path) -> None:
    scene.sql(ITEMS, "INSERT INTO items VALUES (1, 'ours')")
    seq = scene.server.seq()
    scene.sql("SET SESSION gtid_domain_id = 9", "INSERT INTO items VALUES (2, 'theirs')")
    for domain, at in ((0, seq), (9, 1), (11, 0)):
        with opened(with_snapshot(scene, tmp_path / str(domain), "items", domain=domain)) as log:
            rows = listed(log.tail(Positions(dict.fromkeys(range(2), Position(at, BASE - 1))), 10))
            assert places(rows) == [(at, BASE), (at, BASE + 1)]


def test_a_replica_that_was_made_from_a_copy_has_a_place_for_it(tmp_path: Path) -> None:
    with running(server_id=2) as copy:
        scene = Scene(copy)
        scene.may_read()
        scene.sql(ITEMS, "INSERT INTO items VALUES (1, 'copied')")
        copy.sql("RESET MASTER", "SET GLOBAL gtid_slave_pos = '0-1-500'")
        rows = whole(with_snapshot(scene, tmp_path, "items"))
        assert places(rows) == [(500, BASE)]
        scene.close()
