"""Filters mean the same in Spark, in Arrow and in plain Python, however they are built."""

from __future__ import annotations

import datetime as dt
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.filter_cases import (
    NOON,
    ODD_NUMBERS,
    Row,
    filters,
    in_arrow,
    in_spark,
    passes,
    rows,
    table,
    update,
    value_of,
    with_spark,
)
from tidings.errors import InvalidFilter
from tidings.filters import (
    EVERYTHING,
    MAX_CONDITIONS,
    MAX_VALUES,
    NOTHING,
    Between,
    Equals,
    Exists,
    Filter,
    In,
    Not,
    as_filter,
    parse,
)
from tidings.updates import SCHEMA, from_rows


@given(rows=st.lists(rows, max_size=30), wanted=filters)
def test_arrow_agrees_with_the_definition(rows: list[Row], wanted: Filter) -> None:
    assert in_arrow(wanted, table(rows)) == [passes(wanted, row) for row in rows]


@pytest.mark.slow
@with_spark
@given(rows=st.lists(rows, min_size=20, max_size=60), wanted=st.lists(filters, min_size=20, max_size=40))
def test_spark_agrees_with_arrow_and_with_the_definition(
    spark: SparkSession, rows: list[Row], wanted: list[Filter]
) -> None:
    updates = table(rows)
    for one, found in zip(wanted, in_spark(spark, wanted, updates), strict=True):
        assert found == in_arrow(one, updates) == [passes(one, row) for row in rows], str(one)


def test_every_odd_number_is_the_same_in_spark_and_in_arrow(spark: SparkSession) -> None:
    rows = [update(attributes={"n": text}) for text in ODD_NUMBERS]
    ends = ["-0", "7", "7.5", "0.000000000000000001", "9" * 18, "1" * 18 + "." + "1" * 18]
    wanted = [
        as_filter(Between("n", low, high)) for low in [None, *ends] for high in [None, *ends] if ordered(low, high)
    ]
    wanted += [as_filter(Equals("n", text)) for text in ODD_NUMBERS]
    for one, found in zip(wanted, in_spark(spark, wanted, table(rows)), strict=True):
        assert found == in_arrow(one, table(rows)) == [passes(one, row) for row in rows], str(one)


def ordered(low: str | None, high: str | None) -> bool:
    return (low or high) is not None and (low is None or high is None or Decimal(low) <= Decimal(high))


COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def test_a_comparison_holds_for_what_lies_on_its_side_in_spark_and_in_arrow(spark: SparkSession) -> None:
    micro, tiny = dt.timedelta(microseconds=1), Decimal("0.000000000000000001")
    numbers = [-(2**63), -1, 0, 4, 5, 6, 2**63 - 1]
    times = [NOON - micro, NOON, NOON + micro, dt.datetime(1500, 1, 1, tzinfo=dt.UTC)]
    decimals = [Decimal(5) - tiny, Decimal(5), Decimal(5) + tiny, Decimal("-4.5"), Decimal("-4.5") - tiny]
    rows = [update(seq=n, version=n) for n in numbers] + [update(time=time) for time in times]
    rows += [update(attributes={"n": f"{n:f}"}) for n in decimals] + [update(attributes={"n": "5x"}), update()]
    cases: list[tuple[str, str, Any]] = [(key, str(n), n) for key in ("seq", "version") for n in numbers[1:-1]]
    cases += [("time", time.isoformat(), time) for time in times]
    cases += [("n", f"{n:f}", n) for n in decimals]
    for sign, compare in COMPARED.items():
        wanted = [parse(f"{key} {sign} {text}") for key, text, _ in cases]
        for (key, _, bound), one, found in zip(cases, wanted, in_spark(spark, wanted, table(rows)), strict=True):
            values = [value_of(row, key) for row in rows]
            values = [Decimal(v) if v and v != "5x" else None for v in values] if key == "n" else values
            meant = [value is not None and compare(value, bound) for value in values]
            assert found == in_arrow(one, table(rows)) == meant, (key, sign, bound)


def test_between_is_from_one_end_to_the_other_in_spark_and_in_arrow(spark: SparkSession) -> None:
    numbers = ["4.999999999999999999", "5", "05.0", "7", "10", "10.000000000000000001", "x", "-6"]
    rows = [update(seq=n, attributes={"n": text}) for n, text in enumerate(numbers)] + [update(seq=9)]
    wanted = [parse("n between 5 and 10"), parse("n not between 5 and 10"), parse("seq between 2 and 4")]
    inside = [False, True, True, True, True, False, False, False, False]
    meant = [inside, [not one for one in inside], [n in (2, 3, 4) for n in (*range(8), 9)]]
    assert in_spark(spark, wanted, table(rows)) == [in_arrow(one, table(rows)) for one in wanted] == meant


