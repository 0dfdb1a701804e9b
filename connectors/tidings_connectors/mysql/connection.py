"""Questions to a MariaDB: one connection, made anew when it breaks, and errors that say what to do.

Errors are told apart by their numbers, never by their words, which change with versions and languages.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tidings.errors import LogUnavailable, TidingsError
from tidings_connectors.cdc.tls import broken_tls, no_tls
from tidings_connectors.mysql.client_library import Connection, pymysql
from tidings_connectors.mysql.options import Place

T = TypeVar("T")

ACCESS_DENIED = 1045
DATABASE_MISSING = 1049
COLUMN_MISSING = 1054
TABLE_DENIED = frozenset((1142, 1143))  # it, or some of its columns
TABLE_MISSING = 1146
PRIVILEGE_MISSING = 1227
POSITION_GONE = 1236
CONNECTION_ERRORS = frozenset((1053, 1077, 1078, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2014, 2055))
"""The connection broke, or the server is shutting down: to ask again, over a new one, is worth it."""
UNREACHABLE = frozenset((2002, 2003, 2005))
TLS_MISSING = 2026
CURES = {
    1040: "SET GLOBAL max_connections = @@GLOBAL.max_connections + 50",
    1129: "FLUSH HOSTS",
    1130: "CREATE USER {user} IDENTIFIED BY '<password>'",
    1203: "SET GLOBAL max_user_connections = 0",
    1226: "ALTER USER {user} WITH MAX_USER_CONNECTIONS 0",
    1820: "ALTER USER {user} IDENTIFIED BY '<password>'",
    4151: "ALTER USER {user} ACCOUNT UNLOCK",
}
"""What mends a refusal, by its number: too many connections, of all or of this user, a host that is not let in, a
password that has expired, an account that is locked."""
CONNECT_TIMEOUT_S = 10
QUERY_TIMEOUT_S = 30.0


class ServerError(LogUnavailable):
    """The server refused something; `code` is its number for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def open_session(place: Place, factory: Callable[..., T] = Connection, **options: Any) -> T:
    """A connection to a server: the only place where one is made, so that none is made to whom we should not speak."""
    return factory(**place.settings(), connect_timeout=CONNECT_TIMEOUT_S, **options)


class MysqlConnection:
    """Asks one server. Any thread may ask; one is answered at a time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._lock = threading.Lock()
        self._open: Any = None

    def ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of the answer."""
        with self._lock, translating_errors(self.place):
            if self._open is None:
                self._open = self._connect()
                return self._asked(question, values)
            try:
                return self._asked(question, values)
            except (pymysql.err.MySQLError, OSError) as error:
                self._drop()
                if number(error) not in CONNECTION_ERRORS:
                    raise
                self._open = self._connect()
                return self._asked(question, values)

    def close(self) -> None:
        """Let go of the connection; a later question makes a new one."""
        with self._lock:
            self._drop()

    def _connect(self) -> Any:
        return open_session(self.place, read_timeout=QUERY_TIMEOUT_S, write_timeout=QUERY_TIMEOUT_S, autocommit=True)

    def _asked(self, question: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with self._open.cursor() as cursor:
            cursor.execute(question, values or None)
            return list(cursor.fetchall())

    def _drop(self) -> None:
        if self._open is not None:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                self._open.close()
            self._open = None


@contextlib.contextmanager
def translating_errors(place: Place) -> Iterator[None]:
    """Say in one sentence what the server or the network refused."""
    try:
        yield
    except TidingsError:
        raise
    except (pymysql.err.MySQLError, OSError) as error:
        raise explained(place, error) from error


def explained(place: Place, error: Exception) -> ServerError:
    """The error as a sentence that says what to do."""
    code = number(error)
    if code == ACCESS_DENIED:
        text = (
            f"MariaDB at {place} does not let user {place.user!r} in ({_words(error)}): give the right password by "
            "MYSQL_PWD or an option file; if the account wants TLS, switch it on in the server; if it wants a "
            "certificate, name one in MYSQL_SSL_CERT and MYSQL_SSL_KEY; if there is no account, "
            f"CREATE USER {quoted(place.user)} IDENTIFIED BY '<password>'; to set its password, ALTER USER "
            f"{quoted(place.user)} IDENTIFIED BY '<password>'"
        )
    elif isinstance(cause := getattr(error, "original_exception", None), ssl.SSLError):
        text = f"MariaDB at {place} {broken_tls(cause, 'MYSQL_SSL_CA')}"
    elif code == TLS_MISSING:
        text = f"MariaDB at {place} {no_tls('MYSQL_SSL_MODE=DISABLED')}"
    elif code in UNREACHABLE:
        text = f"MariaDB at {place} cannot be reached ({_words(error)}): start it, or correct the address"
    elif code in CURES:
        cure = CURES[code].format(user=quoted(place.user))
        text = f"MariaDB at {place} refuses with error {code} ({_words(error)}): {cure}"
    elif code in CONNECTION_ERRORS or code == 0:
        text = f"the connection to MariaDB at {place} broke: {_words(error)}"
    else:
        text = f"MariaDB at {place} refuses with error {code}: {_words(error)}"
    return ServerError(text, code)


def number(error: BaseException) -> int:
    """The server's or the client's number of an error; 0 if it has none."""
    first = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


def quoted(text: str) -> str:
    """A text as SQL has it.

    >>> quoted("o'hara")
    "'o''hara'"
    """
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def quoted_name(name: str) -> str:
    """A name as SQL has it.

    >>> quoted_name("odd `one")
    '`odd ``one`'
    """
    return f"`{name.replace('`', '``')}`"


def account(user: str) -> str:
    """A user as GRANT has it, from what CURRENT_USER says.

    >>> account("tail@%")
    "'tail'@'%'"
    """
    name, _, host = user.rpartition("@")
    return f"{quoted(name)}@{quoted(host)}"


def _words(error: Exception) -> str:
    return str(error.args[-1] if error.args else error).rstrip(".")
