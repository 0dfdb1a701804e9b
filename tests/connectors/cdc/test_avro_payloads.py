"""Rows as Avro: what becomes of those that do not fit, what is refused, and the way from a database to a reader."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support import mysql_server, postgres_server
from tests.support.avro_rows import INT, Row, changes, column, decimals, logical, read, record, told
from tests.support.mysql_server import Scene, needs_mariadb
from tests.support.postgres_server import Database, floors
from tidings.cli.options import key_values
from tidings.config.spec import load
from tidings.errors import InvalidOption, InvalidUpdate
from tidings.log_opening import create_log
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition
from tidings_connectors.cdc.avro_payloads import decoder
from tidings_connectors.cdc.mapping import RowMapping, updates_of
from tidings_connectors.delta_cdf.log import DeltaCdfLog

database, password = postgres_server.database, mysql_server.password


def crc_64(text: str) -> int:
    """CRC-64-AVRO, bit by bit, as the specification has it."""
    empty = 0xC15D213AA4D7A795
    crc = empty
    for byte in text.encode():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (empty if crc & 1 else 0)
    return crc


def test_a_payload_begins_with_the_fingerprint_of_its_schema() -> None:
    assert crc_64('"int"') == 0x7275D51A3F395C8F  # of Avro's own tests
    schema = record(INT, {"name": "price", "type": decimals(4, 2), "doc": "in euro"}, namespace="shop")
    form = '{"name":"shop.Item","type":"record","fields":[{"name":"id","type":"int"},{"name":"price","type":"bytes"}]}'
    made = changes(column("id", "-1"), column("price", "1.28"))
    payload = updates_of(made, RowMapping(payload="avro", schemas={"public.item": schema}), 1)["payload"][0].as_py()
    assert payload[:10] == b"\xc3\x01" + crc_64(form).to_bytes(8, "little")
    assert payload[10:] == b"\x01" + b"\x04\x00\x80"


def test_what_is_not_known_is_the_default_or_null_or_the_row_has_no_payload() -> None:
    unknown = pa.array([False, True])
    made = changes(
        column("id", "1", "2"),
        column("price", "1.5", None, unknown=unknown),
        operations=["insert", "delete"],
    )
    first = {"id": 1, "price": 1.5}
    told_price: list[tuple[dict[str, Any], Any]] = [
        ({"type": "double"}, "left out: column 'price' is not known"),
        ({"type": "double", "default": -1.0}, {"id": 2, "price": -1.0}),
        ({"type": ["null", "double"]}, {"id": 2, "price": None}),
        ({"type": ["double", "null"], "default": 0.5}, {"id": 2, "price": 0.5}),
        ({"type": ["null", "double"], "default": None}, {"id": 2, "price": None}),
    ]
    for price, second in told_price:
        assert told(made, record(INT, {"name": "price", **price})) == [first, second]
    # A column that is not there is not known either, and one that no field asks for is left out.
    assert told(made, record({"name": "size", "type": "int"})) == ["left out: column 'size' is not known"] * 2
    assert told(made, record({"name": "size", "type": ["null", "int"]})) == [{"size": None}] * 2


@pytest.mark.parametrize(
    ("form", "default", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        (["null", "bytes"], "\u00ff", b"\xff"),
        (decimals(4, 2), "\u00ff", Decimal("-0.01")),
        (logical("int", "date"), 1, dt.date(1970, 1, 2)),
        ({"type": "enum", "name": "Size", "symbols": ["S", "L"]}, "L", "L"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "double"}, {"a": 1.5}, {"a": 1.5}),
        (record(INT, {"name": "on", "type": "bytes", "default": "a"}, name="W"), {"id": 3}, {"id": 3, "on": b"a"}),
    ],
)
def test_defaults_are_as_avro_writes_them_in_a_schema(form: Any, default: Any, value: Any) -> None:
    schema = record(INT, {"name": "it", "type": form, "default": default})
    assert told(changes(column("id", "1")), schema) == [{"id": 1, "it": value}]


def test_null_where_it_is_not_allowed_does_not_fit_and_the_default_does_not_hide_it() -> None:
    made = changes(column("id", "1", "2"), column("size", "7", None))
    assert told(made, record(INT, {"name": "size", "type": "int", "default": 3})) == [
        {"id": 1, "size": 7},
        "left out: column 'size' does not fit",
    ]


def test_the_first_column_that_is_wrong_is_named_and_the_update_comes_all_the_same() -> None:
    made = changes(column("id", "1", "x", "3"), column("size", "a", "b", "3"))
    schemas = {"public.item": record(INT, {"name": "size", "type": "int"})}
    updates = updates_of(made, RowMapping(payload="avro", schemas=schemas), 1)
    assert updates["object"].to_pylist() == ["public.item/1", "public.item/x", "public.item/3"]
    assert read(updates, schemas) == [
        "left out: column 'size' does not fit",
        "left out: column 'id' does not fit",
        {"id": 3, "size": 3},
    ]
    assert "payload" not in dict(updates["attributes"][2].as_py())


def test_a_truncate_and_what_is_too_large_have_no_payload() -> None:
    made = changes(
        column("id", None, "1", "2"),
        column("text", None, "x" * 2**20, "y"),
        operations=["truncate", "insert", "insert"],
    )
    schema = record(INT, {"name": "text", "type": "string"})
    assert told(made, schema) == [None, "left out: too large", {"id": 2, "text": "y"}]
    # Nothing is asked of a table of which no row comes.
    assert told(changes(column("id", None), operations=["truncate"]), record(INT)) == [None]
    other = RowMapping(payload="avro", schemas={"public.other": record(INT)})
    assert updates_of(changes(column("id", None), operations=["truncate"]), other, 1)["payload"].to_pylist() == [None]


def test_rows_of_a_table_without_a_schema_are_told() -> None:
    mapping = RowMapping(payload="avro", schemas={"public.other": record(INT)})
    problem = r"option 'schemas' has no schema for table public.item, whose rows come \(it has some for public.other\)"
    with pytest.raises(InvalidOption, match=problem):
        updates_of(changes(column("id", "1")), mapping, 1)


def of(form: Any, **more: Any) -> Row:
    return record({"name": "it", "type": form, **more})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "map", "values": "int"}, "it says no 'type: record'"),
        ({"name": "Item"}, "'type' is missing"),
        ({"type": "record", "fields": [INT]}, '"name" is a required field'),
        (record(), "record 'Item' has no fields"),
        (record({"name": "it"}), "Record field 'it' is missing 'type'"),
        (of("strng"), "there is no type 'strng'"),
        (of({"type": "array"}), "'items' is missing"),
        (of(["null", "int", "string"]), "field 'it': a union must be of null and one other type"),
        (of(["int", "string"]), "field 'it': a union must be of null and one other type"),
        (of(["null", "null"]), "a union must be of null and one other type"),
        (of("null"), "field 'it': 'null' is no type that a column can have"),
        (of(["null", "Item"]), "field 'it': 'Item' is no type that a column can have"),
        (of({"type": "bytes", "logicalType": "decimal"}), "field 'it': a decimal needs 'precision'"),
        (of(decimals(77, 2)), "of at most 76"),
        (of(decimals(2, 3)), "decimal scale must be less than or equal to the precision"),
        (of(decimals(9, 2, type="fixed", name="F", size=2)), "doesn't fit into array of length 2"),
        (of({"type": "fixed", "name": "F", "size": "2"}), "field 'it': a fixed needs 'size'"),
        (of({"type": "enum", "name": "E", "symbols": [True]}), "Every symbol must match"),
        (of("int", default="x"), "Default value <x> must match"),
        (of({"type": "enum", "name": "E", "symbols": ["S"]}, default="L"), "field 'it': 'L' cannot be its default"),
        (of(["null", {"type": "bytes"}], default=5), "field 'it': 5 cannot be its default"),
        (of("int", default=dt.date(2026, 1, 1)), "not JSON serializable"),
        (of({"type": "map", "values": ["int", "long"]}), "field 'it': a union must be of null and one other type"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Row, problem: str) -> None:
    schemas = {"public.item": schema}
    with pytest.raises(ValidationError) as caught:
        RowMapping(payload="avro", schemas=schemas)
    told = str(caught.value)
    assert "the schema of public.item is wrong: " in told
    assert problem in told
    with pytest.raises(InvalidOption, match=r"option 'schemas' cannot be used: the schema of public\.item"):
        decoder(schemas)


def test_schemas_that_have_one_fingerprint_and_are_not_the_same_are_refused() -> None:
    one, other = of(decimals(9, 2)), of(decimals(9, 4))
    with pytest.raises(ValidationError, match=r"a\.one and a\.other differ and have one fingerprint"):
        RowMapping(payload="avro", schemas={"a.one": one, "a.other": other})
    RowMapping(payload="avro", schemas={"a.one": one, "a.other": {**other, "name": "Other"}, "a.third": one})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"payload": "avro"}, "'payload: avro' needs a schema for each table"),
        ({"payload": "avro", "schemas": {}}, "'payload: avro' needs a schema for each table"),
        ({"schemas": {"shop.people": record(INT)}}, "it needs 'payload: avro'"),
        ({"payload": "avro", "schemas": {"shop.people": record()}}, "the schema of shop.people is wrong"),
    ],
)
def test_a_stream_says_which_option_is_wrong(tmp_path: Path, options: Row, problem: str) -> None:
    with pytest.raises(InvalidOption, match=f"option 'schemas' of stream 'people' cannot be used: {problem}"):
        DeltaCdfLog.open(str(tmp_path), StreamDefinition("people", 1, f"delta-cdf:{tmp_path}", options=options))


YAML = """\
streams:
  shop:
    log: delta-cdf:/data/shop
    options:
      payload: avro
      schemas:
        public.item:
          type: record
          name: Item
          fields:
            - {name: id, type: int}
            - {name: name, type: [null, string], default: null}
            - {name: tags, type: {type: array, items: [null, string]}}
            - {name: price, type: {type: bytes, logicalType: decimal, precision: 10, scale: 2}}
