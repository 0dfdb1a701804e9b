"""The rows of a snapshot and those of the log, as one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidings.logs import Read
from tidings.positions import Position, Positions
from tidings_connectors.postgres_reader import PostgresReader
from tidings_connectors.postgres_slots import FRESH, Slot
from tidings_connectors.postgres_snapshot import Run, Snapshot
from tidings_connectors.tailing import chosen, later


class MergedReader:
    """A `Reader` that puts the rows of a snapshot where they belong in the log: before it, most of the time."""

    def __init__(self, plain: PostgresReader, snapshot: Snapshot, slot: Slot) -> None:
        self._plain = plain
        self._snapshot = snapshot
        self._slot = slot
        self._loaded: tuple[int, int, pa.Table, int] | None = None
        """Rows of a chunk: of which run, from which index on, the rows, and the index after them."""

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows, as `Reader` says it."""
        for run in self._snapshot.runs():
            if not len(after) or min(after.values()) >= Position(run.seq, run.end - 1):
                continue
            if min(after.values()) >= Position(run.seq, -1):
                return self._read_run(run, after, limit)
            rows, upto = self._plain.read(after, limit)
            end = Position(run.seq, -1)
            before = rows.filter(pa.array(rows["seq"].to_numpy() < run.seq))
            return Read(before, Positions({shard: max(after[shard], min(at, end)) for shard, at in upto.items()}))
        return self._plain.read(after, limit)

    def close(self) -> None:
        self._plain.close()

    def _read_run(self, run: Run, after: Positions, limit: int) -> Read:
        state = self._slot.state(FRESH)
        if state.lost or state.floor.seq > run.place:  # what comes after the snapshot is gone, so it is of no use
            self._slot.check(state, after)
        first = min(after.values()).index + 1
        rows = self._rows(run, first).slice(0, limit)
        last = int(rows["index"][-1].as_py())
        at = Position(run.place, -1) if last + 1 >= run.end else Position(run.seq, last)
        return Read(
            chosen(rows, later(rows, after)), Positions({shard: max(stand, at) for shard, stand in after.items()})
        )

    def _rows(self, run: Run, first: int) -> pa.Table:
        """Rows from this index on; those of the same chunk as the last ones need not be read again."""
        if self._loaded is None or self._loaded[0] != run.seq or not self._loaded[1] <= first < self._loaded[3]:
            rows, end = self._snapshot.rows(run, first)
            self._loaded = run.seq, first, rows, end
        rows = self._loaded[2]
        return rows.slice(int(np.searchsorted(rows["index"].to_numpy(), first)))
