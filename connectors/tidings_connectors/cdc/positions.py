"""Rows and the positions of readers: which come after them, and which cannot be had."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import PositionsLost
from tidings.positions import MAX_SEQ, Bounds, Position, Positions

Missing = dict[int, tuple[Position, Position]]
"""For each shard, the first and the last position that cannot be had."""


class RowsLeftOut(PositionsLost):
    """What comes next is there. But a table is back of which rows were left out before, and nobody who goes on from the
    one to the other may overlook that; who reads a range and no more does not miss what is no part of it."""


def later(rows: pa.Table, positions: Positions) -> npt.NDArray[np.bool_]:
    """Which rows come after these positions; those of shards that are not named do not."""
    shards, seqs, indexes = (rows[name].to_numpy() for name in ("shard", "seq", "index"))
    count = int(max(shards.max(initial=0), max(positions, default=0))) + 1
    seq, index = np.full(count, MAX_SEQ), np.zeros(count, np.int64)
    for shard, at in positions.items():
        seq[shard], index[shard] = at.seq, at.index
    low, low_index = seq[shards], index[shards]
    found: npt.NDArray[np.bool_] = (seqs > low) | ((seqs == low) & (indexes > low_index))
    return found


def chosen(rows: pa.Table, which: npt.NDArray[np.bool_]) -> pa.Table:
    """These rows; nothing is copied if it is all of them."""
    return rows if which.all() else rows.filter(pa.array(which))


def missing(bounds: Bounds, after: Positions) -> tuple[Missing, Missing]:
    """What readers that stand at these positions need and the log does not hold any more; and how far they are ahead.

    >>> missing(Bounds(Position(5, -1), Position(9, -1)), Positions({0: Position(3, 2), 1: Position(7)}))
    ({0: (Position(seq=3, index=3), Position(seq=5, index=-1))}, {})
    """
    gone = {shard: (Position(at.seq, at.index + 1), bounds.floor) for shard, at in after.items() if at < bounds.floor}
    end = Position(bounds.head.seq, bounds.head.index + 1)
    return gone, {shard: (end, at) for shard, at in after.items() if at > bounds.head}
