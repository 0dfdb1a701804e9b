"""When things go wrong: servers that are set up wrongly, die, purge their logs or begin anew; and servers' replicas."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidings.errors import InvalidOption, LogRestored, LogUnavailable, PositionsLost
from tidings.logs import Read, create_log, open_log
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.mysql import MysqlLog
from tidings_connectors.mysql_reader import MysqlReader

from .mysql_server import PASSWORD, Scene, Server, drain, follow, heads, listed, missing, now, running

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

ITEMS = "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(50))"


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that may be harmed, as long as it is well again afterwards."""
    with running() as own:
        yield own


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    own = Scene(server)
    own.sql(ITEMS)
    yield own
    own.close()


def inserts(numbers: range) -> list[str]:
    return [f"INSERT INTO items VALUES ({number}, 'x')" for number in numbers]


def ids(rows: list[Any]) -> list[int]:
    return [row["payload"]["id"] for row in rows]


def places(rows: list[Any]) -> list[tuple[int, int]]:
    return [(row["seq"], row["index"]) for row in rows]


# Servers that are set up wrongly


def mended(words: str, attempt: Callable[[], object], mend: Callable[[str], object], *, start: str) -> None:
    """It fails with one sentence; what the sentence says last is done; then it works."""
    with pytest.raises(LogUnavailable, match=words) as caught:
        attempt()
    sentence = str(caught.value)
    assert PASSWORD not in sentence
    assert not sentence.endswith(".")
    mend(sentence[sentence.rindex(start) :])
    attempt()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "NO_LOG"),
        ("binlog_checksum", "NONE"),
        ("log_bin_compress", "ON"),
    ],
)
def test_a_setting_that_is_wrong_is_told_with_the_statement_that_mends_it(scene: Scene, name: str, value: str) -> None:
    scene.server.sql(f"SET GLOBAL {name} = '{value}'")
    mended(f"has {name} = {value}", lambda: scene.log("items"), scene.server.sql, start="SET GLOBAL")


@pytest.mark.parametrize("privilege", ["REPLICATION SLAVE", "BINLOG MONITOR"])
def test_a_privilege_that_is_missing_is_told_with_the_statement_that_grants_it(scene: Scene, privilege: str) -> None:
    scene.server.sql(f"REVOKE {privilege} ON *.* FROM tidings")
    start = f"GRANT {privilege}"
    mended("may not read the binary log", lambda: scene.log("items"), scene.server.sql, start=start)


def test_a_wrong_password_is_told_with_the_statement_that_sets_it(scene: Scene) -> None:
    scene.server.sql("ALTER USER tidings IDENTIFIED BY 'something else'")
    mended(
        "does not let user 'tidings' in",
        lambda: scene.log("items"),
        lambda statement: scene.server.sql(statement.replace("<password>", PASSWORD)),
        start="ALTER USER",
    )


def test_a_password_comes_from_an_option_file(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYSQL_PWD")
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\npassword = {PASSWORD}\n")
    log = scene.log("items", defaults_file=str(file))
    start = heads(log)
    scene.sql(*inserts(range(3)))
    assert ids(listed(log.tail(start, 10))) == [0, 1, 2]


@pytest.mark.parametrize(
    "address", ["mysql:mysql://tidings:hush@h/d", "mysql:mysql://tidings@h/d?password=hush", "mysql:mysql://:hush@h"]
)
def test_a_password_in_the_address_is_refused_and_not_repeated(scene: Scene, address: str) -> None:
    with pytest.raises(InvalidOption, match="must not hold a password") as caught:
        create_log(replace(scene.definition("items"), log=address))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["mysql:localhost", "mysql:mysql://host/d", "mysql:mysql://u@h:port/d", "mysql:ftp://u@h/"]
)
def test_an_address_that_is_none_is_refused(scene: Scene, address: str) -> None:
    with pytest.raises(InvalidOption, match="write mysql:mysql://user@host:3306/database"):
        create_log(replace(scene.definition("items"), log=address))


def test_a_server_that_is_not_there_is_told(scene: Scene) -> None:
    with pytest.raises(LogUnavailable, match=r"MariaDB at 127.0.0.1:1 cannot be reached"):
        open_log(replace(scene.definition("items"), log="mysql:mysql://tidings@127.0.0.1:1/d"))


def test_a_server_without_a_binary_log_is_told() -> None:
    with running(log_bin=None) as server, pytest.raises(LogUnavailable, match=r"writes no binary log: .*log_bin = ON"):
        Scene(server).log("items")


def test_a_missing_library_is_told_with_what_installs_it() -> None:
    code = (
        "import sys; sys.modules['pymysqlreplication'] = None\n"
        "from tidings.plugins import load\n"
        "try: load('tidings.logs', 'mysql')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    import sys

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.startswith("PluginMissing the MySQL log needs mysql-replication")
    assert "pip install 'tidings[mysql]'" in told


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
    monkeypatch.setattr("tidings_connectors.mysql.FRESH", 3600)  # the look is long ago, and still believed
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
            eventually(lambda failures=follower.failures: follower.failures > failures)
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


def taken(reader: MysqlReader, after: Positions, count: int) -> tuple[list[Any], Positions]:
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


def test_no_secret_is_shown(scene: Scene) -> None:
    log = scene.log("items")
    reader = log.reader()
    read: Read = reader.read(heads(log), 10)
    shown = [repr(one) for one in (log, reader, read.upto, log._place, log._connection, vars(log), vars(reader))]
    assert PASSWORD not in "".join(shown)
    reader.close()
