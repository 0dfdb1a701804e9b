"""A real MariaDB for tests: its own folder, a free port, ended by its own process id."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.certificates import Certificate
from tests.support.mysql_install import die_with_parent, free_port, missing, owner, program, template
from tidings.log_opening import create_log
from tidings.logs import Reader
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.mysql.log import MysqlLog

PASSWORD = "s3cret-word"  # of the user `tidings`, who may do all that a reader needs
ITEMS = "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(50))"

needs_mariadb = pytest.mark.skipif(missing() is not None, reason=missing() or "")


class Server:
    """A server with row-based binary log and GTIDs. It listens on 127.0.0.1 and on a socket in its folder.

    With a certificate it speaks TLS, and takes what that one has signed from clients.
    """

    def __init__(self, server_id: int = 1, certificate: Certificate | None = None, **options: Any) -> None:
        # Not in pytest's folder: the server's user may not go in there, and the path of a socket must be short.
        self._place = Path(tempfile.mkdtemp(prefix="mariadb-"))
        self.folder = self._place / "data"
        self.port = free_port()
        self._options = {
            "server_id": server_id,
            "log_bin": "binlog",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
            "gtid_strict_mode": "ON",
            "log_slave_updates": "ON",
            "innodb_flush_log_at_trx_commit": 2,  # survives a kill -9, and is fast
            "sync_binlog": 0,
            "innodb_buffer_pool_size": "64M",
            "skip_name_resolve": "ON",
            "max_allowed_packet": "64M",
            **options,
        }
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(template(), self.folder)
        if certificate is not None:
            signed, key = (shutil.copy(file, self._place) for file in certificate)
            self._options |= {"ssl_cert": signed, "ssl_key": key, "ssl_ca": signed}
        if user := owner():
            subprocess.run(["chown", "-R", user, str(self._place)], check=True)

    @property
    def socket(self) -> Path:
        """Where root, that is the operator, gets in."""
        return self._place / "socket"

    def address(self, database: str, user: str = "tidings") -> str:
        """The address of a log in this server."""
        return f"mysql:mysql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Server:
        """Start it and wait until it answers."""
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in self._options.items() if value]
        command = [program("mariadbd") or "", "--no-defaults", f"--datadir={self.folder}", f"--port={self.port}"]
        command += [f"--socket={self.socket}", f"--pid-file={self._place / 'pid'}", "--bind-address=127.0.0.1"]
        command += [f"--log-error={self._place / 'errors.err'}", *arguments]
        if os.geteuid() == 0:
            command.append(f"--user={owner() or 'root'}")
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, preexec_fn=die_with_parent, stdout=quiet, stderr=quiet)
        eventually(self._answers, timeout=60)
        return self

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a failure of the machine would."""
        self._end(signal.SIGKILL)

    def destroy(self) -> None:
        """End it and delete what it holds."""
        self.kill()
        shutil.rmtree(self._place, ignore_errors=True)

    def take(self, other: Server) -> None:
        """Hold what another server holds, of which neither runs."""
        shutil.rmtree(self.folder)
        shutil.copytree(other.folder, self.folder)
        if user := owner():
            subprocess.run(["chown", "-R", user, str(self.folder)], check=True)

    close = destroy

    def connect(self, **options: Any) -> Any:
        """A connection as root."""
        import pymysql

        settings = {"unix_socket": str(self.socket), "user": "root", "autocommit": True, "charset": "utf8mb4"}
        return pymysql.connect(**{**settings, **options})

    def sql(self, *statements: str) -> Any:
        """Run statements as root, each committed by itself; the rows of the last."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def value(self, expression: str) -> Any:
        """The value of an expression."""
        return self.sql(f"SELECT {expression}")[0][0]

    def files(self) -> list[str]:
        """The binary logs, the oldest first."""
        return [row[0] for row in self.sql("SHOW BINARY LOGS")]

    def seq(self) -> int:
        """The number of the newest transaction of domain 0."""
        gtids = (gtid.split("-") for gtid in self.value("@@gtid_binlog_pos").split(",") if gtid)
        return next((int(number) for domain, _, number in gtids if domain == "0"), 0)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            errors = self._place / "errors.err"
            raise AssertionError(f"mariadbd has ended: {errors.read_text()[-2000:] if errors.exists() else ''}")
        try:
            self.connect().close()
        except OSError:
            return False
        except Exception as error:
            if error.args and error.args[0] in (2002, 2003, 2013):  # not there yet
                return False
            raise
        return True

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait(60)
            self._process = None


@contextlib.contextmanager
def running(server_id: int = 1, certificate: Certificate | None = None, **options: Any) -> Iterator[Server]:
    """A server that is there as long as the block runs, with the user that readers go in as."""
    server = Server(server_id, certificate, **options)
    try:
        server.start()
        grant(server)
        yield server
    finally:
        server.destroy()


def grant(server: Server) -> None:
    """Make the user that readers go in as."""
    server.sql(
        "SET SESSION sql_log_bin = 0",
        f"CREATE USER tidings IDENTIFIED BY '{PASSWORD}'",
        "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO tidings",
    )


def follow(replica: Server, primary: Server) -> None:
    """Let one server replicate another."""
    primary.sql(
        "SET SESSION sql_log_bin = 0",
        f"CREATE OR REPLACE USER replica IDENTIFIED BY '{PASSWORD}'",
        "GRANT REPLICATION SLAVE ON *.* TO replica",
    )
    replica.sql(
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'replica', "
        f"MASTER_PASSWORD = '{PASSWORD}', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        "START SLAVE",
    )


@functools.cache
def shared() -> Server:
    """One server for all tests that do not harm theirs."""
    server = Server().start()
    atexit.register(server.destroy)
    grant(server)
    return server


class Scene:
    """A database of a test's own, and streams of its tables."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.database = f"test_{uuid.uuid4().hex[:12]}"
        server.sql(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        self._logs: list[MysqlLog] = []

    def sql(self, *statements: str, together: bool = False) -> None:
        """Run statements in the database, each by itself or all in one transaction."""
        with contextlib.closing(self.connect(autocommit=not together)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def connect(self, **options: Any) -> Any:
        return self.server.connect(database=self.database, **options)

    def definition(self, *tables: str, shards: int = 2, server: Server | None = None, **options: Any) -> Any:
        """A stream of these tables."""
        options["tables"] = [f"{self.database}.{table}" for table in tables]
        address = (server or self.server).address(self.database)
        return StreamDefinition(self.database, shards, address, options=options)

    def log(self, *tables: str, shards: int = 2, server: Server | None = None, **options: Any) -> MysqlLog:
        """The log of a stream of these tables."""
        log = create_log(self.definition(*tables, shards=shards, server=server, **options))
        assert isinstance(log, MysqlLog)
        self._logs.append(log)
        return log

    def may_read(self) -> None:
        """Let readers read the tables too, as they do for a snapshot."""
        self.server.sql("SET SESSION sql_log_bin = 0", f"GRANT SELECT ON {self.database}.* TO tidings")

    def close(self) -> None:
        for log in self._logs:
            log.close()


def floors(log: MysqlLog) -> Positions:
    """Where a reader stands that has read nothing of what is held."""
    return Positions({shard: held.floor for shard, held in log._held(0).items()})


def heads(log: MysqlLog) -> Positions:
    """Where a reader stands that has read everything."""
    return Positions({shard: held.head for shard, held in log.bounds().items()})


def now(log: MysqlLog) -> Positions:
    """The same, as of this very moment: `bounds` may be a little old."""
    return Positions({shard: held.head for shard, held in log._held(0).items()})


def drain(reader: Reader, after: Positions, upto: Positions, limit: int = 1000) -> tuple[list[Any], Positions]:
    """All rows between, in the order in which they came, and where the reader stands then."""
    rows: list[Any] = []
    while any(after[shard] < at for shard, at in upto.items()):
        found, after = reader.read(after, limit)
        assert len(found) <= limit
        rows += listed(found)
    return rows, after


def listed(rows: pa.Table) -> list[Any]:
    """Rows as dictionaries, with the payload as what the JSON says."""
    found: list[Any] = rows.to_pylist(maps_as_pydicts="lossy")
    for row in found:
        row["payload"] = json.loads(row["payload"]) if row["payload"] is not None else None
    return found


def inserts(numbers: range) -> list[str]:
    return [f"INSERT INTO items VALUES ({number}, 'x')" for number in numbers]


def ids(rows: list[Any]) -> list[int]:
    return [row["payload"]["id"] for row in rows]


def places(rows: list[Any]) -> list[tuple[int, int]]:
    return [(row["seq"], row["index"]) for row in rows]


def brief(rows: list[Any]) -> list[tuple[str, str]]:
    return [(row["object"].partition(".")[2], row["attributes"]["operation"]) for row in rows]


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)


@pytest.fixture
def shared_server() -> Server:
    return shared()


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that may be harmed, as long as it is well again afterwards."""
    with running() as own:
        yield own


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    """A database with a table of items, in what the file of the tests has as its `server`."""
    own = Scene(server)
    own.sql(ITEMS)
    yield own
    own.close()
