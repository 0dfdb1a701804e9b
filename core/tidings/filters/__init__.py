"""Filters: which updates an application wants.

A filter is an OR of ANDs of conditions on the keys of an update: a key exists, equals a value, or is in a set (a list,
an interval, a regular expression), or the negation of one of these. It is a value: it can be compared, hashed, written
as text and read again, and it runs in Spark (`column`) and in Arrow (`mask`), with the same answer for every row.

**Keys.** `shard seq index object version kind range source time` are the update's columns; every other key is one of
its attributes. `attributes.shard` is the attribute of that name. The payload is no key, and neither is `attributes`
as a whole.

**What a condition means.** An attribute that is not there does not exist, and neither does a column or an attribute
that is null. What does not exist equals nothing and is in no set. Negation is plain: `not c` holds exactly where `c`
does not, so it holds where the key does not exist. A condition is true or false and never null.

- Text (attributes, `object`, `kind`, `source`) is compared as text, code point by code point: `x = 7` is false for
  `07`. An interval takes text that is written as a number, up to 18 digits, then perhaps a point and up to 18 more
  (`-?[0-9]{1,18}(\\.[0-9]{1,18})?`), and compares it exactly; any other text is in no interval: ` 7`, `+7`, `7e0`,
  `NaN`.
- `shard seq index version range` are whole numbers, and `time` is a point in time, written in ISO 8601 with a zone.
- Both ends of an interval belong to it; one of them may be left out. `<`, `<=`, `>` and `>=` are intervals, too: what
  is below 5 is what is up to the last value before 5.
- A regular expression must match the whole value. Which ones are allowed is in `docs/filters.md`.

A row has each attribute once: Python's dict and Spark's maps see to that. Should a foreign writer put one there twice,
the first counts, in Spark as in Arrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings.errors import InvalidFilter
from tidings.filters import arrow
from tidings.filters.conditions import (
    MAX_VALUES,
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
from tidings.filters.text import MAX_CHARACTERS, Clause, Group, error_at, read
from tidings.filters.values import COLUMNS, beside, normal_bound, normal_key, normal_value
from tidings.filters.warnings import warnings_of

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "COLUMNS",
    "EVERYTHING",
    "MAX_CONDITIONS",
    "MAX_VALUES",
    "NOTHING",
    "Basic",
    "Between",
    "Condition",
    "Equals",
    "Exists",
    "Filter",
    "In",
    "Matches",
    "Not",
    "as_filter",
    "parse",
]

MAX_CONDITIONS = 256
"""How many conditions a filter may have once it is an OR of ANDs."""


def _distinct(terms: Iterable[Sequence[Condition]]) -> Terms:
    found = tuple(dict.fromkeys(tuple(dict.fromkeys(term)) for term in terms))
    return ((),) if () in found else found


def _every(parts: Sequence[Terms]) -> Terms:
    """The OR of ANDs that says that all parts hold: every choice of one AND from each."""
    product: Terms = ((),)
    for part in parts:
        _check_size(product := _distinct(one + other for one in product for other in part))
    return product


def _check_size(terms: Terms) -> None:
    size = sum(map(len, terms))
    if size > MAX_CONDITIONS:
        raise InvalidFilter(
            f"written as an OR of ANDs the filter has {size:,} conditions; the limit is {MAX_CONDITIONS:,}"
        )


def text_of(terms: Terms, spell: Callable[[Condition], str]) -> str:
    """The text of an OR of ANDs; `terms_of` reads it again.

    >>> text_of(parse("a exists or b exists and c exists").any_of, str)
    'a exists or (b exists and c exists)'
    """
    if terms in ((), ((),)):
        return "everything" if terms else "nothing"
    texts = [" and ".join(map(spell, term)) for term in terms]
    if len(texts) > 1:
        texts = [f"({text})" if len(term) > 1 else text for term, text in zip(terms, texts, strict=True)]
    return " or ".join(texts)


@dataclass(frozen=True, slots=True)
class Filter:
    """An OR of ANDs of conditions. `&`, `|` and `~` combine filters; `parse` reads their text.

    >>> wanted = Equals("topic", "aq") | Exists("mcd_key")
    >>> wanted.keys()
    ('topic', 'mcd_key')
    >>> parse(str(wanted)) == wanted
    True
    """

    any_of: Terms

    def __post_init__(self) -> None:
        terms = _distinct(self.any_of)
        _check_size(terms)
        object.__setattr__(self, "any_of", terms)
        length = len(str(self))
        if length > MAX_CHARACTERS:
            raise InvalidFilter(f"the filter's text has {length:,} characters; the limit is {MAX_CHARACTERS:,}")

    def __str__(self) -> str:
        return text_of(self.any_of, str)

    def __and__(self, other: Condition | Filter) -> Filter:
        return Filter(_every([self.any_of, as_filter(other).any_of]))

    def __or__(self, other: Condition | Filter) -> Filter:
        return Filter(self.any_of + as_filter(other).any_of)

    def __invert__(self) -> Filter:
        return Filter(_every([tuple((~condition,) for condition in term) for term in self.any_of]))

    def keys(self) -> tuple[str, ...]:
        """The keys that the filter looks at."""
        return tuple(dict.fromkeys(basic_of(condition).key for term in self.any_of for condition in term))

    def column(self) -> Column:
        """The filter for a DataFrame of updates: true or false for each row, never null.

        It names columns only, so one can be used with any number of DataFrames, and many in one `select`. Building it
        takes some calls into the JVM for each condition, about a millisecond each: build it once, and keep it.
        """
        from tidings.filters import spark

        return spark.column(self.any_of)

    def mask(self, rows: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
        """The filter for updates in Arrow: true or false for each row, never null.

        >>> rows = pa.table({"shard": pa.array([3, 8], pa.int32())})
        >>> parse("shard in 1..5").mask(rows).to_pylist()
        [True, False]
        """
        return arrow.mask(self.any_of, rows)

    def warnings(self, shards: int | None = None) -> list[str]:
        """What is allowed but cannot be meant: conditions that hold for no update, or for all; keys a letter off.

        With the number of shards of a stream, a shard that it does not have is one of them.

        >>> parse("kind = foo").warnings()
        ['`kind = foo` holds for no update: kind is one of data, gc, tombstone']
        """
        return warnings_of(self.any_of, shards)


EVERYTHING = Filter(((),))
"""No filter: every update."""

NOTHING = Filter(())
"""No update at all."""


def as_filter(wanted: Filter | Condition | str | None) -> Filter:
    """The filter that is meant: a filter, one condition, a text, or None for everything.

    >>> as_filter(None) is EVERYTHING, str(as_filter(Exists("mcd_key")))
    (True, 'mcd_key exists')
    """
    match wanted:
        case Filter():
            return wanted
        case Condition():
            return Filter(((wanted,),))
        case str():
            return parse(wanted)
        case None:
            return EVERYTHING
    raise InvalidFilter(f"{wanted!r} is no filter: give a text, or conditions such as Equals('topic', 'aq')")


ClauseReader = Callable[[Clause, str], Basic]
"""Makes a condition of a clause of a text; its errors point into the text."""


def parse(text: str) -> Filter:
    """The filter of a text. `and` binds tighter than `or`; what is nested is multiplied out.

    >>> str(parse("a = 1 and (b = 2 or not (c = 3 or d exists))"))
    '(a = 1 and b = 2) or (a = 1 and c != 3 and d not exists)'
    >>> str(parse("seq < 5 or version >= 7"))
    'seq in ..4 or version in 7..'
    >>> parse("shard = abc")
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: column 9: shard is a whole number, and 'abc' is none
      shard = abc
              ^
    """
    return Filter(terms_of(text, condition_of))


def terms_of(text: str, condition: ClauseReader) -> Terms:
    """The OR of ANDs of a text, for a language that has this grammar and more keys than a filter has.

    >>> terms_of("a exists", condition_of) == parse("a exists").any_of
    True
    """
    if not isinstance(text, str):
        raise InvalidFilter(f"{text!r} is no text of a filter")
    return _terms(read(text), text, condition)


def _terms(tree: Group | Clause, text: str, condition: ClauseReader) -> Terms:
    if isinstance(tree, Clause):
        basic = condition(tree, text)
        return ((Not(basic) if tree.negated else basic,),)
    parts = [_terms(part, text, condition) for part in tree.parts]
    return _every(parts) if tree.every else _distinct(itertools.chain.from_iterable(parts))


def condition_of(clause: Clause, text: str) -> Basic:
    """The condition that a clause of a filter's text says."""
    at = clause.key
    try:
        key = normal_key(at.text)
        given = [operand.text if operand else None for operand in clause.operands]
        texts = tuple(text for text in given if text is not None)
        # Each value by itself first, so that the error points at the right one.
        for operand in clause.operands:
            at = operand or at
            if clause.operator in ("=", "in"):
                normal_value(key, at.text)
            elif clause.operator not in ("exists", "matches"):
                normal_bound(key, operand.text if operand else None)
        at = clause.operands[0] or at if clause.operands else at
        match clause.operator:
            case "exists":
                return Exists(key)
            case "=":
                return Equals(key, texts[0])
            case "in":
                return In(key, texts)
            case "..":
                return Between(key, *given)
            case "<=" | "<":
                return Between(key, high=texts[0] if clause.operator == "<=" else beside(key, texts[0], -1))
            case ">=" | ">":
                return Between(key, low=texts[0] if clause.operator == ">=" else beside(key, texts[0], 1))
            case "matches":
                return Matches(key, texts[0])
    except InvalidFilter as error:
        raise error_at(text, at.at, str(error)) from None
