"""The text of a filter means what it says; its errors point at the mistake, and what cannot be meant is warned of."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.filter_cases import NOON, Row, filters, in_arrow, passes, table, update
from tidings.errors import InvalidFilter
from tidings.filters import (
    MAX_CONDITIONS,
    MAX_VALUES,
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
from tidings.filters.patterns import MAX_PATTERN_CHARACTERS
from tidings.filters.text import MAX_CHARACTERS, MAX_DEPTH

HOUR = dt.timedelta(hours=1)


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
        ("seq < 5", Between("seq", high=4)),
        ("seq<=5", Between("seq", high=5)),
        ("version > -1 and shard >= 3", Between("version", 0) & Between("shard", 3)),
        ("not seq < 5", Not(Between("seq", high=4))),
        ("n < 5", Between("n", high="4.999999999999999999")),
        ("n > -0.5", Between("n", "-0.499999999999999999")),
        (f"n > {'9' * 18}", Between("n", f"{'9' * 18}.{'0' * 17}1")),
        ("n >= 0.50 or object <= 7", Between("n", Decimal("0.5")) | Between("object", high=7)),
        ("time < 2031-05-07T12:30:00Z", Between("time", high=NOON - dt.timedelta(microseconds=1))),
        ("time > 2031-05-07T13:30:00+01:00", Between("time", NOON + dt.timedelta(microseconds=1))),
        ("time >= 2031-05-07T12:30:00Z", Between("time", NOON)),
        ("amount > 5 and amount <= 10", Between("amount", "5.000000000000000001") & Between("amount", high=10)),
        ("amount between 5 and 10.5", Between("amount", 5, Decimal("10.5"))),
        ("seq BETWEEN 5 and 10 and a = 1 or b exists", (Between("seq", 5, 10) & Equals("a", "1")) | Exists("b")),
        ("n not between -1 and 1", Not(Between("n", -1, 1))),
        ("not n between 1 and 2", Not(Between("n", 1, 2))),
        ("time between 2031-05-07T12:30:00Z and 2031-05-07T13:30:00Z", Between("time", NOON, NOON + HOUR)),
        ("between = 1 and a in (between, x)", Equals("between", "1") & In("a", ("between", "x"))),
        ("between between 1 and 2", Between("between", 1, 2)),
        ("attributes.shard = x", Equals("attributes.shard", "x")),
        ("attributes.topic = x", Equals("topic", "x")),
        ('attributes."odd key" = x', Equals("odd key", "x")),
        ('"odd key" = "a \\"b\\" \\\\ \\n"', Equals("odd key", 'a "b" \\ \n')),
        ("'and' = 'or'", Equals("and", "or")),
        (
            "time in 2031-05-07T12:30:00Z..2031-05-07T14:30:00+01:00",
            Between("time", NOON, NOON + HOUR),
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
        "(", ")", "=", ",", "'", '"', "..", "!=", "<", ">=", "a", "shard", "1", "and", "or", "not", "in", "exists",
        "matches", "between", "everything",
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
        ("mcd_key xists", 9, "expected 'exists', 'in', 'between', 'matches' or a comparison such as '=', not 'xists'"),
        ("", 1, "empty"),
        ("a", 2, "expected 'exists'"),
        ("a = ", 5, "expected a value, not the end"),
        ("a = 1 and", 10, "expected a key, 'not' or '(', not the end"),
        ("(a = 1", 7, "')'"),
        ("a = 1)", 6, "expected 'and', 'or' or the end, not ')'"),
        ("a = 1 b = 2", 7, "expected 'and', 'or' or the end, not 'b'"),
        ("a = 'x", 5, "never closed"),
        ("a = and", 5, "keyword 'and'"),
        ("a = x*", 6, "'*' is no operator: quote the text that has it"),
        ("a = 1 & b = 2", 7, "'&' is no operator: write 'and', or quote the text that has it"),
        ("a < ", 5, "expected a value, not the end"),
        ("a =< 5", 3, "'=<' is no comparison: write <="),
        ("a <> 5", 3, "'<>' is no comparison: write !="),
        ("a > eu", 5, "'eu' is no number: comparisons and intervals take"),
        ("a between 5", 12, "expected 'and' and the upper end, as in between 1 and 5, not the end"),
        ("a between 5 or 7", 13, "expected 'and' and the upper end"),
        ("a between and 7", 11, "expected the lower end"),
        ("a between 7 and 5", 11, "the interval 7..5 of 'a' is empty: swap its ends"),
        ("a between 5 and x", 17, "'x' is no number"),
        ("time between 2031-05-07T12:30:00Z and noon", 39, "a time with a zone"),
        ("a > x", 5, "'x' is no number: comparisons and intervals take"),
        ("a not < 5", 7, "after 'not'"),
        ("shard >= 1.5", 10, "shard is a whole number, and '1.5' is none"),
        ("seq > 9223372036854775807", 7, "seq is never above 9223372036854775807"),
        ("seq < -9223372036854775808", 7, "seq is never below -9223372036854775808"),
        ("time <= yesterday", 9, "2031-05-07T12:30:00Z"),
        ("time < 0001-01-01T00:00:00Z", 8, "time is never below 0001-01-01T00:00:00Z"),
        (f"n > {'9' * 18}.{'9' * 18}", 5, "n is never above"),
        ("a == 5", 3, "'==' is no comparison: write ="),
        ("a in 5", 6, "an interval such as 1..5000"),
        ("a in ()", 7, "expected a value"),
        ("a in (1, 2", 11, "expected ',' or ')'"),
        ("a in ..", 6, "needs an end"),
        ("a not = 5", 7, "after 'not'"),
        ("a in 5..1", 6, "swap its ends"),
        ("a in 1..x", 9, "'x' is no number: comparisons and intervals take"),
        ("a in 1e3..", 6, "'1e3' is no number: comparisons and intervals take"),
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
        ("a = " + "x" * MAX_CHARACTERS, "characters; the limit is"),
        ("(" * (MAX_DEPTH + 2) + "a = 1" + ")" * (MAX_DEPTH + 2), "deep"),
        ("not " * 10_000 + "a = 1", "deep"),
        (" or ".join(f"a = {n}" for n in range(MAX_CONDITIONS + 1)), "conditions; the limit is"),
        (" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(40)), "conditions; the limit is"),
        ("not (" + " or ".join(f"(a{n} = 1 and b{n} = 1)" for n in range(40)) + ")", "conditions; the limit is"),
        (f"a in ({', '.join(map(str, range(MAX_VALUES + 1)))})", "values; the limit is"),
        (f"a matches {'x' * (MAX_PATTERN_CHARACTERS + 1)}", "characters; the limit is"),
    ]:
        with pytest.raises(InvalidFilter, match=problem):
            parse(text)
    assert len(parse(" or ".join(f"a = {n}" for n in range(MAX_CONDITIONS))).any_of) == MAX_CONDITIONS
    assert parse("(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH) == parse("a = 1")


def test_a_filter_whose_text_could_not_be_read_again_cannot_be_built() -> None:
    with pytest.raises(InvalidFilter, match="the filter's text has"):
        as_filter(Equals("a", "x" * MAX_CHARACTERS))


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
