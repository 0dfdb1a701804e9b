"""The keys and values of conditions, each brought to its one form, or refused."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Context, Decimal
from typing import Literal

import pyarrow as pa

from tidings.errors import InvalidFilter
from tidings.filters.text import quote
from tidings.updates import SCHEMA

Value = str | int | dt.datetime
Bound = int | dt.datetime | Decimal
Type = Literal["text", "number", "time"]


def _type(type: pa.DataType) -> Type | None:
    if pa.types.is_integer(type):
        return "number"
    return "text" if pa.types.is_string(type) else "time" if pa.types.is_timestamp(type) else None


COLUMNS: dict[str, Type] = {field.name: kind for field in SCHEMA if (kind := _type(field.type))}
"""The columns that are keys, and how their values are compared."""

PREFIX = "attributes."
"""What an attribute's key begins with where a column has its name."""

NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
"""What an interval takes of a text."""

PRECISION, SCALE = 36, 18
"""All that `NUMBER` lets through fits into such a decimal, without rounding."""

_SMALLEST = Decimal(1).scaleb(-SCALE)  # between a number that `NUMBER` lets through and the next one
_EXACT = Context(prec=PRECISION + 1)

_WHOLE = re.compile(r"-?[0-9]{1,19}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def check_text(text: object) -> str:
    """The text, if it is one that can be written as UTF-8."""
    if not isinstance(text, str):
        raise InvalidFilter(f"{text!r} is {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidFilter(f"{text!r} is not valid UTF-8") from None
    return text


def normal_key(text: str) -> str:
    """The key in its one form: with the prefix only where it is needed to tell an attribute from a column."""
    check_text(text)
    if text in SCHEMA.names and text not in COLUMNS:
        raise InvalidFilter(f"{text} cannot be filtered on; an attribute of that name is {PREFIX}{text}")
    name = text.removeprefix(PREFIX)
    return text if name in SCHEMA.names or name.startswith(PREFIX) else name


def type_of(key: str) -> Type:
    """How the key's values are compared; all attributes are text."""
    return COLUMNS.get(key, "text")


def normal_value(key: str, value: object) -> Value:
    """The value as the key compares it."""
    match type_of(key), value:
        case "number", _:
            return _whole(key, value)
        case "time", _:
            return _time(key, value)
        case _, int() if not isinstance(value, bool):
            return str(value)
    return check_text(value)


def normal_bound(key: str, value: object) -> Bound | None:
    """The end of an interval as the key compares it."""
    if value is None:
        return None
    match type_of(key):
        case "number":
            return _whole(key, value)
        case "time":
            return _time(key, value)
    text = f"{value:f}" if isinstance(value, Decimal) else "" if isinstance(value, bool) else str(value)
    if not NUMBER.fullmatch(text):
        raise InvalidFilter(
            f"{value!r} is no number: comparisons and intervals take up to 18 digits, and up to 18 after the point"
        )
    return Decimal(text)


def beside(key: str, value: object, step: Literal[-1, 1]) -> Bound:
    """The last bound before a value of the key, or the next one after it.

    >>> beside("seq", 5, -1), beside("price", "5", -1)
    (4, Decimal('4.999999999999999999'))
    """
    bound = normal_bound(key, value)
    try:
        match bound:
            case dt.datetime():
                return bound + step * dt.timedelta(microseconds=1)
            case Decimal():
                return _checked_decimal(key, _EXACT.add(bound, step * _SMALLEST))
            case int():
                return _whole(key, bound + step)
    except (InvalidFilter, OverflowError):
        pass  # there is none
    raise InvalidFilter(f"{key} is never {'below' if step < 0 else 'above'} {spelled(value)}")


def _checked_decimal(key: str, value: Decimal) -> Decimal:
    found = normal_bound(key, value)
    assert isinstance(found, Decimal)
    return found


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


def spelled(value: object) -> str:
    """The value as a filter's text has it."""
    match value:
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Decimal():
            return f"{value:f}"
    return quote(str(value))
