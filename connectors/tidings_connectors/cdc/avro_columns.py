"""Rows that are Avro as columns, for Spark: a type of Arrow for each schema, and many payloads at once.

Types are those that Spark's own `from_avro` gives: a UUID is text, and a time of day a number of milliseconds or
microseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from fastavro.schema import expand_schema

from tidings.errors import InvalidOption
from tidings.logs import PayloadColumn
from tidings_connectors.cdc.avro_payloads import decoder
from tidings_connectors.cdc.avro_schemas import NULL, Schemas, codecs_of

MAX_PRECISION = 38  # of Spark's decimals
PLAIN = frozenset(["uuid", "time-millis", "time-micros"])  # logical types that are no types of Spark

TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def columns_of(schemas: Schemas) -> dict[str, PayloadColumn]:
    """How the payloads of each table become a column. `InvalidOption` if Spark has no type for one."""
    found = {}
    for table, schema in schemas.items():
        plain = _plain(schema)
        try:
            form = arrow_type(expand_schema(codecs_of({table: plain})[table].schema))
        except ValueError as error:
            raise InvalidOption(f"rows of table {table} cannot be columns: {error}") from None
        found[table] = PayloadColumn(form, functools.partial(_read, decoder({table: plain}), form))
    return found


def arrow_type(form: Any) -> pa.DataType:
    """The type that values of an Avro type have; names in it must have been replaced by what they mean.

    >>> arrow_type(["null", {"type": "array", "items": "int"}])
    ListType(list<item: int32>)
    """
    match form:
        case list():
            return arrow_type(next(one for one in form if one != NULL))
        case {"type": "record", "fields": fields}:
            return pa.struct([pa.field(one["name"], arrow_type(one["type"])) for one in fields])
        case {"type": "array", "items": items}:
            return pa.list_(arrow_type(items))
        case {"type": "map", "values": values}:
            return pa.map_(pa.string(), arrow_type(values))
        case {"logicalType": "decimal", "precision": precision}:
            if precision > MAX_PRECISION:
                raise ValueError(f"a decimal of Spark has at most {MAX_PRECISION} digits, and not {precision}")
            return pa.decimal128(precision, form.get("scale", 0))
        case {"type": kind}:
            return LOGICAL.get(form.get("logicalType", ""), TYPES[kind])
    return TYPES[form]


def _plain(form: Any) -> Any:
    """A schema without the logical types that are no types of Spark. Its fingerprint is the same."""
    match form:
        case list():
            return [_plain(one) for one in form]
        case Mapping():
            inner = {key: _plain(form[key]) for key in ("type", "items", "values", "fields") if key in form}
            rest = {key: value for key, value in form.items() if key != "logicalType" or value not in PLAIN}
            return {**rest, **inner}
    return form


def _read(decode: Callable[[bytes], dict[str, Any]], form: pa.DataType, payloads: pa.BinaryArray) -> pa.Array:
    return pa.array([None if one is None else decode(one) for one in payloads.to_pylist()], form)
