"""What flows get of one read of a log: rows in the order of their shards, and messages that carry them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.applications import Application
from tidings.positions import Position
from tidings.publisher.flow_session import Sending

MESSAGE_BYTES = 4 * 2**20
LARGE_BATCH = 4096  # rows; smaller ones are gathered before they are sent

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """Rows of one read, or a part of them, in the order of their shards."""

    rows: pa.Table
    shards: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int32]
    row_bytes: float

    @classmethod
    def split(cls, rows: pa.Table) -> Iterator[Step]:
        """The rows of one read. A log that keeps its rows in the order of their shards has them sent without a copy."""
        batches = rows.to_batches()
        if len(rows) < LARGE_BATCH * len(batches):
            yield cls.of(rows)
        else:
            yield from (cls.of(pa.Table.from_batches([batch])) for batch in batches)

    @classmethod
    def of(cls, rows: pa.Table) -> Step:
        """The rows, brought into order."""
        shards = rows["shard"].to_numpy()
        if np.any(np.diff(shards) < 0):
            order = np.argsort(shards, kind="stable")
            rows, shards = rows.combine_chunks().take(order), shards[order]
        row_bytes = rows.nbytes / max(1, len(rows))
        return cls(rows.combine_chunks(), shards, rows["seq"].to_numpy(), rows["index"].to_numpy(), row_bytes)

    def after(self, shard: int, position: Position) -> tuple[int, int]:
        """Where the rows of a shard after a position begin and end."""
        first, end = np.searchsorted(self.shards, [shard, shard + 1])
        seqs = self.seqs[first:end]
        start = first + int(np.searchsorted(seqs, position.seq, "left"))
        while start < end and self.position(start) <= position:
            start += 1
        return int(start), int(end)

    def position(self, row: int) -> Position:
        """The position of a row."""
        return Position(int(self.seqs[row]), int(self.indexes[row]))

    def ends(self) -> dict[int, Position]:
        """The last position of each shard."""
        last = np.flatnonzero(np.diff(self.shards, append=-1))
        return {int(self.shards[row]): self.position(int(row)) for row in last}


def fresh(step: Step, application: Application) -> npt.NDArray[np.bool_]:
    """Which rows are young enough for a realtime application."""
    if application.max_age is None:
        return np.ones(len(step.rows), bool)
    oldest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=application.max_age)
    young = pc.fill_null(pc.greater_equal(step.rows["time"], pa.scalar(oldest, pa.timestamp("us", "UTC"))), True)
    mask: npt.NDArray[np.bool_] = young.to_numpy()
    return mask


def messages(step: Step, parts: list[tuple[Sending, Rows]]) -> Iterator[tuple[dict[str, object], pa.RecordBatch]]:
    """Batches of a size that travels well: each with rows of one flow or several, one after the other."""
    most = max(1, int(MESSAGE_BYTES / max(1.0, step.row_bytes)))
    gathered: list[tuple[Sending, Rows, Position]] = []
    count = 0
    for one, rows in parts:
        for start in range(0, len(rows), most):
            piece = rows[start : start + most]
            last = start + most >= len(rows)
            gathered.append((one, piece, one.sent if last else step.position(int(piece[-1]))))
            count += len(piece)
            if count >= most:
                yield _message(step, gathered)
                gathered, count = [], 0
    if gathered:
        yield _message(step, gathered)


def _message(step: Step, parts: list[tuple[Sending, Rows, Position]]) -> tuple[dict[str, object], pa.RecordBatch]:
    indices = np.concatenate([rows for _, rows, _ in parts])
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first + 1 == count and bool(np.all(np.diff(indices) == 1)):
        table = step.rows.slice(first, count)  # nothing is copied
    else:
        table = step.rows.take(indices).combine_chunks()
    about = [[one.flow.shard, one.epoch, one.turn, len(rows), upto.seq, upto.index] for one, rows, upto in parts]
    return {"t": "batch", "stream": parts[0][0].flow.stream, "parts": about}, table.to_batches()[0]
