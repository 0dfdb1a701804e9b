"""The keys of tables whose replica identity does not tell them, as they were when the log was written.

`pgoutput` says of such a table what its columns were, and not which of them were the key. The catalog says what the key
is today. It is believed as far as it cannot have changed since: what is older than all that a slot holds, or as old as
the table, was the same all the time. A column of the key that was renamed since is known by its place.

Of the rest it is known since when it is so: since it was seen. Who must not lose rows over a change of a key says in
the stream's option `keys` what the key is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidings.positions import MAX_SEQ
from tidings_connectors.postgres.connections import PostgresConnection, PostgresServer, translating_errors
from tidings_connectors.postgres.relations import KnownKey

NOW = """
(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END
 - '0/0'::pg_lsn)::bigint
"""
INDEXES = f"""
SELECT {NOW}, class.oid::int8, index.indexrelid::int8
FROM pg_class class LEFT JOIN pg_index index ON index.indrelid = class.oid AND index.indisprimary
WHERE class.relkind = 'r' AND class.relreplident IN ('f', 'n') AND class.oid >= 16384
"""


def _old(row: str) -> str:
    """Whether a row of the catalog is as old as the table, or older than what a slot holds.

    A number that is not reached yet is one of the round before.
    """
    return (
        f"coalesce({row}.xmin = table_row.xmin OR age({row}.xmin) > age(slot.catalog_xmin) OR age({row}.xmin) < 0, "
        "false)"
    )


COLUMNS = f"""
SELECT {NOW}, index.indexrelid::int8, {_old("index")}, attribute.attname::text,
       NOT attribute.attisdropped AND attribute.attgenerated = '', {_old("attribute")},
       coalesce(attribute.attnum = ANY ((index.indkey::int2[])[0:index.indnkeyatts - 1]), false)
FROM pg_attribute attribute
JOIN pg_attribute table_row ON table_row.attrelid = attribute.attrelid AND table_row.attnum = -1
LEFT JOIN pg_index index ON index.indrelid = attribute.attrelid AND index.indisprimary
LEFT JOIN pg_replication_slots slot ON slot.slot_name = %s
WHERE attribute.attrelid = %s AND attribute.attnum > 0
ORDER BY attribute.attnum
"""


class CatalogColumn(NamedTuple):
    """A column as the catalog has it today, though it may be dropped."""

    name: str
    sent: bool
    """Whether rows come with it."""
    old: bool
    key: bool


class TableKeys:
    """The keys of a database's tables. Its methods may be called from any thread."""

    def __init__(
        self, server: PostgresServer, connection: PostgresConnection, given: Mapping[str, Sequence[str]]
    ) -> None:
        self._server = server
        self._connection = connection
        self._given = given
        self._lock = threading.Lock()
        self._seen: dict[int, tuple[int | None, int]] = {}
        """The index of each table's primary key, and from which place in the log on it is known to be that."""

    def look(self) -> None:
        """See what the keys are now."""
        with translating_errors(self._server):
            found = self._connection.rows(INDEXES)
        for place, oid, index in found:
            self._known_from(oid, index, place)

    def key_of(self, oid: int, table: str, columns: Sequence[str], slot: str) -> KnownKey:
        """The key of a table that had these columns when the log was written that this slot holds."""
        if table in self._given:
            return KnownKey(tuple(self._given[table]))
        with translating_errors(self._server):
            found = self._connection.rows(COLUMNS, (slot, oid))
        if not found:
            return KnownKey((), MAX_SEQ)
        place, index, old = found[0][:3]
        known_from = self._known_from(oid, index, place)
        now = [CatalogColumn(*row[3:]) for row in found]
        then = _key_then(now, columns)
        if old and then is not None:
            return KnownKey(then)
        if index is None:
            return KnownKey((), known_from)
        key = tuple(column.name for column in now if column.key and column.name in columns)
        return KnownKey(key, place if old else known_from)

    def _known_from(self, oid: int, index: int | None, place: int) -> int:
        """Since when a table has this index for its key; a table that was never seen with one has always had none."""
        with self._lock:
            known = self._seen.get(oid)
            if known is None or known[0] != index:
                self._seen[oid] = index, (0 if known is None and index is None else place)
            return self._seen[oid][1]


def _key_then(now: Sequence[CatalogColumn], columns: Sequence[str]) -> tuple[str, ...] | None:
    """What the columns of the key were called when the table had these columns; None if that cannot be told.

    A new column comes after all others, and the places of the others do not change unless one of them is dropped.
    """
    key, place, certain = [], 0, True
    for column in now:
        if not column.sent:
            certain &= column.old
            continue
        here = columns[place] if place < len(columns) else None
        certain &= not column.old or column.name == here
        if column.key:
            name = column.name if column.old else here if certain else None
            if name not in columns:
                return None
            key.append(name)
        place += 1
    return tuple(key)  # type: ignore[arg-type]
