"""What a MariaDB gives for a snapshot of its tables.

One transaction sees one state of all of them, and the server knows after which transaction of its log that is:
`consistent_snapshot`. The tables are read in it one after the other, each by one query in the order of its key. Rows of
a state after transaction n have `seq` n, and an `index` that no row of a transaction has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidings.errors import LogUnavailable
from tidings.positions import Bounds
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.changes import Column
from tidings_connectors.cdc.snapshot import ConsistentState, Piece
from tidings_connectors.mysql.client_library import SSCursor
from tidings_connectors.mysql.columns import SESSION, ColumnForm, form_of
from tidings_connectors.mysql.connection import (
    QUERY_TIMEOUT_S,
    TABLE_DENIED,
    TABLE_MISSING,
    MysqlConnection,
    ServerError,
    account,
    open_session,
    quoted_name,
    translating_errors,
)
from tidings_connectors.mysql.consistent_snapshot import begin
from tidings_connectors.mysql.mariadb_gtid import parse_state, seq_in
from tidings_connectors.mysql.options import MysqlOptions, Place
from tidings_connectors.mysql.values import Unreadable

READ_TIMEOUT_S = 600.0  # until a table's next row
NO_TIMEOUTS = (
    "SET SESSION wait_timeout = 31536000, net_write_timeout = 31536000, max_statement_time = 0, "
    "idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0"
)
"""The server ends neither a session that is idle nor a query that takes its time."""
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

VERSIONED = "SYSTEM VERSIONED"
TYPES = ("BASE TABLE", VERSIONED)  # a view has no rows of its own, and those of a sequence belong to no transaction
TABLE = "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
COLUMNS = """
SELECT column_name, column_type, character_set_name, collation_name, column_key = 'PRI', generation_expression
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""


@dataclass(frozen=True)
class MysqlTable:
    """A table, in a session that sees one state of it."""

    schema: str
    table: str
    key: Sequence[str]
    index: str
    """The index that has the key; it is read in its order, if that can be gone on in."""
    order: Sequence[str]
    columns: dict[str, ColumnForm]
    versioned: bool
    place: Place
    session: Any

    def pieces(self, last: list[str] | None) -> Iterator[Piece]:
        with translating_errors(self.place), _unbuffered(self.session) as cursor:
            cursor.execute(self._query(last), tuple(self._values(last or [])))
            for rows in _cut(cursor):
                yield self._piece(rows)

    def _query(self, last: list[str] | None) -> str:
        names = ", ".join(form.select.format(quoted_name(name)) for name, form in self.columns.items())
        query = f"SELECT {names} FROM {sql_name(self.schema, self.table)}"
        if self.versioned:
            query += " FOR SYSTEM_TIME ALL"  # what rows were before is rows too, in the log
        query = query.replace("%", "%%")
        if self.order:
            query += f" FORCE INDEX ({_escaped(self.index)})"
            query += f" WHERE {self._later()}" if last is not None else ""
            query += f" ORDER BY {', '.join(map(_escaped, self.order))}"
        return query

    def _later(self) -> str:
        """The condition that a row comes after one; that one's values are those of `_values`."""
        names = [_escaped(name) for name in self.order]
        literals = [self.columns[name].literal for name in self.order]
        equal = [f"{name} = {literal}" for name, literal in zip(names, literals, strict=True)]
        greater = [f"{name} > {literal}" for name, literal in zip(names, literals, strict=True)]
        return " OR ".join(f"({' AND '.join([*equal[:at], greater[at]])})" for at in range(len(names)))

    def _values(self, last: list[str]) -> Iterator[str]:
        for at in range(len(last)):
            yield from last[: at + 1]

    def _piece(self, rows: list[tuple[bytes | None, ...]]) -> Piece:
        columns = [
            self._column(name, form, values)
            for (name, form), values in zip(self.columns.items(), zip(*rows, strict=True), strict=True)
        ]
        end = dict(zip(self.columns, rows[-1], strict=True))
        return Piece(columns, [(end[name] or b"").hex() for name in self.order] or None)

    def _column(self, name: str, form: ColumnForm, values: Sequence[Any]) -> Column:
        try:
            return Column(name, form.text(values), form.kind)
        except Unreadable as error:
            raise LogUnavailable(
                f"no snapshot can be taken, since column {name!r} of table {self.schema}.{self.table} {error}: mend "
                "these values, or take the table out of the option 'tables'"
            ) from None


