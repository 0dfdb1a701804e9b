"""Columns of a Delta table as text, as every datastore hands its values over."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings_connectors.cdc.changes import Column, Kind


def column_of(name: str, values: pa.Array) -> Column:
    """A column of a table, as text."""
    kind: Kind = "text"
    if pa.types.is_integer(values.type):
        kind = "integer"
    elif pa.types.is_floating(values.type):
        return Column(name, _numbers(values), "number")
    elif pa.types.is_boolean(values.type):
        kind = "boolean"
    elif pa.types.is_nested(values.type):
        texts = [
            None if value is None else json.dumps(_plain(value), default=str, ensure_ascii=False)
            for value in values.to_pylist(maps_as_pydicts="lossy")
        ]
        return Column(name, pa.array(texts, pa.string()), "json")
    elif (
        pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type) or pa.types.is_binary_view(values.type)
    ):
        texts = [None if value is None else _plain(value) for value in values.to_pylist()]
        return Column(name, pa.array(texts, pa.string()))
    return Column(name, values.cast(pa.string()), kind)


def _numbers(values: pa.Array) -> pa.StringArray:
    """Numbers as JSON has them; those that it does not have are texts, whatever stands beside them."""
    texts = values.cast(pa.string())
    odd = pc.fill_null(pc.invert(pc.is_finite(values)), False)
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(
        texts, odd, pa.array([json.dumps(_plain(one)) for one in values.filter(odd).to_pylist()])
    )


def _plain(value: Any) -> Any:
    """A value of a nested column, as JSON has it: a map is an object, and bytes are as in a column of their own.

    >>> _plain({"a": [1.5, float("nan"), float("-inf")], 7: b"\\x00\\xff"})
    {'a': [1.5, 'NaN', '-Infinity'], '7': '\\\\x00ff'}
    """
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return f"\\x{value.hex()}"
        case dict():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
    return value
