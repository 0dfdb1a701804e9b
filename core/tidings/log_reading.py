"""What those who read logs have in common, and those who make one readable: what is held, and what comes next."""

from __future__ import annotations

import contextlib
import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import LogRestored, PositionsLost
from tidings.logs import Log, Read, TailedLog
from tidings.positions import Bounds, Position, Positions
from tidings.updates import TOMBSTONE

SEARCHED_ROWS = 10_000


def check_held(stream: str, bounds: dict[int, Bounds], after: Positions) -> None:
    """Raise unless a log with these bounds can serve a reader that stands at `after`."""
    gone = {
        shard: (Position(after[shard].seq + 1), held.floor)
        for shard, held in bounds.items()
        if after[shard] < held.floor
    }
    if gone:
        shard, (first, last) = next(iter(gone.items()))
        raise PositionsLost(
            f"stream {stream!r} no longer holds {first.seq} to {last.seq} of shard {shard}"
            f"{f' (and some of {len(gone) - 1} other shards)' if len(gone) > 1 else ''}: they were truncated",
            gone,
        )
    ahead = {
        shard: (Position(held.head.seq + 1), after[shard]) for shard, held in bounds.items() if after[shard] > held.head
    }
    if ahead:
        shard, (first, last) = next(iter(ahead.items()))
        raise LogRestored(
            f"the reader stands at {last.seq} in shard {shard} of stream {stream!r}, but the log ends at "
            f"{first.seq - 1}: the stream was made anew, or restored from an older copy",
            ahead,
        )


class TailReader:
    """The reader of a log in which every place is found at once."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows, as `tail` has them."""
        others = {shard: held.head for shard, held in self._log.bounds().items() if shard not in after}
        rows = self._log.tail(Positions({**others, **after}), limit)
        return Read(rows, Positions({**after, **ends(rows)}))

    def close(self) -> None:
        """There is nothing to let go of."""


def ends(rows: pa.Table) -> dict[int, Position]:
    """The last position of each shard, in rows whose shards are each in order."""
    shards, seqs, indexes = (rows[name].to_numpy() for name in ("shard", "seq", "index"))
    found, last = np.unique(shards[::-1], return_index=True)
    at = len(shards) - 1 - last
    positions = zip(found.tolist(), seqs[at].tolist(), indexes[at].tolist(), strict=True)
    return {shard: Position(seq, index) for shard, seq, index in positions}


def positions_at(log: Log, shard: int, time: dt.datetime) -> Position:
    """Where a reader stands whose next update of the shard is the first that is not older than this time.

    Found by halving, as far as times grow with positions, which they do in a log that is written as things happen. A
    datastore's log cannot be halved, and is read from where it begins.
    """
    bounds = log.bounds()
    if isinstance(log, TailedLog):
        return _searched(log, shard, time, bounds[shard])
    low, high = bounds[shard].floor.seq, bounds[shard].head.seq
    others = {other: held.head for other, held in bounds.items() if other != shard}
    while low < high:
        middle = (low + high) // 2
        row = log.tail(Positions({**others, shard: Position(middle)}), 1)
        if len(row) and row["kind"][0].as_py() == TOMBSTONE:  # of no time; what follows it tells
            row = log.tail(Positions({**others, shard: Position(row["seq"][0].as_py())}), 1)
        found = row["time"][0].as_py() if len(row) else None
        if found is not None and found < time:
            low = max(middle + 1, int(row["seq"][0].as_py()))
        else:
            high = middle
    return Position(low)


def _searched(log: TailedLog, shard: int, time: dt.datetime, held: Bounds) -> Position:
    at = held.floor
    with contextlib.closing(log.reader()) as reader:
        while at < held.head:
            try:
                rows, upto = reader.read(Positions({shard: at}), SEARCHED_ROWS)
            except LogRestored:
                raise
            except PositionsLost as loss:  # of no time, and who starts before it is told
                at = loss.lost[shard][1]
                continue
            late = np.flatnonzero(pc.fill_null(pc.greater_equal(rows["time"], time), False).to_numpy())
            if len(late):
                row = int(late[0])
                return Position(rows["seq"][row].as_py(), rows["index"][row].as_py()).before
            at = upto[shard]
    return held.head
