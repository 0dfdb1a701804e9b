"""Covering: whether a gc event matches all that another one does, so that the other one may be collected.

Sprinkler asks it of whoever publishes a gc event: if `g` matches an earlier gc event `g'`, then `g` matches each event
before `g'` that `g'` matches. Else collecting `g'` would leave tombstones that nothing after them accounts for. Here it
is decided, where it can be, and refused otherwise.

The decision is sound and not complete: what is said to be implied is implied, but not each implication is seen.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.collection import COLLECTS, EXPLICIT
from tidings.errors import InvalidFilter
from tidings.filters import Basic, Between, Condition, Equals, Exists, Filter, In, Not
from tidings.filters.arrow import holds, values
from tidings.filters.conditions import basic_of
from tidings.filters.values import normal_key, type_of
from tidings.texts import printable
from tidings.updates import SCHEMA
from tidings_gc_tombstones.ages import Age
from tidings_gc_tombstones.predicates import Predicate

MAX_SHOWN_CHARACTERS = 200  # of a predicate, in an error

_ALWAYS = frozenset({"shard", "seq", "index", "object", "kind", "range"})  # no update is without them
_TYPES = {"text": pa.string(), "number": pa.int64(), "time": SCHEMA.field("time").type}


@dataclass(frozen=True, slots=True)
class GcEvent:
    """An explicit gc event: where it is, when it was committed, and its predicate."""

    shard: int
    seq: int
    time: dt.datetime
    predicate: Predicate

    def matching(self) -> Filter:
        """Which events of its shard it matches: those before it for which the predicate holds.

        >>> noon = dt.datetime(2031, 5, 7, 12, tzinfo=dt.UTC)
        >>> str(GcEvent(0, 7, noon, Predicate.parse("object = a or version < 3")).matching())
        '(object = a and seq in ..6) or (version in ..2 and seq in ..6)'
        """
        return self.predicate.at(self.time) & Between("seq", high=self.seq - 1)


def gc_events(rows: pa.Table) -> list[GcEvent]:
    """The explicit gc events among these updates; `InvalidFilter` names one whose predicate cannot be read."""
    found = []
    for row in explicit_rows(rows):
        try:
            found.append(gc_event(row))
        except InvalidFilter as error:
            where = f"the gc event at position {row['seq']} of shard {row['shard']}"
            raise InvalidFilter(f"{where} cannot be read: {error}") from None
    return found


def check_covering(later: GcEvent, rows: pa.Table) -> None:
    """Refuse a gc event that matches an explicit one among these updates, and not all that this one matches.

    `InvalidFilter` says which it is. One whose predicate cannot be read never matches anything.
    """
    wide = later.predicate.at(later.time)
    among = rows.filter(pc.equal(rows["shard"], later.shard))
    for row in explicit_rows(among.filter(later.matching().mask(among))):
        try:
            earlier = gc_event(row)
            narrow = earlier.predicate.at(earlier.time)
        except InvalidFilter:
            continue
        if not implies(narrow, wide, before=row["seq"]):
            mine, theirs = (shortened(str(text)) for text in (later.predicate, row[COLLECTS]))
            raise InvalidFilter(
                f"`{mine}` would collect the gc event `{theirs}` at position {row['seq']} of shard "
                f"{row['shard']}, but it is not clear that it matches all that this one does: write "
                f"`({mine}) or ({theirs})`, or let it match no gc event, as by `and kind = data`"
            )


def shortened(text: str) -> str:
    """A predicate that somebody published, as others may be shown it."""
    return printable(text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…")


def check_keyed(predicate: Predicate, key: Sequence[str]) -> None:
    """Refuse a predicate that could split the updates of one key, in a stream where updates collect those of their key.

    There an update is a gc event that matches the earlier ones of its key. Whoever collects it must match these as
    well, which is sure if the predicate speaks of the key alone, and of positions up to one. What matches explicit gc
    events only may say anything.

    >>> check_keyed(Predicate.parse("object = a and seq <= 9"), ["object"])
    >>> check_keyed(Predicate.parse("version < 3"), ["object"])
    Traceback (most recent call last):
    tidings.errors.InvalidFilter: `version in ..2` could match an update and not the earlier ones of its key (object), \
