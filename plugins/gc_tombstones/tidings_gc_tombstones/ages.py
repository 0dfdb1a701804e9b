"""Ages: how long before a gc event an update was committed, as a condition of a predicate."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field

from tidings.errors import InvalidFilter
from tidings.filters import Basic, Between, Exists
from tidings.filters.text import Clause, Lexeme, error_at

AGE = "age"
"""The key of a predicate that no filter has. An attribute of that name is `attributes.age`."""

_DURATION = re.compile(
    r"P(?:(\d{1,9})W)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,6}))?S)?)?", re.ASCII
)
_MICRO = dt.timedelta(microseconds=1)
_EXPECTED = "age is compared by <, <=, > or >=, or is in an interval such as P1D..P7D"


@dataclass(frozen=True, slots=True)
class Age(Basic):
    """The update is so old, both ends included; one of them may be None. An update without a time has no age.

    >>> str(Age(dt.timedelta(days=7))), str(Age(None, dt.timedelta(hours=36)))
    ('age in P7D..', 'age in ..P1DT12H')
    """

    low: dt.timedelta | None = None
    high: dt.timedelta | None = None
    key: str = field(default=AGE, init=False)

    def __post_init__(self) -> None:
        low, high = self.low, self.high
        if low is None and high is None:
            raise InvalidFilter("an interval of ages needs an end")
        if low is not None and high is not None and low > high:
            raise InvalidFilter(f"the interval {spelled(low)}..{spelled(high)} of ages is empty: swap its ends")

    def _spelled(self, negation: str) -> str:
        low, high = ("" if end is None else spelled(end) for end in (self.low, self.high))
        return f"{AGE} {negation}in {low}..{high}"

    def at(self, now: dt.datetime) -> Basic | None:
        """What the age says of the time of an update, as seen at a time. None: no update can be so old."""
        try:
            latest = None if self.low is None else now - self.low
        except OverflowError:
            return None
        try:
            earliest = None if self.high is None else now - self.high
        except OverflowError:
            earliest = None  # every update is younger
        return Exists("time") if earliest is None and latest is None else Between("time", earliest, latest)


def age_of(clause: Clause, text: str) -> Age:
    """The age that a clause of a predicate's text says."""
    given = clause.operands
    if clause.operator not in ("<", "<=", ">", ">=", ".."):
        raise error_at(text, (given[0] if given and given[0] else clause.key).at, _EXPECTED)
    ends = [_end(one, text) for one in given]
    at = given[0] or clause.key
    try:
        match clause.operator:
            case "..":
                return Age(*ends)
            case "<=":
                return Age(high=ends[0])
            case ">=":
                return Age(low=ends[0])
            case ">":
                return Age(low=_known(ends[0]) + _MICRO)
        if _known(ends[0]) < _MICRO:
            raise InvalidFilter(f"{AGE} is never below {at.text}")
        return Age(high=_known(ends[0]) - _MICRO)
    except InvalidFilter as error:
        raise error_at(text, at.at, str(error)) from None


def _known(end: dt.timedelta | None) -> dt.timedelta:
    assert end is not None, "only an interval can be open"
    return end


def _end(operand: Lexeme | None, text: str) -> dt.timedelta | None:
    if operand is None:
        return None
    try:
        return duration(operand.text)
    except InvalidFilter as error:
        raise error_at(text, operand.at, str(error)) from None


def duration(text: str) -> dt.timedelta:
    """An ISO 8601 duration. Months and years have no fixed length, and are refused.

    >>> duration("P7D"), duration("PT0.5S")
    (datetime.timedelta(days=7), datetime.timedelta(microseconds=500000))
    """
    found = _DURATION.fullmatch(text)
    if not found or not any(found.groups()) or text.endswith("T"):
        raise InvalidFilter(f"{text!r} is no duration: write ISO 8601, as in P7D, PT12H or PT0.5S")
    weeks, days, hours, minutes, seconds = (int(number) for number in found.groups("0")[:5])
    fraction = int((found[6] or "").ljust(6, "0"))
    try:
        whole = dt.timedelta(days, seconds, fraction, 0, minutes, hours, weeks)
        return whole + _MICRO - _MICRO  # with room for what is just above it
    except OverflowError:
        raise InvalidFilter(f"{text!r} is longer than the calendar") from None


def spelled(length: dt.timedelta) -> str:
    """The duration as a predicate's text has it.

    >>> spelled(dt.timedelta(days=1, seconds=3661, microseconds=250_000)), spelled(dt.timedelta())
    ('P1DT1H1M1.25S', 'PT0S')
    """
    minutes, seconds = divmod(length.seconds, 60)
    parts = [(length.days, "D"), (minutes // 60, "H"), (minutes % 60, "M")]
    whole = "".join(f"{number}{unit}" for number, unit in parts if number)
    if seconds or length.microseconds:
        whole += f"{seconds}.{length.microseconds:06}".rstrip("0").rstrip(".") + "S"
    day, split, clock = whole.rpartition("D")
    return f"P{day}{split}" + (f"T{clock}" if clock else "") if whole else "PT0S"