class MysqlTables:
    """The watched tables of a server, as a `SnapshotSource`."""

    base = 2**30

    def __init__(self, connection: MysqlConnection, options: MysqlOptions, held: Callable[[], Bounds]) -> None:
        self._connection = connection
        self._place = connection.place
        self._options = options
        self.held = held

    def identity(self) -> str:
        """A server is known by its history alone, and that goes on at others."""
        return ""

    @contextlib.contextmanager
    def state(self) -> Iterator[ConsistentState]:
        """A transaction in which the tables look as they did after a transaction of the log."""
        self.check()
        raw = {"conv": {}, "use_unicode": False}  # values come as the bytes that they are
        opened = self._session(NO_TIMEOUTS, SESSION, ISOLATION, read_timeout=READ_TIMEOUT_S, **raw)
        with contextlib.closing(opened) as session:
            # The log of a replica that has just been made from a copy is empty, and the copy stands somewhere.
            ((replicated,),) = self._connection.ask("SELECT @@GLOBAL.gtid_slave_pos")
            with translating_errors(self._place), session.cursor() as cursor:
                state = begin(session, self._connection)
                cursor.execute("SELECT UTC_TIMESTAMP(6)")
                ((time,),) = cursor.fetchall()
            domain = self._options.domain
            seq = seq_in(state, domain) or seq_in(parse_state(replicated), domain)
            tables = [self._table(*table, session) for table in self._there()]
            yield ConsistentState(seq, datetime.fromisoformat(time.decode()).replace(tzinfo=UTC), tables)

    def check(self) -> None:
        """Raise unless all tables that are there can be read, and in one state."""
        list(self._there())

    def tables(self) -> list[tuple[str, str]]:
        return [(schema, table) for schema, table, _ in self._there()]

    def _there(self) -> Iterator[tuple[str, str, str]]:
        """The tables that are there: what they are called, and of which type they are."""
        for schema, table in sorted(self._options.watched):
            found = self._connection.ask(TABLE, schema, table) if self._may_read(schema, table) else []
            for kind, engine in found:
                if kind not in TYPES:
                    continue
                if engine != "InnoDB":
                    raise LogUnavailable(
                        f"a snapshot needs tables of InnoDB, and {schema}.{table} of MariaDB at {self._place} is of "
                        f"{engine}: ALTER TABLE {sql_name(schema, table)} ENGINE = InnoDB"
                    )
                yield schema, table, kind

    def _may_read(self, schema: str, table: str) -> bool:
        """Whether a table is there; raise if it may not be read."""
        name = sql_name(schema, table)
        try:
            self._connection.ask(f"SELECT * FROM {name} LIMIT 0")
        except ServerError as error:
            if error.code == TABLE_MISSING:
                return False
            if error.code not in TABLE_DENIED:
                raise
            ((user,),) = self._connection.ask("SELECT CURRENT_USER()")
            raise LogUnavailable(
                f"user {user.rpartition('@')[0]!r} of MariaDB at {self._place} may not read table {schema}.{table}, "
                f"which a snapshot needs: GRANT SELECT ON {name} TO {account(user)}"
            ) from error
        return True

    def _table(self, schema: str, table: str, kind: str, session: Any) -> MysqlTable:
        """What a table looks like."""
        found = self._connection.ask(COLUMNS, schema, table)
        columns = {name: form_of(name, *form) for name, *form, _, _ in found}
        index, key, plain = self._key(schema, table, {name for name, *_, keyed, _ in found if keyed})
        versioned = kind == VERSIONED
        if versioned and not any(made == "ROW END" for *_, made in found):  # it has columns that are not shown
            columns |= {name: form_of(name, "timestamp(6)", None, None) for name in ("row_start", "row_end")}
            key = [*key, "row_end"] if key else []
        order = key if plain and all(columns[name].literal for name in key) else ()
        return MysqlTable(schema, table, key, index, order, columns, versioned, self._place, session)

    def _key(self, schema: str, table: str, keyed: set[str]) -> tuple[str, list[str], bool]:
        """The index that the log takes for the primary key, its columns, and whether it has them whole and upwards."""
        parts: dict[str, list[tuple[str, bool]]] = {}
        for row in self._connection.ask(f"SHOW INDEX FROM {sql_name(schema, table)}"):
            _, _, index, _, name, collation, _, length, *_ = row
            parts.setdefault(index, []).append((name, collation == "A" and length is None))
        for index, columns in parts.items():
            if all(name in keyed for name, _ in columns):
                return index, [name for name, _ in columns], all(plain for _, plain in columns)
        return "", [], False

    def _session(self, *commands: str, **options: Any) -> Any:
        with translating_errors(self._place), contextlib.ExitStack() as failed:
            session = open_session(self._place, write_timeout=QUERY_TIMEOUT_S, autocommit=True, **options)
            failed.callback(session.close)
            with session.cursor() as cursor:
                for command in commands:
                    cursor.execute(command)
            failed.pop_all()
            return session


@contextlib.contextmanager
def _unbuffered(session: Any) -> Iterator[Any]:
    """A cursor whose rows are not all read at once. Who leaves before the last of them ends the session."""
    cursor = session.cursor(SSCursor)
    try:
        yield cursor
    finally:
        result = cursor._result
        if result is not None and result.unbuffered_active:
            session._force_close()
            result.unbuffered_active = False  # otherwise the client library reads all that is left


def _cut(cursor: Any) -> Iterator[list[tuple[bytes | None, ...]]]:
    """The rows in pieces: of so many, or fewer if they are large."""
    rows, size = [], 0
    for row in iter(cursor.fetchone, None):
        rows.append(row)
        size += sum(len(value) for value in row if value is not None)
        if len(rows) >= snapshot.CHUNK_ROWS or size >= snapshot.CHUNK_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def sql_name(schema: str, table: str) -> str:
    """The name of a table as SQL has it."""
    return f"{quoted_name(schema)}.{quoted_name(table)}"


def _escaped(name: str) -> str:
    """A name in a query that has parameters."""
    return quoted_name(name).replace("%", "%%")
