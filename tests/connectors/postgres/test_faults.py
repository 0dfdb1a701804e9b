"""A PostgreSQL server that dies, restarts, forgets, or loses patience."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, PostgresServer, floors, places, read_all
from tidings.errors import LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.postgres.log import PostgresLog

database, log, own_server = postgres_server.database, postgres_server.log, postgres_server.own_server


class Writer:
    """Inserts numbered rows, some in each transaction, whatever happens to the server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopped = threading.Event()
        self.committed: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            try:
                with contextlib.closing(self._database.server.connect(self._database.name)) as connection:
                    while not self._stopped.is_set():
                        numbers = list(range(number, number + 7))
                        number += 7
                        with connection, connection.cursor() as cursor:
                            cursor.execute("INSERT INTO item SELECT unnest(%s)", (numbers,))
                        self.committed += numbers
            except psycopg2.Error:
                self._stopped.wait(0.05)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["object"].rpartition("/")[2]) for row in rows]


@contextlib.contextmanager
def five_rows_read(server: PostgresServer, setting: str) -> Iterator[tuple[Database, PostgresLog, Any, Positions]]:
    """With this setting in the server: a database of five rows, its log, a reader that has read them, and its stand."""
    own = server.database()
    own.execute("CREATE TABLE item (id int PRIMARY KEY)", f"ALTER SYSTEM SET {setting}")
    server.restart()
    with contextlib.closing(create_log(own.stream())) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        own.execute("INSERT INTO item SELECT generate_series(1, 5)")
        rows, after = read_all(reader, floors(log), log)
        assert ids(rows) == [1, 2, 3, 4, 5]
        yield own, log, reader, after


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_is_read_loses_and_repeats_nothing(own_server: PostgresServer) -> None:
    own = own_server.database()
    own.execute("CREATE TABLE item (id int PRIMARY KEY)")
    log = create_log(own.stream())
    assert isinstance(log, PostgresLog)
    writer = Writer(own)
    rows: list[dict[str, Any]] = []
    after = floors(log)
    failed = 0
    with contextlib.closing(log), contextlib.closing(log.reader()) as reader:

        def more(count: int) -> bool:
            nonlocal after, failed
            try:
                read = reader.read(after, 50)
            except LogUnavailable:
                failed += 1
            else:
                rows.extend(read.rows.to_pylist(maps_as_pydicts="strict"))
                after = read.upto
            return len(rows) >= count

        for _ in range(3):
            target = len(rows) + 500
            eventually(lambda: more(target))  # noqa: B023
            log.confirm(after)
            own_server.kill()
            before = failed
            eventually(lambda: more(0) and failed > before)  # noqa: B023 - after what has come already
            own_server.start()
        target = len(rows) + 500
        eventually(lambda: more(target))
        writer.stop()
        rest, _ = read_all(reader, after, log)
        rows += rest
    assert places(rows) == sorted(set(places(rows)))
    assert set(writer.committed) <= set(ids(rows))
    assert sorted(ids(rows)) == [number for (number,) in own.execute("SELECT id FROM item ORDER BY id")]


@pytest.mark.slow
def test_rows_of_one_lsn_are_told_apart_across_a_restart(own_server: PostgresServer) -> None:
    own = own_server.database()
    own.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with contextlib.closing(create_log(own.stream())) as log, contextlib.closing(log.reader()) as reader:
        own.execute("INSERT INTO item SELECT generate_series(1, 30)")
        after = floors(log)
        rows: list[Any] = []
        while len(rows) < 10:
            read = reader.read(after, 10 - len(rows))
            rows += read.rows.to_pylist()
            after = read.upto
    assert len(rows) == 10
    own_server.restart()
    with contextlib.closing(open_log(own.stream())) as log, contextlib.closing(log.reader()) as reader:
        rest, _ = read_all(reader, after, log)
    assert ids(rows + rest) == list(range(1, 31))
    assert {row["seq"] for row in rows + rest} == {rows[0]["seq"]}
    assert [row["index"] for row in rows + rest] == list(range(30))


