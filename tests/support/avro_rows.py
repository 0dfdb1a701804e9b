"""Rows and schemas for tests of Avro payloads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidings.updates import SCHEMA
from tidings_connectors.cdc.avro_payloads import decoder
from tidings_connectors.cdc.changes import Changes, Column
from tidings_connectors.cdc.mapping import RowMapping, updates_of

Row = dict[str, Any]
INT = {"name": "id", "type": "int"}


def record(*fields: Row, **more: Any) -> Row:
    return {"type": "record", "name": "Item", "fields": list(fields), **more}


def changes(*columns: Column, operations: list[str] | None = None) -> Changes:
    count = len(columns[0].values)
    return Changes(
        "public",
        "item",
        columns,
        ("id",) if columns[0].name == "id" else (),
        pa.array(operations or ["insert"] * count),
        np.arange(count, dtype=np.int64),
        np.zeros(count, np.int32),
        pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), count),
    )


def column(name: str, *values: str | None, **more: Any) -> Column:
    return Column(name, pa.array(values, pa.string()), **more)


def told(made: Changes, schema: Row) -> list[Any]:
    """What each payload says; a text is the reason why there is none."""
    schemas = {"public.item": schema}
    table = updates_of(made, RowMapping(payload="avro", schemas=schemas), 1)
    assert table.schema == SCHEMA
    return read(table, schemas)


def read(updates: pa.Table, schemas: dict[str, Any]) -> list[Any]:
    """The same of updates that came from a log."""
    decode = decoder(schemas)
    rows = updates.to_pylist(maps_as_pydicts="strict")
    return [decode(row["payload"]) if row["payload"] is not None else row["attributes"].get("payload") for row in rows]


def decimals(precision: int, scale: int, **more: Any) -> Row:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale, **more}


def logical(form: str, name: str) -> Row:
    return {"type": form, "logicalType": name}
