"""Rows as Avro, by schemas that the stream's definition holds; and the way back, for those who get them.

A payload is in Avro's single-object encoding: two bytes that say so, eight that are the fingerprint of the schema, and
the record. Each field is the column of that name. A row that does not fulfil the schema has no payload, and its
attribute `payload` says why; the update itself still comes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidOption, InvalidUpdate
from tidings_connectors.cdc.avro_schemas import MARK, Schemas, codecs_of
from tidings_connectors.cdc.avro_values import joined
from tidings_connectors.cdc.changes import Changes, Column

HEADER_BYTES = len(MARK) + 8


def payloads(changes: Changes, schemas: Schemas) -> tuple[pa.BinaryArray, pa.StringArray]:
    """The rows in Avro; null where one does not fulfil the schema, and then the reason."""
    table, count = f"{changes.schema}.{changes.table}", len(changes)
    if table not in schemas:
        raise InvalidOption(
            f"option 'schemas' has no schema for table {table}, whose rows come (it has some for "
            f"{', '.join(schemas)}): add one, or leave the table out of the stream"
        )
    codec = codecs_of({table: schemas[table]})[table]
    columns = {column.name: column for column in changes.columns}
    parts, reasons = [pa.repeat(pa.scalar(codec.header), count)], pa.nulls(count, pa.string())
    for field in codec.fields:
        column = columns.get(field.name) or _absent(field.name, count)
        part = field.where_known(field.form.of_texts(_texts(column)), column.unknown)
        reasons = pc.coalesce(reasons, _reasons(column, part)) if part.null_count else reasons
        parts.append(part)
    return joined(*parts), reasons


def _absent(name: str, count: int) -> Column:
    return Column(name, pa.nulls(count, pa.string()), unknown=pa.repeat(True, count))


def _texts(column: Column) -> pa.StringArray:
    # What is no number in JSON, as NaN, is in quotes there.
    return pc.ascii_trim(column.values, '"') if column.kind == "number" else column.values


def _reasons(column: Column, part: pa.BinaryArray) -> pa.StringArray:
    """Why rows are left out that have no value of this column."""
    unknown = pa.scalar(False) if column.unknown is None else column.unknown
    wrong = pc.if_else(unknown, "is not known", "does not fit")
    reasons = pc.binary_join_element_wise("left out: column", repr(column.name), wrong, " ")
    return pc.if_else(part.is_null(), reasons, None)


def decoder(schemas: Schemas) -> Callable[[bytes | bytearray], dict[str, Any]]:
    """A function that reads the payloads of a stream with this option `schemas`.

    It raises `InvalidUpdate` for bytes that are no such payload.

    >>> read = decoder({"public.item": {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}]}})
    >>> read(bytes.fromhex("c301 474a623097209cc6 54"))
    {'id': 42}
    """
    try:
        known = {codec.header: codec for codec in codecs_of(schemas).values()}
    except ValueError as error:
        raise InvalidOption(f"option 'schemas' cannot be used: {error}") from None

    def read(payload: bytes | bytearray) -> dict[str, Any]:
        header, rest = bytes(payload[:HEADER_BYTES]), io.BytesIO(payload[HEADER_BYTES:])
        if len(header) < HEADER_BYTES or not header.startswith(MARK):
            raise InvalidUpdate(f"a payload that begins with {header.hex()!r} is no Avro in single-object encoding")
        if header not in known:
            name = header[len(MARK) :].hex()
            raise InvalidUpdate(f"no schema has the fingerprint {name}: take the schemas that the stream has now")
        try:
            record = known[header].read(rest)
        except (ArithmeticError, EOFError, IndexError, ValueError, struct.error) as error:
            raise InvalidUpdate(f"a payload cannot be read by the schema that it names: {error!r}") from None
        if rest.read(1):
            raise InvalidUpdate("a payload has bytes after its record")
        return record

    return read
