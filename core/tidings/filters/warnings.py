"""What is allowed in a filter and cannot be meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from tidings.filters.arrow import holds
from tidings.filters.conditions import Basic, Between, Condition, Equals, Exists, In, Not, Terms, basic_of
from tidings.filters.values import type_of
from tidings.updates import KINDS, MAX_OBJECT_BYTES, SCHEMA

ALIKE = 0.85  # so much of a key and of a column is the same if one may be meant for the other
_ALWAYS = frozenset({"shard", "seq", "index", "object", "kind", "range"})  # no update is without them


def warnings_of(terms: Terms, shards: int | None) -> list[str]:
    """What cannot be meant in an OR of ANDs, each once; `Filter.warnings` says more."""
    found: list[str] = []
    for term in terms:
        found += [warning for condition in term for warning in _warnings(condition, shards)]
        found += _contradictions(term)
    return list(dict.fromkeys(found))


def _warnings(condition: Condition, shards: int | None) -> Iterable[str]:
    basic = basic_of(condition)
    near = (
        get_close_matches(basic.key.lower(), SCHEMA.names, n=1, cutoff=ALIKE) if basic.key not in SCHEMA.names else []
    )
    if near:
        yield f"`{basic.key}` is an attribute, and not the column {near[0]}"
    if isinstance(basic, Exists) and basic.key in _ALWAYS:
        which = "no" if isinstance(condition, Not) else "every"
        yield f"`{condition}` holds for {which} update: each has its {basic.key}"
    reason = _impossible(basic, shards)
    if reason:
        yield f"`{condition}` holds for {'every' if isinstance(condition, Not) else 'no'} update: {reason}"


def _impossible(basic: Basic, shards: int | None) -> str | None:
    """Why no update can have such a value, or None."""
    if basic.key == "kind" and not pc.any(pc.fill_null(holds(basic, pa.chunked_array([KINDS])), False)).as_py():
        return f"kind is one of {', '.join(KINDS)}"
    values = basic.values if isinstance(basic, In) else (basic.value,) if isinstance(basic, Equals) else ()
    if basic.key == "object" and values and not any(0 < len(str(v).encode()) <= MAX_OBJECT_BYTES for v in values):
        return f"the name of an object has 1 to {MAX_OBJECT_BYTES:,} bytes"
    if type_of(basic.key) == "number":
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
