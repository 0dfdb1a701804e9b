"""Predicates: what an explicit gc event matches.

A predicate is written as a filter is (`docs/filters.md`), with one key more: `age` is how long before the gc event an
update was committed, in ISO 8601 durations: `age > P7D`, `age in P1D..P7D`. An attribute of that name is
`attributes.age`. The age is reckoned from the gc event's own time, so that a predicate says the same whenever it is
looked at.

A predicate is looked at for many updates, so it may cost only so much: each condition costs 1, a list 1 for each 16
values, and a regular expression 10.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from tidings.errors import InvalidFilter
from tidings.filters import Basic, Condition, Filter, In, Matches, Not, condition_of, terms_of, text_of
from tidings.filters.conditions import Terms, basic_of
from tidings.filters.text import MAX_CHARACTERS, Clause
from tidings.filters.values import PREFIX, normal_bound
from tidings_gc_tombstones.ages import AGE, Age, age_of

MAX_COST = 64
"""What a predicate may cost."""

PATTERN_COST = 10
VALUES_PER_COST = 16
"""How many values of a list cost as much as a condition: the longest list that a filter can have is affordable."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """An OR of ANDs of conditions on an update, its age among them. `parse` reads its text.

    >>> old = Predicate.parse("age > P7D and object matches 'tmp/.*' or attributes.age = 1")
    >>> old.keys(), old.cost
    (('age', 'object', 'attributes.age'), 12)
    >>> Predicate.parse(str(old)) == old
    True
    >>> str(Predicate.parse("age >= P1D").at(dt.datetime(2031, 5, 7, tzinfo=dt.UTC)))
    'time in ..2031-05-06T00:00:00Z'
    """

    any_of: Terms

    def __post_init__(self) -> None:
        if self.cost > MAX_COST:
            raise InvalidFilter(
                f"the predicate costs {self.cost:,}; the limit is {MAX_COST}: a condition costs 1, a list 1 for each "
                f"{VALUES_PER_COST} values, a regular expression {PATTERN_COST}"
            )
        length = len(str(self))
        if length > MAX_CHARACTERS:
            raise InvalidFilter(f"the predicate's text has {length:,} characters; the limit is {MAX_CHARACTERS:,}")

    @classmethod
    def parse(cls, text: str) -> Predicate:
        """The predicate of a text.

        >>> Predicate.parse("age < yesterday")
        Traceback (most recent call last):
        tidings.errors.InvalidFilter: column 7: 'yesterday' is no duration: write ISO 8601, as in P7D, PT12H or PT0.5S
          age < yesterday
                ^
        """
        return cls(terms_of(text, _condition))

    def __str__(self) -> str:
        return text_of(self.any_of, _spelled)

    @property
    def cost(self) -> int:
        """What it costs to look at an update."""
        return sum(_cost(basic_of(condition)) for term in self.any_of for condition in term)

    def keys(self) -> tuple[str, ...]:
        """The keys that the predicate looks at; `age` is the age, and `attributes.age` the attribute."""
        return tuple(dict.fromkeys(_key(basic_of(condition)) for term in self.any_of for condition in term))

    def at(self, time: dt.datetime) -> Filter:
        """The predicate of a gc event of that time, as a filter: what it says of an age is said of a time."""
        now = normal_bound("time", time)
        assert isinstance(now, dt.datetime)
        terms = [[_at(condition, now) for condition in term] for term in self.any_of]
        return Filter(
            tuple(
                tuple(condition for condition in term if isinstance(condition, Condition))
                for term in terms
                if False not in term
            )
        )


def _condition(clause: Clause, text: str) -> Basic:
    return age_of(clause, text) if clause.key.text == AGE else condition_of(clause, text)


def _key(basic: Basic) -> str:
    return PREFIX + AGE if basic.key == AGE and not isinstance(basic, Age) else basic.key


def _spelled(condition: Condition) -> str:
    prefix = _key(basic_of(condition)).removesuffix(AGE) if basic_of(condition).key == AGE else ""
    return prefix + str(condition)


def _cost(basic: Basic) -> int:
    match basic:
        case Matches():
            return PATTERN_COST
        case In(_, values):
            return -(-len(values) // VALUES_PER_COST)
    return 1


def _at(condition: Condition, now: dt.datetime) -> Condition | bool:
    """The condition with its age turned into a time, or whether it holds for each update, or for none."""
    basic = basic_of(condition)
    if not isinstance(basic, Age):
        return condition
    found, negated = basic.at(now), isinstance(condition, Not)
    if found is None:
        return negated
    return Not(found) if negated else found
