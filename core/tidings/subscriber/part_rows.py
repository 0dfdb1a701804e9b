"""The rows of one flow, in a message that has rows of others, too.

With thousands of flows a message has a row or two for each. What is found out about them is found out for all at once:
flow by flow it would cost more than what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.positions import Position
from tidings.updates import Update, are_tombstones, numbers, to_updates

T = TypeVar("T")

# Of a message: those of a larger one become objects flow by flow, when it is their turn.
SHARED_ROWS, SHARED_BYTES = 1_000, 2**20


class MessageRows:
    """Rows, and what is known of them; found out when it is first asked for, by whoever asks."""

    def __init__(self, batch: pa.RecordBatch, stream: str) -> None:
        self.batch = batch
        self.stream = stream
        self._found: dict[str, Any] = {}

    @property
    def updates(self) -> list[Update]:
        """The rows as objects."""
        return self._once("updates", lambda: to_updates(self.batch, self.stream))

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """The seq of each."""
        return self._once("seqs", lambda: numbers(self.batch["seq"]))

    @property
    def ranges(self) -> npt.NDArray[np.int64]:
        """For how many updates each stands."""
        return self._once("ranges", lambda: numbers(self.batch["range"]))

    @property
    def tombstones(self) -> npt.NDArray[np.uint64]:
        """Which of them are tombstones."""
        return self._once("tombstones", lambda: numbers(pc.indices_nonzero(are_tombstones(self.batch["kind"]))))

    def _once(self, name: str, find: Callable[[], T]) -> T:
        if name not in self._found:  # two workers may find the same
            self._found[name] = find()
        found: T = self._found[name]
        return found


class PartRows:
    """So many rows of a message, from one of them on."""

    __slots__ = ("_message", "_start", "num_rows")

    def __init__(self, message: MessageRows, start: int, num_rows: int) -> None:
        self._message = message
        self._start = start
        self.num_rows = num_rows

    @classmethod
    def split(cls, batch: pa.RecordBatch, stream: str, counts: Sequence[int]) -> Iterator[PartRows]:
        """The rows of each flow, one after the other."""
        few = batch.num_rows <= SHARED_ROWS and batch.nbytes <= SHARED_BYTES
        shared = MessageRows(batch, stream) if few else None
        start = 0
        for count in counts:
            if shared is not None:
                yield cls(shared, start, count)
            else:
                yield cls.of(batch.slice(start, count), stream)
            start += count

    @classmethod
    def of(cls, batch: pa.RecordBatch, stream: str) -> PartRows:
        """All rows of a batch."""
        return cls(MessageRows(batch, stream), 0, batch.num_rows)

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as they came."""
        return self._message.batch.slice(self._start, self.num_rows)

    @property
    def updates(self) -> list[Update]:
        """The rows as objects. One that cannot be one harms the flow that it is of, and no other."""
        try:
            return self._message.updates[self._start : self._start + self.num_rows]
        except Exception:  # noqa: BLE001 - whatever is in there
            return to_updates(self.batch, self._message.stream)

    @property
    def tombstones(self) -> list[int]:
        """Which of these rows are tombstones."""
        places = self._message.tombstones
        if not len(places):
            return []
        first, last = np.searchsorted(places, [self._start, self._start + self.num_rows])
        return [place - self._start for place in places[first:last].tolist()]

    def part(self, first: int, last: int) -> PartRows:
        """The rows from one of these to another, which is left out."""
        return PartRows(self._message, self._start + first, last - first)

    def after(self, position: Position) -> PartRows:
        """The rows that come after this position."""
        first = next((at for at, one in enumerate(self.updates) if one.position > position), self.num_rows)
        return self.part(first, self.num_rows)

    def without_tombstones(self) -> PartRows:
        """The others."""
        batch = self.batch
        return PartRows.of(batch.filter(pc.invert(are_tombstones(batch["kind"]))), self._message.stream)

    def gap(self, at: int | None, after: int | None, upto: int) -> str | None:
        """What is missing between these rows, which are said to be all from one position to another.

        A tombstone stands for each update of its run, and only the first may begin before the rows do.
        """
        if after is None:
            return None
        end = self._start + self.num_rows
        seqs = self._message.seqs[self._start : end]
        before = seqs - self._message.ranges[self._start : end]
        expected = np.append(after, seqs[:-1])
        before[0] = max(before[0], after)
        broken = np.flatnonzero(before != expected)
        if at is not None and at != after:
            return f"it goes on after {after}, and {at} was the last"
        if len(broken):
            return f"{before[broken[0]] + 1} comes after {expected[broken[0]]}"
        return f"it ends at {seqs[-1]}, not {upto}" if seqs[-1] != upto else None
