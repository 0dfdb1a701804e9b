"""Whether what the options of a stream name is there: tables, and columns of them.

It is looked at when a stream is made, or its options change. A reader needs no right to see tables, so those that it
may not see are taken on trust, and that is said.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence

from tidings.errors import InvalidOptions
from tidings_connectors.cdc.mapping import fields
from tidings_connectors.mysql.connection import (
    COLUMN_MISSING,
    DATABASE_MISSING,
    TABLE_DENIED,
    TABLE_MISSING,
    MysqlConnection,
    ServerError,
    account,
    quoted_name,
)
from tidings_connectors.mysql.options import MysqlOptions, Place
from tidings_connectors.mysql.snapshot import TYPES, VERSIONED, sql_name

TABLES = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
COLUMN_NAMES = """
SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
IMPLICIT = ("row_start", "row_end")  # of a table with system versioning, which does not show them
PARTS = (None, "schema", "table", "key")  # of an object's name that are no columns

Problem = tuple[tuple[str | int, ...], str]

logger = logging.getLogger(__name__)


def check_tables(connection: MysqlConnection, options: MysqlOptions, stream: str) -> None:
    """Raise unless the tables that may be seen are there, with the columns that the options speak of."""
    problems: list[Problem] = []
    seen: dict[str, list[str]] = {}
    for at, name in enumerate(options.tables):
        schema, _, table = name.partition(".")
        try:
            if (columns := _columns(connection, schema, table)) is None:
                ((user,),) = connection.ask("SELECT CURRENT_USER()")
                _tell_hidden(connection.place, user, schema, table)
            else:
                seen[name] = columns
        except _Wrong as wrong:
            problems.append((("tables", at), f"stream {stream!r} cannot watch table {name}: {wrong}"))
    problems += _unfit(connection, options, seen)
    if problems:
        raise InvalidOptions("; ".join(problem for _, problem in problems), problems)


class _Wrong(Exception):
    """Why a table cannot be watched."""


def _columns(connection: MysqlConnection, schema: str, table: str) -> list[str] | None:
    """The columns of a table; None if it may not be seen."""
    found = connection.ask(TABLES, schema, table)
    if not found:
        _check_hidden(connection, schema, table)
        return None
    ((name, kind),) = found
    if name != table:
        raise _Wrong(f"MariaDB at {connection.place} calls it {schema}.{name}, so write that")
    if kind not in TYPES:
        raise _Wrong(f"it is a {kind.lower()}, whose changes are in no log: name the tables that it reads")
    columns = [column for (column,) in connection.ask(COLUMN_NAMES, schema, table)]
    return [*columns, *(IMPLICIT if kind == VERSIONED else ())]


def _check_hidden(connection: MysqlConnection, schema: str, table: str) -> None:
    """Raise unless a table that is not shown is one that may not be seen."""
    try:
        connection.ask(f"SELECT 1 FROM {sql_name(schema, table)} LIMIT 0")
    except ServerError as error:
        if error.code in TABLE_DENIED:
            return
        if error.code not in (TABLE_MISSING, DATABASE_MISSING):
            raise
        raise _Wrong(
            f"there is none in MariaDB at {connection.place}: correct its name, or make it first; one that comes later "
            "is added by `tidings apply`"
        ) from None


@functools.cache  # once is enough, though it is looked at when a stream is planned and when it is made
def _tell_hidden(place: Place, user: str, schema: str, table: str) -> None:
    logger.warning(
        "user %r of MariaDB at %s may not see table %s.%s, so nobody knows whether it is there, and has the columns "
        "that the options name: GRANT SELECT ON %s TO %s",
        user.rpartition("@")[0],
        place,
        schema,
        table,
        sql_name(schema, table),
        account(user),
    )


def _unfit(connection: MysqlConnection, options: MysqlOptions, seen: dict[str, list[str]]) -> Iterator[Problem]:
    """What the tables that may be seen lack."""
    wanted = {
        "shard": [options.shard] if options.shard is not None else [],
        "object": [name for _, name in fields(options.object) if name is not None and name not in PARTS],
        "version": [options.version] if options.version is not None else [],
    }
    for option, names in wanted.items():
        for table, columns in seen.items():
            for name in names:
                if _lacks(connection, table, columns, name):
                    yield (option,), _lacking(option, name, f"table {table} does not have", columns)
    for at, name in enumerate(options.attributes):
        # Not every table needs it, but one does.
        if len(seen) == len(options.tables) and all(_lacks(connection, *one, name) for one in seen.items()):
            there = dict.fromkeys(column for columns in seen.values() for column in columns)
            yield ("attributes", at), _lacking("attributes", name, "none of the tables has", list(there))
    for table in seen if options.payload == "avro" else ():
        if table not in options.schemas:
            yield ("schemas",), f"option 'schemas' has no schema for table {table}, and 'payload: avro' needs one"


def _lacks(connection: MysqlConnection, table: str, columns: Sequence[str], name: str) -> bool:
    """Whether a table has no such column; one that may not be seen is taken on trust."""
    if name in columns:
        return False
    schema, _, plain = table.partition(".")
    try:
        connection.ask(f"SELECT {quoted_name(name)} FROM {sql_name(schema, plain)} LIMIT 0")
    except ServerError as error:
        if error.code in TABLE_DENIED:
            return False
        if error.code != COLUMN_MISSING:
            raise
    return True  # or it is spelt otherwise


def _lacking(option: str, name: str, where: str, columns: Sequence[str]) -> str:
    return f"option {option!r} names column {name!r}, which {where} (columns: {', '.join(columns)})"
