"""How the binary log describes a table, before rows of it: names, types and character sets, read from their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidings_connectors.mysql.client_library import FIELD_TYPE, charset_by_id
from tidings_connectors.mysql.event_stream import counted

BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's own
SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, NAMES, SET_MEMBERS, ENUM_MEMBERS = range(1, 7)
KEY, KEY_WITH_PREFIXES, MEMBERS_DEFAULT_CHARSET, MEMBERS_COLUMN_CHARSET = 8, 9, 10, 11

TEXTS = frozenset(
    (
        FIELD_TYPE.STRING,
        FIELD_TYPE.VAR_STRING,
        FIELD_TYPE.VARCHAR,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.GEOMETRY,
        BLOB_COMPRESSED,
        VARCHAR_COMPRESSED,
    )
)
"""The types that have a character set; `binary` is one."""
NUMBERS = frozenset(
    (
        FIELD_TYPE.TINY,
        FIELD_TYPE.SHORT,
        FIELD_TYPE.INT24,
        FIELD_TYPE.LONG,
        FIELD_TYPE.LONGLONG,
        FIELD_TYPE.NEWDECIMAL,
        FIELD_TYPE.FLOAT,
        FIELD_TYPE.DOUBLE,
        FIELD_TYPE.YEAR,
    )
)
MEMBERS = (FIELD_TYPE.ENUM, FIELD_TYPE.SET)
DETAIL_BYTES = {
    FIELD_TYPE.VARCHAR: 2,
    VARCHAR_COMPRESSED: 2,
    FIELD_TYPE.STRING: 2,
    FIELD_TYPE.VAR_STRING: 2,
    FIELD_TYPE.NEWDECIMAL: 2,
    FIELD_TYPE.BIT: 2,
    FIELD_TYPE.DOUBLE: 1,
    FIELD_TYPE.FLOAT: 1,
    FIELD_TYPE.TIMESTAMP2: 1,
    FIELD_TYPE.DATETIME2: 1,
    FIELD_TYPE.TIME2: 1,
    FIELD_TYPE.BLOB: 1,
    BLOB_COMPRESSED: 1,
    FIELD_TYPE.GEOMETRY: 1,
}
"""How much is said of a column beside its type."""

FIRST_UCA1400, UCA1400_CHARSETS = 2048, ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
"""From this number on each of these character sets has 256 collations."""


class LoggedName(NamedTuple):
    """Which table an event describes; in this log, until it is described anew, `id` stands for it."""

    id: int
    schema: str
    table: str
    end: int
    """Where the rest of the description begins."""


@dataclass
class LoggedColumn:
    """A column as the log describes it."""

    type: int
    detail: bytes = b""
    name: str = ""
    unsigned: bool = False
    charset: str = "binary"
    members: list[bytes] = field(default_factory=list)


@dataclass
class LoggedTable:
    """A table as the log describes it; without names of columns, if `binlog_row_metadata` was not FULL."""

    columns: list[LoggedColumn]
    key: list[int]
    named: bool


def name_of(body: bytes) -> LoggedName:
    """Which table the body of an event describes."""
    end = 9 + body[8]
    schema = body[9:end].decode()
    start = end + 2
    end = start + body[start - 1]
    return LoggedName(int.from_bytes(body[:6], "little"), schema, body[start:end].decode(), end + 1)


def table_of(body: bytes, at: int) -> LoggedTable:
    """The rest of the description; it begins at `at`."""
    count, at = counted(body, at)
    types, at = body[at : at + count], at + count
    size, at = counted(body, at)
    columns = list(_columns(types, body[at : at + size]))
    at += size + (count + 7) // 8  # which of them may be NULL
    said = dict(_fields(body, at))
    _describe(columns, said)
    key = _numbers(said.get(KEY, b"")) or _numbers(said.get(KEY_WITH_PREFIXES, b""))[::2]
    return LoggedTable(columns, key, NAMES in said)


def _columns(types: bytes, details: bytes) -> Iterator[LoggedColumn]:
    at = 0
    for kind in types:
        detail = details[at : at + DETAIL_BYTES.get(kind, 0)]
        at += len(detail)
        # That of a fixed text has the type of an ENUM or SET in it.
        known = detail[0] if kind == FIELD_TYPE.STRING and detail[0] in MEMBERS else kind
        yield LoggedColumn(known, detail)


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        kind = body[at]
        size, at = counted(body, at + 1)
        yield kind, body[at : at + size]
        at += size


def _describe(columns: list[LoggedColumn], said: dict[int, bytes]) -> None:
    for column, name in zip(columns, _texts(said.get(NAMES, b"")), strict=False):
        column.name = name.decode()
    signs = said.get(SIGNEDNESS, b"")
    for number, column in enumerate(column for column in columns if column.type in NUMBERS):
        column.unsigned = bool(signs) and bool(signs[number >> 3] & 0x80 >> (number & 7))
    texts = [column for column in columns if column.type in TEXTS]
    _name_charsets(texts, said.get(DEFAULT_CHARSET), said.get(COLUMN_CHARSET))
    members = [column for column in columns if column.type in MEMBERS]
    _name_charsets(members, said.get(MEMBERS_DEFAULT_CHARSET), said.get(MEMBERS_COLUMN_CHARSET))
    for kind, field_kind in ((FIELD_TYPE.SET, SET_MEMBERS), (FIELD_TYPE.ENUM, ENUM_MEMBERS)):
        lists = _member_lists(said.get(field_kind, b""))
        for column, names in zip((column for column in members if column.type == kind), lists, strict=False):
            column.members = names


def _name_charsets(columns: list[LoggedColumn], by_default: bytes | None, each: bytes | None) -> None:
    collations: list[int] = []
    if by_default is not None:
        default, *others = _numbers(by_default)
        collations = [default] * len(columns)
        for place, collation in zip(others[::2], others[1::2], strict=True):
            collations[place] = collation
    elif each is not None:
        collations = _numbers(each)
    for column, collation in zip(columns, collations, strict=False):
        column.charset = charset_of(collation)


def charset_of(collation: int) -> str:
    """The name of a collation's character set, as the server has it; its number, if it is not known."""
    known = charset_by_id(collation, "mariadb")
    if known is not None:
        return str(known.name)
    part = (collation - FIRST_UCA1400) >> 8
    return UCA1400_CHARSETS[part] if 0 <= part < len(UCA1400_CHARSETS) else f"of collation {collation}"


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = counted(data, at)
        found.append(number)
    return found


def _texts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = counted(data, at)
        yield data[at : at + size]
        at += size


def _member_lists(data: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(data):
        count, at = counted(data, at)
        names = []
        for _ in range(count):
            size, at = counted(data, at)
            names.append(data[at : at + size])
            at += size
        yield names
