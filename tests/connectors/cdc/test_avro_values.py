"""What each type of Avro takes of a column's texts, and that it comes back."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.avro_rows import INT, Row, changes, column, decimals, logical, record, told
from tidings_connectors.cdc.avro_values import longs

UTC = dt.UTC
TYPES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "boolean": (
        "boolean",
        {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False},
        ["yes", "", "TRUE?"],
    ),
    "int": (
        "int",
        {"0": 0, "-2147483648": -(2**31), "2147483647": 2**31 - 1, "007": 7},
        ["2147483648", "-2147483649", "1.0", "0x1F", "1_0", " 1", "", "9" * 30],
    ),
    "long": (
        "long",
        {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1},
        ["9223372036854775808", "18446744073709551615", "1e3"],
    ),
    "float": ("float", {"0.5": 0.5, "-1e30": pytest.approx(-1e30), "0.1": pytest.approx(0.1)}, ["1e39", "x"]),
    "double": (
        "double",
        {"0.1": 0.1, "1e300": 1e300, "-Infinity": -math.inf, "inf": math.inf, "-0.0": 0.0, "12": 12.0},
        ["1e400", "", "0x1F", "1,5"],
    ),
    "string": ("string", {"": "", "naïve 𝄞 \n": "naïve 𝄞 \n", "null": "null"}, []),
    "bytes": ("bytes", {"\\x": b"", "\\x00ff10": b"\x00\xff\x10"}, ["", "00ff", "\\x0", "\\xzz", "\\x00 11"]),
    "fixed": (
        {"type": "fixed", "name": "Two", "size": 2},
        {"\\x00ff": b"\x00\xff"},
        ["\\x00", "\\x000000", "ab"],
    ),
    "enum": ({"type": "enum", "name": "Size", "symbols": ["S", "L"]}, {"L": "L", "S": "S"}, ["M", "", "l"]),
    "decimal": (
        decimals(6, 2),
        {
            "12.30": Decimal("12.30"),
            "-0.01": Decimal("-0.01"),
            "9999.99": Decimal("9999.99"),
            "-9999.99": Decimal("-9999.99"),
            "7": Decimal("7.00"),
            "1.500000": Decimal("1.50"),
            "1E+2": Decimal("100.00"),
        },
        ["10000.00", "0.001", "NaN", "Infinity", "1_0", "", "1E-8"],
    ),
    "decimal, wide": (
        decimals(65, 30),
        {f"-{'1' * 35}.{'2' * 30}": Decimal(f"-{'1' * 35}.{'2' * 30}"), "1E-8": Decimal("0.00000001")},
        ["1" * 36],
    ),
    "decimal on fixed": (
        decimals(4, 1, type="fixed", name="Price", size=40),
        {"-999.9": Decimal("-999.9"), "0.1": Decimal("0.1")},
        ["1000", "0.11"],
    ),
    "date": (
        logical("int", "date"),
        {"2024-02-29": dt.date(2024, 2, 29), "0001-01-01": dt.date.min, "9999-12-31": dt.date.max},
        ["0000-00-00", "0000-01-01", "2023-02-29", "0044-03-15 BC", "infinity", "12024-01-01"],
    ),
    "time-micros": (
        logical("long", "time-micros"),
        {"23:59:59.999999": dt.time.max, "00:00:00": dt.time.min, "01:02:03.5": dt.time(1, 2, 3, 500_000)},
        ["24:00:00", "-01:00:00", "100:00:00", "12:00:00+00", "12:00"],
    ),
    "time-millis": (
        logical("int", "time-millis"),
        {"23:59:59.999000": dt.time(23, 59, 59, 999_000)},
        ["00:00:00.000001"],
    ),
    "timestamp-micros": (
        logical("long", "timestamp-micros"),
        {
            "2026-01-31 18:00:00.123456+00": dt.datetime(2026, 1, 31, 18, 0, 0, 123_456, UTC),
            "2026-01-31 18:00:00+00:00": dt.datetime(2026, 1, 31, 18, tzinfo=UTC),
            "2026-01-31T18:00:00Z": dt.datetime(2026, 1, 31, 18, tzinfo=UTC),
            "1850-01-01 00:00:00.000001Z": dt.datetime(1850, 1, 1, 0, 0, 0, 1, UTC),
            "2026-01-31 18:00:00+05:30": dt.datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
        },
        ["2026-01-31 18:00:00", "infinity", "0000-00-00 00:00:00", "9999-12-31 23:59:59-01", "0000-01-01 00:00:00Z"],
    ),
    "timestamp-millis": (
        logical("long", "timestamp-millis"),
        {"1969-12-31 23:59:59.999Z": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)},
        ["1969-12-31 23:59:59.999999Z"],
    ),
    "local-timestamp-micros": (
        logical("long", "local-timestamp-micros"),
        {"2024-01-02 03:04:05.000006": dt.datetime(2024, 1, 2, 3, 4, 5, 6)},  # noqa: DTZ001 - it has no zone
        ["2024-01-02 03:04:05+00", "0000-00-00 00:00:00"],
    ),
    "local-timestamp-millis": (
        logical("long", "local-timestamp-millis"),
        {"2024-01-02 03:04:05.007000": dt.datetime(2024, 1, 2, 3, 4, 5, 7000)},  # noqa: DTZ001 - it has no zone
        ["2024-01-02 03:04:05.0001"],
    ),
    "uuid": (
        logical("string", "uuid"),
        {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11": uuid.UUID("a0eebc999c0b4ef8bb6d6bb9bd380a11")},
        ["a0eebc999c0b4ef8bb6d6bb9bd380a11", ""],
    ),
    "a logical type that is not known": (logical("string", "address"), {"x": "x"}, []),
}


def values(form: Any, *texts: str | None, **more: Any) -> list[Any]:
    """What a field of this type says of these texts; what does not fit is left out."""
    found = told(changes(column("it", *texts, **more)), record({"name": "it", "type": form}))
    assert {one for one in found if isinstance(one, str)} <= {"left out: column 'it' does not fit"}
    return [one["it"] for one in found if not isinstance(one, str)]


@pytest.mark.parametrize("name", list(TYPES))
def test_a_type_takes_its_values_and_no_others(name: str) -> None:
    form, good, bad = TYPES[name]
    assert values(form, *good) == list(good.values())
    assert values(form, None, *bad) == []
    assert values(form, *bad, *good, *bad) == list(good.values())
    assert values(["null", form], None, *good, None) == [None, *good.values(), None]
    assert values([form, "null"], *good, None) == [*good.values(), None]


def test_what_is_no_number_is_one_of_avro() -> None:
    (nan,) = values("double", "NaN")
    assert math.isnan(nan)
    # PostgreSQL's columns of numbers are JSON, and have it in quotes.
    assert values("double", '"-Infinity"', "1.5", kind="number") == [-math.inf, 1.5]
    assert values("string", '"NaN"', "1.5", kind="number") == ["NaN", "1.5"]


def test_json_becomes_arrays_maps_and_records() -> None:
    def array(items: Any) -> Row:
        return {"type": "array", "items": items}

    def map_of(values: Any) -> Row:
        return {"type": "map", "values": values}

    assert values(array("int"), "[1, 2]", "[]", "[1, null]", "{}", "[[1]]", "{1,2}", "3") == [[1, 2], []]
    assert values(array(["null", "int"]), "[1, null]", '["x"]') == [[1, None]]
    assert values(map_of("boolean"), '{"a": true, "ü": false}', "{}", '{"a": 1.5}') == [{"a": True, "ü": False}, {}]
    assert values(array(map_of(array("string"))), '[{"a": ["x", 1, 2.50, true]}]') == [
        [{"a": ["x", "1", "2.50", "true"]}]
    ]
    assert values(array(decimals(30, 20)), "[1.00000000000000000001]") == [[Decimal("1.00000000000000000001")]]
    where = record(
        INT, {"name": "at", "type": ["null", "double"]}, {"name": "on", "type": "int", "default": 7}, name="W"
    )
    found = values(
        where, '{"id": 1, "at": 0.5, "on": null}', '{"id": 1, "more": [1]}', '{"at": 1}', "[]", '{"id": "x"}'
    )
    assert found == [{"id": 1, "at": None, "on": 7}]
    assert values(["null", array("int")], "null", "[1]", None, "nothing") == [None, [1], None]
    assert values(array("int"), "null") == []


@pytest.mark.parametrize("text", ['["\\ud800"]', '{"\\ud800": 1}', "[" * 100_000, "[1", ""])
def test_json_that_cannot_be_written_does_not_fit(text: str) -> None:
    assert values({"type": "array", "items": "string"}, text, '["\\ud834\\udd1e"]') == [["𝄞"]]
    assert values({"type": "map", "values": "string"}, text, "{}") == [{}]


def test_a_type_may_be_named_again() -> None:
    place = record({"name": "x", "type": "int"}, name="Place")
    schema = record({"name": "one", "type": place}, {"name": "other", "type": ["null", "Place"]}, namespace="shop")
    made = changes(column("one", '{"x": 1}'), column("other", '{"x": 2}'))
    assert told(made, schema) == [{"one": {"x": 1}, "other": {"x": 2}}]


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
            st.decimals(-(10**10), 10**10, places=4, allow_nan=False),
            st.none() | st.binary(max_size=20),
            st.none() | st.datetimes(timezones=st.just(UTC)),
            st.floats(allow_nan=False),
            st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=100),
            st.times(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_a_record_says_what_the_row_said(rows: list[tuple[Any, ...]]) -> None:
    forms: list[tuple[str, Any, Any]] = [
        ("id", "long", str),
        ("name", ["null", "string"], str),
        ("price", decimals(15, 4), str),
        ("raw", ["bytes", "null"], lambda value: f"\\x{value.hex()}"),
        ("at", ["null", logical("long", "timestamp-micros")], str),
        ("share", "double", repr),
        ("tags", {"type": "array", "items": ["null", "int"]}, json.dumps),
        ("daily", logical("long", "time-micros"), str),
    ]
    columns = [
        column(name, *[None if value is None else text(value) for value in each])
        for (name, _, text), each in zip(forms, zip(*rows, strict=True), strict=True)
    ]
    schema = record(*[{"name": name, "type": form} for name, form, _ in forms])
    names = [name for name, _, _ in forms]
    assert told(changes(*columns), schema) == [dict(zip(names, row, strict=True)) for row in rows]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)))
def test_whole_numbers_are_written_as_fastavro_writes_them(numbers: list[int]) -> None:
    expected = []
    for number in numbers:
        fastavro.schemaless_writer(made := io.BytesIO(), "long", number)
        expected.append(made.getvalue())
    assert longs(pa.array(numbers, pa.int64())).to_pylist() == expected
