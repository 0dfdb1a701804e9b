"""A predicate is a filter that also knows ages; it says the same whenever it is looked at, and costs only so much."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.filter_cases import NOON, filters, in_arrow, table, update
from tidings.errors import InvalidFilter
from tidings.filters import MAX_VALUES, NOTHING, Between, Equals, Exists, Filter, Not, as_filter, parse
from tidings_gc_tombstones.ages import Age, duration, spelled
from tidings_gc_tombstones.predicates import MAX_COST, Predicate

DAY, MICRO = dt.timedelta(days=1), dt.timedelta(microseconds=1)
WEEK_AGO = NOON - 7 * DAY


@pytest.mark.parametrize(
    ("text", "filter"),
    [
        ("age > P7D", Between("time", high=WEEK_AGO - MICRO)),
        ("age >= P1W", Between("time", high=WEEK_AGO)),
        ("age < P7D", Between("time", WEEK_AGO + MICRO)),
        ("age <= P7D", Between("time", WEEK_AGO)),
        ("age in P1D..P7D", Between("time", WEEK_AGO, NOON - DAY)),
        ("age in P7D..", Between("time", high=WEEK_AGO)),
        ("age in ..PT0.5S", Between("time", NOON - dt.timedelta(seconds=0.5))),
        ("age not in P1D..P7D", Not(Between("time", WEEK_AGO, NOON - DAY))),
        ("not age > P7D", Not(Between("time", high=WEEK_AGO - MICRO))),
        ("object = a and age >= P7D or version < 3",
         Equals("object", "a") & Between("time", high=WEEK_AGO) | Between("version", high=2)),
        ("attributes.age = P7D or attributes.'age' > 3",
         Equals("attributes.age", "P7D") | Between("age", "3.000000000000000001")),
        ("age >= P5000000D", NOTHING),
        ("age >= P5000000D or object = a", Equals("object", "a")),
        ("object = a and not age >= P5000000D", Equals("object", "a")),
        ("age in P1D..P5000000D", Between("time", high=NOON - DAY)),
        ("age <= P5000000D", Exists("time")),
    ],
)  # fmt: skip
def test_a_predicate_is_a_filter_at_the_time_of_its_event(text: str, filter: Filter) -> None:
    predicate = Predicate.parse(text)
    assert predicate.at(NOON) == as_filter(filter)
    assert Predicate.parse(str(predicate)) == predicate
    assert predicate.at(NOON.astimezone(dt.timezone(dt.timedelta(hours=9)))) == predicate.at(NOON)


@given(filters)
def test_what_has_no_age_in_it_is_the_filter_that_it_looks_like(wanted: Filter) -> None:
    try:
        predicate = Predicate(wanted.any_of)
    except InvalidFilter as error:
        assert "costs" in str(error)  # noqa: PT017  # any other error is none that may come
        return
    assert Predicate.parse(str(predicate)) == predicate
    assert predicate.at(NOON) == wanted
    if "age" not in wanted.keys():  # noqa: SIM118  # it is no mapping
        assert str(predicate) == str(wanted)
        assert predicate.keys() == wanted.keys()


ages = st.timedeltas(dt.timedelta(), dt.timedelta(days=10_000))


@given(ages, ages, st.timedeltas(-DAY, dt.timedelta(days=10_000)))
def test_ages_compare_as_what_lies_between_two_times(low: dt.timedelta, high: dt.timedelta, age: dt.timedelta) -> None:
    cases: list[tuple[str, Callable[[dt.timedelta], bool]]] = [
        (f"age < {spelled(high + MICRO)}", lambda age: age <= high),
        (f"age <= {spelled(high)}", lambda age: age <= high),
        (f"age > {spelled(low)}", lambda age: age > low),
        (f"age >= {spelled(low)}", lambda age: age >= low),
        (
            f"age in {spelled(min(low, high))}..{spelled(max(low, high))}",
            lambda age: sorted([low, high, age])[1] == age,
        ),
    ]
    for text, meant in cases:
        found = Predicate.parse(text).at(NOON)
        moments = [age, low, high, low + MICRO, high + MICRO]
        assert in_arrow(found, table([update(time=NOON - one) for one in moments])) == [meant(one) for one in moments]
        assert in_arrow(found, table([update()])) == [False], "what has no time has no age"


@given(st.timedeltas(dt.timedelta()))
def test_a_duration_is_read_as_it_is_written(length: dt.timedelta) -> None:
    assert length > dt.timedelta.max - DAY or duration(spelled(length)) == length


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("age = P7D", 7, "age is compared by <, <=, > or >=, or is in an interval such as P1D..P7D"),
        ("age exists", 1, "age is compared by"),
        ("a = 1 and age in (P7D, P8D)", 19, "age is compared by"),
        ("age matches 'P.*'", 13, "age is compared by"),
        ("age < P1M", 7, "'P1M' is no duration"),
        ("age < P", 7, "no duration"),
        ("age < P1DT", 7, "no duration"),
        ("age < 7", 7, "no duration"),
        ("age in P1D..7", 13, "'7' is no duration"),
        ("age in P7D..P1D", 8, "the interval P7D..P1D of ages is empty: swap its ends"),
        ("age < PT0S", 7, "age is never below PT0S"),
        ("age < P999999999W", 7, "longer than the calendar"),
        ("age > P999999999DT23H59M59.999999S", 7, "longer than the calendar"),
        ("objet matches", 14, "expected a regular expression"),
        ("payload exists", 1, "attributes.payload"),
    ],
)
def test_an_error_points_at_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        Predicate.parse(text)
    message, line, caret = str(raised.value).split("\n")
    assert message.startswith(f"column {column}: ")
    assert problem in message
    assert (line, caret) == ("  " + text, " " * (column + 1) + "^")


def test_an_age_without_an_end_cannot_be_built() -> None:
    with pytest.raises(InvalidFilter, match="needs an end"):
        Age()


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("everything", 0),
        ("object = a and not source exists or age > P7D", 3),
        (f"object in ({', '.join(map(str, range(16)))})", 1),
        (f"object in ({', '.join(map(str, range(17)))})", 2),
        (f"object not in ({', '.join(map(str, range(MAX_VALUES)))})", 63),
        ("object matches 'tmp/.*' and source not matches 'a.*'", 20),
        (" or ".join(f"object = {n}" for n in range(MAX_COST)), MAX_COST),
    ],
)
def test_a_predicate_costs_by_its_conditions(text: str, cost: int) -> None:
    assert Predicate.parse(text).cost == cost


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        (" or ".join(f"object matches 'a{n}.*'" for n in range(7)), 70),
        (" or ".join(f"object = {n}" for n in range(MAX_COST + 1)), MAX_COST + 1),
        (" and ".join(f"(a{n} = 1 or b{n} = 1)" for n in range(5)), 160),
    ],
)
def test_what_costs_too_much_is_refused_with_cost_and_limit(text: str, cost: int) -> None:
    with pytest.raises(InvalidFilter, match=f"the predicate costs {cost}; the limit is {MAX_COST}"):
        Predicate.parse(text)
    assert parse(text).keys()


def test_a_predicate_whose_text_could_not_be_read_again_cannot_be_built() -> None:
    with pytest.raises(InvalidFilter, match="characters; the limit"):
        Predicate(((Equals("a", "x" * 65_536),),))


def test_the_time_of_an_event_has_a_zone() -> None:
    with pytest.raises(InvalidFilter, match="a time with a zone"):
        Predicate.parse("age > P7D").at(dt.datetime(2031, 5, 7))  # noqa: DTZ001
