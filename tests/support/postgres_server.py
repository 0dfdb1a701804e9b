"""A real PostgreSQL server for tests: in a folder of its own, on a free port, gone with them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.certificates import Certificate
from tidings.errors import PositionsLost
from tidings.log_opening import create_log
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.postgres.log import PostgresLog

Lost = dict[int, tuple[Position, Position]]
ADMIN = "admin"
DEBIAN = Path("/usr/lib/postgresql")
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "fsync": "off",
    "password_encryption": "scram-sha-256",
    "listen_addresses": "127.0.0.1",
}


def missing() -> str | None:
    """What is missing to run a server, or None."""
    if program("initdb") is None:
        return "PostgreSQL is not installed: there is no initdb on the PATH, nor below Debian's folder"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL does not run as root, and there is no runuser to run it as the user postgres"
    return None


def program(name: str) -> str | None:
    """The path of one of PostgreSQL's programs."""
    found = sorted(DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return shutil.which(name) or (str(found[-1]) if found else None)


class PostgresServer:
    """A server that is running; `stop`, `kill` and `start` do what they say. With a primary it is a standby of it.

    With a certificate it speaks TLS, and those who are in the role `certified` have to show it, too.
    """

    def __init__(
        self, primary: PostgresServer | None = None, certificate: Certificate | None = None, **settings: str
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidings-postgres-"))
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(self._folder, "postgres")
        self._data = self._folder / "data"
        self._numbers = itertools.count()
        data = ["-D", str(self._data), "-U", ADMIN, "--no-sync"]
        self._settings = {**SETTINGS, **settings, "unix_socket_directories": str(self._folder)}
        if primary is None:
            self._run("initdb", *data, "-A", "trust", "-E", "UTF8", "--locale=C")
        else:
            at = {"host": "127.0.0.1", "port": str(primary.port), "user": ADMIN}
            self._run("pg_basebackup", *data, "-h", at["host"], "-p", at["port"], "-c", "fast", "-R")
            self._settings["primary_conninfo"] = " ".join(f"{name}={value}" for name, value in at.items())
        certified = ""
        if certificate is not None:
            for name, file in zip(("server.crt", "server.key"), certificate, strict=True):
                self._write(name, file.read_text())
                (self._data / name).chmod(0o600)
            self._settings |= {"ssl": "on", "ssl_ca_file": "server.crt"}
            certified = "hostssl all +certified all scram-sha-256 clientcert=verify-ca\n"
        self._listen()
        # Roles with a password need it over TCP; the administrator never does.
        self._write(
            "pg_hba.conf",
            f"local all all trust\n{certified}host all {ADMIN} all trust\nhost replication {ADMIN} all trust\n"
            "host all all all scram-sha-256\nhost replication all all scram-sha-256\n",
        )
        self.start()

    def _listen(self) -> None:
        """Be at a port that is free."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        given = {**self._settings, "port": str(self.port)}
        self._write("postgresql.auto.conf", "".join(f"{name} = '{value}'\n" for name, value in given.items()))

    def move(self) -> None:
        """Be at another port, with all that it holds."""
        self.stop()
        self._listen()
        self.start()

    def promote(self) -> None:
        """Have a standby be a primary."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "promote")

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "-m", "fast", "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill it with -9, all of its processes. The postmaster goes first, so that it starts none anew."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in [pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{each}/cmdline").exists() for each in [pid, *children]))

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-D", str(self._data), "-w", "-s", "-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def database(self) -> Database:
        """A database that no other test has, with a publication of all its tables."""
        name = f"shop_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        made = Database(self, name)
        made.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        return made

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the administrator, and return its rows."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def connect(self, database: str = "postgres", factory: Any = None) -> Any:
        place = {"host": "127.0.0.1", "port": self.port, "user": ADMIN, "dbname": database}
        return psycopg2.connect(**place, connection_factory=factory)

    def _run(self, name: str, *arguments: str) -> None:
        path = program(name)
        assert path
        with open(self._folder / "out", "ab") as out:  # not a pipe, which the server would keep open
            subprocess.run([*self._as, path, *arguments], check=True, stdout=out, stderr=out, cwd="/")

    def _write(self, name: str, text: str) -> None:
        path = self._data / name
        path.write_text(text)
        if self._as:
            shutil.chown(path, "postgres")


class Database:
    """A database of a test's own."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    def address(self, user: str = ADMIN) -> str:
        return f"postgres:postgresql://{user}@127.0.0.1:{self.server.port}/{self.name}"

    def options(self) -> dict[str, Any]:
        """What every stream here needs. Slots are the whole server's, so each database has its own."""
        return {"publication": "everything", "slot": f"tidings_{self.name}"}

    def stream(self, shards: int = 4, user: str = ADMIN, **options: Any) -> StreamDefinition:
        """A stream that tails this database."""
        return StreamDefinition("shop", shards, self.address(user), options={**self.options(), **options})

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a transaction of its own, and return the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = self.server.execute(statement, self.name)
        return rows

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor whose statements are one transaction."""
        with (
            contextlib.closing(self.server.connect(self.name)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            yield cursor

    def drop(self) -> None:
        mine = "FROM pg_replication_slots WHERE database = current_database()"
        # Who has just closed a connection may still be sending in the server's eyes.
        self.execute(f"SELECT pg_terminate_backend(active_pid) {mine} AND active")
        eventually(lambda: not self.execute(f"SELECT 1 {mine} AND active"))
        self.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine} AND NOT temporary")
        others = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'"
        eventually(lambda: not self.server.execute(others))
        self.server.execute(f"DROP DATABASE {self.name}")


def floors(log: Any) -> Positions:
    """Where a reader stands that wants all that a log holds."""
    return Positions({shard: bounds.floor for shard, bounds in log.bounds().items()})


def read_all(reader: Any, after: Positions, log: Any, limit: int = 10_000) -> tuple[list[dict[str, Any]], Positions]:
    """Read until the head of this moment is reached: the rows, in the order in which they came, and the stand."""
    head = log._slot.state().head
    rows: list[dict[str, Any]] = []
    while any(at < head for at in after.values()):
        read = reader.read(after, limit)
        rows += read.rows.to_pylist(maps_as_pydicts="strict")
        assert all(at <= read.upto[shard] for shard, at in after.items())
        after = read.upto
    return rows, after


def read_on(log: Any, reader: Any, after: Positions, limit: int = 100) -> tuple[list[str], list[Lost], Positions]:
    """What a flow would get: objects, and losses between them."""
    head = log._slot.state().head
    rows: list[dict[str, Any]] = []
    losses: list[Lost] = []
    while any(at < head for at in after.values()):
        try:
            read = reader.read(after, limit)
        except PositionsLost as loss:
            losses.append(loss.lost)
            rows.append({"object": "loss", "seq": max(last.seq for _, last in loss.lost.values()), "index": -1})
            after = Positions({**after, **{shard: last for shard, (_, last) in loss.lost.items()}})
        else:
            rows += read.rows.to_pylist()
            after = read.upto
    assert places(rows) == sorted(set(places(rows)))
    return [row["object"] for row in rows], losses, after


def places(rows: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["seq"], row["index"]) for row in rows]


@functools.cache
def shared_server() -> PostgresServer:
    """One server for all tests that do not harm theirs."""
    server = PostgresServer()
    atexit.register(server.close)
    return server


@pytest.fixture
def database() -> Iterator[Database]:
    """A database of the test's own, in a server that all tests share."""
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    own = shared_server().database()
    yield own
    own.drop()


@pytest.fixture
def role(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One who may replicate, and whose password the environment has."""
    name = f"tail_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'right'")
    monkeypatch.setenv("PGPASSWORD", "right")
    yield name
    database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may harm. Its files are synced as those of a real one."""
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    server = PostgresServer(fsync="on")
    yield server
    server.close()


@pytest.fixture
def log(database: Database) -> Iterator[PostgresLog]:
    """The log of a stream over a new database."""
    with contextlib.closing(create_log(database.stream())) as made:
        assert isinstance(made, PostgresLog)
        yield made
