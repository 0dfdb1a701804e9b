"""What explicit gc events match: found by the index where they name objects, and else by a scan for many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidFilter
from tidings.filters import Between, Equals, Filter, In
from tidings.logs import CollectableLog
from tidings.tombstones import NO_TOMBSTONES, Tombstones
from tidings_gc_tombstones.covering import GcEvent, check_covering
from tidings_gc_tombstones.index import NO_PLACES, KeyIndex, KeyPlaces
from tidings_gc_tombstones.keys import DEFAULT_KEY, keys_of

SCANNED_EVENTS = 64  # that are looked for in one scan


@dataclass(frozen=True)
class RefusedEvent:
    """A gc event by which nothing was collected, and why."""

    shard: int
    seq: int
    reason: str


@dataclass(frozen=True)
class Matched:
    """What gc events match: the positions, the same by key, and the events that match nothing, because they may not."""

    gone: Tombstones = field(default_factory=lambda: NO_TOMBSTONES)
    places: KeyPlaces = NO_PLACES
    refused: tuple[RefusedEvent, ...] = ()

    def __add__(self, other: Matched) -> Matched:
        return Matched(self.gone | other.gone, self.places + other.places, self.refused + other.refused)


class EventMatcher:
    """Finds what explicit gc events match. `key` is that of the index; `indexed` says whether it knows of the past."""

    def __init__(self, log: CollectableLog, index: KeyIndex, key: tuple[str, ...], indexed: bool) -> None:
        self._log = log
        self._index = index
        self._key = key
        self._indexed = indexed

    def match(self, events: Sequence[GcEvent], new: KeyPlaces) -> Matched:
        """What these match; `new` are the places that the index does not know of yet."""
        found, others = Matched(), list[tuple[GcEvent, Filter]]()
        for event in events:
            matching = event.matching() & Equals("shard", event.shard)
            named = named_objects(matching) if self._key == DEFAULT_KEY else None
            if named is None:
                others.append((event, matching))
            else:
                found += self._named(event.shard, *named, new)
        for start in range(0, len(others), SCANNED_EVENTS):
            for one in self._scanned(others[start : start + SCANNED_EVENTS]):
                found += one
        return found

    def _named(self, shard: int, objects: list[str], before: int, new: KeyPlaces) -> Matched:
        """The updates of these objects before a seq: found by the index, and among those that are new."""
        keys = pa.array([name.encode() for name in objects], pa.binary())
        found = new.take((new.shard == shard) & pc.is_in(new.key, keys).to_numpy(zero_copy_only=False))
        if self._indexed:
            asked = KeyPlaces.at(np.full(len(keys), shard, np.int32), np.zeros(len(keys), np.int64), keys)
            found = self._index.find(asked) + found
        found = found.take(found.seq < before)
        return Matched(Tombstones.at(found.shard, found.seq), found)

    def _scanned(self, events: Sequence[tuple[GcEvent, Filter]]) -> Iterator[Matched]:
        """The updates that each of these matches, wherever they are.

        One that matches another one that it does not cover collects nothing.
        """
        found = [Matched()] * len(events)
        for rows in self._log.find(*(matching for _, matching in events)):
            for at, (event, matching) in enumerate(events):
                if not found[at].refused:
                    try:
                        found[at] += self._judged(event, rows.filter(matching.mask(rows)))
                    except InvalidFilter as error:
                        found[at] = Matched(refused=(RefusedEvent(event.shard, event.seq, str(error)),))
        yield from found

    def _judged(self, event: GcEvent, rows: pa.Table) -> Matched:
        if not len(rows):
            return Matched()
        check_covering(event, rows)
        found = Matched(Tombstones.at(rows["shard"].to_numpy(), rows["seq"].to_numpy()))
        return replace(found, places=KeyPlaces.of(rows, keys_of(rows, self._key))) if self._indexed else found


def named_objects(matching: Filter) -> tuple[list[str], int] | None:
    """The objects that a filter names, and the seq before which, if it asks for nothing else but a shard.

    >>> from tidings.filters import parse
    >>> named_objects(parse("object in (a, b) and seq < 7 and shard = 2")), named_objects(parse("version < 7"))
    ((['a', 'b'], 7), None)
    """
    names: list[str] = []
    before = 2**63 - 1
    for condition in matching.any_of[0] if len(matching.any_of) == 1 else ():
        match condition:
            case Equals("object", str(name)) if not names:
                names = [name]
            case In("object", several) if not names:
                names = [str(name) for name in several]
            case Between("seq", None, int(high)):
                before = min(before, high + 1)
            case Equals("shard"):
                pass
            case _:
                return None
    return (names, before) if names else None
