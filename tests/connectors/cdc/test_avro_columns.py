"""Rows in Avro as columns of Arrow, in types that Spark has."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from tests.support.avro_rows import INT, changes, column, decimals, logical, record
from tidings.errors import InvalidOption, InvalidUpdate
from tidings.logs import PayloadColumn
from tidings_connectors.cdc.avro_columns import columns_of
from tidings_connectors.cdc.mapping import RowMapping, updates_of

SCHEMA = record(
    {"name": "id", "type": "long"},
    {"name": "ok", "type": ["null", "boolean"]},
    {"name": "price", "type": decimals(10, 2)},
    {"name": "day", "type": logical("int", "date")},
    {"name": "at", "type": logical("long", "timestamp-millis")},
    {"name": "local", "type": logical("long", "local-timestamp-micros")},
    {"name": "noon", "type": logical("long", "time-micros")},
    {"name": "key", "type": ["null", logical("string", "uuid")]},
    {"name": "mood", "type": {"type": "enum", "name": "Mood", "symbols": ["glad", "sad"]}},
    {"name": "two", "type": {"type": "fixed", "name": "Two", "size": 2}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "sizes", "type": {"type": "map", "values": "int"}},
    {"name": "home", "type": record({"name": "street", "type": "string"}, name="Home")},
)
ROW = {
    "id": 7,
    "ok": None,
    "price": Decimal("1.50"),
    "day": dt.date(2026, 3, 1),
    "at": dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
    "local": dt.datetime.fromisoformat("2026-03-01 12:00:00"),
    "noon": 12 * 3600 * 10**6,
    "key": "00000000-0000-0000-0000-00000000002a",
    "mood": "glad",
    "two": b"\x00\xff",
    "tags": ["a", "b"],
    "sizes": [("s", 1)],
    "home": {"street": "Odengatan"},
}
TEXTS = {
    "id": "7",
    "ok": None,
    "price": "1.5",
    "day": "2026-03-01",
    "at": "2026-03-01 12:00:00+00",
    "local": "2026-03-01 12:00:00",
    "noon": "12:00:00",
    "key": ROW["key"],
    "mood": "glad",
    "two": "\\x00ff",
    "tags": '["a", "b"]',
    "sizes": '{"s": 1}',
    "home": '{"street": "Odengatan"}',
}


def payloads(schema: dict[str, object], *columns: object) -> pa.BinaryArray:
    made = changes(*columns)  # type: ignore[arg-type]  # columns
    mapping = RowMapping(payload="avro", schemas={"public.item": schema})
    return updates_of(made, mapping, 1)["payload"].combine_chunks()


def item(schema: dict[str, object]) -> PayloadColumn:
    return columns_of({"public.item": schema})["public.item"]


def test_every_type_that_a_row_can_have_is_a_type_of_spark() -> None:
    texts = payloads(SCHEMA, *(column(name, text) for name, text in TEXTS.items()))  # type: ignore[arg-type]  # texts
    made = item(SCHEMA)
    assert made.read(texts).to_pylist() == [ROW]
    spark = from_arrow_type(made.type).simpleString()
    assert spark == (
        "struct<id:bigint,ok:boolean,price:decimal(10,2),day:date,at:timestamp,local:timestamp_ntz,noon:bigint,"
        "key:string,mood:string,two:binary,tags:array<string>,sizes:map<string,int>,home:struct<street:string>>"
    )


def test_a_row_without_a_payload_is_null_and_other_bytes_are_an_error() -> None:
    made = item(record(INT))
    assert made.read(pa.array([None], pa.binary())).to_pylist() == [None]
    with pytest.raises(InvalidUpdate, match="no Avro in single-object encoding"):
        made.read(pa.array([b'{"id": 1}'], pa.binary()))
    with pytest.raises(InvalidUpdate, match="no schema has the fingerprint"):
        made.read(payloads(record({"name": "id", "type": "long"}), column("id", "1")))


def test_a_decimal_that_spark_has_no_room_for_is_refused_by_its_table() -> None:
    with pytest.raises(InvalidOption, match=r"rows of table public\.item cannot be columns: .* at most 38 digits"):
        item(record(INT, {"name": "price", "type": decimals(50, 2)}))
