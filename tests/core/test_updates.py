from __future__ import annotations

import datetime as dt
from array import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tidings.errors import InvalidUpdate
from tidings.updates import (
    MAX_ATTRIBUTES_BYTES,
    MAX_DELIVERABLE_BYTES,
    MAX_SOURCE_BYTES,
    PUBLISHED,
    SCHEMA,
    Update,
    check_row,
    checked,
    from_rows,
    portions,
    row_sizes,
    shard_of,
    shards_of,
    spark_schema,
    to_updates,
)
from tidings.wire.protocol import MAX_MESSAGE_BYTES

texts = st.text(st.characters(codec="utf-8"))


def test_class_arrow_and_spark_agree_on_the_canonical_row() -> None:
    names = ["shard", "seq", "index", "object", "version", "kind", "range", "source", "attributes", "payload", "time"]
    assert SCHEMA.names == spark_schema().names == names
    assert list(Update.__dataclass_fields__) == [*names, "stream", "value"]
    assert spark_schema()["attributes"].dataType.simpleString() == "map<string,string>"
    assert spark_schema()["time"].dataType.simpleString() == "timestamp"


@settings(deadline=None, max_examples=10)
@given(objects=st.lists(texts, min_size=200, max_size=200), shards=st.integers(1, 4096))
def test_sparks_xxhash64_and_ours_agree_on_any_text(spark: SparkSession, objects: list[str], shards: int) -> None:
    rows = spark.createDataFrame(pa.table({"object": pa.array(objects, pa.string())}))
    theirs = rows.select(sf.expr(f"pmod(xxhash64(object), {shards})").alias("shard")).toArrow()["shard"].to_pylist()
    assert shards_of(pa.array(objects, pa.string()), shards).tolist() == theirs
    assert [shard_of(each, shards) for each in objects] == theirs


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"object": ""}, "empty"),
    ({"object": "é" * 513}, "1,026 bytes; the limit is 1,024"),
    ({"object": "a", "version": -1}, "version -1 of object 'a' is negative"),
    ({"object": "a", "payload": b"x" * 11}, "payload of object 'a' has 11 bytes; the limit is 10"),
    ({"object": "a", "kind": "news"}, "kind 'news'"),
    ({"object": "a", "range": -1}, "range -1"),
    ({"object": "a", "source": "é" * 513}, "source of object 'a' has 1,026 bytes; the limit is 1,024"),
    (
        {"object": "a", "attributes": {"key": "é" * 2**19}},
        "attributes of object 'a' have 1,048,587 bytes together; the limit is 1,048,576",
    ),
    ({"object": "a", "attributes": {f"{n:06}": "" for n in range(80_000)}}, "have 1,120,000 bytes together"),
    ({"object": "a", "attributes": {"key": None}}, "attribute 'key' of object 'a' is NoneType, not text"),
]
BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"object": "a", "version": 2**63}, r"above 2\^63-1"),
    ({"object": "a", "version": 1.5}, "not a whole number"),
    ({"object": "a", "version": True}, "not a whole number"),
    ({"object": b"a"}, "is bytes, not text"),
    ({"object": "a\udcff"}, "not valid UTF-8"),
    ({"object": "a", "attributes": {"key": 1}}, "is int, not text"),
    ({"object": "a", "attributes": {1: "value"}}, "attribute name of object 'a' is int"),
    ({"object": "a", "attributes": "key=value"}, "not a mapping"),
    ({"object": "a", "source": 7}, "source of object 'a' is int"),
    ({"object": "a", "payload": "text"}, "is str, not bytes"),
    ({"object": "a", "payload": memoryview(array("i", [1, 2, 3]))}, "payload of object 'a' has 12 bytes"),
    ({"object": "a", "time": dt.datetime(2026, 1, 1)}, "not a datetime with a time zone"),  # noqa: DTZ001 - the point
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS + BAD_VALUES)
def test_a_bad_row_is_refused_with_its_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidUpdate, match=reason):
        check_row(**row, max_payload_bytes=10)
    with pytest.raises(InvalidUpdate, match=reason):
        from_rows([{"object": "good"}, row], max_payload_bytes=10)


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS)
def test_a_bad_row_in_a_table_is_refused_with_the_same_reason(row: dict[str, Any], reason: str) -> None:
    rows = pa.Table.from_pylist([{"object": "good"}, row], PUBLISHED)
    defaults = [name for name in ("kind", "range") if name not in row]
    with pytest.raises(InvalidUpdate, match=reason):
        checked(rows.drop_columns(defaults), max_payload_bytes=10)


def test_a_table_without_objects_or_with_an_unknown_column_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match="no column 'object'"):
        checked(pa.table({"version": [1]}))
    with pytest.raises(InvalidUpdate, match="no column 'colour'"):
        checked(pa.table({"object": ["a"], "colour": ["red"]}))
    with pytest.raises(InvalidUpdate, match="object None is NoneType"):
        checked(pa.table({"object": pa.array([None], pa.string())}))


def test_attributes_that_are_there_many_times_are_counted_each_time() -> None:
    count = 200_000
    empty = pa.array([""] * count)
    attributes = pa.MapArray.from_arrays(pa.array([0, 0, count], pa.int32()), empty, empty)
    table = pa.table({"object": ["none", "many"], "attributes": attributes})
    with pytest.raises(InvalidUpdate, match="attributes of object 'many' have 1,600,000 bytes together; the limit is"):
        checked(table)
    assert len(checked(table.slice(0, 1))) == 1


