"""Conditions: what a filter asks of one key of an update, and what it does not ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidings.errors import InvalidFilter
from tidings.filters.patterns import pattern
from tidings.filters.text import quote
from tidings.filters.values import (
    Bound,
    Value,
    check_text,
    normal_bound,
    normal_key,
    normal_value,
    spelled,
    type_of,
)

if TYPE_CHECKING:
    from tidings.filters import Filter

MAX_VALUES = 1_000
"""How many values a list may have."""


class Condition:
    """What all conditions share: they combine with `&`, `|` and `~`.

    >>> str(Equals("topic", "aq") | ~Exists("mcd_key"))
    'topic = aq or mcd_key not exists'
    """

    __slots__ = ()

    def __and__(self, other: Condition | Filter) -> Filter:
        from tidings.filters import as_filter

        return as_filter(self) & other

    def __or__(self, other: Condition | Filter) -> Filter:
        from tidings.filters import as_filter

        return as_filter(self) | other

    def __invert__(self) -> Condition:
        if isinstance(self, Not):
            return self.condition
        assert isinstance(self, Basic)
        return Not(self)


class Basic(Condition):
    """A condition on one key that is no negation."""

    __slots__ = ()
    key: str

    def _spelled(self, negation: str) -> str:
        """The text of the condition, or of its negation."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self._spelled("")

    def _set(self, **values: object) -> None:
        # These classes are frozen, but for the moment in which a value is brought to its one form.
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Exists(Basic):
    """The key has a value.

    >>> str(Exists("mcd_key"))
    'mcd_key exists'
    """

    key: str

    def __post_init__(self) -> None:
        self._set(key=normal_key(self.key))

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}exists"


@dataclass(frozen=True, slots=True)
class Equals(Basic):
    """The key has this value.

    >>> str(Equals("attributes.shard", "a b"))
    'attributes.shard = "a b"'
    >>> Equals("shard", "abc")
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: shard is a whole number, and 'abc' is none
    """

    key: str
    value: Value

    def __post_init__(self) -> None:
        self._set(key=normal_key(self.key))
        self._set(value=normal_value(self.key, self.value))

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {'!=' if negation else '='} {spelled(self.value)}"


@dataclass(frozen=True, slots=True)
class In(Basic):
    """The key has one of these values.

    >>> str(In("table", ("t1", "t2")))
    'table in (t1, t2)'
    """

    key: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        given: object = self.values
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidFilter(f"{self.key!r} in {given!r}: give a list of values")
        self._set(key=normal_key(self.key))
        self._set(values=tuple(dict.fromkeys(normal_value(self.key, value) for value in self.values)))
        if not self.values:
            raise InvalidFilter(f"{self.key!r} in a list without values: no update has that")
        if len(self.values) > MAX_VALUES:
            raise InvalidFilter(f"{self.key!r} in a list of {len(self.values):,} values; the limit is {MAX_VALUES:,}")

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}in ({', '.join(map(spelled, self.values))})"


@dataclass(frozen=True, slots=True)
class Between(Basic):
    """The key is a number or a time in this interval, both ends included. One of them may be None.

    >>> str(Between("shard", 1, 5000)), str(Between("price", low="0.50"))
    ('shard in 1..5000', 'price in 0.50..')
    """

    key: str
    low: Bound | float | str | None = None
    high: Bound | float | str | None = None

    def __post_init__(self) -> None:
        self._set(key=normal_key(self.key))
        low, high = normal_bound(self.key, self.low), normal_bound(self.key, self.high)
        if low is None and high is None:
            raise InvalidFilter(f"an interval of {self.key!r} needs an end; for any value write `{self.key} exists`")
        if low is not None and high is not None and low > high:  # type: ignore[operator]  # one key, one type
            raise InvalidFilter(f"the interval {spelled(low)}..{spelled(high)} of {self.key!r} is empty: swap its ends")
        self._set(low=low, high=high)

    def _spelled(self, negation: str) -> str:
        low, high = (None if end is None else spelled(end) for end in (self.low, self.high))
        return f"{quote(self.key)} {negation}in {low or ''}..{high or ''}"


@dataclass(frozen=True, slots=True)
class Matches(Basic):
    r"""The key's whole value matches a regular expression.

    >>> str(Matches("object", "contacts/.*"))
    'object matches "contacts/.*"'
    >>> Matches("object", r"a\b")
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: regular expression 'a\\b': at character 2: \b is not supported
    """

    key: str
    expression: str

    def __post_init__(self) -> None:
        self._set(key=normal_key(self.key), expression=check_text(self.expression))
        if type_of(self.key) != "text":
            raise InvalidFilter(f"{self.key} is a {type_of(self.key)}, and only text matches a regular expression")
        pattern(self.expression)

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}matches {quote(self.expression)}"


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """The condition does not hold; which is so, too, where its key does not exist.

    >>> str(Not(Equals("region", "eu"))), ~Not(Exists("region"))
    ('region != eu', Exists(key='region'))
    """

    condition: Basic

    def __post_init__(self) -> None:
        if not isinstance(self.condition, Basic):
            raise InvalidFilter("`Not` takes one condition; negate anything else with `~`")

    def __str__(self) -> str:
        return self.condition._spelled("not ")


Terms = tuple[tuple[Condition, ...], ...]
"""An OR of ANDs."""


def basic_of(condition: Condition) -> Basic:
    """The condition itself, or the one that it negates."""
    basic = condition.condition if isinstance(condition, Not) else condition
    assert isinstance(basic, Basic)
    return basic