"""


def test_schemas_are_written_in_yaml_and_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(YAML)
    (definition,) = load(tmp_path / "tidings.yml").definitions()
    kept = StreamDefinition.from_json(json.loads(json.dumps(definition.to_json()))).options  # as ZooKeeper has it
    row = changes(column("id", "1"), column("name", None), column("tags", '["a", null]'), column("price", "2"))
    expected = {"id": 1, "name": None, "tags": ["a", None], "price": Decimal("2.00")}
    assert told(row, kept["schemas"]["public.item"]) == [expected]
    typed = key_values(["payload=avro", f"schemas={json.dumps(kept['schemas'])}"])
    assert RowMapping(**typed) == RowMapping(**kept)


def test_a_reader_finds_the_schema_by_its_fingerprint() -> None:
    schemas = {"public.item": record(INT), "public.other": record(INT, name="Other")}
    mapping = RowMapping(payload="avro", schemas=schemas)
    payload = updates_of(changes(column("id", "7")), mapping, 1)["payload"][0].as_py()
    assert decoder(schemas)(payload) == {"id": 7}
    assert decoder(schemas)(bytearray(payload)) == {"id": 7}  # as Spark hands it over
    with pytest.raises(InvalidUpdate, match=f"no schema has the fingerprint {payload[2:10].hex()}"):
        decoder({"public.other": schemas["public.other"]})(payload)
    for broken in (b"", b"{}", payload[:9], b'{"id": 7, "name": "pen"}'):
        with pytest.raises(InvalidUpdate, match="is no Avro in single-object encoding"):
            decoder(schemas)(broken)
    with pytest.raises(InvalidUpdate, match="cannot be read by the schema that it names"):
        decoder(schemas)(payload[:10])
    with pytest.raises(InvalidUpdate, match="has bytes after its record"):
        decoder(schemas)(payload + b"x")


FORMS = [
    "boolean",
    "long",
    "float",
    "string",
    "bytes",
    logical("int", "date"),
    logical("long", "timestamp-micros"),
    logical("int", "time-millis"),
    logical("string", "uuid"),
    decimals(9, 2),
    {"type": "enum", "name": "Size", "symbols": ["S", "L"]},
    {"type": "fixed", "name": "Two", "size": 2},
    {"type": "array", "items": "int"},
    {"type": "map", "values": "double"},
]


@given(st.sampled_from(FORMS), st.binary(max_size=40))
def test_a_reader_reads_or_tells_whatever_comes_after_the_header(form: Any, rest: bytes) -> None:
    schemas = {"public.item": of(["null", form])}
    made = updates_of(changes(column("id", "1")), RowMapping(payload="avro", schemas=schemas), 1)
    header = made["payload"][0].as_py()[:10]
    with contextlib.suppress(InvalidUpdate):
        decoder(schemas)(header + b"\x02" + rest)


def test_a_missing_library_is_told_with_what_installs_it() -> None:
    code = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from tidings_connectors.cdc.mapping import RowMapping\n"
        "RowMapping()\n"
        "RowMapping(payload='avro', schemas={'a.b': {}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().endswith("PluginMissing: payloads in Avro need fastavro: pip install 'tidings[avro]'")
    assert "line 4" in done.stderr


# From the databases


def item(zone: str) -> Row:
    return record(
        INT,
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", decimals(10, 2)]},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "at", "type": ["null", logical("long", zone)]},
    )


AT = dt.datetime(2026, 1, 31, 18, 0, 0, 123_456, dt.UTC)
FULL = {"id": 1, "name": "pen", "price": Decimal("10.50"), "raw": b"\x00\xff", "at": AT}
EMPTY = {"id": 2, "name": None, "price": None, "raw": None, "at": None}


def test_rows_of_postgresql_are_read_as_they_were_written(database: Database) -> None:
    schemas = {
        "public.item": item("timestamp-micros"),
        "public.strict": record(INT, {"name": "n", "type": "int"}, name="S"),
    }
    with contextlib.closing(create_log(database.stream(payload="avro", schemas=schemas))) as log:
        database.execute(
            "CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10, 2), raw bytea, at timestamptz)",
            "CREATE TABLE strict (id int PRIMARY KEY, n int)",
            "INSERT INTO item VALUES (1, 'pen', 10.5, '\\x00ff', '2026-01-31 23:30:00.123456+05:30')",
            "INSERT INTO item (id) VALUES (2)",
            "DELETE FROM item WHERE id = 1",
            "INSERT INTO strict VALUES (1, 5)",
            "DELETE FROM strict",
            "TRUNCATE item",
        )
        rows = log.tail(floors(log), 100).sort_by([("seq", "ascending"), ("index", "ascending")])
    assert read(rows, schemas) == [
        FULL,
        EMPTY,
        {**EMPTY, "id": 1},  # a delete has the key alone
        {"id": 1, "n": 5},
        "left out: column 'n' is not known",
        *[None] * 4,  # a truncate comes to each shard
    ]


@needs_mariadb
def test_rows_of_mariadb_are_read_as_they_were_written() -> None:
    scene = Scene(mysql_server.shared())
    scene.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10, 2), raw VARBINARY(9), "
        "at TIMESTAMP(6) NULL, local DATETIME(6), good BOOLEAN)"
    )
    schema = item("timestamp-micros")
    schema["fields"] += [
        {"name": "local", "type": ["null", logical("long", "local-timestamp-micros")]},
        {"name": "good", "type": ["null", "boolean"]},
    ]
    schemas = {f"{scene.database}.item": schema}
    with contextlib.closing(scene), contextlib.closing(scene.log("item", payload="avro", schemas=schemas)) as log:
        start = mysql_server.heads(log)
        scene.sql(
            "SET SESSION time_zone = '+05:30'",
            "INSERT INTO item VALUES (1, 'pen', 10.5, x'00ff', '2026-01-31 23:30:00.123456', "
            "'2026-01-31 18:00:00.123456', TRUE)",
            "INSERT INTO item (id, at) VALUES (2, NULL)",
            "DELETE FROM item WHERE id = 1",
            "TRUNCATE item",
        )
        rows = log.tail(start, 100).sort_by([("seq", "ascending"), ("index", "ascending")])
    full = {**FULL, "local": AT.replace(tzinfo=None), "good": True}
    assert read(rows, schemas) == [full, {**EMPTY, "local": None, "good": None}, full, None, None]


def test_rows_of_a_delta_table_are_read_as_they_were_written(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "name": ["pen", None],
            "price": pa.array([Decimal("10.50"), None], pa.decimal128(10, 2)),
            "raw": pa.array([b"\x00\xff", None]),
            "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
            "where": [{"x": 1, "tags": ["a", None]}, None],
        }
    )
    write_deltalake(tmp_path / "item", table, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(tmp_path / "item").delete("id = 1")
    place = record(
        {"name": "x", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        name="Place",
    )
    schema = item("timestamp-micros")
    schema["fields"].append({"name": "where", "type": ["null", place]})
    options: dict[str, Any] = {"payload": "avro", "key": ["id"], "schemas": {f"{tmp_path.name}.item": schema}}
    stream = StreamDefinition("item", 1, f"delta-cdf:{tmp_path / 'item'}", options=options)
    log = DeltaCdfLog.open(str(tmp_path / "item"), stream)
    rows = log.tail(Positions({shard: held.floor for shard, held in log.bounds().items()}), 100)
    full = {**FULL, "where": {"x": 1, "tags": ["a", None]}}
    assert read(rows, options["schemas"]) == [full, {**EMPTY, "where": None}, full]
