"""Connections to a PostgreSQL server, and what its errors mean.

An error is known by its SQLSTATE, never by its text, which depends on the server's language and version.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tidings.errors import InvalidOption, LogUnavailable, PluginMissing
from tidings.hosts import check_hosts
from tidings_connectors.postgres.tls import check_parameters, tls_problem, tls_settings

try:
    import psycopg2  # type: ignore[import-untyped]
    from psycopg2.extensions import make_dsn, new_type, parse_dsn, register_type  # type: ignore[import-untyped]
    from psycopg2.extras import LogicalReplicationConnection  # type: ignore[import-untyped]
except ImportError as error:
    raise PluginMissing("a PostgreSQL log needs psycopg2: pip install 'tidings[postgres]'") from error

T = TypeVar("T")

# The texts of values must not depend on how a server, a database or a role is set up; nor may a policy hide rows from a
# snapshot in silence; and of what is not asked for, only warnings are to come.
SETTINGS = " ".join(
    f"-c {setting}"
    for setting in (
        "datestyle=ISO",
        "intervalstyle=postgres",
        "timezone=UTC",
        "extra_float_digits=1",
        "bytea_output=hex",
        "lc_monetary=C",
        "search_path=pg_catalog",
        "quote_all_identifiers=off",
        "standard_conforming_strings=on",
        "row_security=off",
        "client_min_messages=warning",
    )
)
PORT = 5432
CONNECT_TIMEOUT_S = 10  # if the address does not say
ANY_DATABASE = "postgres"  # which initdb makes, for questions of the whole server
# So that one who waits for a host that is gone hears of it in half a minute, and not in hours; if the address does not
# say otherwise.
KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}

UNDEFINED_OBJECT = "42704"
DUPLICATE_OBJECT = "42710"
INSUFFICIENT_PRIVILEGE = "42501"
NOT_READY = "55000"  # a slot that is lost, an LSN that lies behind it
OBJECT_IN_USE = "55006"
LIMIT_EXCEEDED = "53400"
READ_ONLY = "25006"
ANSWERS = (NOT_READY, OBJECT_IN_USE, LIMIT_EXCEEDED)  # which the driver takes for troubles of the connection

Error = psycopg2.Error
Broken = (psycopg2.OperationalError, psycopg2.InterfaceError)


class PostgresServer:
    """A database of a server, as an address names it. Picklable: it holds the address, and no connection."""

    def __init__(self, address: str) -> None:
        self._address = address
        try:
            self._parameters: dict[str, Any] = parse_dsn(address)
        except psycopg2.ProgrammingError:
            # The text is left out, since nobody knows what is in it.
            raise InvalidOption(
                "the address after postgres: is no connection string: write postgresql://user@host:port/database, "
                "or service=name"
            ) from None
        check_parameters(self._parameters)

    def __str__(self) -> str:
        at = self._parameters
        if "service" in at and "host" not in at:
            return f"service {at['service']}"
        place = at.get("host") or at.get("hostaddr") or "local socket"
        port = f":{at['port']}" if "port" in at else ""
        user = f"{at['user']}@" if "user" in at else ""
        return f"{user}{place}{port}/{at.get('dbname') or at.get('user') or ''}"

    def connect(self) -> Any:
        """An ordinary connection; each statement is a transaction."""
        connection = self._connect(psycopg2.extensions.connection)
        connection.autocommit = True
        return connection

    def replicate(self) -> Any:
        """A connection that can tail the log."""
        return self._connect(LogicalReplicationConnection)

    def _hosts(self) -> list[tuple[str, int]]:
        """Where it may be; none if only this machine's own files say it."""
        at = self._parameters
        ports = [int(port) if port.isdecimal() else PORT for port in str(at.get("port", PORT)).split(",")]
        hosts = [host for name in ("host", "hostaddr") for host in str(at.get(name, "")).split(",") if host]
        return [(host, ports[min(number, len(ports) - 1)]) for number, host in enumerate(hosts)]

    def _connect(self, factory: Any) -> Any:
        given = self._parameters
        settings = {
            "options": f"{given.get('options', '')} {SETTINGS}".strip(),
            "connect_timeout": given.get("connect_timeout", CONNECT_TIMEOUT_S),
            "client_encoding": "UTF8",
            "application_name": given.get("application_name", "tidings"),
        }
        try:
            return self._open({**KEEPALIVE, **given, **settings}, factory)
        except psycopg2.OperationalError as error:
            # No SQLSTATE comes with these. Whether anyone is there can be found out; what is wrong the server tells.
            words = " ".join(str(error).split()).rstrip(".")
            if not self._answers():
                raise LogUnavailable(
                    f"PostgreSQL at {self} does not answer ({words}): start it, or correct the address"
                ) from None
            if (unsafe := self._tls_problem()) is not None:
                raise LogUnavailable(f"PostgreSQL at {self} {unsafe}") from None
            if (wrong := self._wrong_database()) is not None:
                raise LogUnavailable(wrong) from None
            raise LogUnavailable(
                f"PostgreSQL at {self} refuses the connection ({words}): if it is the password, give the right one in "
                "PGPASSWORD, a passfile or a service; if it is a certificate, name ours in PGSSLCERT and PGSSLKEY, and "
                "whom to trust in PGSSLROOTCERT; to set the password, or if the role may not log in, or not so often, "
                f"ALTER ROLE {self._role()} LOGIN CONNECTION LIMIT -1 PASSWORD '...'"
            ) from None

    def _open(self, settings: dict[str, Any], factory: Any = None) -> Any:
        """A connection: the only place where one is made, so that none is made to whom we should not speak."""
        hosts = self._hosts()
        check_hosts(self._address, hosts)
        secured = tls_settings(self._parameters, [host for host, _ in hosts])
        return psycopg2.connect(make_dsn(**{**settings, **secured}), connection_factory=factory)

    def _tls_problem(self) -> str | None:
        """What is wrong with the server's TLS, if it was asked for; not known if the address names several, or none."""
        place = self._place()
        return tls_problem(self._parameters, *place, CONNECT_TIMEOUT_S) if place else None

    def _wrong_database(self) -> str | None:
        """What is wrong with the database that the address names, if the server lets us into another one."""
        name = self._parameters.get("dbname")
        if name in (None, ANY_DATABASE):
            return None
        other = {**self._parameters, "dbname": ANY_DATABASE, "connect_timeout": CONNECT_TIMEOUT_S}
        with (
            contextlib.suppress(psycopg2.Error),
            contextlib.closing(self._open(other)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT has_database_privilege(oid, 'CONNECT') FROM pg_database WHERE datname = %s", (name,))
            match cursor.fetchall():
                case []:
                    cure = f"correct the address, or CREATE DATABASE {quoted_name(name)}"
                    return f"PostgreSQL at {self} has no database {name!r}: {cure}"
                case [(False,)]:
                    cure = f"GRANT CONNECT ON DATABASE {quoted_name(name)} TO {self._role()}"
                    return f"the role of PostgreSQL at {self} may not connect to database {name!r}: {cure}"
        return None

    def _role(self) -> str:
        return quoted_name(self._parameters.get("user") or "...")

    def _place(self) -> tuple[str, str, int] | None:
        """The host that the address names, where it is, and the port; None if it names none, or several."""
        at = self._parameters
        address, port = at.get("hostaddr") or at.get("host") or "", str(at.get("port", PORT))
        if "," in address or not address or not port.isdecimal():
            return None
        return at.get("host") or address, address, int(port)

    def _answers(self) -> bool:
        """Whether someone listens at the place that the address names; yes if it names none that we can try."""
        if (place := self._place()) is None:
            return True
        _, address, port = place
        with contextlib.suppress(OSError):
            if address.startswith("/"):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(CONNECT_TIMEOUT_S)
                    probe.connect(str(Path(address, f".s.PGSQL.{port}")))
                return True
            with socket.create_connection((address, port), CONNECT_TIMEOUT_S):
                return True
        return False


class PostgresConnection:
    """One ordinary connection for the questions of many threads; made anew when it breaks."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._open: Any = None

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a statement returns. A connection that broke since the last one is made anew."""
        with self._lock:
            fresh = self._open is None
            try:
                return self._rows(statement, values)
            except Broken as error:
                if error.pgcode in ANSWERS:
                    raise
                self._drop()
                if fresh:
                    raise unavailable(self._server, error) from error
            try:
                return self._rows(statement, values)
            except Broken as error:
                self._drop()
                raise unavailable(self._server, error) from error

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The one row that a statement returns."""
        return self.rows(statement, values)[0]

    def cancel(self) -> None:
        """End what is being asked, from another thread."""
        if (asked := self._open) is not None:
            asked.cancel()

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        with self._lock:
            self._drop()

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._open is None:
            self._open = self._server.connect()
        with self._open.cursor() as cursor:
            cursor.execute(statement, values)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def _drop(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None


def interruptible(ask: Callable[[], T], cancel: Callable[[], object]) -> T:
    """What is asked, in a thread: the client library hears no signal while it waits, and who waits for a thread does.

    A signal that ends the process has the server told by `cancel`.
    """
    with ThreadPoolExecutor(1, "tidings-postgres") as pool:
        asked = pool.submit(ask)
        try:
            return asked.result()
        except (KeyboardInterrupt, SystemExit):
            cancel()
            raise


def raw_texts(connection: Any, select: str) -> None:
    """Have what a statement selects come as the server writes it, as the log has it."""
    with connection.cursor() as cursor:
        cursor.execute(f"{select} LIMIT 0")
        types = {column.type_code for column in cursor.description}  # of a domain, what it is made from
    register_type(new_type(tuple(types), "TEXT", lambda text, cursor: text), connection)


def unavailable(server: PostgresServer, error: Exception) -> LogUnavailable:
    """An error of the server that has no cure of its own, in one sentence."""
    state = getattr(error, "pgcode", None)
    primary = getattr(getattr(error, "diag", None), "message_primary", None) or str(error) or type(error).__name__
    words = " ".join(primary.split()).rstrip(".")
    return LogUnavailable(f"PostgreSQL at {server}: {words}{f' (SQLSTATE {state})' if state else ''}")


@contextlib.contextmanager
def translating_errors(server: PostgresServer) -> Iterator[None]:
    """Errors of the server become ours."""
    try:
        yield
    except psycopg2.Error as error:
        raise unavailable(server, error) from error


def quoted_name(name: str) -> str:
    """A name as SQL has it.

    >>> quoted_name('the "shop"')
    '"the ""shop\"""'
    """
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text as SQL has it.

    >>> quoted_text("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"
