"""What the tests of filters share: what a filter means, filters and updates of all kinds, and who reads them."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tidings.filters import Basic, Between, Condition, Equals, Exists, Filter, In, Matches, Not
from tidings.updates import KINDS, SCHEMA

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


def update(**values: Any) -> Row:
    given = dict.fromkeys(SCHEMA.names) | {"shard": 0, "seq": 0, "index": 0, "object": "o", "kind": "data", "range": 1}
    return given | values
