"""When things go wrong: servers that die, purge their logs or begin anew; and servers' replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import (
    ITEMS,
    Scene,
    Server,
    drain,
    follow,
    heads,
    ids,
    inserts,
    listed,
    needs_mariadb,
    now,
    places,
    running,
)
from tidings.errors import LogRestored, LogUnavailable, PositionsLost
from tidings.logs import Reader
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.mysql.log import MysqlLog

password, server, scene = mysql_server.password, mysql_server.own_server, mysql_server.scene
pytestmark = needs_mariadb


# Logs that are rotated, purged, reset


def test_rows_are_read_across_rotations_from_any_place(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    for number in range(0, 50, 10):
        scene.sql(*inserts(range(number, number + 10)), "FLUSH BINARY LOGS")
    rows, _ = drain(log.reader(), start, now(log), limit=7)
    assert ids(rows) == list(range(50))
    for number in (0, 9, 10, 11, 35, 49, 50):
        log.forget()  # so that the place is looked for in the server's logs
        after = Positions({0: Position(start[0].seq + number, -1)})
        assert listed(log.tail(after, 100)) == rows[number:]


def test_a_purged_log_is_lost_with_exact_positions(scene: Scene) -> None:
    log = scene.log("items", shards=2)
    start = heads(log)
    scene.sql(*inserts(range(5)), "FLUSH BINARY LOGS", *inserts(range(5, 8)))
    reader = log.reader()
    eventually(lambda: len(reader.read(start, 3).rows))
    reader.close()
    eventually(lambda: purged(scene.server))
    seq = start[0].seq
    after = Positions({0: Position(seq + 1, 2), 1: Position(seq + 5, -1)})
    floor = Position(seq + 5, -1)
    reads: list[Callable[[], object]] = [
        lambda: log.tail(after, 10),
        lambda: log.reach(after, 10),
        lambda: log.slices(after, now(log)),
        lambda: log.reader().read(after, 10),
    ]
    for read in reads:
        with pytest.raises(PositionsLost, match=f"transactions {seq + 1} to {seq + 4} of shard 0") as caught:
            read()
        assert caught.value.lost == {0: (Position(seq + 1, 3), floor)}
        assert not isinstance(caught.value, LogRestored)
    assert {held.floor for held in log.bounds().values()} == {floor}
    assert ids(listed(log.tail(Positions({0: floor, 1: floor}), 10))) == [5, 6, 7]


def purged(server: Server) -> bool:
    """Whether the oldest logs are gone; the server does not delete one that is still being sent."""
    server.sql(f"PURGE BINARY LOGS TO '{server.files()[-1]}'")
    return len(server.files()) == 1


@pytest.mark.parametrize("remembered", [True, False])
def test_a_purge_that_comes_between_the_look_and_the_read_is_lost_too(
    scene: Scene, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The look is long ago, and still believed.
    monkeypatch.setattr("tidings_connectors.mysql.log.BOUNDS_MAX_AGE_S", 3600)
    log = scene.log("items", shards=1)
    start = heads(log)
    if remembered:  # then the server is asked for a state that it does not know any more
        log.tail(Positions({0: Position(start[0].seq - 1, -1)}), 10)
    assert (start[0].seq - 1 in log._known) == remembered
    scene.sql(*inserts(range(5)), "FLUSH BINARY LOGS", *inserts(range(5, 8)))
    assert heads(log) == start
    eventually(lambda: purged(scene.server))
    reader = log.reader()
    with pytest.raises(PositionsLost) as caught:
        eventually(lambda: len(reader.read(start, 10).rows))
    assert caught.value.lost == {0: (Position(start[0].seq, 0), Position(start[0].seq + 5, -1))}


def test_a_log_that_was_reset_is_no_place_to_read_on(server: Server) -> None:
    scene = Scene(server)
    scene.sql(ITEMS)
    log = scene.log("items", shards=1)
    reader = log.reader()
    scene.sql(*inserts(range(5)))
    stand = now(log)
    reader.read(stand, 10)
    server.sql("RESET MASTER")
    with pytest.raises(LogRestored, match="the binary log ends with 0: it was reset") as caught:
        log.tail(stand, 10)
    assert caught.value.lost == {0: (Position(1, 0), stand[0])}

    def told() -> bool:  # a reader that is connected hears of it too
        try:
            reader.read(stand, 10)
        except LogRestored:
            return True
        except LogUnavailable:  # the server ends the connection, or does not
            pass
        return False

    assert eventually(told)
    scene.sql(*inserts(range(5, 8)))
    assert ids(listed(log.tail(Positions(), 10))) == [5, 6, 7]
    scene.close()


# Servers that die


class Follower(threading.Thread):
    """Reads on and on, whatever happens, and keeps what it got."""

    def __init__(self, log: MysqlLog, after: Positions) -> None:
        super().__init__()
        self.log, self.after = log, after
        self.rows: list[Any] = []
        self.failures = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        reader = self.log.reader()
        while not self._stop_now.is_set():
            try:
                rows, self.after = reader.read(self.after, 20)
                self.rows += listed(rows)
            except LogUnavailable:
                self.failures += 1
                self._stop_now.wait(0.05)
        reader.close()

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


def test_a_server_that_is_killed_and_started_again_costs_no_row_and_doubles_none(server: Server) -> None:
    scene = Scene(server)
    scene.sql(ITEMS)
    log = scene.log("items", shards=1)
    follower = Follower(log, heads(log))
    follower.start()
    try:
        for number in range(3):
            scene.sql(*inserts(range(number * 100, number * 100 + 100)))
            eventually(lambda: len(follower.rows) > 0)
            server.kill()
            failures = follower.failures
            eventually(lambda: follower.failures > failures)  # noqa: B023
            server.start()
        scene.sql(*inserts(range(300, 310)))
        eventually(lambda: len(follower.rows) >= 310)
    finally:
        follower.stop()
    assert ids(follower.rows) == list(range(310))
    assert places(follower.rows) == sorted(set(places(follower.rows)))
    # Ids of tables begin anew with the server: what was written before is read by what was said before.
    assert ids(listed(log.tail(Positions({0: Position(follower.rows[0]["seq"], -1)}), 1000))) == list(range(310))
    scene.close()


def test_a_log_goes_on_when_its_connection_was_ended(scene: Scene) -> None:
    log = scene.log("items")
    now(log)
    scene.server.sql("KILL CONNECTION USER tidings")
    now(log)


def test_a_reader_that_is_closed_leaves_no_thread(scene: Scene) -> None:
    log = scene.log("items")
    reader = log.reader()
    reader.read(heads(log), 10)
    names = [thread.name for thread in threading.enumerate()]
    assert "tidings-binlog" in names
    reader.close()
    assert "tidings-binlog" not in [thread.name for thread in threading.enumerate()]
    reader.read(heads(log), 10)
    assert "tidings-binlog" in [thread.name for thread in threading.enumerate()]
    log.close()
    assert "tidings-binlog" not in [thread.name for thread in threading.enumerate()]
    reader.close()


# A primary and its replica


def test_a_reader_goes_on_at_the_replica_where_it_stopped_at_the_primary() -> None:
    with running(1) as primary, running(2) as replica:
        # Other files, other offsets: the replica's log is in a state of its own before it begins to replicate.
        replica.sql("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        follow(replica, primary)
        scene = Scene(primary)
        scene.sql(ITEMS)
        here = scene.log("items", shards=2)
        there = scene.log("items", shards=2, server=replica)
        start = heads(here)
        for number in range(0, 60, 20):
            scene.sql(*inserts(range(number, number + 10)), "FLUSH BINARY LOGS")
            scene.sql(*inserts(range(number + 10, number + 20)), together=True)
        end = now(here)
        eventually(lambda: now(there) == end)
        assert primary.sql("SHOW MASTER STATUS")[0][:2] != replica.sql("SHOW MASTER STATUS")[0][:2]

        rows, _ = drain(here.reader(), start, end)
        assert ids(rows) == list(range(60))
        assert drain(there.reader(), start, end)[0] == rows
        for stop in (1, 7, 10, 15, 33, 59):
            first, after = taken(here.reader(), start, stop)
            rest, _ = drain(there.reader(), after, end)
            assert first + rest == rows

        # While both are written to.
        follower = Follower(here, end)
        follower.start()
        scene.sql(*inserts(range(100, 150)))
        eventually(lambda: len(follower.rows) > 10)
        follower.stop()
        other = Follower(there, follower.after)
        other.start()
        scene.sql(*inserts(range(150, 200)))
        eventually(lambda: len(follower.rows) + len(other.rows) >= 100)
        other.stop()
        assert ids(follower.rows + other.rows) == list(range(100, 200))
        scene.close()


def taken(reader: Reader, after: Positions, count: int) -> tuple[list[Any], Positions]:
    """So many rows, and where the reader stands then."""
    rows: list[Any] = []
    while len(rows) < count:
        found, after = reader.read(after, count - len(rows))
        rows += listed(found)
    reader.close()
    return rows, after


def test_a_replica_that_began_later_does_not_pretend_to_have_what_came_before() -> None:
    with running(1) as primary, running(2) as replica:
        scene = Scene(primary)
        scene.sql(ITEMS, *inserts(range(10)))
        here = scene.log("items", shards=1)
        start, copied = Positions({0: Position(3, -1)}), now(here)
        # As if it had been made from a copy of the primary.
        database = f"CREATE DATABASE {scene.database} CHARACTER SET utf8mb4"
        replica.sql("SET SESSION sql_log_bin = 0", database, f"USE {scene.database}", ITEMS)
        replica.sql(f"SET GLOBAL gtid_slave_pos = '{primary.value('@@gtid_binlog_pos')}'")
        there = scene.log("items", shards=1, server=replica)
        assert now(there) == copied
        assert len(there.tail(copied, 10)) == 0
        with pytest.raises(PositionsLost) as caught:
            there.tail(start, 10)
        assert caught.value.lost == {0: (Position(3, 0), copied[0])}
        follow(replica, primary)
        scene.sql(*inserts(range(10, 13)))
        eventually(lambda: now(there) == now(here))
        assert ids(listed(there.tail(copied, 10))) == [10, 11, 12]
        with pytest.raises(PositionsLost) as caught:
            there.tail(start, 10)
        assert caught.value.lost == {0: (Position(3, 0), copied[0])}
        scene.close()
