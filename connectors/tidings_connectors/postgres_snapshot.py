"""The rows that were there before the log: read once in a consistent state, kept as Parquet, and put before the log.

A replication slot is made at a place in the WAL, and the server exports what every table looked like just there. The
published tables are read in that state, in chunks by primary key. Each chunk is a file of canonical rows, which is
durable before the next is read, and a note says how far it is.

Who is interrupted cannot have that state again. The remaining keys are read in a later one, which belongs to a later
place in the WAL, and its rows stand at that place: after the changes that were made until then, before those after it.

Rows of a state at place n have `seq` n - 1. Records in the WAL begin at multiples of 8, so no transaction has that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from tidings.errors import LogUnavailable
from tidings_connectors.postgres_connections import (
    LIMIT_EXCEEDED,
    Error,
    Server,
    quoted_name,
    quoted_text,
    raw_texts,
    speaking,
)
from tidings_connectors.postgres_relations import KINDS, as_json
from tidings_connectors.postgres_slots import Slot
from tidings_connectors.row_mapping import SNAPSHOT, Changes, Column, RowMapping, updates_of

CHUNK = 50_000  # rows
MAX_ROWS = 2**31 - 1
OURS = re.compile(r"(note\.json|[0-9a-f]{32}\.parquet)(\.tmp)?")

# What a publication has of a table is told from PostgreSQL 15 on; before that it has all of it.
TABLES = """
WITH keys AS (
    SELECT indrelid, indisprimary, indisreplident, (indkey::int2[])[0:indnkeyatts - 1] AS key FROM pg_index
)
SELECT published.schemaname, published.tablename, class.relkind = 'p',
       to_jsonb(published)->>'rowfilter', has_table_privilege(class.oid, 'SELECT'), current_user::text,
       (SELECT jsonb_agg(jsonb_build_array(attribute.attname, attribute.atttypid::int8,
                                           format_type(attribute.atttypid, attribute.atttypmod),
                                           array_position(chunks.key, attribute.attnum),
                                           attribute.attnum = ANY (coalesce(named.key, chunks.key)))
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


class TableColumn(BaseModel):
    """A column: its place in the primary key, if it has one, and whether it names the object."""

    name: str
    oid: int
    type: str
    order: int | None
    key: bool


class Table(BaseModel):
    """A table, and how far it was read."""

    schema_name: str
    table: str
    partitioned: bool
    condition: str | None
    columns: list[TableColumn]
    done: bool = False
    last: list[str] | None = None

    @property
    def sorted_by(self) -> list[TableColumn]:
        """The columns of the primary key, in its order."""
        return sorted((one for one in self.columns if one.order is not None), key=lambda one: one.order or 0)

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return f"{quoted_name(self.schema_name)}.{quoted_name(self.table)}"


class Chunk(BaseModel):
    """A file of rows: the table, and the index of the first."""

    file: str
    table: int
    first: int
    rows: int


class Run(BaseModel):
    """What was read in one state of the database."""

    seq: int
    chunks: list[Chunk] = []

    @property
    def place(self) -> int:
        """Where in the WAL the database was in that state."""
        return self.seq + 1

    @property
    def end(self) -> int:
        """The index after that of the last row."""
        return self.chunks[-1].first + self.chunks[-1].rows if self.chunks else 0


class Note(BaseModel):
    """How far a snapshot is."""

    slot: str
    complete: bool = False
    tables: list[Table] = []
    runs: list[Run] = []


class Snapshot:
    """The snapshot of one stream, in a folder that every process of the cluster sees."""

    def __init__(self, server: Server, slot: Slot, stream: str, folder: Path) -> None:
        self._server = server
        self._slot = slot
        self._stream = stream
        self.folder = folder / slot.name
        self._note: Note | None = None

    def runs(self) -> list[Run]:
        """What was read; nothing, as long as it is not complete."""
        note = self._read() if self._note is None or not self._note.complete else self._note
        self._note = note
        return [run for run in note.runs if run.chunks] if note.complete else []

    def take(self, publication: str, mapping: RowMapping, shards: int) -> None:
        """Make the slot if it is not there, and read what was not read yet.

        Of several processes that do this at once one works, and the others wait for it.
        """
        if self._slot.there() and self._read().complete:
            return
        with self._alone() as connection:
            there = self._slot.there()
            note = self._read()
            if there and note.complete:
                return
            tables = _tables(self._server, connection, publication)
            with self._state(there) as (seq, state):
                if not there or not note.tables:
                    # A snapshot that belongs to a slot which is gone is of no use.
                    self._clear()
                    note = Note(slot=self._slot.name, tables=tables)
                self._begin(note)
                note.runs.append(Run(seq=seq))
                self._write(note)
                with speaking(self._server):
                    self._read_tables(state, note, mapping, shards)
            note.complete = True
            self._write(note)

    def rows(self, run: Run, index: int) -> tuple[pa.Table, int]:
        """Rows of a run from this index on, to the end of a chunk, and the index after them."""
        for chunk in run.chunks:
            end = chunk.first + chunk.rows
            if index < end:
                try:
                    found = pq.read_table(self.folder / chunk.file)
                except OSError as error:
                    raise LogUnavailable(
                        f"the snapshot of stream {self._stream!r} in {self.folder}: {error.strerror or error}"
                    ) from error
                return found.slice(max(0, index - chunk.first)), end
        raise LogUnavailable(f"the snapshot of stream {self._stream!r} has no row {index}")

    def forget(self) -> None:
        """Delete the rows; nobody will ask for them any more."""
        note, self._note = self._read(), None
        files = [chunk.file for run in note.runs for chunk in run.chunks]
        if files and note.complete:
            self._write(note.model_copy(update={"runs": []}))
            for file in files:
                (self.folder / file).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete what an earlier snapshot has left behind, and nothing else that may be there."""
        for path in self.folder.glob("*") if self.folder.exists() else ():
            if OURS.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _begin(self, note: Note) -> None:
        """Leave out what was read in part of tables that have no order in which one could go on."""
        redone = {n for n, table in enumerate(note.tables) if not table.done and not table.sorted_by}
        for run in note.runs:
            run.chunks = [chunk for chunk in run.chunks if chunk.table not in redone]

    def _read_tables(self, state: Any, note: Note, mapping: RowMapping, shards: int) -> None:
        with state.cursor() as cursor:
            cursor.execute("SELECT now()")
            (time,) = cursor.fetchone()
        for number, table in enumerate(note.tables):
            if table.done:
                continue
            for values in _chunks(state, table):
                run = note.runs[-1]
                if run.end + len(values[0]) > MAX_ROWS:
                    raise LogUnavailable(f"the tables of stream {self._stream!r} hold more than 2^31 rows")
                rows = updates_of(_changes(table, values, run, time), mapping, shards)
                chunk = Chunk(file=f"{uuid.uuid4().hex}.parquet", table=number, first=run.end, rows=len(rows))
                self._durably(chunk.file, lambda path, rows=rows: pq.write_table(rows, path))  # type: ignore[misc]
                run.chunks.append(chunk)
                names = [column.name for column in table.columns]
                table.last = [str(values[names.index(one.name)][-1]) for one in table.sorted_by] or None
                self._write(note)
            table.done = True
            self._write(note)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Any]:
        connection = self._server.connect()
        with contextlib.closing(connection), speaking(self._server):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_lock(hashtext(%s))", (f"tidings {self._slot.name}",))
            yield connection

    @contextlib.contextmanager
    def _state(self, there: bool) -> Iterator[tuple[int, Any]]:
        """A transaction in which the tables look as they did at a place in the WAL, and the `seq` of its rows."""
        name = f"{self._slot.name[:46]}_{uuid.uuid4().hex[:16]}" if there else self._slot.name
        kind = "TEMPORARY LOGICAL" if there else "LOGICAL"
        with contextlib.ExitStack() as stack:
            exporting = stack.enter_context(contextlib.closing(self._server.replicate()))
            cursor = exporting.cursor()
            try:
                cursor.execute(f"CREATE_REPLICATION_SLOT {quoted_name(name)} {kind} pgoutput EXPORT_SNAPSHOT")
            except Error as error:
                if error.pgcode == LIMIT_EXCEEDED:
                    raise self._slot.too_few() from error
                raise
            _, place, exported, _ = cursor.fetchone()
            state = stack.enter_context(contextlib.closing(self._server.connect()))
            state.autocommit = False
            state.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with state.cursor() as within:
                within.execute(f"SET TRANSACTION SNAPSHOT {quoted_text(exported)}")
            high, low = place.split("/")
            exporting.close()  # the transaction has it; a temporary slot need not hold WAL any longer
            yield (int(high, 16) << 32) + int(low, 16) - 1, state

    def _read(self) -> Note:
        try:
            note = Note.model_validate_json((self.folder / "note.json").read_text())
        except FileNotFoundError:
            return Note(slot=self._slot.name)
        except (OSError, ValueError) as error:
            raise LogUnavailable(
                f"the note of the snapshot in {self.folder} cannot be read ({error.__class__.__name__}): delete the "
                f"folder and the replication slot to begin anew"
            ) from error
        return note

    def _write(self, note: Note) -> None:
        self._durably("note.json", lambda path: path.write_text(json.dumps(note.model_dump())))

    def _durably(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file that is there whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{name}.tmp"
        write(draft)
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _tables(server: Server, connection: Any, publication: str) -> list[Table]:
    """The published tables; they may all be read."""
    with connection.cursor() as cursor:
        cursor.execute(TABLES, (publication,))
        found = cursor.fetchall()
    tables = []
    for schema, name, partitioned, condition, may_read, role, columns in found:
        table = Table(
            schema_name=schema,
            table=name,
            partitioned=partitioned,
            condition=condition,
            columns=[
                TableColumn(name=column, oid=oid, type=form, order=order, key=bool(key))
                for column, oid, form, order, key in columns or ()
            ],
        )
        if not may_read:
            raise LogUnavailable(
                f"role {role!r} of PostgreSQL at {server} may not read table {schema}.{name}, which a snapshot needs: "
                f"GRANT SELECT ON {table.name} TO {quoted_name(role)}"
            )
        tables.append(table)
    return tables


def _chunks(state: Any, table: Table) -> Iterator[list[Sequence[str | None]]]:
    """The rows of a table that were not read yet, column by column."""
    if not table.columns:
        return
    names = ", ".join(quoted_name(column.name) for column in table.columns)
    select = f"SELECT {names} FROM {'' if table.partitioned else 'ONLY '}{table.name}"
    raw_texts(state, {column.oid for column in table.columns})
    if not table.sorted_by:
        with state.cursor(name="tidings") as cursor:
            cursor.execute(f"{select} WHERE {table.condition or 'true'}")
            while rows := cursor.fetchmany(CHUNK):
                yield list(zip(*rows, strict=True))
        return
    key = ", ".join(quoted_name(column.name) for column in table.sorted_by)
    while True:
        with state.cursor() as cursor:
            further = "true"
            if table.last is not None:
                ends = [cursor.mogrify("%s", (text,)).decode() for text in table.last]
                typed = [f"{end}::{column.type}" for end, column in zip(ends, table.sorted_by, strict=True)]
                further = f"({key}) > ({', '.join(typed)})"
            cursor.execute(f"{select} WHERE ({table.condition or 'true'}) AND {further} ORDER BY {key} LIMIT {CHUNK}")
            rows = cursor.fetchall()
        if rows:
            yield list(zip(*rows, strict=True))
        if len(rows) < CHUNK:
            return


def _changes(table: Table, values: list[Sequence[str | None]], run: Run, time: Any) -> Changes:
    columns = []
    for column, texts in zip(table.columns, values, strict=True):
        kind = KINDS.get(column.oid, "text")
        columns.append(Column(column.name, as_json(pa.array(texts, pa.string()), kind), kind))
    count = len(values[0])
    return Changes(
        table.schema_name,
        table.table,
        columns,
        [column.name for column in table.columns if column.key],
        pa.repeat(pa.scalar(SNAPSHOT), count),
        np.full(count, run.seq, np.int64),
        np.arange(run.end, run.end + count, dtype=np.int32),
        pa.repeat(pa.scalar(time, pa.timestamp("us", "UTC")), count),
    )
