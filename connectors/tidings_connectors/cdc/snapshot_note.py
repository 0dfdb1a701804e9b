"""What is noted of a snapshot: its rows, where they stand, how far it is; and who stands aside of the log for them."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel

from tidings import logs
from tidings.positions import START, Position

MAX_INDEX = 2**31 - 1


class Aside(NamedTuple):
    """Indexes that rows have which are not for all who follow the log: the first, and the one after the last."""

    name: str
    base: int
    end: int

    def has(self, position: Position) -> bool:
        """Whether who stands here reads such rows, or waits for them."""
        return self.base - 1 <= position.index < self.end - 1


LATE = Aside("late", 2**30 + 2**29, 2**30 + 2**29 + 2**28)  # what is before it is of the log
DEMANDED = Aside(logs.DEMANDED, LATE.end, MAX_INDEX + 1)
LATE_BASE = LATE.base


class Chunk(BaseModel):
    """A file of rows: its checksum, the table, and the index of the first."""

    file: str
    checksum: int
    table: str
    first: int
    rows: int


class SnapshotRun(BaseModel):
    """What was read in one state."""

    seq: int
    base: int = 0
    chunks: list[Chunk] = []

    @property
    def before(self) -> Position:
        """The position before the first row."""
        return Position(self.seq, self.base - 1)

    @property
    def after(self) -> Position:
        """Where the log goes on."""
        return Position(self.seq + 1, -1)

    @property
    def end(self) -> int:
        """The index after that of the last row."""
        return self.chunks[-1].first + self.chunks[-1].rows if self.chunks else self.base


class TableProgress(BaseModel):
    """How far a table was read: in which order, and up to which key."""

    order: list[str]
    last: list[str] | None = None
    done: bool = False


class Note(BaseModel):
    """How far a snapshot is."""

    of: str = ""
    """The stream and the datastore that it is of."""
    request: str = ""
    """The request by which it was taken, if it was taken on demand."""
    complete: bool = False
    passed: float | None = None
    """When every flow was seen to have passed the rows, if nobody has begun with them since."""
    tables: dict[str, TableProgress] = {}
    runs: list[SnapshotRun] = []
    gone: list[SnapshotRun] = []
    """Those whose rows were deleted last, without their chunks."""

    def ready(self, run: SnapshotRun) -> bool:
        """Whether all rows of a run are there."""
        return self.complete or run is not self.runs[-1]


def aside(position: Position) -> str | None:
    """Which rows aside of the log one reads, or waits for, who stands here; None if one follows the log.

    >>> aside(Position(7)), aside(Position(7, LATE.base - 1)), aside(Position(7, DEMANDED.base - 1))
    (None, 'late', 'demanded')
    """
    return next((kind.name for kind in (LATE, DEMANDED) if kind.has(position)), None)


def waiting(floor: Position) -> Position:
    """Where one stands who waits for a late snapshot, in a log that begins at this place: before any that joins it."""
    return Position(max(floor.seq - 1, START.seq), LATE_BASE - 1)
