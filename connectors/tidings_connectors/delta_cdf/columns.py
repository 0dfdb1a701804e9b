"""Columns of a Delta table as text, as every datastore hands its values over."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from tidings_connectors.cdc.changes import Column, Kind


def column_of(name: str, values: pa.Array) -> Column:
    """A column of a table, as text."""
    kind: Kind = "text"
    if pa.types.is_integer(values.type):
        kind = "integer"
    elif pa.types.is_floating(values.type):
        finite = pc.is_finite(values)
        kind = "number" if pc.all(pc.fill_null(finite, True)).as_py() else "text"
    elif pa.types.is_boolean(values.type):
        kind = "boolean"
    elif pa.types.is_nested(values.type):
        texts = [
            None if value is None else json.dumps(value, default=str, ensure_ascii=False)
            for value in values.to_pylist()
        ]
        return Column(name, pa.array(texts, pa.string()), "json")
    elif (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type) or pa.types.is_binary_view(values.type)
    ):
        texts = [None if value is None else f"\\x{value.hex()}" for value in values.to_pylist()]
        return Column(name, pa.array(texts, pa.string()))
    return Column(name, values.cast(pa.string()), kind)