def test_the_largest_update_fits_into_a_message() -> None:
    largest = {
        "object": "o" * 1024,
        "version": 2**63 - 1,
        "source": "s" * MAX_SOURCE_BYTES,
        "attributes": {"a": "x" * (MAX_ATTRIBUTES_BYTES - 9)},
        "payload": bytes(MAX_DELIVERABLE_BYTES),
        "time": dt.datetime.now(dt.UTC),
    }
    rows = checked(from_rows([largest], max_payload_bytes=MAX_DELIVERABLE_BYTES), max_payload_bytes=2**25)
    assert rows.nbytes < MAX_MESSAGE_BYTES * 3 / 4


def test_bytes_that_are_not_utf8_are_refused_in_a_table() -> None:
    with pytest.raises(InvalidUpdate, match="'object' does not fit string"):
        checked(pa.table({"object": pa.array([b"\xff\xfe"])}))
    disguised = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    with pytest.raises(InvalidUpdate, match="'object' does not fit string"):
        checked(pa.table({"object": disguised}))


FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # µs of 0001-01-01 and of the end of 9999-12-31


@pytest.mark.parametrize("time", [LAST + 1, FIRST - 1, 2**63 - 1, -(2**63)])
def test_a_time_that_python_cannot_hold_is_refused_in_a_table(time: int) -> None:
    times = pa.array([None, FIRST, LAST, time], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"object": ["a", "b", "c", "d"], "time": times})
    with pytest.raises(
        InvalidUpdate, match=f"^time {time} µs after 1970 of object 'd' is not in the years 1 to 9999 of"
    ):
        checked(table)
    assert len(checked(table.slice(0, 3))) == 3


@pytest.mark.parametrize(
    ("year", "hours", "told"), [(9999, -5, "9999-12-31 23:00:00-05:00"), (1, 5, r"0001-01-01 00:00:00\+05:00")]
)
def test_a_time_that_is_in_another_year_of_utc_is_refused_likewise(year: int, hours: int, told: str) -> None:
    zone = dt.timezone(dt.timedelta(hours=hours))
    time = dt.datetime(year, 12, 31, 23, tzinfo=zone) if year > 1 else dt.datetime(year, 1, 1, tzinfo=zone)
    with pytest.raises(InvalidUpdate, match=f"^time {told} of object 'a' is not in the years 1 to 9999 of UTC$"):
        check_row("a", time=time)
    with pytest.raises(InvalidUpdate, match="not in the years"):
        from_rows([{"object": "a", "time": time}])


rows = st.fixed_dictionaries(
    {"object": st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)},
    optional={
        "version": st.none() | st.integers(0, 2**63 - 1),
        "source": st.none() | texts,
        "attributes": st.none() | st.dictionaries(texts, texts, max_size=3),
        "payload": st.none() | st.binary(max_size=20),
        "time": st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    },
)


@given(st.lists(rows, max_size=20))
def test_good_rows_come_out_of_arrow_as_they_went_in(some: list[dict[str, Any]]) -> None:
    table = checked(from_rows(some))
    stamps = {"shard": [0] * len(some), "seq": list(range(len(some))), "index": [0] * len(some)}
    stamped = pa.table([*stamps.values(), *table.columns], names=[*stamps, *table.column_names])
    assert to_updates(stamped) == [Update(shard=0, seq=seq, **row) for seq, row in enumerate(some)]


rows_of_any_kind = st.lists(
    st.fixed_dictionaries(
        {
            "shard": st.integers(0, 9),
            "seq": st.integers(0, 2**62),
            "index": st.integers(0, 9),
            "object": texts.filter(bool),
            "version": st.none() | st.integers(0, 2**63 - 1),
            "kind": st.sampled_from(["data", "gc"]),
            "range": st.integers(1, 9),
            "source": st.none() | texts,
            "attributes": st.none() | st.dictionaries(texts, texts, max_size=3),
            "payload": st.none() | st.binary(max_size=9),
            "time": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        }
    ),
    max_size=9,
)


@given(rows_of_any_kind, st.integers(0, 9), st.integers(0, 9))
def test_rows_become_updates_with_the_same_values_in_every_slice(
    rows: list[dict[str, Any]], start: int, count: int
) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    expected = [Update(**row) for row in rows[start : start + count]]
    assert to_updates(table.slice(start, count)) == expected
    for batch in table.to_batches():
        assert to_updates(batch.slice(start, count)) == expected


def test_rows_are_cut_by_their_bytes_wherever_the_large_ones_are() -> None:
    rows = [{"object": "o", "attributes": {"a": "x" * (1000 if n == 7 else 1)}} for n in range(10)]
    table = from_rows([{**row, "payload": bytes(1000 if n == 3 else 1)} for n, row in enumerate(rows)])
    for some in (table, table.slice(2, 6)):
        sizes = row_sizes(some)
        assert some.nbytes <= sizes.sum() <= some.nbytes + len(some)
        runs = list(portions(sizes, 100, 900))
        assert [at for run in runs for at in range(run.start, run.stop)] == list(range(len(some)))
        assert all(sizes[run].sum() <= 900 or run.stop - run.start == 1 for run in runs)
