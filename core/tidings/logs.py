"""What a log must do: the protocols that connectors implement.

`tidings.log_opening` finds them by the schemes of their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.filters import Filter
from tidings.positions import Bounds, Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.tombstones import Tombstones

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


UNKNOWN_ENDS = -1  # of a transaction whose writer cannot say what it covers


class Transaction(NamedTuple):
    """Names an append, so that it happens once: the last number that the log has seen of this `app` changes nothing.

    `ends` stands for what the append covers of that which it was made from: the same number with other ends is another
    append, whose number is taken. The log keeps it beside the number, in the same commit, because there it cannot be
    older or newer than the rows.
    """

    app: str
    number: int
    ends: int = UNKNOWN_ENDS


class Appended(NamedTuple):
    """Where the rows of an append went, row by row."""

    shards: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int64]

    def last(self) -> Positions:
        """The newest position in each shard that got a row."""
        heads: dict[int, Position] = {}
        for shard in np.unique(self.shards).tolist():
            heads[shard] = Position(int(self.seqs[self.shards == shard].max()))
        return Positions(heads)


class LogSizes(NamedTuple):
    """How much a log holds: updates, positions that tombstones stand for, and bytes on the disk."""

    updates: int
    collected: int
    bytes: int


DEMANDED = "demanded"
"""What `TailedLog.aside` calls the rows of a snapshot on demand."""


class PayloadColumn(NamedTuple):
    """How payloads become a column: its type, and what makes it of many of them. It raises if it cannot."""

    type: pa.DataType
    read: Callable[[pa.BinaryArray], pa.Array]


class PayloadForm(NamedTuple):
    """What the payloads of a stream are written in: a word for people, as in `Avro`, and what reads one of them.

    `read` gives what JSON has, in Python's types; bytes, decimals and times may be among it. It raises if it cannot.
    `columns` says the same for Spark, by the table that an update is of.
    """

    name: str
    read: Callable[[bytes], Any]
    columns: Callable[[], Mapping[str, PayloadColumn]] | None = None


class Read(NamedTuple):
    """What a reader got: rows, and up to where it has read each shard. Up to there, there are no others."""

    rows: pa.Table
    upto: Positions


class Reader(Protocol):
    """Reads a log from the front to the back, for one caravan; used by one thread at a time.

    To go on where the last read ended is cheap. To go back, or to ask for a shard that was not asked for before, may
    mean to open the datastore's log anew.
    """

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows of the shards that `after` names, about `limit` at most. It may wait a little for some.

        `PositionsLost` as for `Log.tail`. Rows of other shards are left out.
        """

    def close(self) -> None:
        """Let go of what it holds."""


class Slice(Protocol):
    """A piece of a log that any process can read by itself: picklable, and the same rows at every reading.

    The rows of a shard come in their order.
    """

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the canonical schema."""


@runtime_checkable
class Log(Protocol):
    """The updates of one stream, readable.

    Every read is *after* a position, in order within a shard, and repeatable: the same range gives the same rows, as
    long as the log holds them. A range of which the log holds only a part is an error, `PositionsLost`, which says
    exactly what is missing; nothing is ever skipped in silence. All methods may be called from any thread.
    """

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> Log:
        """Make the log, or adopt one that was made for this very stream. `LogMismatch` if the place holds another."""

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> Log:
        """Open a log that is there."""

    @classmethod
    def resolve(cls, location: str, folder: Path) -> str:
        """The location as it is kept: if it is a path, an absolute one; a relative one starts at `folder`."""

    def bounds(self) -> dict[int, Bounds]:
        """What is held of each shard, now."""

    def reach(self, after: Positions, limit: int | None) -> Positions:
        """Where a reader stands that stood at `after` and has read the next rows, at most `limit` of them."""

    def reader(self) -> Reader:
        """A reader, for one who reads on and on."""

    def tail(self, after: Positions, limit: int) -> pa.Table:
        """The next rows after these positions, at most `limit`; empty when there are none yet. Low latency.

        They may be fewer, if they are large: but of each shard they are the next ones.
        """

    def slices(self, after: Positions, upto: Positions) -> Sequence[Slice]:
        """The rows between, cut into pieces that are worth a reader each; a shard's rows are all in one piece."""

    def scan(self, spark: SparkSession, after: Positions | None = None, upto: Positions | None = None) -> DataFrame:
        """The rows between as a DataFrame, read in parallel by Spark's own readers."""

    def close(self) -> None:
        """Let go of what the reader holds."""


@runtime_checkable
class IdentifiedLog(Log, Protocol):
    """A log that can be told from another one in its place, whose positions look the same and mean other updates.

    One that was restored from a copy is the same.
    """

    def identity(self) -> str:
        """Which log it was when it was last looked at: it may be made anew under whoever has it open."""


@runtime_checkable
class TailedLog(Log, Protocol):
    """The change log of a datastore: read-only, and kept only as long as we need it.

    A `seq` is the datastore's own number of a transaction, the same on every replica; the `index` counts its rows,
    those of all shards. Between two seqs there may be any number of updates, or none.
    """

    @classmethod
    def abandon(cls, location: str, stream: StreamDefinition) -> None:
        """The stream is dropped: let go of all that is kept for its sake. What the datastore holds stays."""

    def confirm(self, upto: Positions) -> None:
        """Every flow has passed these positions: the datastore need not keep what is before them for our sake."""

    def distance(self, after: Position, upto: Position) -> int:
        """About how many updates lie between; a guess is enough, to tell who is far behind."""

    def earliest(self) -> Position:
        """Where an application begins that wants all that can be had: the floor, or a place aside."""

    def aside(self, position: Position) -> str | None:
        """Which rows one is to get who stands here, if they are not for all who follow the log; None if one follows it.

        Those of a snapshot on demand are called `DEMANDED`.
        What is aside is read by itself: a `Reader` is asked for positions of which this is the same. It is for the
        reader to say by `Read.upto` when those who are aside come to the log.
        """


