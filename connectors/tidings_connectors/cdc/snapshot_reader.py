"""The rows of a snapshot and those of the log, as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from tidings.errors import LogRestored, PositionsLost
from tidings.logs import Read, Reader
from tidings.positions import START, Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.demanded_snapshot import DemandedSnapshot
from tidings_connectors.cdc.positions import chosen, later
from tidings_connectors.cdc.snapshot import StreamSnapshot
from tidings_connectors.cdc.snapshot_note import DEMANDED, LATE, LATE_BASE, SnapshotRun

POLL_TIMEOUT_S = 0.05  # that a read waits for something to come

Losses = tuple[type[PositionsLost] | type[LogRestored], ...]


class MergedReader:
    """A `Reader` that puts the rows of a snapshot where they belong in the log: before it, most of the time."""

    def __init__(
        self,
        plain: Reader,
        snapshot: StreamSnapshot,
        late: StreamSnapshot | None,
        demanded: DemandedSnapshot,
        check: Callable[[Positions], None],
        losses: Losses,
    ) -> None:
        """After one of `losses` all rows are read again."""
        self._plain = plain
        self._snapshot = snapshot
        self._late = late
        self._demanded = demanded
        self._check = check
        self._losses = losses
        self._loaded: tuple[object, int, pa.Table, int] | None = None
        """Rows of a chunk: of which run, from which index on, the rows, and the index after them."""

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows, as `Reader` says it."""
        try:
            return self._read(after, limit)
        except (PositionsLost, LogRestored) as loss:
            # What was undone comes after the end of the log, and what was lost before where one goes on.
            since = START if isinstance(loss, LogRestored) else max(last for _, last in loss.lost.values())
            if isinstance(loss, self._losses) and not self._snapshot.covers(since):
                # Nobody is told of a loss, and sent on, before that has a place.
                self._snapshot.start(again=True, since=since)
                return self._wait(after)
            self._check(after)  # which knows that the oldest held may be rows of the snapshot
            raise

    def close(self) -> None:
        self._plain.close()

    def _read(self, after: Positions, limit: int) -> Read:
        if self._late is not None and any(map(LATE.has, after.values())):
            return self._read_late(self._late, after, limit)
        if any(map(DEMANDED.has, after.values())):
            return self._read_demanded(after, limit)
        note = self._snapshot.note()
        for run in note.gone:
            _tell_rest({shard: at for shard, at in after.items() if run.before <= at < run.after})
        for run in note.runs:
            if not len(after) or min(after.values()) >= run.after:
                continue
            if min(after.values()) < run.before:
                rows, upto = self._plain.read(after, limit)
                ends = Positions({shard: max(stand, min(upto[shard], run.before)) for shard, stand in after.items()})
                return Read(chosen(rows, ~later(rows, ends)), ends)
            self._check(after)  # if what comes after the snapshot is gone, it is of no use
            if note.ready(run):
                return self._read_run(self._snapshot, run, after, limit)
            self._snapshot.start()
            return self._wait(after)
        return self._plain.read(after, limit)

    def _read_late(self, late: StreamSnapshot, after: Positions, limit: int) -> Read:
        """The rows of a late snapshot; it is taken if there is none."""
        note, since = late.note(), max(after.values())
        run = note.runs[0] if note.complete and note.runs else None
        begun = {shard: at for shard, at in after.items() if at.index >= LATE_BASE}
        _tell_rest({shard: at for shard, at in begun.items() if run is None or at.seq != run.seq})
        if run is None or not (begun or late.covers(since)):
            late.start(again=True, since=since)
            return Read(SCHEMA.empty_table(), after)
        if not late.hold():
            return Read(SCHEMA.empty_table(), after)
        self._check(Positions(dict.fromkeys(after, run.after)))
        return self._read_run(late, run, Positions({shard: max(at, run.before) for shard, at in after.items()}), limit)

    def _read_demanded(self, after: Positions, limit: int) -> Read:
        """The rows of a snapshot on demand, once it is complete. Who came for another, which was dropped or had to
        begin anew, goes on in the log: nothing of that is missing, and who began anew has a place for it further on."""
        note = self._demanded.note()
        run = note.runs[0] if note.runs else None
        here = {shard: at for shard, at in after.items() if run is not None and at.seq == run.seq}
        rows, upto = SCHEMA.empty_table(), {shard: Position(at.seq + 1, -1) for shard, at in after.items()} | here
        if run is not None and here and note.complete:
            self._check(Positions(dict.fromkeys(here, run.after)))
            rows, reached = self._read_run(self._demanded, run, Positions(here), limit)
            upto |= reached
        return Read(rows, Positions(upto))

    def _wait(self, after: Positions) -> Read:
        time.sleep(POLL_TIMEOUT_S)
        return Read(SCHEMA.empty_table(), after)

    def _read_run(self, snapshot: StreamSnapshot, run: SnapshotRun, after: Positions, limit: int) -> Read:
        rows = self._rows(snapshot, run, min(after.values()).index + 1).slice(0, limit)
        last = int(rows["index"][-1].as_py()) if len(rows) else run.end
        at = run.after if last + 1 >= run.end else Position(run.seq, last)
        return Read(
            chosen(rows, later(rows, after)), Positions({shard: max(stand, at) for shard, stand in after.items()})
        )

    def _rows(self, snapshot: StreamSnapshot, run: SnapshotRun, first: int) -> pa.Table:
        """Rows from this index on; those of the same chunk as the last ones need not be read again."""
        which = run.seq, [chunk.file for chunk in run.chunks[:1]]  # one that was taken anew may be at the same place
        if self._loaded is None or self._loaded[0] != which or not self._loaded[1] <= first < self._loaded[3]:
            rows, end = snapshot.rows(run, first)
            self._loaded = which, first, rows, end
        rows = self._loaded[2]
        return rows.slice(int(np.searchsorted(rows["index"].to_numpy(), first)))


def _tell_rest(inside: Mapping[int, Position]) -> None:
    """Raise if somebody stands inside a snapshot whose rows are not there any more."""
    if inside:
        gone = {shard: (Position(at.seq, at.index + 1), Position(at.seq + 1, -1)) for shard, at in inside.items()}
        raise PositionsLost("the rest of a snapshot that was read in part is not there any more", gone)