def test_a_slot_that_was_made_anew_is_a_loss_with_exact_positions(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 5)")
    with contextlib.closing(log.reader()) as reader:
        rows, _ = read_all(reader, floors(log), log)
    database.execute(f"SELECT pg_drop_replication_slot('tidings_{database.name}')", "INSERT INTO item VALUES (6)")
    with contextlib.closing(create_log(database.stream())) as anew:
        floor = anew.bounds()[0].floor
        after = Positions({shard: Position(rows[2]["seq"], 2) for shard in range(4)})
        database.execute("INSERT INTO item VALUES (7)")
        with contextlib.closing(anew.reader()) as reader:
            with pytest.raises(PositionsLost, match="made anew") as caught:
                reader.read(after, 10)
            assert caught.value.lost == {shard: (Position(rows[2]["seq"], 3), floor) for shard in range(4)}
            rest, _ = read_all(reader, Positions({shard: lost[1] for shard, lost in caught.value.lost.items()}), anew)
    assert ids(rest) == [7]


@pytest.mark.slow
def test_a_slot_whose_wal_was_removed_is_a_loss_too(own_server: PostgresServer) -> None:
    with five_rows_read(own_server, "max_slot_wal_keep_size = '1MB'") as (own, log, reader, after):
        for _ in range(5):
            own.execute("INSERT INTO item SELECT max(id) + 1 FROM item", "SELECT pg_switch_wal()", "CHECKPOINT")
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'tidings_" + own.name + "'"
        eventually(lambda: own.execute("CHECKPOINT", status) == [("lost",)])
        own.execute("INSERT INTO item VALUES (100)")
        with pytest.raises(PositionsLost, match="made anew") as caught:
            reader.read(after, 10)
        lost = caught.value.lost
        assert set(lost) == {0, 1, 2, 3}
        assert lost[2][0] == Position(after[2].seq, after[2].index + 1)
        assert len(set(lost.values())) == 1
        last = Positions({shard: upto for shard, (_, upto) in lost.items()})
        own.execute("INSERT INTO item VALUES (101)")
        with contextlib.closing(open_log(own.stream())) as other, contextlib.closing(other.reader()) as late:
            rest, stand = read_all(late, last, log)
            assert ids(rest) == [101]
        assert read_all(reader, last, log)[0] == rest
        with pytest.raises(PositionsLost) as caught:
            log.tail(after, 10)
        assert caught.value.lost == lost  # it is one loss, whoever comes to it
        log.confirm(stand)
        eventually(lambda: log.bounds()[0].floor == stand[0])


@pytest.mark.slow
def test_a_reader_that_the_server_has_given_up_goes_on(own_server: PostgresServer) -> None:
    with five_rows_read(own_server, "wal_sender_timeout = '1s'") as (own, log, reader, after):
        assert len(own.execute("SELECT 1 FROM pg_stat_replication")) == 1
        eventually(lambda: own.execute("SELECT 1 FROM pg_stat_replication") == [])
        own.execute("INSERT INTO item VALUES (6)")
        more, _ = read_all(reader, after, log)
    assert ids(more) == [6]


@pytest.mark.slow
def test_a_reader_that_is_idle_and_asks_is_not_given_up(own_server: PostgresServer) -> None:
    own = own_server.database()
    own.execute("ALTER SYSTEM SET wal_sender_timeout = '1s'")
    own_server.restart()
    with contextlib.closing(create_log(own.stream())) as log, contextlib.closing(log.reader()) as reader:
        after = reader.read(floors(log), 10).upto
        who = "SELECT pid, now() - backend_start > interval '3 seconds' FROM pg_stat_replication"
        ((pid, _),) = own.execute(who)

        def old() -> bool:
            nonlocal after
            after = reader.read(after, 10).upto
            return own.execute(who) == [(pid, True)]

        eventually(old)


def test_a_closed_log_leaves_nothing_behind(log: PostgresLog, database: Database) -> None:
    readers = [log.reader(), log.reader()]
    for reader in readers:
        reader.read(floors(log), 1)
    mine = f"datname = '{database.name}' AND application_name = 'tidings'"
    assert len(database.execute(f"SELECT 1 FROM pg_stat_activity WHERE {mine}")) >= 3
    log.close()
    with pytest.raises(LogUnavailable, match="was closed"):
        readers[0].read(floors(log), 1)
    log.close()
    eventually(lambda: database.execute(f"SELECT 1 FROM pg_stat_activity WHERE {mine}") == [])
    slots = f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database.name}'"
    eventually(lambda: database.execute(slots) == [(f"tidings_{database.name}",)])
