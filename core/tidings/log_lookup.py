"""Finding one update in a log, by its position."""

from __future__ import annotations

import contextlib

import pyarrow as pa

from tidings.logs import Log, WritableLog
from tidings.positions import Position, Positions

READS = 20  # of a database's log, which may have nothing of the shard at first


def row_from(log: Log, shard: int, at: Position) -> pa.Table | None:
    """The next row of a shard from this position on, if the log holds one."""
    bounds = log.bounds()
    held, stand = bounds[shard], at.before
    if isinstance(log, WritableLog):
        stand = Position(at.seq - 1)
        others = {other: one.head for other, one in bounds.items() if other != shard}
        inside = held.floor <= stand < held.head
        return log.tail(Positions({**others, shard: stand}), 1) if inside else None
    with contextlib.closing(log.reader()) as reader:  # which also reads what is aside of the log
        for _ in range(READS):
            rows, upto = reader.read(Positions({shard: stand}), 1)
            if len(rows) or upto[shard] >= at or stand >= held.head:
                return rows.slice(0, 1)
            stand = upto[shard]
    return None
