"""Who is told in this batch, and who in a later one: an object may have a million clients, and a batch many such.

A batch tells of new versions to so many registrations as there is room for, those of the objects with the fewest first.
The others wait in a queue (the table `fanouts`), an object that has too many for one batch in parts, by client. Each
batch takes from the queue what there is room for, one part at least: the oldest first, and a part of one object after a
part of the other. So nobody waits for an object with very many clients, and these wait for nobody for ever.

Whoever waits is told the version that is the latest then. An object that changes while it waits is told to all, again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.storage.sorted_run_file import Share
from tidings_thialfi.server.arrays import Flags, Longs, longs, places
from tidings_thialfi.server.names import NAME
from tidings_thialfi.server.tables import FANOUTS, QUEUE

PARTS_A_BATCH = 4  # of an object that is told in parts

_QUEUE = FANOUTS.append(NAME)


class AudiencePart(NamedTuple):
    """Some of the registrations for an object."""

    name: int
    key: int
    share: Share


@dataclass(frozen=True)
class FanOut:
    """What is told now: objects (`names`, and their `keys`) to all, others in `parts`.

    `changed` are the rows of the queue that this changes; `waits`: the queue is not empty after that.
    """

    names: Longs
    keys: Longs
    parts: tuple[AudiencePart, ...]
    changed: pa.Table
    waits: bool

    @property
    def all_names(self) -> Longs:
        """The names of all that is told of."""
        return np.append(self.names, np.array([part.name for part in self.parts], np.int64))

    @property
    def all_keys(self) -> Longs:
        """Their keys."""
        return np.append(self.keys, np.array([part.key for part in self.parts], np.int64))


def plan_fan_out(new: pa.Table, counts: Longs, queue: pa.Table, room: int, now: int) -> FanOut:
    """What is told, if `new` objects have so many registrations each, and others are in the queue."""
    names, first = np.unique(longs(new, "name"), return_index=True)
    new, counts = new.take(pa.array(first)), counts[first]
    order = np.argsort(counts, kind="stable")
    at_once = np.empty(len(names), bool)
    at_once[order] = np.cumsum(counts[order]) <= room

    # Above that of any row that there was; the time, because what has ended is forgotten.
    rank = max(now, int(longs(queue, "rank").max(initial=0)) + 1)
    before = queue.filter(pc.greater(queue["left"], 0))
    joined = _joined(before, new, counts, at_once, max(1, room // PARTS_A_BATCH), rank)
    whole, parts, after = _next(joined, room - int(counts[at_once].sum()), rank)
    return FanOut(
        np.append(names[at_once], longs(after, "name")[whole]),
        np.append(longs(new, "key")[at_once], longs(after, "key")[whole]),
        parts,
        after.filter(pc.equal(after["rank"], rank)),
        bool((longs(after, "left") > 0).any()),
    )


def _joined(queue: pa.Table, new: pa.Table, counts: Longs, at_once: Flags, part_rows: int, rank: int) -> pa.Table:
    """The queue, with what is new and not told at once; what is told at once does not wait any more."""
    here = places(longs(queue, "name"), longs(new, "name"))
    left, ranks = longs(queue, "left").copy(), longs(queue, "rank").copy()
    left[here[(here >= 0) & at_once]] = 0
    again = here[(here >= 0) & ~at_once]
    left[again] = longs(queue, "parts")[again]
    ranks[here[here >= 0]] = rank
    queue = _changed(queue, left=left, rank=ranks)

    more = np.flatnonzero((here < 0) & ~at_once)
    rows, parts = new.take(pa.array(more)), -(-counts[more] // part_rows)
    columns = {
        "queue": np.full(len(more), QUEUE),
        "object": rows["object"],
        "key": longs(rows, "key"),
        "rank": np.full(len(more), rank),
        "turn": int(longs(queue, "turn").max(initial=0)) + 1 + np.arange(len(more)),
        "parts": parts,
        "size": -(-counts[more] // parts),
        "next": np.zeros(len(more), np.int64),
        "left": parts,
        "name": longs(rows, "name"),
    }
    return pa.concat_tables([queue, pa.table([columns[name] for name in _QUEUE.names], _QUEUE)])


def _next(queue: pa.Table, room: int, rank: int) -> tuple[Flags, tuple[AudiencePart, ...], pa.Table]:
    """What comes next: which objects as a whole, and parts of others; and the queue after that."""
    names, keys, parts, size = (longs(queue, name) for name in ("name", "key", "parts", "size"))
    turn, ranks, following, left = (longs(queue, name).copy() for name in ("turn", "rank", "next", "left"))
    whole = np.zeros(len(queue), bool)
    some: list[AudiencePart] = []
    least = 1
    while True:
        at = np.flatnonzero(left > 0)
        at = at[np.argsort(turn[at], kind="stable")]
        at = at[: max(least, int(np.searchsorted(np.cumsum(size[at]), room, "right")))]
        if not len(at):
            return whole, tuple(some), _changed(queue, turn=turn, rank=ranks, next=following, left=left)
        whole[at[parts[at] == 1]] = True
        some += [
            AudiencePart(name, key, Share("client", part, count))
            for name, key, part, count in np.column_stack([names, keys, following, parts])[at].tolist()
            if count > 1
        ]
        turn[at] = turn.max() + 1 + np.arange(len(at))
        ranks[at] = rank
        following[at] = (following[at] + 1) % parts[at]
        left[at] -= 1
        room -= int(size[at].sum())
        least = 0


def _changed(queue: pa.Table, **columns: Longs) -> pa.Table:
    for name, values in columns.items():
        queue = queue.set_column(_QUEUE.get_field_index(name), _QUEUE.field(name), pa.array(values, pa.int64()))
    return queue
