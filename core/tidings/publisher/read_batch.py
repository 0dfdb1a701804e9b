"""What flows get of one read of a log: rows in the order of their shards, and messages that carry them."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.applications import Application
from tidings.filters import Filter
from tidings.positions import Position
from tidings.publisher.flow_session import FlowSession
from tidings.updates import TOMBSTONE, portions, row_sizes
from tidings.wire.protocol import Message, pair

MESSAGE_BYTES = 4 * 2**20
PART_BYTES = 8 * 2**20  # of a read that are sent before the windows of flows are looked at again
LARGE_BATCH_ROWS = 4096  # smaller ones are gathered before they are sent

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ReadBatch:
    """Rows of one read, or a part of them, in the order of their shards."""

    rows: pa.Table
    shards: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    """Bytes of each row."""

    @classmethod
    def split(cls, rows: pa.Table) -> Iterator[ReadBatch]:
        """The rows of one read, in parts after each of which flows may leave whose windows are full.

        A log that keeps its rows in the order of their shards has them sent without a copy.
        """
        batches = rows.to_batches()
        if len(rows) < LARGE_BATCH_ROWS * len(batches):
            batches = rows.combine_chunks().to_batches()
        for batch in batches:
            for run in portions(row_sizes(batch), len(batch), PART_BYTES):
                yield cls.of(pa.Table.from_batches([batch.slice(run.start, run.stop - run.start)]))

    @classmethod
    def of(cls, rows: pa.Table) -> ReadBatch:
        """The rows, brought into order."""
        shards = rows["shard"].to_numpy()
        if np.any(np.diff(shards) < 0):
            order = np.argsort(shards, kind="stable")
            rows, shards = rows.combine_chunks().take(order), shards[order]
        rows = rows.combine_chunks()
        return cls(rows, shards, rows["seq"].to_numpy(), rows["index"].to_numpy(), row_sizes(rows))

    @functools.cached_property
    def tombstones(self) -> npt.NDArray[np.bool_]:
        """Which rows are tombstones: every flow gets them, whatever its filter, since they stand for anything."""
        found: npt.NDArray[np.bool_] = pc.equal(self.rows["kind"], TOMBSTONE).to_numpy()
        return found

    @functools.cached_property
    def _extents(self) -> dict[int, tuple[int, int]]:
        """Where the rows of each shard begin and end."""
        shards, firsts = np.unique(self.shards, return_index=True)
        ends = np.append(firsts[1:], len(self.shards))
        return dict(zip(shards.tolist(), zip(firsts.tolist(), ends.tolist(), strict=True), strict=True))

    @functools.cached_property
    def _times(self) -> npt.NDArray[np.int64]:
        """When each row was committed, in microseconds; the least number where that is not known."""
        micros = pc.fill_null(self.rows["time"].cast(pa.int64()), np.iinfo(np.int64).min)
        found: npt.NDArray[np.int64] = micros.to_numpy()
        return found

    def time(self, row: int) -> float | None:
        """When a row was committed, in seconds since 1970, if that is known."""
        micros = int(self._times[row])
        return None if micros == np.iinfo(np.int64).min else micros / 1e6

    def wanted(self, filter: Filter) -> Rows:
        """The rows that a flow with this filter gets."""
        return np.flatnonzero(filter.mask(self.rows).to_numpy(zero_copy_only=False) | self.tombstones)

    def after(self, shard: int, position: Position) -> tuple[int, int]:
        """Where the rows of a shard after a position begin and end."""
        start, end = self._extents.get(shard, (0, 0))
        if start < end and self.seqs[end - 1] < position.seq:
            return end, end  # as it is with most of many flows, while some catch up
        if end - start > 1:
            start += int(self.seqs[start:end].searchsorted(position.seq))
        while start < end and self.position(start) <= position:
            start += 1
        return start, end

    def rows_at(self, shard: int, positions: Iterable[Position]) -> Rows:
        """The rows of a shard that are at one of these positions."""
        found = []
        for position in positions:
            start, end = self.after(shard, position.before)
            if start < end and self.position(start) == position:
                found.append(start)
        return np.array(found, np.int64)

    def position(self, row: int) -> Position:
        """The position of a row."""
        return Position(int(self.seqs[row]), int(self.indexes[row]))


def fresh(batch: ReadBatch, application: Application) -> npt.NDArray[np.bool_]:
    """Which rows are young enough for a realtime application."""
    if application.max_age is None:
        return np.ones(len(batch.rows), bool)
    oldest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=application.max_age)
    young = pc.fill_null(pc.greater_equal(batch.rows["time"], pa.scalar(oldest, pa.timestamp("us", "UTC"))), True)
    mask: npt.NDArray[np.bool_] = young.to_numpy()
    return mask


class Part(NamedTuple):
    """The rows of a batch that a flow gets, and the position at which it stands once it has them.

    If they are all that there is after a position, `after` is its seq, so that the subscriber can tell a gap.
    """

    session: FlowSession
    rows: Rows
    upto: Position
    after: int | None


def messages(batch: ReadBatch, parts: Sequence[Part]) -> Iterator[tuple[Message, pa.RecordBatch]]:
    """Messages of a size that travels well: each with rows of one flow or several, one after the other.

    A row that is larger than a message should be has one of its own.
    """
    gathered: list[Part] = []
    room = MESSAGE_BYTES
    for session, rows, upto, after in parts:
        sizes = batch.sizes[rows]
        for run in portions(sizes, len(rows), MESSAGE_BYTES):
            size = int(sizes[run].sum())
            if gathered and size > room:
                yield _message(batch, gathered)
                gathered, room = [], MESSAGE_BYTES
            piece = rows[run]
            last = run.stop == len(rows)
            reached = upto if last else batch.position(int(piece[-1]))
            gathered.append(Part(session, piece, reached, after))
            after = None if after is None else reached.seq
            room -= size
    if gathered:
        yield _message(batch, gathered)


def _message(batch: ReadBatch, parts: Sequence[Part]) -> tuple[Message, pa.RecordBatch]:
    indices = np.concatenate([part.rows for part in parts])
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first + 1 == count and bool(np.all(np.diff(indices) == 1)):
        table = batch.rows.slice(first, count)  # nothing is copied
    else:
        table = batch.rows.take(indices).combine_chunks()
    about = [[one.shard, *one.era, len(rows), *pair(upto), after] for one, rows, upto, after in parts]
    return {"t": "batch", "stream": parts[0].session.flow.stream, "parts": about}, table.to_batches()[0]
