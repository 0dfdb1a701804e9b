"""A real MariaDB for tests: its own folder, a free port, ended by its own process id."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidings.logs import create_log
from tidings.positions import Positions
from tidings.streams import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.mysql import MysqlLog
from tidings_connectors.mysql_reader import MysqlReader

PASSWORD = "s3cret-word"  # of the user `tidings`, who may do all that a reader needs


def missing() -> str | None:
    """What is not installed that a server needs, or None."""
    for name in ("mariadbd", "mariadb-install-db"):
        if _program(name) is None:
            return f"{name} is not installed (Debian: apt-get install mariadb-server)"
    return None


class Server:
    """A server with row-based binary log and GTIDs. It listens on 127.0.0.1 and on a socket in its folder."""

    def __init__(self, server_id: int = 1, **options: Any) -> None:
        # Not in pytest's folder: the server's user may not go in there, and the path of a socket must be short.
        self._place = Path(tempfile.mkdtemp(prefix="mariadb-"))
        self.folder = self._place / "data"
        self.port = _free_port()
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
        shutil.copytree(_template(), self.folder)
        if user := _owner():
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
        command = [_program("mariadbd"), "--no-defaults", f"--datadir={self.folder}", f"--port={self.port}"]
        command += [f"--socket={self.socket}", f"--pid-file={self._place / 'pid'}", "--bind-address=127.0.0.1"]
        command += [f"--log-error={self._place / 'errors.err'}", *arguments]
        if os.geteuid() == 0:
            command.append(f"--user={_owner() or 'root'}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, preexec_fn=_die_with_parent, **quiet)
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
def running(server_id: int = 1, **options: Any) -> Iterator[Server]:
    """A server that is there as long as the block runs, with the user that readers go in as."""
    server = Server(server_id, **options)
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
def _template() -> Path:
    """A fresh data folder, made once: making one takes seconds."""
    place = Path(tempfile.mkdtemp(prefix="mariadb-template-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    data = place / "data"
    user = _owner()
    if user:
        subprocess.run(["chown", user, str(place)], check=True)
    command = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal", *([f"--user={user}"] if user else [])]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise AssertionError(f"mariadb-install-db failed: {made.stdout[-1000:]}{made.stderr[-1000:]}")
    return data


def _die_with_parent() -> None:
    """Let the server go when the tests go, however they do."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _owner() -> str | None:
    """The user that a server runs as when root starts it."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("mysql").pw_name
    except KeyError:
        return "root"


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


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

    def close(self) -> None:
        for log in self._logs:
            log.close()


def heads(log: MysqlLog) -> Positions:
    """Where a reader stands that has read everything."""
    return Positions({shard: held.head for shard, held in log.bounds().items()})


def now(log: MysqlLog) -> Positions:
    """The same, as of this very moment: `bounds` may be a little old."""
    return Positions({shard: held.head for shard, held in log._held(0).items()})


def drain(reader: MysqlReader, after: Positions, upto: Positions, limit: int = 1000) -> tuple[list[Any], Positions]:
    """All rows between, in the order in which they came, and where the reader stands then."""
    rows: list[Any] = []
    while any(after[shard] < at for shard, at in upto.items()):
        found, after = reader.read(after, limit)
        assert len(found) <= limit
        rows += listed(found)
    return rows, after


def listed(rows: pa.Table) -> list[Any]:
    """Rows as dictionaries, with the payload as what the JSON says."""
    found = rows.to_pylist(maps_as_pydicts="lossy")
    for row in found:
        row["payload"] = json.loads(row["payload"]) if row["payload"] is not None else None
    return found
