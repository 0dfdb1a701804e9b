"""Filters mean the same in Spark, in Arrow and in plain Python; their errors point at the mistake."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidings.errors import InvalidFilter
from tidings.filters import (
    EVERYTHING,
    MAX_CONDITIONS,
    MAX_VALUES,
    NOTHING,
    Basic,
    Between,
    Condition,
    Equals,
    Exists,
    Filter,
    In,
    Matches,
    Not,
    as_filter,
    parse,
)
from tidings.filters.patterns import MAX_PATTERN_LENGTH, pattern
from tidings.filters.text import MAX_DEPTH, MAX_LENGTH
from tidings.updates import KINDS, SCHEMA, from_rows

Row = Mapping[str, Any]

# A query takes a while, so there are few examples, each with many filters; and shrinking one would take for ever.
with_spark = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

# ---- what a filter means, said once more and as plainly as possible ------------------------------------------------


def value_of(row: Row, key: str) -> Any:
    if key in SCHEMA.names:
        return row[key]
    return (row["attributes"] or {}).get(key.removeprefix("attributes."))


def holds(condition: Condition, row: Row) -> bool:
    if isinstance(condition, Not):
        return not holds(condition.condition, row)
    assert isinstance(condition, Basic)
    value = value_of(row, condition.key)
    if value is None:
        return False
    match condition:
        case Exists():
            return True
        case Equals(_, wanted):
            return bool(value == wanted)
        case In(_, wanted):
            return value in wanted
        case Matches(_, expression):
            return re.fullmatch(expression, value, re.DOTALL | re.ASCII) is not None
        case Between(_, low, high):
            if isinstance(value, str):
                if not re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", value):
                    return False
                value = Decimal(value)
            return (low is None or low <= value) and (high is None or value <= high)
    raise AssertionError(condition)


def passes(wanted: Filter, row: Row) -> bool:
    return any(all(holds(condition, row) for condition in term) for term in wanted.any_of)


def in_arrow(wanted: Filter, rows: pa.Table) -> list[bool]:
    mask = wanted.mask(rows)
    assert mask.type == pa.bool_()
    assert mask.null_count == 0
    found: list[bool] = mask.to_pylist()
    return found


def in_spark(spark: SparkSession, filters: Sequence[Filter], rows: pa.Table) -> list[list[bool]]:
    columns = [wanted.column().alias(str(number)) for number, wanted in enumerate(filters)]
    frame = spark.createDataFrame(rows)
    # A few local rows are interpreted, in the optimizer; coalesce keeps their order, and has the code compiled.
    interpreted, compiled = frame.select(*columns).toArrow(), frame.coalesce(1).select(*columns).toArrow()
    assert not any(field.nullable for field in compiled.schema)
    assert interpreted == compiled
    return [column.to_pylist() for column in compiled.columns]


# ---- what is tried -------------------------------------------------------------------------------------------------

ODD_NUMBERS = [
    "7", "-7", "07", "00012", "-0", "0", "0.0", "7.0", "7.50", "7.5", "-7.25", "+7", "7.", ".7", "7e0", "1e3",
    "0x10", "1_000", "1,000", "NaN", "nan", "Infinity", "-inf", "٣", "-", "--1", "1.2.3", "1f", "1L", "1d",
    "2147483648", "", " 7", "7 ", "7\n", "1\x00", "\x001", "\uff17",
    "1" * 400, "9" * 18, "-" + "9" * 18, "9" * 19, "0." + "0" * 17 + "1", "0." + "0" * 18 + "1",
    "1" * 18 + "." + "1" * 18,
]  # fmt: skip
WORDS = [
    "a", "b", "ab", "A", "aq", "and", "", " ", "é", "e\u0301", "😀", "😀a", "a\nb", "a\n", "\n", "\\", '"', "'", "\x00",
]  # fmt: skip
NOON = dt.datetime(2031, 5, 7, 12, 30, tzinfo=dt.UTC)
ATTRIBUTES = ["topic", "n", "shard", "odd key", "", "😀", "attributes.n", "payload"]
EXPRESSIONS = [
    "a", "a|b", ".*", ".+", "a.*", ".*a", ".*a.*", "[^a]*", "[a-z]+", "(a|b)?.", r"\d+", r"\D*", r"\w+", r"\s",
    r"\S+", "😀.?", "[😀é]+", ".", "..", "(a[^b]*b)*", "\\\\", r"a\n?", "(aq|ab?)", r"-?\d{1,3}(\.\d+)?",
]  # fmt: skip

texts = st.sampled_from(ODD_NUMBERS + WORDS) | st.text(max_size=6)
attributes = st.dictionaries(st.sampled_from(ATTRIBUTES) | st.text(max_size=3), texts | st.none(), max_size=6)
times = st.datetimes(timezones=st.just(dt.UTC)) | st.sampled_from(
    [NOON, dt.datetime(1500, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)]
)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-1, 8) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


rows = st.fixed_dictionaries(
    {
        "shard": integers(32),
        "seq": integers(64),
        "index": integers(32),
        "object": texts,
        "version": st.none() | integers(64),
        "kind": st.sampled_from(KINDS),
        "range": integers(64),
        "source": st.none() | texts,
        "attributes": st.none() | attributes,
        "payload": st.none(),
        "time": st.none() | times,
    }
)
text_keys = st.sampled_from(["topic", "n", "attributes.shard", "odd key", "", "😀", "object", "kind", "source"])
text_keys |= st.sampled_from(["attributes.attributes.n", "attributes.payload"]) | st.text(max_size=3).map(
    lambda name: f"attributes.{name}"
)
number_keys = st.sampled_from(["shard", "seq", "index", "version", "range"])
decimals = st.decimals(-(10**18) + 1, 10**18 - 1, places=18) | st.integers(-8, 8).map(Decimal)
decimals |= st.sampled_from(["7", "7.5", "-0", "0.000000000000000001"]).map(Decimal)


@st.composite
def intervals(draw: st.DrawFn, keys: st.SearchStrategy[str], ends: st.SearchStrategy[Any]) -> Between:
    low, high = sorted([draw(ends), draw(ends)])
    open_end = draw(st.sampled_from(["low", "high", "none", "none"]))
    return Between(draw(keys), None if open_end == "low" else low, None if open_end == "high" else high)


basics = st.one_of(
    st.builds(Exists, text_keys | number_keys | st.just("time")),
    st.builds(Equals, text_keys, texts),
    st.builds(Equals, number_keys, integers(64)),
    st.builds(Equals, st.just("time"), times),
    st.builds(In, text_keys, st.lists(texts, min_size=1, max_size=12)),
    st.builds(In, number_keys, st.lists(integers(64), min_size=1, max_size=12)),
    st.builds(In, st.just("time"), st.lists(times, min_size=1, max_size=3)),
    intervals(text_keys, decimals),
    intervals(number_keys, integers(64)),
    intervals(st.just("time"), times),
    st.builds(Matches, text_keys, st.sampled_from(EXPRESSIONS)),
)
conditions: st.SearchStrategy[Condition] = basics | basics.map(Not)
filters = st.lists(st.lists(conditions, max_size=3).map(tuple), max_size=3).map(lambda terms: Filter(tuple(terms)))


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


# ---- one meaning everywhere ----------------------------------------------------------------------------------------


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


def update(**values: Any) -> Row:
    given = dict.fromkeys(SCHEMA.names) | {"shard": 0, "seq": 0, "index": 0, "object": "o", "kind": "data", "range": 1}
    return given | values


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


# ---- the text form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("topic = aq or mcd_key exists", Equals("topic", "aq") | Exists("mcd_key")),
        (
            "table in (t1, t2) or (assoc = a1 and shard in 1..5000)",
            In("table", ("t1", "t2")) | (Equals("assoc", "a1") & Between("shard", 1, 5000)),
        ),
        ("not region = eu", Not(Equals("region", "eu"))),
        ("region != eu", ~Equals("region", "eu")),
        ("not region != eu", Equals("region", "eu")),
        ("not (table in (a, b))", Not(In("table", ("a", "b")))),
        ("key not in (a, 'b c')", Not(In("key", ("a", "b c")))),
        ("key NOT EXISTS", Not(Exists("key"))),
        ("not key not exists", Exists("key")),
        ('object matches "contacts/.*"', Matches("object", "contacts/.*")),
        (r'object matches "a\d\.b"', Matches("object", r"a\d\.b")),
        ("object not matches 'a'", Not(Matches("object", "a"))),
        ("a=1 AND b=2 Or c=3", (Equals("a", "1") & Equals("b", "2")) | Equals("c", "3")),
        ("n in 1.5..", Between("n", Decimal("1.5"))),
        ("n in ..-3 or m = 1", Between("n", high=-3) | Equals("m", "1")),
        ("n in 5.. and m exists", Between("n", 5) & Exists("m")),
        ("n not in 1 .. 2", Not(Between("n", 1, 2))),
        ("attributes.shard = x", Equals("attributes.shard", "x")),
        ("attributes.topic = x", Equals("topic", "x")),
        ('attributes."odd key" = x', Equals("odd key", "x")),
        ('"odd key" = "a \\"b\\" \\\\ \\n"', Equals("odd key", 'a "b" \\ \n')),
        ("'and' = 'or'", Equals("and", "or")),
        (
            "time in 2031-05-07T12:30:00Z..2031-05-07T14:30:00+01:00",
            Between("time", NOON, NOON + dt.timedelta(hours=1)),
        ),
        ("not (a = 1 or not (b = 2 and c = 3))", Not(Equals("a", "1")) & Equals("b", "2") & Equals("c", "3")),
    ],
)  # fmt: skip
def test_text_means_what_it_says(text: str, meant: Filter | Condition) -> None:
    assert parse(text) == as_filter(meant)
    assert parse(str(parse(text))) == parse(text)


@given(filters)
def test_the_text_of_a_filter_is_the_filter(wanted: Filter) -> None:
    assert parse(str(wanted)) == wanted


pieces = st.sampled_from(
    [
        "(", ")", "=", ",", "'", '"', "..", "!=", "a", "shard", "1", "and", "or", "not", "in", "exists", "matches",
        "everything",
    ]
)  # fmt: skip


@given(st.text() | st.lists(pieces).map(" ".join))
def test_any_text_is_a_filter_or_an_error_that_points_into_it(text: str) -> None:
    wanted = read(text)
    if isinstance(wanted, str):
        assert re.match(r"(line \d+, )?column \d+: ", wanted)
        assert wanted.endswith("^")
    else:
        assert parse(str(wanted)) == wanted


def read(text: str) -> Filter | str:
    try:
        return parse(text)
    except InvalidFilter as error:
        return str(error)


leaves = st.sampled_from(["a = 1", "b = 1", "c exists", "d != 1", "a in (2, 3)", "everything", "nothing"])
nested = st.recursive(
    leaves.map(lambda text: (text, text)),
    lambda inner: st.one_of(
        inner.map(lambda one: (f"not ({one[0]})", ("not", one[1]))),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: (f"({parts[0][0]}) {parts[1]} ({parts[2][0]})", (parts[1], parts[0][1], parts[2][1]))
        ),
    ),
    max_leaves=8,
)


@given(nested, st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("123")), min_size=1, max_size=20))
def test_an_or_of_ands_holds_where_the_nested_text_does(tree: tuple[str, Any], found: list[dict[str, str]]) -> None:
    def value(node: Any, row: Row) -> bool:
        match node:
            case str():
                return passes(parse(node), row)
            case ("not", inner):
                return not value(inner, row)
            case ("and", one, other):
                return value(one, row) and value(other, row)
            case (_, one, other):
                return value(one, row) or value(other, row)
        raise AssertionError(node)

    rows = [update(attributes=attributes) for attributes in found]
    wanted = read(tree[0])
    if isinstance(wanted, str):
        assert "conditions; the limit" in wanted
        return
    assert in_arrow(wanted, table(rows)) == [value(tree[1], row) for row in rows]
    assert [not passes(wanted, row) for row in rows] == [passes(~wanted, row) for row in rows]


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("mcd_key xists", 9, "expected 'exists', '=', '!=', 'in' or 'matches', not 'xists'"),
        ("", 1, "empty"),
        ("a", 2, "expected 'exists'"),
        ("a = ", 5, "expected a value, not the end"),
        ("a = 1 and", 10, "expected a key, 'not' or '(', not the end"),
        ("(a = 1", 7, "')'"),
        ("a = 1)", 6, "expected 'and', 'or' or the end, not ')'"),
        ("a = 1 b = 2", 7, "expected 'and', 'or' or the end, not 'b'"),
        ("a = 'x", 5, "never closed"),
        ("a = and", 5, "keyword 'and'"),
        ("a = x*", 6, "'*' can only stand between quotes"),
        ("a < 5", 3, "'<' can only stand between quotes"),
        ("a == 5", 4, "expected a value, not '='"),
        ("a in 5", 6, "an interval such as 1..5000"),
        ("a in ()", 7, "expected a value"),
        ("a in (1, 2", 11, "expected ',' or ')'"),
        ("a in ..", 6, "needs an end"),
        ("a not = 5", 7, "after 'not'"),
        ("a in 5..1", 6, "swap its ends"),
        ("a in 1..x", 9, "'x' is no end of an interval"),
        ("a in 1e3..", 6, "'1e3' is no end of an interval"),
        ("shard = abc", 9, "shard is a whole number, and 'abc' is none"),
        ("a = 1 or shard in (1, 2, 1.5)", 26, "whole number"),
        ("seq = 9999999999999999999", 7, "64 bits"),
        ("shard matches '1'", 15, "only text matches"),
        ("time = yesterday", 8, "2031-05-07T12:30:00Z"),
        ("time in 2031-05-07T12:30:00..", 9, "a time with a zone"),
        ("time = 2031-02-30T12:30:00Z", 8, "a time with a zone"),
        ("time = 0001-01-01T00:00:00+14:00", 8, "a time with a zone"),
        ("payload exists", 1, "attributes.payload"),
        ("a = 1 and attributes = x", 11, "attributes.attributes"),
        ("object matches '^a'", 16, "leave ^ out"),
        ("a = '\ud800'", 5, "not valid UTF-8"),
    ],
)  # fmt: skip
def test_an_error_points_at_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse(text)
    message, line, caret = str(raised.value).split("\n")
    assert message.startswith(f"column {column}: ")
    assert problem in message
    assert line == "  " + text
    assert caret == " " * (column + 1) + "^"


def test_an_error_in_a_long_text_or_in_many_lines_shows_the_place() -> None:
    with pytest.raises(InvalidFilter, match=r"^line 2, column 5: expected.*\n  b\t= \)\n   \t  \^$"):
        parse("a = 1 or\nb\t= )\nor c = 2")
    with pytest.raises(InvalidFilter) as raised:
        parse(" or ".join(["a = 1"] * 100) + " or b ! 1 or " + " or ".join(["a = 1"] * 100))
    _, line, caret = str(raised.value).split("\n")
    assert len(line) < 110
    assert line[len(caret) - 1] == "!"


def test_what_is_too_much_is_refused() -> None:
    for text, problem in [
        ("a = " + "x" * MAX_LENGTH, "characters; the limit is"),
        ("(" * (MAX_DEPTH + 2) + "a = 1" + ")" * (MAX_DEPTH + 2), "deep"),
        ("not " * 10_000 + "a = 1", "deep"),
        (" or ".join(f"a = {n}" for n in range(MAX_CONDITIONS + 1)), "conditions; the limit is"),
        (" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(40)), "conditions; the limit is"),
        ("not (" + " or ".join(f"(a{n} = 1 and b{n} = 1)" for n in range(40)) + ")", "conditions; the limit is"),
        (f"a in ({', '.join(map(str, range(MAX_VALUES + 1)))})", "values; the limit is"),
        (f"a matches {'x' * (MAX_PATTERN_LENGTH + 1)}", "characters; the limit is"),
    ]:
        with pytest.raises(InvalidFilter, match=problem):
            parse(text)
    assert len(parse(" or ".join(f"a = {n}" for n in range(MAX_CONDITIONS))).any_of) == MAX_CONDITIONS
    assert parse("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH) == parse("a = 1")


def test_a_filter_whose_text_could_not_be_read_again_cannot_be_built() -> None:
    with pytest.raises(InvalidFilter, match="the filter's text has"):
        as_filter(Equals("a", "x" * MAX_LENGTH))


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


# ---- warnings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("kind = foo", "holds for no update: kind is one of data, gc, tombstone"),
        ("kind != foo", "holds for every update"),
        ("kind in (a, b)", "no update"),
        ("kind matches 'x.*'", "no update"),
        ("kind in 1..5", "no update"),
        ("shard = -1", "between 0 and 2,147,483,647"),
        ("shard in 3000000000..", "no update"),
        ("version in ..-1", "no update"),
        ("object = ''", "1 to 1,024 bytes"),
        ("shard exists", "holds for every update"),
        ("object not exists", "holds for no update"),
        ("Shard = 1", "is an attribute, and not the column shard"),
        ("topic = a and topic = b", "`topic = a and topic = b` holds for no update"),
    ],
)
def test_what_cannot_be_meant_is_warned_of(text: str, warning: str) -> None:
    found = parse(text).warnings()
    assert len(found) == 1
    assert warning in found[0]


def test_what_can_be_meant_is_not_warned_of() -> None:
    assert parse("topic = aq or kind in (gc, foo) or shard in 0..5000 or kind exists and x = 1").warnings()[1:] == []
    for text in (
        "kind != gc",
        "kind matches '.*t.*'",
        "shard in ..7",
        "attributes.shard = x",
        "version exists",
        "everything",
    ):
        assert parse(text).warnings() == []
    assert parse("shard in 16..20").warnings(shards=17) == []
    assert parse("shard in 16..20").warnings(shards=16) == [
        "`shard in 16..20` holds for no update: shard is between 0 and 15"
    ]


# ---- regular expressions -------------------------------------------------------------------------------------------

letters = st.sampled_from(
    ["a", "b", "/", "é", "😀", r"\.", "\n", r"\n", ".", "[ab]", "[^a]", "[^/]", r"\w", r"\D", "[a-z😀]"]
)
QUANTIFIERS = ["?", "*", "+", "{2}", "{1,3}", "{2,}", "{0,2}"]
expressions = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(QUANTIFIERS)).map(lambda p: f"(?:{p[0]}){p[1]}"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}.*{parts[1]}"),
        inner.map(lambda one: f"{one}.*"),
        inner.map(lambda one: f".*{one}"),
    ),
    max_leaves=7,
)  # fmt: skip


def accepted(expression: str) -> bool:
    try:
        pattern(expression)
    except InvalidFilter:
        return False
    return True


safe = expressions.filter(accepted)
subjects = st.text(st.sampled_from("ab/é😀.\n0_"), max_size=9)


@settings(max_examples=300, deadline=None)
@given(safe, st.lists(subjects, min_size=10, max_size=40))
def test_re2_reads_an_expression_as_python_does(expression: str, texts: list[str]) -> None:
    found = pc.match_substring_regex(pa.array(texts), pattern(expression).re2).to_pylist()
    assert found == [re.fullmatch(expression, text, re.DOTALL | re.ASCII) is not None for text in texts]


@pytest.mark.slow
@with_spark
@given(st.lists(safe, min_size=30, max_size=60), st.lists(subjects, min_size=40, max_size=120))
def test_java_reads_an_expression_as_python_does(spark: SparkSession, wanted: list[str], texts: list[str]) -> None:
    frame = spark.createDataFrame(pa.table({"text": pa.array(texts)})).coalesce(1)
    found = frame.select(*(F.col("text").rlike(pattern(e).java).alias(str(n)) for n, e in enumerate(wanted))).toArrow()
    for expression, column in zip(wanted, found.columns, strict=True):
        expected = [re.fullmatch(expression, text, re.DOTALL | re.ASCII) is not None for text in texts]
        assert column.to_pylist() == expected, expression


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+", "(a+)+b", "(a*)*", "(a|a)*b", "(a|ab)*c", "(a|b|ab)*c", "(a?){30}a{30}", "a*a*b", r"\w*\w*\w*x",
        r"\d+\d+", "(.*)*", "[a-z]+.*x", "(.*,)*x", "(x+x+)+y", r"(\w+\s?)*x", ".*a.{60}", "(a{1,50}){1,50}",
        "a{100}{100}", "((a{9}){9}){9}",
        "(a|a)" * 30, "a?" * 30 + "a" * 30, "(a?|b?)" * 30 + "c",
    ],
)  # fmt: skip
def test_an_expression_that_could_blow_up_is_refused_at_once(expression: str) -> None:
    start = time.monotonic()
    assert not accepted(expression)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "expression",
    [
        "^a", "a$", "a*?", "a*+", "a++", "a**", "(?=a)", "(?!a)", "(?<n>a)", "(?i)a", r"(a)\1", r"\bx", r"\p{L}",
        r"\x41", r"\u0041", r"\Aa", r"\z", r"\Qa\E", "[[:alpha:]]", "[a&&b]", "[]", "[]a]", "[^]", "[z-a]",
        r"[\d-z]", r"[a-\d]", "[a", "(a", "a)", "{2}", "a{", "a{,2}", "a{2,1}", "a{0}", "a{9999}", "*a", "a|", "()",
        "}", "]", r"[^\d\D]", "", "a\\",
    ],
)  # fmt: skip
def test_what_the_engines_do_not_share_is_refused(expression: str) -> None:
    with pytest.raises(InvalidFilter, match="regular expression"):
        pattern(expression)


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("contacts/.*", "contacts/x\ny", "contacts"),
        (r".+@.+\.(com|org)", "a@b.org", "a@.org"),
        (".*(error|warn).*disk.*", "a warning: disk full", "disk error"),
        (".*(abcd|c).*d", "abcd", "abc"),
        (".*errors?.*s", "errors", "error"),
        ("users/[^/]+/phones/[0-9]+", "users/é/phones/12", "users/a/b/phones/1"),
        ("(/[a-z]+)*", "/a/bc", "/a/"),
        ("([a-z]+,)*[0-9]", "a,b,3", "a,b"),
        ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "01234567-89ab-cdef-0123-456789abcdef", "01234567"),
        (r"[\]\-^]+", "]-^", "a"),
        ("[-a]", "-", "b"),
        ("..", "😀é", "😀"),
        (r"\s+", " \t\n\x0b\f\r", "\xa0"),
        (r"\d", "7", "٣"),
    ],
)
def test_an_expression_matches_the_whole_value(spark: SparkSession, expression: str, matching: str, other: str) -> None:
    rows = table([update(object=matching), update(object=other)])
    wanted = as_filter(Matches("object", expression))
    assert in_arrow(wanted, rows) == [True, False] == in_spark(spark, [wanted], rows)[0]


def test_no_accepted_expression_is_slow_or_overflows_the_stack_on_long_values(spark: SparkSession) -> None:
    size = 300_000
    wanted = {
        ".*foo.*bar.*baz": "foo" * size,
        "(.*o){20}": "o" * 19 + "f" * size,
        ".*foo.*bar": "foobar" * size + "x",
        ".*a{30}b": "a" * size,
        "(/[a-z]+)*": "/abc" * size + "/",
        "(a|bc|d[ef]?)*": "abcdedf" * size + "b",
        "([a-z]+,)*;": "abc," * size,
        "[^/]*/[^/]*/[^/]*x": "a/" * size,
        ".*(error|err|errata) .*x": "errata error" * size,
        "[a😀]{200,}b": "a😀" * size,
        r".*\w{20}-": "w" * size,
    }
    rows = table([update(object="o", source=text) for text in wanted.values()])
    filters = [as_filter(Matches("source", expression)) for expression in wanted]
    start = time.monotonic()
    found = in_spark(spark, filters, rows)
    assert time.monotonic() - start < 60
    assert found == [in_arrow(one, rows) for one in filters]


def test_the_largest_expressions_run_in_both_engines(spark: SparkSession) -> None:
    rows = table([update(object="é" * 256), update(object="/" * 256), update(object="x")])
    wanted = [as_filter(Matches("object", e)) for e in ("[^/]{256}", "[^/]{0,256}", ".{256}.{0,255}", "(é|x){1,256}")]
    assert in_spark(spark, wanted, rows) == [in_arrow(one, rows) for one in wanted]
    assert in_arrow(wanted[1], rows) == [True, False, True]


def test_hundreds_of_conditions_and_a_thousand_values_run_in_spark(spark: SparkSession) -> None:
    rows = table([update(shard=n, attributes={"a": str(n)}) for n in range(50)])
    wanted = [
        parse(" or ".join(f"(a = {n} and shard in {n}..)" for n in range(MAX_CONDITIONS // 2))),
        as_filter(In("a", tuple(map(str, range(0, 2 * MAX_VALUES, 2))))),
        ~as_filter(In("shard", tuple(range(0, 2 * MAX_VALUES, 2)))),
    ]
    assert in_spark(spark, wanted, rows) == [in_arrow(one, rows) for one in wanted]
