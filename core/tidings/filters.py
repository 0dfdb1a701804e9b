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
- Both ends of an interval belong to it; one of them may be left out.
- A regular expression must match the whole value. Which ones are allowed is in `docs/filters.md`.

A row has each attribute once: Python's dict and Spark's maps see to that. Should a foreign writer put one there twice,
the first counts, in Spark as in Arrow.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings import filter_text
from tidings.errors import InvalidFilter
from tidings.filter_patterns import pattern
from tidings.filter_text import Clause, Group, error_at, quote
from tidings.updates import KINDS, MAX_OBJECT_BYTES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_CONDITIONS = 256
"""How many conditions a filter may have once it is an OR of ANDs."""

MAX_VALUES = 1_000
"""How many values a list may have."""

Value = str | int | dt.datetime
Bound = int | dt.datetime | Decimal
Type = Literal["text", "number", "time"]


def _type(type: pa.DataType) -> Type | None:
    if pa.types.is_integer(type):
        return "number"
    return "text" if pa.types.is_string(type) else "time" if pa.types.is_timestamp(type) else None


COLUMNS: dict[str, Type] = {field.name: kind for field in SCHEMA if (kind := _type(field.type))}
"""The columns that are keys, and how their values are compared."""

_PREFIX = "attributes."
_ALWAYS = frozenset({"shard", "seq", "index", "object", "kind", "range"})  # no update is without them
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_NUMBER_PATTERN = pattern(_NUMBER.pattern)
# All that _NUMBER lets through fits, without rounding.
_PRECISION, _SCALE = 36, 18
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class Condition:
    """What all conditions share: they combine with `&`, `|` and `~`.

    >>> str(Equals("topic", "aq") | ~Exists("mcd_key"))
    'topic = aq or mcd_key not exists'
    """

    __slots__ = ()

    def __and__(self, other: Condition | Filter) -> Filter:
        return as_filter(self) & other

    def __or__(self, other: Condition | Filter) -> Filter:
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

    def _spark(self) -> Column:
        """The condition in Spark. Null counts as false."""
        raise NotImplementedError

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """The condition on the key's values in Arrow. Null counts as false."""
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
        self._set(key=_key(self.key))

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}exists"

    def _spark(self) -> Column:
        return _spark_values(self.key).isNotNull()

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.is_valid(values)


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
        self._set(key=_key(self.key))
        self._set(value=_value(self.key, self.value))

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {'!=' if negation else '='} {_text(self.value)}"

    def _spark(self) -> Column:
        return _spark_values(self.key) == _literal(self.value)

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.equal(values, _scalar(self.value))


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
        self._set(key=_key(self.key))
        self._set(values=tuple(dict.fromkeys(_value(self.key, value) for value in self.values)))
        if not self.values:
            raise InvalidFilter(f"{self.key!r} in a list without values: no update has that")
        if len(self.values) > MAX_VALUES:
            raise InvalidFilter(f"{self.key!r} in a list of {len(self.values):,} values; the limit is {MAX_VALUES:,}")

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}in ({', '.join(map(_text, self.values))})"

    def _spark(self) -> Column:
        return _spark_values(self.key).isin([_literal(value) for value in self.values])

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        wanted = pa.array(self.values, _scalar(self.values[0]).type)
        # A shard has 32 bits, but it may be looked for among numbers of 64.
        return pc.is_in(values.cast(wanted.type), wanted)


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
        self._set(key=_key(self.key))
        low, high = _bound(self.key, self.low), _bound(self.key, self.high)
        if low is None and high is None:
            raise InvalidFilter(f"an interval of {self.key!r} needs an end; for any value write `{self.key} exists`")
        if low is not None and high is not None and low > high:  # type: ignore[operator]  # one key, one type
            raise InvalidFilter(f"the interval {_text(low)}..{_text(high)} of {self.key!r} is empty: swap its ends")
        self._set(low=low, high=high)

    def _spelled(self, negation: str) -> str:
        low, high = (None if end is None else _text(end) for end in (self.low, self.high))
        return f"{quote(self.key)} {negation}in {low or ''}..{high or ''}"

    def _spark(self) -> Column:
        values = _spark_values(self.key)
        if _type_of(self.key) == "text":
            from pyspark.sql import functions as F  # noqa: N812
            from pyspark.sql.types import DecimalType

            number = DecimalType(_PRECISION, _SCALE)
            values = F.when(values.rlike(_NUMBER_PATTERN.java), values).try_cast(number)
        ends = [values >= _literal(self.low)] if self.low is not None else []
        ends += [values <= _literal(self.high)] if self.high is not None else []
        return functools.reduce(operator.and_, ends)

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if _type_of(self.key) == "text":
            numbers = pc.match_substring_regex(values, _NUMBER_PATTERN.re2)
            values = pc.if_else(numbers, values, pa.scalar(None, values.type)).cast(pa.decimal128(_PRECISION, _SCALE))
        ends = [pc.greater_equal(values, _scalar(self.low))] if self.low is not None else []
        ends += [pc.less_equal(values, _scalar(self.high))] if self.high is not None else []
        return functools.reduce(pc.and_, ends)


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
        self._set(key=_key(self.key), expression=_unicode(self.expression))
        if _type_of(self.key) != "text":
            raise InvalidFilter(f"{self.key} is a {_type_of(self.key)}, and only text matches a regular expression")
        pattern(self.expression)

    def _spelled(self, negation: str) -> str:
        return f"{quote(self.key)} {negation}matches {quote(self.expression)}"

    def _spark(self) -> Column:
        return _spark_values(self.key).rlike(pattern(self.expression).java)

    def _arrow(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.match_substring_regex(values, pattern(self.expression).re2)


@dataclass(frozen=True, slots=True)
class Not(Condition):
    """The condition does not hold; which is so, too, where its key does not exist.

    >>> str(Not(Equals("region", "eu"))), ~Not(Exists("region"))
    ('region != eu', Exists(key='region'))
    """

    condition: Basic

    def __post_init__(self) -> None:
        if not isinstance(self.condition, Basic):
            raise InvalidFilter("Not takes one condition; negate anything else with `~`")

    def __str__(self) -> str:
        return self.condition._spelled("not ")


_Terms = tuple[tuple[Condition, ...], ...]


def _distinct(terms: Iterable[Sequence[Condition]]) -> _Terms:
    found = tuple(dict.fromkeys(tuple(dict.fromkeys(term)) for term in terms))
    return ((),) if () in found else found


def _every(parts: Sequence[_Terms]) -> _Terms:
    """The OR of ANDs that says that all parts hold: every choice of one AND from each."""
    product: _Terms = ((),)
    for part in parts:
        _check_size(product := _distinct(one + other for one in product for other in part))
    return product


def _check_size(terms: _Terms) -> None:
    size = sum(map(len, terms))
    if size > MAX_CONDITIONS:
        raise InvalidFilter(
            f"written as an OR of ANDs the filter has {size:,} conditions; the limit is {MAX_CONDITIONS:,}"
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """An OR of ANDs of conditions. `&`, `|` and `~` combine filters; `parse` reads their text.

    >>> wanted = Equals("topic", "aq") | Exists("mcd_key")
    >>> wanted.keys()
    ('topic', 'mcd_key')
    >>> parse(str(wanted)) == wanted
    True
    """

    any_of: _Terms

    def __post_init__(self) -> None:
        terms = _distinct(self.any_of)
        _check_size(terms)
        object.__setattr__(self, "any_of", terms)
        length = len(str(self))
        if length > filter_text.MAX_LENGTH:
            raise InvalidFilter(f"the filter's text has {length:,} characters; the limit is {filter_text.MAX_LENGTH:,}")

    def __str__(self) -> str:
        if self.any_of in ((), ((),)):
            return "everything" if self.any_of else "nothing"
        terms = [" and ".join(map(str, term)) for term in self.any_of]
        if len(terms) > 1:
            terms = [f"({text})" if len(term) > 1 else text for term, text in zip(self.any_of, terms, strict=True)]
        return " or ".join(terms)

    def __and__(self, other: Condition | Filter) -> Filter:
        return Filter(_every([self.any_of, as_filter(other).any_of]))

    def __or__(self, other: Condition | Filter) -> Filter:
        return Filter(self.any_of + as_filter(other).any_of)

    def __invert__(self) -> Filter:
        return Filter(_every([tuple((~condition,) for condition in term) for term in self.any_of]))

    def keys(self) -> tuple[str, ...]:
        """The keys that the filter looks at."""
        return tuple(dict.fromkeys(_basic(condition).key for term in self.any_of for condition in term))

    def column(self) -> Column:
        """The filter for a DataFrame of updates: true or false for each row, never null.

        It names columns only, so one can be used with any number of DataFrames, and many in one `select`. Building it
        takes some calls into the JVM for each condition, about a millisecond each: build it once, and keep it.
        """
        from pyspark.sql import functions as F  # noqa: N812

        no = F.lit(False)

        def column(condition: Condition) -> Column:
            holds = _basic(condition)._spark()
            return ~F.coalesce(holds, no) if isinstance(condition, Not) else holds

        # Without a negation around it, a null that counts as false can as well be carried through to the end.
        terms = [_balanced(operator.and_, [column(c) for c in term], F.lit(True)) for term in self.any_of]
        return F.coalesce(_balanced(operator.or_, terms, no), no)

    def mask(self, rows: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
        """The filter for updates in Arrow: true or false for each row, never null.

        >>> rows = pa.table({"shard": pa.array([3, 8], pa.int32())})
        >>> parse("shard in 1..5").mask(rows).to_pylist()
        [True, False]
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        values = {key: _column(table, key) for key in self.keys()}

        def mask(condition: Condition) -> pa.ChunkedArray:
            basic = _basic(condition)
            holds = pc.fill_null(basic._arrow(values[basic.key]), False)
            return pc.invert(holds) if isinstance(condition, Not) else holds

        masks = [functools.reduce(pc.and_, map(mask, term)) for term in self.any_of if term]
        if not masks:
            return pa.repeat(bool(self.any_of), table.num_rows)
        return functools.reduce(pc.or_, masks).combine_chunks()

    def warnings(self, shards: int | None = None) -> list[str]:
        """What is allowed but cannot be meant: conditions that hold for no update, or for all; keys a letter off.

        With the number of shards of a stream, a shard that it does not have is one of them.

        >>> parse("kind = foo").warnings()
        ['`kind = foo` holds for no update: kind is one of data, gc, tombstone']
        """
        found = []
        for term in self.any_of:
            found += [warning for condition in term for warning in _warnings(condition, shards)]
            found += _contradictions(term)
        return list(dict.fromkeys(found))


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


def parse(text: str) -> Filter:
    """The filter of a text. `and` binds tighter than `or`; what is nested is multiplied out.

    >>> str(parse("a = 1 and (b = 2 or not (c = 3 or d exists))"))
    '(a = 1 and b = 2) or (a = 1 and c != 3 and d not exists)'
    >>> parse("shard = abc")
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: column 9: shard is a whole number, and 'abc' is none
      shard = abc
              ^
    """
    if not isinstance(text, str):
        raise InvalidFilter(f"{text!r} is no text of a filter")
    return Filter(_terms(filter_text.read(text), text))


# ---- from text -----------------------------------------------------------------------------------------------------


def _terms(tree: Group | Clause, text: str) -> _Terms:
    if isinstance(tree, Clause):
        basic = _condition(tree, text)
        return ((Not(basic) if tree.negated else basic,),)
    parts = [_terms(part, text) for part in tree.parts]
    return _every(parts) if tree.every else _distinct(itertools.chain.from_iterable(parts))


def _condition(clause: Clause, text: str) -> Basic:
    at = clause.key
    try:
        key = _key(at.text)
        given = [operand.text if operand else None for operand in clause.operands]
        texts = tuple(text for text in given if text is not None)
        # Each value by itself first, so that the error points at the right one.
        for operand in clause.operands:
            at = operand or at
            if clause.operator in ("=", "in"):
                _value(key, at.text)
            elif clause.operator == "..":
                _bound(key, operand.text if operand else None)
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
            case "matches":
                return Matches(key, texts[0])
    except InvalidFilter as error:
        raise error_at(text, at.at, str(error)) from None


# ---- keys and values -----------------------------------------------------------------------------------------------


def _unicode(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidFilter(f"{text!r} is {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidFilter(f"{text!r} is not valid UTF-8") from None
    return text


def _key(text: str) -> str:
    """The key in its one form: with the prefix only where it is needed to tell an attribute from a column."""
    _unicode(text)
    if text in SCHEMA.names and text not in COLUMNS:
        raise InvalidFilter(f"{text} cannot be filtered on; an attribute of that name is {_PREFIX}{text}")
    name = text.removeprefix(_PREFIX)
    return text if name in SCHEMA.names or name.startswith(_PREFIX) else name


def _type_of(key: str) -> Type:
    return COLUMNS.get(key, "text")


def _value(key: str, value: object) -> Value:
    """The value as the key compares it."""
    match _type_of(key), value:
        case "number", _:
            return _whole(key, value)
        case "time", _:
            return _time(key, value)
        case _, int() if not isinstance(value, bool):
            return str(value)
    return _unicode(value)


def _bound(key: str, value: object) -> Bound | None:
    """The end of an interval as the key compares it."""
    if value is None:
        return None
    match _type_of(key):
        case "number":
            return _whole(key, value)
        case "time":
            return _time(key, value)
    text = f"{value:f}" if isinstance(value, Decimal) else "" if isinstance(value, bool) else str(value)
    if not _NUMBER.fullmatch(text):
        raise InvalidFilter(
            f"{value!r} is no end of an interval: write a number of up to 18 digits, and up to 18 after the point"
        )
    return Decimal(text)


def _whole(key: str, value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidFilter(f"{key} is a whole number, and {value!r} is none")
    if not -(2**63) <= value < 2**63:
        raise InvalidFilter(f"{key} has 64 bits, too few for {value}")
    return value


def _time(key: str, value: object) -> dt.datetime:
    try:
        if isinstance(value, str) and _TIME.fullmatch(value):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        pass  # such as 30 February, or a time that leaves the calendar on its way to UTC
    raise InvalidFilter(f"{key} is a time with a zone, such as 2031-05-07T12:30:00Z, and {str(value)!r} is none")


def _text(value: object) -> str:
    match value:
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Decimal():
            return f"{value:f}"
    return quote(str(value))


# ---- in Spark ------------------------------------------------------------------------------------------------------


def _spark_values(key: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if key in COLUMNS:
        return F.col(key)
    return F.try_element_at(F.col("attributes"), F.lit(key.removeprefix(_PREFIX)))


def _literal(value: object) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import DecimalType

    match value:
        case dt.datetime():
            # Not lit(value): that goes through java.sql.Timestamp, whose calendar is another one before 1582.
            return F.timestamp_micros(F.lit(_micros(value)))
        case Decimal():
            return F.lit(f"{value:f}").cast(DecimalType(_PRECISION, _SCALE))
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


# ---- in Arrow ------------------------------------------------------------------------------------------------------


def _column(table: pa.Table, key: str) -> pa.ChunkedArray:
    if key in COLUMNS:
        return table.column(key)
    maps = table.column("attributes")
    name = key.removeprefix(_PREFIX)
    return pa.chunked_array([_attribute(chunk, name) for chunk in maps.chunks], maps.type.item_type)


def _attribute(maps: pa.MapArray, name: str) -> pa.Array:
    """The value of an attribute in each row; `map_lookup` does the same in ten times the time."""
    offsets = maps.offsets.to_numpy()
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0])
    found = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False)) + offsets[0]
    rows = np.searchsorted(offsets, found, side="right") - 1
    places = np.full(len(maps), -1)
    # From the back, so that of an attribute that is there twice the first counts, as in Spark.
    places[rows[::-1]] = found[::-1]
    if maps.null_count:
        places[maps.is_null().to_numpy(zero_copy_only=False)] = -1
    return maps.items.take(pa.array(places, mask=places < 0))


def _scalar(value: object) -> pa.Scalar:
    match value:
        case dt.datetime():
            return pa.scalar(value, SCHEMA.field("time").type)
        case Decimal():
            return pa.scalar(value, pa.decimal128(_PRECISION, _SCALE))
        case int():
            return pa.scalar(value, pa.int64())
    return pa.scalar(value, pa.string())


# ---- what cannot be meant ------------------------------------------------------------------------------------------


def _basic(condition: Condition) -> Basic:
    basic = condition.condition if isinstance(condition, Not) else condition
    assert isinstance(basic, Basic)
    return basic


def _warnings(condition: Condition, shards: int | None) -> Iterable[str]:
    basic = _basic(condition)
    column = next((name for name in SCHEMA.names if name == basic.key.lower() != basic.key), None)
    if column:
        yield f"`{basic.key}` is an attribute, and not the column {column}"
    if isinstance(basic, Exists) and basic.key in _ALWAYS:
        holds = "no" if isinstance(condition, Not) else "every"
        yield f"`{condition}` holds for {holds} update: each has its {basic.key}"
    reason = _impossible(basic, shards)
    if reason:
        yield f"`{condition}` holds for {'every' if isinstance(condition, Not) else 'no'} update: {reason}"


def _impossible(basic: Basic, shards: int | None) -> str | None:
    """Why no update can have such a value, or None."""
    if basic.key == "kind" and not pc.any(pc.fill_null(basic._arrow(pa.chunked_array([KINDS])), False)).as_py():
        return f"kind is one of {', '.join(KINDS)}"
    values = basic.values if isinstance(basic, In) else (basic.value,) if isinstance(basic, Equals) else ()
    if basic.key == "object" and values and not any(0 < len(str(v).encode()) <= MAX_OBJECT_BYTES for v in values):
        return f"the name of an object has 1 to {MAX_OBJECT_BYTES:,} bytes"
    if _type_of(basic.key) == "number":
        top = 2 ** (SCHEMA.field(basic.key).type.bit_width - 1) - 1
        if basic.key == "shard" and shards is not None:
            top = shards - 1
        if isinstance(basic, Between):
            low, high = (0 if basic.low is None else basic.low), (top if basic.high is None else basic.high)
            possible = low <= top and high >= 0  # type: ignore[operator]  # both are int, since the key is a number
        else:
            possible = not values or any(0 <= value <= top for value in values)  # type: ignore[operator]  # as above
        return None if possible else f"{basic.key} is between 0 and {top:,}"
    return None


def _contradictions(term: Sequence[Condition]) -> Iterable[str]:
    equal: dict[str, Equals] = {}
    for condition in term:
        if isinstance(condition, Equals):
            other = equal.setdefault(condition.key, condition)
            if other != condition:
                yield f"`{other} and {condition}` holds for no update"
