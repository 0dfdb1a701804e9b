"""Columns of MariaDB's tables, asked for so that a query has the same texts for them as the binary log.

The server prints values, and the log has them as they are stored. They come out the same in a session that is set up
with `SESSION`, if a column is asked for as its `ColumnForm` says, and what comes is left as bytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import LogUnavailable
from tidings_connectors.cdc.changes import Kind
from tidings_connectors.mysql.values import Text, decoding

SESSION = "SET SESSION sql_mode = '', time_zone = '+00:00', character_set_results = NULL"
"""Nothing is padded, zero dates are dates, times are in UTC, and texts are in the character sets of their columns."""


@dataclass(frozen=True)
class ColumnForm:
    """How the values of a column are asked for, and how they become texts."""

    text: Text
    kind: Kind = "text"
    select: str = "{0}"
    literal: str | None = None
    """Such a value, where `%s` is what came of it, in hex; None, if rows cannot be gone on with by it."""


def form_of(column: str, type: str, charset: str | None, collation: str | None) -> ColumnForm:
    """The form of a column of this type, as `information_schema` has it."""
    word, size = re.match(r"(\w+)(?:\(([\d,]+)\))?", type).groups()  # type: ignore[union-attr]
    sized = f"{word}({size})" if size else word
    match word:
        case "tinyint" | "smallint" | "mediumint" | "int" | "bigint":
            unsigned = "unsigned" in type
            literal = f"CAST(UNHEX(%s) AS {'UNSIGNED' if unsigned else 'SIGNED'})"
            return ColumnForm(
                functools.partial(_cast, pa.uint64() if unsigned else pa.int64()), "integer", literal=literal
            )
        case "year":
            select = "YEAR(MAKEDATE({0}, 1))" if size == "2" else "{0}"
            return ColumnForm(functools.partial(_cast, pa.int64()), "integer", select)
        case "float" | "double":  # whose digits are all there only as DOUBLE
            kind = pa.float32() if word == "float" else pa.float64()
            return ColumnForm(functools.partial(_number, kind), "number", "CAST({0} AS DOUBLE)")
        case "decimal":  # whose zeros before the number go with the CAST
            return ColumnForm(_texts, select=f"CAST({{0}} AS {sized})", literal=f"CAST(UNHEX(%s) AS {sized})")
        case "date" | "datetime" | "time":
            return ColumnForm(_texts, literal=f"CAST(UNHEX(%s) AS {sized})")
        case "timestamp":
            return ColumnForm(_moments, literal=f"CAST(UNHEX(%s) AS {sized.replace('timestamp', 'datetime')})")
        case "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext":
            return ColumnForm(
                decoding(charset or "utf8mb4"), literal=f"CONVERT(UNHEX(%s) USING {charset}) COLLATE {collation}"
            )
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            return ColumnForm(decoding("binary"), literal="UNHEX(%s)")
        case "inet4" | "inet6" | "uuid":
            width = 4 if word == "inet4" else 16
            return ColumnForm(
                decoding("binary"), select=f"CAST({{0}} AS BINARY({width}))", literal=f"CAST(UNHEX(%s) AS {word})"
            )
        case "point" | "linestring" | "polygon" | "geometry" | "geometrycollection":
            return ColumnForm(decoding("binary"))
        case "multipoint" | "multilinestring" | "multipolygon":
            return ColumnForm(decoding("binary"))
        case "bit":
            return ColumnForm(functools.partial(_each, functools.partial(_bits, int(size))))
        case "enum" | "set":
            return ColumnForm(decoding(charset or "utf8mb4"))
    raise LogUnavailable(f"column {column!r} has type {type}, which a snapshot does not read yet")


# Columns of text


def _texts(values: Sequence[Any]) -> pa.StringArray:
    return pa.array(values, pa.binary()).cast(pa.string())


def _cast(to: pa.DataType, values: Sequence[Any]) -> pa.StringArray:
    return _texts(values).cast(to).cast(pa.string())


def _number(to: pa.DataType, values: Sequence[Any]) -> pa.StringArray:
    return _texts(values).cast(pa.float64()).cast(to).cast(pa.string())


def _moments(values: Sequence[Any]) -> pa.StringArray:
    """Times in UTC, with their offset; a zero date is none, and has none."""
    printed = _texts(values)
    zero = pc.starts_with(printed, "0000-00-00")
    return pc.if_else(zero, printed, pc.binary_join_element_wise(printed, "+00:00", ""))


def _each(made: Any, values: Sequence[Any]) -> pa.StringArray:
    return pa.array([None if one is None else made(one) for one in values], pa.string())


def _bits(count: int, value: bytes) -> str:
    return f"{int.from_bytes(value, 'big'):0{count}b}"
