"""What a PostgreSQL database gives for a snapshot of its tables.

A replication slot is made at a place in the WAL, and the server exports what every table looked like just there. That
slot goes again with its connection; if the stream has none, or its own has lost what it was to keep, the new one is
copied for it first. The published tables are read in that state, in chunks by primary key.

Rows of a state at place n have `seq` n - 1. Records in the WAL begin at multiples of 8, so no transaction has that one.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings.errors import InvalidOption, LogUnavailable
from tidings.positions import Bounds, Position
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.changes import Column, Kind
from tidings_connectors.cdc.snapshot import ConsistentState, Piece
from tidings_connectors.postgres.before_images import partitions_are_full
from tidings_connectors.postgres.connections import (
    LIMIT_EXCEEDED,
    Error,
    PostgresServer,
    interruptible,
    quoted_name,
    quoted_text,
    raw_texts,
    translating_errors,
)
from tidings_connectors.postgres.left_out import LeftOutTables, TableForm
from tidings_connectors.postgres.options import PostgresOptions
from tidings_connectors.postgres.origin import origin_of
from tidings_connectors.postgres.relations import KINDS, as_json
from tidings_connectors.postgres.slots import Slot

# What a publication has of a table is told from PostgreSQL 15 on; before that it has all of it.
TABLES = f"""
WITH keys AS (
    SELECT indrelid, indisprimary, indisreplident, (indkey::int2[])[0:indnkeyatts - 1] AS key FROM pg_index
)
SELECT published.schemaname, published.tablename, class.relkind = 'p', class.relreplident IN ('f', 'n'),
       to_jsonb(published)->>'rowfilter', has_table_privilege(class.oid, 'SELECT'),
       row_security_active(class.oid), current_user::text,
       (SELECT jsonb_agg(jsonb_build_array(attribute.attname, attribute.atttypid::int8,
                                           format_type(attribute.atttypid, attribute.atttypmod),
                                           array_position(chunks.key, attribute.attnum),
                                           attribute.attnum = ANY (coalesce(named.key, chunks.key)),
                                           CASE class.relreplident WHEN 'f' THEN {partitions_are_full("class.oid")}
                                           WHEN 'n' THEN false
                                           ELSE attribute.attnum = ANY (coalesce(named.key, chunks.key)) END)
                         ORDER BY attribute.attnum)
        FROM pg_attribute attribute
        WHERE attribute.attrelid = class.oid AND attribute.attnum > 0 AND NOT attribute.attisdropped
          AND attribute.attgenerated = ''
          AND coalesce(to_jsonb(published)->'attnames' ? attribute.attname::text, true))
FROM pg_publication_tables published
JOIN pg_namespace space ON space.nspname = published.schemaname
JOIN pg_class class ON class.relnamespace = space.oid AND class.relname = published.tablename
LEFT JOIN keys chunks ON chunks.indrelid = class.oid AND chunks.indisprimary
LEFT JOIN keys named ON named.indrelid = class.oid AND named.indisreplident
WHERE published.pubname = %s
ORDER BY published.schemaname, published.tablename
"""


# Who reads a table in an older state than that in which it was rewritten finds it empty. Rows of the catalog are those
# of the state, and what the function says is of now.
REWRITTEN = """
SELECT class.oid::regclass::text FROM pg_locks held JOIN pg_class class ON class.oid = held.relation
WHERE held.pid = pg_backend_pid() AND class.relkind = 'r' AND class.relfilenode <> 0
  AND class.relfilenode <> pg_relation_filenode(class.oid)