which it collects: a predicate of this stream speaks of object and of seq < ... only
    """
    allowed = {normal_key(name.removesuffix("?")) for name in key}
    for term in predicate.any_of:
        plain = tuple(condition for condition in term if not isinstance(basic_of(condition), Age))
        if implies(Filter((plain,)), EXPLICIT):
            continue
        for condition in term:
            basic = basic_of(condition)
            if isinstance(basic, Age) or not (basic.key in allowed or _bounds_seq(condition)):
                names = " and ".join(key)
                raise InvalidFilter(
                    f"`{condition}` could match an update and not the earlier ones of its key ({names}), which it "
                    f"collects: a predicate of this stream speaks of {names} and of seq < ... only"
                )


def _bounds_seq(condition: Condition) -> bool:
    """Whether the condition holds for each position before one for which it holds."""
    match condition:
        case Between("seq", None, _) | Not(Between("seq", _, None)):
            return True
    return False


def explicit_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """The explicit gc events among these updates: shard, seq, time, and the text of the predicate."""
    chosen = rows.filter(EXPLICIT.mask(rows))
    columns = {name: chosen[name] for name in ("shard", "seq", "time")} | {COLLECTS: values(chosen, COLLECTS)}
    found: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return found


def gc_event(row: dict[str, Any]) -> GcEvent:
    """One of `explicit_rows`; `InvalidFilter` if its predicate cannot be read."""
    if row["time"] is None:
        raise InvalidFilter("it has no time")
    return GcEvent(row["shard"], row["seq"], row["time"], Predicate.parse(row[COLLECTS]))


# ---- implication ---------------------------------------------------------------------------------------------------


def implies(narrow: Filter, wide: Filter, before: int | None = None) -> bool:
    """Whether it is sure that the wide filter holds for each update for which the narrow one does.

    `before` is a `seq` that all updates in question are below.

    >>> from tidings.filters import parse
    >>> implies(parse("object = a and version in 3..5"), parse("object in (a, b) and version >= 2"))
    True
    >>> implies(parse("object = a"), parse("seq < 100"), before=100), implies(parse("object = a"), parse("seq < 100"))
    (True, False)
    """
    known = () if before is None else (Between("seq", high=before - 1),)
    return all(any(_term_implies((*term, *known), other) for other in wide.any_of) for term in narrow.any_of)


def _term_implies(term: Sequence[Condition], other: Sequence[Condition]) -> bool:
    return all(
        any(_condition_implies(one, wanted) for one in term) or _holds_always(wanted)
        for condition in other
        for wanted in _ends(condition)
    )


def _ends(condition: Condition) -> Iterable[Condition]:
    """An interval is implied if each of its ends is, perhaps by different conditions."""
    if isinstance(condition, Between) and condition.low is not None and condition.high is not None:
        return Between(condition.key, low=condition.low), Between(condition.key, high=condition.high)
    return (condition,)


def _holds_always(condition: Condition) -> bool:
    return isinstance(condition, Exists) and condition.key in _ALWAYS


def _condition_implies(one: Condition, other: Condition) -> bool:
    mine, theirs = basic_of(one), basic_of(other)
    if mine.key != theirs.key:
        return False
    match isinstance(one, Not), isinstance(other, Not):
        case False, False:
            return _within(mine, theirs)
        case False, True:
            return _apart(mine, theirs)
        case True, True:
            return _within(theirs, mine)
    return False  # what is not something may be missing, and then it is nothing else either


def _within(one: Basic, other: Basic) -> bool:
    """Whether it is sure that each value of the first is one of the second; both have one key."""
    match one, other:
        case _, Exists():
            return True
        case Between(_, low, high), Between(_, least, most):
            return (least is None or _upto(least, low)) and (most is None or _upto(high, most))
    several = _values(one)
    return one == other if several is None else all(_each(other, several))


def _apart(one: Basic, other: Basic) -> bool:
    """Whether it is sure that no value of the first is one of the second; both have one key."""
    for some, rest in ((one, other), (other, one)):
        several = _values(some)
        if several is not None:
            return not any(_each(rest, several))
    match one, other:
        case Between(_, low, high), Between(_, least, most):
            return (_upto(high, least) and high != least) or (_upto(most, low) and most != low)
    return False


def _values(basic: Basic) -> tuple[object, ...] | None:
    match basic:
        case Equals(_, value):
            return (value,)
        case In(_, several):
            return several
    return None


def _each(basic: Basic, several: tuple[object, ...]) -> list[bool]:
    """Whether the condition holds for each of these values, as the engine sees it."""
    found = holds(basic, pa.chunked_array([pa.array(several, _TYPES[type_of(basic.key)])]))
    return [bool(held) for held in found.to_pylist()]


def _upto(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(one <= other)
