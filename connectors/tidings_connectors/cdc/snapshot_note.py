"""What is noted of a snapshot: its rows, where they stand, how far it is; and where those stand who read a late one."""

from __future__ import annotations

from pydantic import BaseModel

from tidings.positions import START, Position

LATE_BASE = 2**30 + 2**29  # the index of the first row of a late snapshot: what is before it is of the log


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


def aside(position: Position) -> bool:
    """Whether who stands here reads a late snapshot, or waits for one."""
    return position.index >= LATE_BASE - 1


def waiting(floor: Position) -> Position:
    """Where one stands who waits for a late snapshot, in a log that begins at this place: before any that joins it."""
    return Position(max(floor.seq - 1, START.seq), LATE_BASE - 1)