"""

FETCH_BYTES = 8 * 2**20  # that are asked for at once, if no row is larger than those before it

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableColumn:
    """A column: its place in the primary key, if it has one, whether it names the object, and whether old rows have
    it."""

    name: str
    oid: int
    type: str
    order: int | None
    key: bool
    identity: bool

    @property
    def kind(self) -> Kind:
        """What is more than text."""
        return KINDS.get(self.oid, "text")


@dataclass(frozen=True)
class PostgresTable:
    """A table that is published, in a transaction that reads it."""

    schema: str
    table: str
    partitioned: bool
    condition: str | None
    columns: Sequence[TableColumn]
    given: Sequence[str] | None
    """The key that the stream's options name, if they do."""
    want: str | None
    """What it needs to be read."""
    state: Any = None

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return f"{quoted_name(self.schema)}.{quoted_name(self.table)}"

    @property
    def form(self) -> TableForm:
        """What it looks like in the log."""
        columns = tuple((column.name, column.kind) for column in self.columns)
        before = tuple(column.name for column in self.columns if column.identity)
        return TableForm(self.schema, self.table, columns, tuple(self.key), before)

    @property
    def key(self) -> list[str]:
        return list(self.given or (column.name for column in self.columns if column.key))

    @property
    def order(self) -> list[str]:
        return [column.name for column in self._sorted_by]

    @property
    def _sorted_by(self) -> list[TableColumn]:
        return sorted((one for one in self.columns if one.order is not None), key=lambda one: one.order or 0)

    @property
    def _source(self) -> str:
        only = "" if self.partitioned else "ONLY "
        return f"FROM {only}{self.name} WHERE ({self.condition or 'true'})"

    def has_rows(self) -> bool:
        """Whether it has any; yes, if one may not look."""
        if self.want is not None:
            return True
        with self.state.cursor() as cursor:
            cursor.execute(f"SELECT 1 {self._source} LIMIT 1")
            return cursor.fetchone() is not None

    def pieces(self, last: list[str] | None) -> Iterator[Piece]:
        if not self.columns:
            return
        select = f"SELECT {', '.join(quoted_name(column.name) for column in self.columns)} {self._source}"
        raw_texts(self.state, select)
        if not self._sorted_by:
            with self.state.cursor(name="tidings") as cursor:
                cursor.execute(select)
                while rows := _gathered(cursor):
                    yield self._piece(rows)
            return
        order = ", ".join(map(quoted_name, self.order))
        while True:
            with self.state.cursor(name="tidings") as cursor:
                further = f" AND ({order}) > ({self._typed(cursor, last)})" if last is not None else ""
                cursor.execute(f"{select}{further} ORDER BY {order} LIMIT {snapshot.CHUNK_ROWS}")
                rows = _gathered(cursor)
            if not rows:
                return
            piece = self._piece(rows)
            last = piece.last
            yield piece

    def _typed(self, cursor: Any, last: list[str]) -> str:
        """A key as SQL has it."""
        texts = [cursor.mogrify("%s", (text,)).decode() for text in last]
        return ", ".join(f"{text}::{column.type}" for text, column in zip(texts, self._sorted_by, strict=True))

    def _piece(self, rows: list[tuple[str | None, ...]]) -> Piece:
        columns = []
        for column, texts in zip(self.columns, zip(*rows, strict=True), strict=True):
            columns.append(Column(column.name, as_json(pa.array(texts, pa.string()), column.kind), column.kind))
        names = [column.name for column in self.columns]
        return Piece(columns, [str(rows[-1][names.index(name)]) for name in self.order] or None)