class SnapshotPlace(NamedTuple):
    """Where the rows of a snapshot on demand stand: who stands at `before` gets them, and the log goes on at `after`.

    Nothing that is in the log stands between the two.
    """

    before: Position
    after: Position


class SnapshotProgress(NamedTuple):
    """How far a snapshot on demand is: whether all of its rows are there, and how many were read."""

    complete: bool
    rows: int


@runtime_checkable
class SnapshotLog(TailedLog, Protocol):
    """A change log that can give the rows which its tables have now to those who ask, aside of all others.

    One request is cared for at a time. All of these may be asked by several processes at once, again and again.
    """

    def snapshot_tables(self) -> Sequence[str]:
        """The tables whose rows can be asked for; an error that says the cure, if none can."""

    def begin_snapshot(self, request: str, tables: Collection[str], since: Position) -> SnapshotPlace | None:
        """Read the rows of these tables, or of all, in the background, in a state of now. None until it is known where
        they stand, which is not before `since`."""

    def snapshot_progress(self, request: str, place: SnapshotPlace) -> SnapshotProgress | None:
        """How far it is; None if it was interrupted, or has no place in the log any more: then it begins anew."""

    def snapshot_trouble(self) -> str | None:
        """Why it could not be taken the last time, if so."""

    def drop_snapshot(self, request: str) -> bool:
        """Nobody is to get its rows any more; False if that must be asked for again, since somebody still takes it."""


class Retained(NamedTuple):
    """How much of its log a datastore keeps since we need it: bytes, how many more it would keep, and what it says.

    `room` is None if there is no limit; `status` is the datastore's own word, if it has one.
    """

    bytes: int
    room: int | None = None
    status: str | None = None


@runtime_checkable
class RetainingLog(TailedLog, Protocol):
    """A change log of which it can be told how much is kept for our sake."""

    def retained(self, slowest: Position) -> Retained | None:
        """What is kept if the slowest flow stands here, whoever owns it; None if that cannot be told."""


@runtime_checkable
class FollowedLog(TailedLog, Protocol):
    """A change log that serves readers better if it knows where they are."""

    def followers_at(self, stands: Sequence[Position]) -> None:
        """Where each flow stands, whoever owns it. It is said from time to time, before `confirm`."""


@runtime_checkable
class MovableLog(Log, Protocol):
    """A log that can be known again at another address, by what its datastore and its history are known by."""

    def origin(self) -> Mapping[str, Any] | None:
        """What that is, as JSON has it; None if it does not tell yet. What is left out is as it was told last."""

    @classmethod
    def prove(cls, location: str, stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
        """Raise `LogMismatch` unless the datastore there is the one that `known` tells of, with the same history.

        `passed` are the farthest positions that flows have read, by shard. Nothing is changed in the datastore.
        """


@runtime_checkable
class WritableLog(Log, Protocol):
    """A log of our own."""

    @property
    def staging(self) -> Path:
        """A folder that every process of the cluster sees, for rows on their way into an append."""

    def append(self, updates: pa.Table, transaction: Transaction | None = None) -> Appended | None:
        """Add rows of the `PUBLISHED` columns; durable, and in order within a shard, when it returns.

        All rows are added or none is. None is returned if the log holds this transaction already, and `LogMismatch` is
        raised if it holds another under this number, or a later one.
        """

    def truncate(self, before: Positions, *, dry_run: bool = False) -> dict[int, Bounds]:
        """Let go of updates before these positions; those that share a file with later ones may stay for a while.

        What is held afterwards is returned; with `dry_run`, what would be.
        """

    def retain(
        self, max_age: float | None = None, max_bytes: int | None = None, *, dry_run: bool = False
    ) -> dict[int, Bounds]:
        """Let go of what is older than so many seconds, and of what has so many bytes of newer updates behind it."""

    def destroy(self) -> None:
        """Delete the log with all its updates."""


@runtime_checkable
class RedefinableLog(WritableLog, Protocol):
    """A log of our own that keeps what its stream's definition says of it: those who have it open go by that."""

    def redefine(self, stream: StreamDefinition) -> None:
        """How long updates are kept has changed; from now on nobody lets go of one by an older definition."""


@runtime_checkable
class CollectableLog(WritableLog, Protocol):
    """A log of our own in which tombstones can take the place of updates."""

    @property
    def collection_folder(self) -> Path:
        """A folder for what a collector keeps of the log."""

    def collect(self, gone: Tombstones, transaction: Transaction, after: int) -> None:
        """Let nobody read these updates any more, but tombstones in their place: all in one step, or none.

        `LogMismatch`, and nothing is done, unless the application's last transaction is number `after`.

        It is for the caller to know that a later update of the shard says all that matters of each. Positions that are
        not held, or were collected before, do no harm.
        """

    def updates(self, after: Positions, upto: Positions) -> Iterator[pa.Table]:
        """The updates between, without their payloads, and no tombstones; each is read once."""

    def find(self, *wanted: Filter) -> Iterator[pa.Table]:
        """The updates that any of the filters wants, without their payloads; what cannot hold one is not read."""

    def sizes(self) -> LogSizes:
        """How much it holds."""

    def last_transaction(self, app: str) -> int:
        """The number of this application's last transaction, or -1."""
