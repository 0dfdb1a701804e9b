"""Tombstones: runs of positions whose updates were collected, in all shards of a stream at once.

`Tombstones` is a set of positions, kept as its longest runs; sets are united, cut and compared by whole arrays. In a
table of updates each run is one row of kind `tombstone`: its `seq` is the last position of the run, its `range` the
count. `settle` puts tombstones over updates, and `trim` cuts a table to what a reader has asked for.

A tombstone has no holes: it stands for each position from its first to its last. What it stands for was there, and was
collected; whoever reads it has missed nothing that still matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidPosition
from tidings.updates import SCHEMA

Integers = npt.NDArray[np.int64]
Shards = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KIND = "tombstone"
_PRESENT = {"index": 0, "object": "", "kind": KIND}  # all other columns of a tombstone but its place are null


@dataclass(frozen=True, slots=True, eq=False)
class Tombstones:
    """A set of positions, as runs: sorted, none empty, none that overlap or adjoin. Make it by `runs` or `at`.

    >>> some = Tombstones.runs(shard=[1, 0, 0], first=[5, 3, 1], last=[9, 4, 2])
    >>> some
    Tombstones({0: [(1, 4)], 1: [(5, 9)]})
    >>> len(some), some.count
    (2, 9)
    """

    shard: npt.NDArray[np.int32]
    first: Integers
    last: Integers

    @classmethod
    def runs(cls, shard: npt.ArrayLike, first: npt.ArrayLike, last: npt.ArrayLike) -> Tombstones:
        """What these runs cover, in any order; they may overlap. Both ends of a run belong to it.

        >>> Tombstones.runs([0], [5], [4])
        Traceback (most recent call last):
        tidings.errors.InvalidPosition: a tombstone of shard 0 cannot reach from 5 to 4
        """
        shards, firsts, lasts = (np.asarray(part, np.int64) for part in (shard, first, last))
        wrong = np.flatnonzero((firsts > lasts) | (firsts < 0) | (shards < 0))
        if len(wrong):
            at = wrong[0]
            raise InvalidPosition(f"a tombstone of shard {shards[at]} cannot reach from {firsts[at]} to {lasts[at]}")
        line = _Line.around((shards, firsts, lasts))
        return line.back(*_merged(line.put(shards, firsts), line.put(shards, lasts)))

    @classmethod
    def at(cls, shard: npt.ArrayLike, seq: npt.ArrayLike, range: npt.ArrayLike = 1) -> Tombstones:
        """What these rows cover: each its `seq`, and as many positions up to it as its `range` says.

        >>> Tombstones.at([0, 0, 0], [7, 9, 8], range=[3, 1, 1])
        Tombstones({0: [(5, 9)]})
        """
        lasts = np.asarray(seq, np.int64)
        return cls.runs(shard, lasts - np.asarray(range, np.int64) + 1, lasts)

    @classmethod
    def from_rows(cls, rows: pa.Table | pa.RecordBatch) -> Tombstones:
        """What the tombstones among these updates cover; other updates are passed over."""
        rows = rows.filter(pc.equal(rows["kind"], KIND))
        return cls.at(*(_numbers(rows[name]) for name in ("shard", "seq", "range")))

    def rows(self) -> pa.Table:
        """The tombstones as updates, one a run.

        >>> Tombstones.runs([0], [5], [9]).rows().select(["shard", "seq", "kind", "range"]).to_pylist()
        [{'shard': 0, 'seq': 9, 'kind': 'tombstone', 'range': 5}]
        """
        placed = {"shard": self.shard, "seq": self.last, "range": self.counts}
        columns = [
            pa.array(placed[field.name], field.type)
            if field.name in placed
            else pa.repeat(pa.scalar(_PRESENT.get(field.name), field.type), len(self))
            for field in SCHEMA
        ]
        return pa.table(columns, schema=SCHEMA)

    @property
    def counts(self) -> Integers:
        """How many positions each run covers."""
        return self.last - self.first + 1

    @property
    def count(self) -> int:
        """How many positions are covered."""
        return int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.first)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tombstones):
            return NotImplemented
        pairs = ((self.shard, other.shard), (self.first, other.first), (self.last, other.last))
        return all(np.array_equal(one, two) for one, two in pairs)

    __hash__ = None  # type: ignore[assignment]  # as that of the arrays in it

    def __repr__(self) -> str:
        found: dict[int, list[tuple[int, int]]] = {}
        for shard, first, last in zip(self.shard.tolist(), self.first.tolist(), self.last.tolist(), strict=True):
            found.setdefault(shard, []).append((first, last))
        return f"Tombstones({found})"

    def __or__(self, other: Tombstones) -> Tombstones:
        """What either covers.

        >>> Tombstones.runs([0], [1], [4]) | Tombstones.runs([0, 0], [5, 9], [6, 9])
        Tombstones({0: [(1, 6), (9, 9)]})
        """
        if not len(self) or not len(other):
            return self if len(self) else other
        line = _Line.around(self._parts, other._parts)
        (starts, ends), (more_starts, more_ends) = line.both(self), line.both(other)
        return line.back(*_merged(np.concatenate([starts, more_starts]), np.concatenate([ends, more_ends])))

    def __and__(self, other: Tombstones) -> Tombstones:
        """What both cover.

        >>> Tombstones.runs([0], [1], [9]) & Tombstones.runs([0, 0, 1], [0, 8, 5], [2, 20, 6])
        Tombstones({0: [(1, 2), (8, 9)]})
        """
        if not len(self) or not len(other):
            return NO_TOMBSTONES
        line = _Line.around(self._parts, other._parts)
        return line.back(*_common(line.both(self), line.both(other)))

    def __sub__(self, other: Tombstones) -> Tombstones:
        """What this covers and the other does not.

        >>> Tombstones.runs([0], [1], [9]) - Tombstones.runs([0], [3], [4])
        Tombstones({0: [(1, 2), (5, 9)]})
        """
        if not len(self) or not len(other):
            return self
        line = _Line.around(self._parts, other._parts)
        starts, ends = line.both(other)
        between = np.concatenate([[0], ends + 1]), np.concatenate([starts - 1, [line.end]])
        some = between[0] <= between[1]
        return line.back(*_common(line.both(self), (between[0][some], between[1][some])))

    def within(self, after: npt.ArrayLike, upto: npt.ArrayLike) -> Tombstones:
        """What is covered after and up to these positions, each an array with a place for each shard.

        >>> Tombstones.runs([0, 1], [1, 1], [9, 9]).within(after=[4, -1], upto=[6, 3])
        Tombstones({0: [(5, 6)], 1: [(1, 3)]})
        """
        first, last = _clipped(self.shard, self.first, self.last, after, upto)
        some = first <= last
        return Tombstones(self.shard[some], first[some], last[some])

    def covers(self, shard: npt.ArrayLike, first: npt.ArrayLike, last: npt.ArrayLike | None = None) -> Mask:
        """Which of these positions, or runs of them, are covered wholly.

        >>> some = Tombstones.runs([0], [5], [9])
        >>> some.covers([0, 0, 1], [5, 10, 5]).tolist(), some.covers([0, 0], [5, 4], [9, 6]).tolist()
        ([True, False, False], [True, False])
        """
        shards, firsts = np.asarray(shard, np.int64), np.asarray(first, np.int64)
        lasts = firsts if last is None else np.asarray(last, np.int64)
        if not len(self) or not len(firsts):
            return np.zeros(len(firsts), np.bool_)
        line = _Line.around(self._parts, (shards, firsts, lasts))
        starts, ends = line.both(self)
        at = np.searchsorted(starts, line.put(shards, firsts), "right") - 1
        return (at >= 0) & (ends[np.maximum(at, 0)] >= line.put(shards, lasts))

    def covers_rows(self, rows: pa.Table | pa.RecordBatch) -> Mask:
        """Which of these updates are covered wholly; a tombstone among them with all that it stands for."""
        places = _places(rows)
        return self.covers(places.shard, places.first, places.last)

    @property
    def _parts(self) -> tuple[Shards, Integers, Integers]:
        return self.shard, self.first, self.last


def settle(rows: pa.Table, over: Tombstones) -> pa.Table:
    """The updates with tombstones put over them: what is covered wholly is gone.

    The rows are sorted by shard and `seq`. Each longest run of rows that are covered, or are tombstones already, and
    that adjoin in one shard becomes one tombstone. All others stay as they are, and where they are. What is covered and
    is not among the rows adds nothing; if none of the rows is covered, the table itself is returned.

    >>> rows = pa.table({"shard": [0] * 4, "seq": [1, 2, 3, 4], "range": [1] * 4, "kind": ["data"] * 4})
    >>> settled = settle(rows, Tombstones.runs([0], [2], [9]))
    >>> settled.select(["seq", "range", "kind"]).to_pylist()
    [{'seq': 1, 'range': 1, 'kind': 'data'}, {'seq': 4, 'range': 3, 'kind': 'tombstone'}]
    """
    if not len(over) or not len(rows):
        return rows
    places = _places(rows)
    gone = _covered(places, over)
    if not gone.any():
        return rows
    gone |= places.tombstone if places.tombstone is not None else _tombstones_among(rows)
    # A row begins a run if it is gone, and the one before it is not, or does not adjoin it.
    joins = np.zeros(len(rows), np.bool_)
    joins[1:] = gone[:-1] & (places.shard[1:] == places.shard[:-1]) & (places.first[1:] <= places.last[:-1] + 1)
    begins = np.flatnonzero(gone & ~joins)
    ends = np.append(begins[1:], len(rows))
    # The last row of a run is the last one gone before the next run begins.
    through = np.cumsum(gone)
    ends = np.searchsorted(through, through[ends - 1], "left")
    kept = ~gone
    return _replaced(rows, kept, begins, places.last[ends], places.last[ends] - places.first[begins] + 1)


def trim(rows: pa.Table, after: npt.ArrayLike, upto: npt.ArrayLike) -> pa.Table:
    """The updates after and up to these positions, each an array with a place for each shard.

    A tombstone that lies partly within is cut to that part. If nothing is cut off, the table itself is returned.

    >>> rows = Tombstones.runs([0, 1], [1, 1], [9, 9]).rows()
    >>> trim(rows, after=[4, 9], upto=[6, 20]).select(["shard", "seq", "range"]).to_pylist()
    [{'shard': 0, 'seq': 6, 'range': 2}]
    """
    places = _places(rows)
    first, last = _clipped(places.shard, places.first, places.last, after, upto)
    within = first <= last
    cut = within & ((first != places.first) | (last != places.last))
    if cut.any():
        at = np.flatnonzero(cut)
        return _replaced(rows, within & ~cut, at, last[at], last[at] - first[at] + 1)
    return rows if within.all() else rows.filter(pa.array(within))


NO_TOMBSTONES = Tombstones(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
"""Nothing is covered."""


@dataclass(frozen=True, slots=True)
class _Line:
    """All shards laid out one after the other, with at least one place between them: a position is one number."""

    low: int
    width: int
    shards: int

    @classmethod
    def around(cls, *sets: tuple[Shards, Integers, Integers]) -> _Line:
        """A line that has room for these runs."""
        sets = tuple(one for one in sets if len(one[0]))
        low = min((int(firsts.min()) for _, firsts, _ in sets), default=0)
        high = max((int(lasts.max()) for _, _, lasts in sets), default=0)
        shards = max((int(shard.max()) for shard, _, _ in sets), default=0) + 1
        line = cls(low, high - low + 2, shards)
        if line.end >= 2**62:
            raise InvalidPosition(
                f"positions from {low} to {high} in {shards} shards are too far apart to be collected"
            )
        return line

    @property
    def end(self) -> int:
        return self.width * self.shards

    def put(self, shard: Shards, seq: Integers) -> Integers:
        placed: Integers = shard.astype(np.int64) * self.width + (seq - self.low)
        return placed

    def both(self, tombstones: Tombstones) -> tuple[Integers, Integers]:
        return self.put(tombstones.shard, tombstones.first), self.put(tombstones.shard, tombstones.last)

    def back(self, starts: Integers, ends: Integers) -> Tombstones:
        shard = starts // self.width
        before = shard * self.width - self.low
        return Tombstones(shard.astype(np.int32), starts - before, ends - before)


def _merged(starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """The longest runs of what these cover.

    As many runs have begun before the k-th start as have ended, if and only if nothing covers what lies right before
    it: so starts and ends can be sorted each for themselves.
    """
    # What is sorted piece by piece is merged, by this kind of sort.
    starts, ends = np.sort(starts, kind="stable"), np.sort(ends, kind="stable")
    if not len(starts):
        return starts, ends
    apart = starts[1:] > ends[:-1] + 1
    return starts[np.append(True, apart)], ends[np.append(apart, True)]


def _common(one: tuple[Integers, Integers], other: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """What two sets of runs share; each is sorted, and its runs do not adjoin."""
    low, high = np.searchsorted(other[1], one[0], "left"), np.searchsorted(other[0], one[1], "right")
    pairs = np.maximum(high - low, 0)
    mine = np.repeat(np.arange(len(pairs)), pairs)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(pairs) - pairs, pairs) + np.repeat(low, pairs)
    return np.maximum(one[0][mine], other[0][theirs]), np.minimum(one[1][mine], other[1][theirs])


@dataclass(frozen=True, slots=True)
class _Places:
    """What each row of a table covers, and which are tombstones, if that had to be looked up."""

    shard: Shards
    first: Integers
    last: Integers
    tombstone: Mask | None


def _places(rows: pa.Table | pa.RecordBatch) -> _Places:
    shard, last, count = (_numbers(rows[name]) for name in ("shard", "seq", "range"))
    if (count == 1).all():
        return _Places(shard, last, last, None)
    # A range means something for a tombstone only, whatever a producer has put there.
    tombstone = _tombstones_among(rows)
    return _Places(shard, np.where(tombstone, last - count + 1, last), last, tombstone)


def _tombstones_among(rows: pa.Table | pa.RecordBatch) -> Mask:
    found: Mask = pc.equal(rows["kind"], KIND).to_numpy(zero_copy_only=False)
    return found


def _numbers(column: pa.Array | pa.ChunkedArray) -> Integers:
    numbers: Integers = column.to_numpy(zero_copy_only=False)  # those of a shard have 32 bits, which does no harm
    return numbers


def _clipped(
    shard: Shards, first: Integers, last: Integers, after: npt.ArrayLike, upto: npt.ArrayLike
) -> tuple[Integers, Integers]:
    lowest, highest = np.asarray(after, np.int64)[shard] + 1, np.asarray(upto, np.int64)[shard]
    return np.maximum(first, lowest), np.minimum(last, highest)


def _covered(places: _Places, over: Tombstones) -> Mask:
    """Which rows are covered wholly: found run by run, since there are fewer of them than rows."""
    line = _Line.around((places.shard, places.first, places.last), over._parts)
    starts, ends = line.both(over)
    low = np.searchsorted(line.put(places.shard, places.first), starts, "left")
    high = np.searchsorted(line.put(places.shard, places.last), ends, "right")
    some = low < high
    steps = np.zeros(len(places.first) + 1, np.int8)
    # Runs are apart, so none begins where another begins; but one may begin where another ends.
    steps[low[some]] += 1
    steps[high[some]] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _replaced(rows: pa.Table, kept: Mask, at: Integers, seq: Integers, count: Integers) -> pa.Table:
    """The rows that are kept as they are, and tombstones in the place of some of the others."""
    placed = np.zeros(len(rows), np.bool_)
    placed[at] = True
    chosen = kept | placed
    tombstone = placed[chosen]
    # A null in the mask makes a null, which is what most of a tombstone is.
    mask = pa.array(kept, mask=placed)
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name in ("shard", "seq", "range"):
            values = column.to_numpy()[chosen]
            if field.name != "shard":
                values[tombstone] = seq if field.name == "seq" else count
            columns.append(pa.array(values, field.type))
        else:
            found = column.filter(mask, "emit_null")
            fill = _PRESENT.get(field.name)
            columns.append(found if fill is None else found.fill_null(pa.scalar(fill, field.type)))
    return pa.table(columns, schema=rows.schema)