def _gathered(cursor: Any) -> list[tuple[str | None, ...]]:
    """The next rows of a cursor, up to what a chunk takes. How large they are is known when they are there: so it
    begins with one, and asks for up to twice as many each time."""
    rows: list[tuple[str | None, ...]] = []
    size, largest, count = 0, 1, 1
    while len(rows) < snapshot.CHUNK_ROWS and size < snapshot.CHUNK_BYTES:
        more = cursor.fetchmany(min(count, snapshot.CHUNK_ROWS - len(rows)))
        if not more:
            break
        rows += more
        sizes = [sum(len(text) for text in row if text is not None) for row in more]
        size, largest = size + sum(sizes), max(largest, *sizes)
        count = max(1, min(2 * count, FETCH_BYTES // largest))
    return rows


class PostgresTables:
    """The published tables of a database, as a `SnapshotSource`."""

    base = 0

    def __init__(self, server: PostgresServer, slot: Slot, options: PostgresOptions, left_out: LeftOutTables) -> None:
        self._server = server
        self._slot = slot
        self._options = options
        self._left_out = left_out

    def identity(self) -> str:
        system, database, _ = origin_of(self._server)
        return f"{system}/{database}"

    def held(self) -> Bounds | None:
        state = self._slot.found()
        return None if state is None or state.lost else Bounds(state.floor, state.head)

    def tables(self) -> list[tuple[str, str]]:
        with translating_errors(self._server), contextlib.closing(self._server.connect()) as connection:
            found = self._tables(connection)
        return [(table.schema, table.table) for table in found if self._left_out.reason(table.form) is None]

    @contextlib.contextmanager
    def state(self) -> Iterator[ConsistentState]:
        """A transaction in which the tables look as they did at a place in the WAL."""
        with translating_errors(self._server), contextlib.ExitStack() as stack:
            state = stack.enter_context(contextlib.closing(self._server.connect()))
            tables = self._tables(state)
            exporting = stack.enter_context(contextlib.closing(self._server.replicate()))
            name = f"{self._slot.name[:46]}_{uuid.uuid4().hex[:16]}"
            cursor = exporting.cursor()
            try:
                with self._slot.telling_who_waits():
                    made = f"CREATE_REPLICATION_SLOT {quoted_name(name)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
                    interruptible(lambda: cursor.execute(made), exporting.cancel)
            except Error as error:
                if error.pgcode == LIMIT_EXCEEDED:
                    raise self._slot.too_few() from error
                raise
            _, place, exported, _ = cursor.fetchone()
            state.autocommit = False
            state.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with state.cursor() as within:
                within.execute(f"SET TRANSACTION SNAPSHOT {quoted_text(exported)}")
                within.execute("SELECT now()")
                (time,) = within.fetchone()
                self._keep_as_they_are(within, tables)
            if self.held() is None:
                self._slot.replace(name)
            exporting.close()  # the transaction has the state, and that slot need not hold WAL any longer
            high, low = place.split("/")
            seq = (int(high, 16) << 32) + int(low, 16) - 1
            yield ConsistentState(seq, time, [table for table in tables if self._fits(table, seq)])

    def _keep_as_they_are(self, cursor: Any, tables: Sequence[PostgresTable]) -> None:
        """Have those wait who want to alter a table that is still to be read; raise if one just did."""
        for table in tables:
            if table.want is None and self._left_out.reason(table.form) is None:
                cursor.execute(f"LOCK TABLE {'' if table.partitioned else 'ONLY '}{table.name} IN ACCESS SHARE MODE")
        cursor.execute(REWRITTEN)
        if found := cursor.fetchone():
            raise LogUnavailable(f"table {found[0]} was rewritten when the snapshot began, which is tried again")

    def check(self, *, new: bool) -> None:
        """Raise unless the tables log what rows were before, if that is wanted, and have the keys that are named.

        It is said of which tables rows will be left out. The tables of a stream that is not new may be gone by now, and
        their rows still be in the log.
        """
        with translating_errors(self._server), contextlib.closing(self._server.connect()) as connection:
            tables = self._published(connection)
            if (wrong := self._wrong_key(tables)) is not None:
                if new:
                    raise InvalidOption(wrong)
                logger.warning("%s", wrong)
            for table in tables:
                if (lacking := self._left_out.without_images(table.form)) is not None:
                    raise LogUnavailable(lacking)
                if (reason := self._left_out.reason(table.form)) is not None:
                    logger.warning("rows of table %s will be left out: %s", table.form.name, reason)

    def _wrong_key(self, tables: Sequence[PostgresTable]) -> str | None:
        """What is wrong with the keys that the options name; None if they can be."""
        there = {f"{table.schema}.{table.table}": [column.name for column in table.columns] for table in tables}
        what = f"publication {self._options.publication!r} of PostgreSQL at {self._server}"
        for name, key in self._options.keys.items():
            if name not in there:
                known = ", ".join(there) or "none"
                return (
                    f"option 'keys' names table {name!r}, which is not in {what} (tables: {known}): name one, or add it"
                )
            for column in key:
                if column not in there[name]:
                    known = ", ".join(there[name])
                    return f"option 'keys' names column {column!r} of table {name!r}, not in {what} (columns: {known})"
        return None

    def _fits(self, table: PostgresTable, seq: int) -> bool:
        """Whether the rows of a table can become updates; if not, those that are there are left out."""
        reason = self._left_out.reason(table.form)
        if reason is not None and table.has_rows():
            self._left_out.note(table.form.name, reason, Position(seq), Position(seq))
        return reason is None

    def _tables(self, state: Any) -> list[PostgresTable]:
        """The published tables; those that fit may all be read."""
        tables = self._published(state)
        for table in tables:
            if table.want is not None and self._left_out.reason(table.form) is None:
                raise LogUnavailable(table.want)
        return tables

    def _published(self, state: Any) -> list[PostgresTable]:
        with state.cursor() as cursor:
            cursor.execute(TABLES, (self._options.publication,))
            return [self._table(state, *row) for row in cursor.fetchall()]

    def _table(
        self,
        state: Any,
        schema: str,
        name: str,
        partitioned: bool,
        unnamed: bool,
        condition: str | None,
        may_read: bool,
        hidden: bool,
        role: str,
        columns: list[list[Any]] | None,
    ) -> PostgresTable:
        want = None
        if not may_read:
            want = (
                f"role {role!r} of PostgreSQL at {self._server} may not read table {schema}.{name}, which a snapshot "
                f"needs: GRANT SELECT ON {quoted_name(schema)}.{quoted_name(name)} TO {quoted_name(role)}"
            )
        elif hidden:
            want = (
                f"a policy of table {schema}.{name} may hide rows from role {role!r} of PostgreSQL at {self._server}, "
                f"which a snapshot needs: ALTER ROLE {quoted_name(role)} BYPASSRLS"
            )
        given = self._options.keys.get(f"{schema}.{name}") if unnamed else None
        found = [TableColumn(*column) for column in columns or ()]
        return PostgresTable(schema, name, partitioned, condition, found, given, want, state)
