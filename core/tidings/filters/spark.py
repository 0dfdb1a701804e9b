"""Filters in Spark: a column that is true or false for each update."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DecimalType

from tidings.filters.conditions import (
    Basic,
    Between,
    Condition,
    Equals,
    Exists,
    In,
    Matches,
    Not,
    Terms,
    basic_of,
)
from tidings.filters.patterns import pattern
from tidings.filters.values import COLUMNS, NUMBER, PRECISION, PREFIX, SCALE, type_of


def column(terms: Terms) -> Column:
    """The OR of ANDs as a column; `Filter.column` says more."""
    no = F.lit(False)

    def one(condition: Condition) -> Column:
        holds = _holds(basic_of(condition))
        return ~F.coalesce(holds, no) if isinstance(condition, Not) else holds

    # Without a negation around it, a null that counts as false can as well be carried through to the end.
    all_of = [_balanced(operator.and_, [one(condition) for condition in term], F.lit(True)) for term in terms]
    return F.coalesce(_balanced(operator.or_, all_of, no), no)


def _holds(condition: Basic) -> Column:
    """Where the condition holds. Null counts as false."""
    values = _values(condition.key)
    match condition:
        case Exists():
            return values.isNotNull()
        case Equals(_, value):
            return values == _literal(value)
        case In(_, wanted):
            return values.isin([_literal(value) for value in wanted])
        case Matches(_, expression):
            return values.rlike(pattern(expression).java)
        case Between(key, low, high):
            if type_of(key) == "text":
                numbers = values.rlike(pattern(NUMBER.pattern).java)
                values = F.when(numbers, values).try_cast(DecimalType(PRECISION, SCALE))
            ends = [values >= _literal(low)] if low is not None else []
            ends += [values <= _literal(high)] if high is not None else []
            return functools.reduce(operator.and_, ends)
    raise NotImplementedError(type(condition))


def _values(key: str) -> Column:
    if key in COLUMNS:
        return F.col(key)
    return F.try_element_at(F.col("attributes"), F.lit(key.removeprefix(PREFIX)))


def _literal(value: object) -> Column:
    match value:
        case dt.datetime():
            # Not lit(value): that goes through java.sql.Timestamp, whose calendar is another one before 1582.
            return F.timestamp_micros(F.lit(_micros(value)))
        case Decimal():
            return F.lit(f"{value:f}").cast(DecimalType(PRECISION, SCALE))
    return F.lit(value)


def _micros(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


_T = TypeVar("_T")


def _balanced(combine: Callable[[Any, Any], Any], parts: list[_T], empty: _T) -> _T:
    """All parts combined, as a tree of little depth: Catalyst recurses into it."""
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [one if other is None else combine(one, other) for one, other in pairs]
    return parts[0] if parts else empty