def test_what_does_not_exist_equals_nothing_and_its_negation_holds() -> None:
    nobody = [update(), update(attributes={}), update(attributes={"topic": None})]
    for text in ("topic exists", "topic = aq", "topic in (aq)", "topic in 1..2", 'topic matches ".*"', "version = 1"):
        assert in_arrow(parse(text), table(nobody)) == [False] * 3, text
        assert in_arrow(parse(f"not ({text})"), table(nobody)) == [True] * 3, text


def test_a_mask_of_a_batch_of_no_rows_of_chunks_and_of_slices() -> None:
    rows = [update(shard=n, attributes={"a": str(n)} if n % 3 else None) for n in range(10)]
    whole, wanted = table(rows), parse("a in 2..7 or shard = 9")
    assert in_arrow(wanted, whole) == [n in (2, 4, 5, 7, 9) for n in range(10)]
    chunked = pa.concat_tables([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)])
    assert in_arrow(wanted, chunked) == in_arrow(wanted, whole)
    assert in_arrow(wanted, whole.slice(4, 5)) == in_arrow(wanted, whole)[4:9]
    batch = whole.combine_chunks().to_batches()[0]
    assert wanted.mask(batch.slice(4)).to_pylist() == in_arrow(wanted, whole)[4:]
    for nothing in (
        SCHEMA.empty_table(),
        pa.table({name: pa.chunked_array([], SCHEMA.field(name).type) for name in SCHEMA.names}),
    ):
        assert [in_arrow(one, nothing) for one in (wanted, EVERYTHING, NOTHING)] == [[], [], []]
    assert whole.filter(wanted.mask(whole)).num_rows == 5


def test_everything_and_nothing() -> None:
    three = table([update()] * 3)
    assert in_arrow(EVERYTHING, three) == [True] * 3
    assert in_arrow(NOTHING, three) == [False] * 3
    assert (str(EVERYTHING), str(NOTHING)) == ("everything", "nothing")
    assert ~EVERYTHING == NOTHING
    assert ~NOTHING == EVERYTHING == parse("everything") == parse("not nothing") == as_filter(None)
    assert (parse("a = 1") | EVERYTHING, parse("a = 1") & NOTHING) == (EVERYTHING, NOTHING)


def test_of_an_attribute_that_is_there_twice_the_first_counts(spark: SparkSession) -> None:
    rows = table([update(attributes=[("a", "1"), ("b", "x"), ("a", "2")])])
    wanted = [parse("a = 1"), parse("a = 2")]
    assert [in_arrow(one, rows) for one in wanted] == [[True], [False]] == in_spark(spark, wanted, rows)


def test_rows_that_come_from_a_producer_can_be_filtered() -> None:
    rows = from_rows([{"object": "contacts/alice", "attributes": {"topic": "aq"}}, {"object": "contacts/bob"}])
    assert in_arrow(parse("topic = aq"), rows) == [True, False]


def test_hundreds_of_conditions_and_a_thousand_values_run_in_spark(spark: SparkSession) -> None:
    rows = table([update(shard=n, attributes={"a": str(n)}) for n in range(50)])
    wanted = [
        parse(" or ".join(f"(a = {n} and shard in {n}..)" for n in range(MAX_CONDITIONS // 2))),
        as_filter(In("a", tuple(map(str, range(0, 2 * MAX_VALUES, 2))))),
        ~as_filter(In("shard", tuple(range(0, 2 * MAX_VALUES, 2)))),
    ]
    assert in_spark(spark, wanted, rows) == [in_arrow(one, rows) for one in wanted]


# ---- filters that are built of objects -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda: In("a", ()),
        lambda: In("a", "abc"),  # type: ignore[arg-type]
        lambda: Equals("a", None),  # type: ignore[arg-type]
        lambda: Equals("a", True),
        lambda: Equals("shard", True),
        lambda: Equals("time", dt.datetime(2031, 5, 7)),  # noqa: DTZ001
        lambda: Between("a"),
        lambda: Between("a", True),
        lambda: Between("a", float("nan")),
        lambda: Between("shard", 1.5),
        lambda: Exists("payload"),
        lambda: Exists(7),  # type: ignore[arg-type]
        lambda: Not(parse("a = 1")),  # type: ignore[arg-type]
        lambda: as_filter(7),  # type: ignore[arg-type]
        lambda: parse(None),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_cannot_be_built(build: Any) -> None:
    with pytest.raises(InvalidFilter):
        build()


def test_objects_bring_their_values_to_one_form() -> None:
    assert Equals("assoc", 5) == Equals("attributes.assoc", "5")
    assert Between("price", 0.5, "2") == Between("price", Decimal("0.5"), 2)
    assert In("a", ["x", "y", "x"]) == In("a", ("x", "y"))  # type: ignore[arg-type]
    assert parse("a = 1 and a = 1 or a = 1") == as_filter(Equals("a", "1"))
    assert parse("topic = a or (topic = b and mcd_key exists)").keys() == ("topic", "mcd_key")
    assert {parse("a = 1"): 1}[as_filter(Equals("a", "1"))] == 1
