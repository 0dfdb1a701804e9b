"""What a log must do: the protocols that connectors implement.

A log is found by the scheme of its address, `delta:/data/contacts`, among the entry points of the group `tidings.logs`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import (
    ENDING,
    LogRestored,
    LogUnavailable,
    PluginBroken,
    PluginMissing,
    PositionsLost,
    TidingsError,
)
from tidings.filters import Filter
from tidings.plugins import load
from tidings.positions import START, Bounds, Position, Positions
from tidings.stream_definition import StreamDefinition, split_address
from tidings.tombstones import Tombstones
from tidings.updates import TOMBSTONE

SEARCHED_ROWS = 10_000

logger = logging.getLogger(__name__)

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

    def aside(self, position: Position) -> bool:
        """Whether who stands here is to get rows that are not for all who follow the log.

        What is aside is read by itself: a `Reader` is asked for positions that are all aside, or all not. It is for the
        reader to say by `Read.upto` when those who are aside come to the log.
        """


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


def resolve_log(address: str, folder: Path) -> str:
    """The address of a log as it is kept, whatever folder its readers work in.

    That of a log which cannot be loaded is left alone: whoever opens it is told.

    >>> resolve_log("delta:data/contacts", Path("/project"))
    'delta:/project/data/contacts'
    """
    scheme, location = split_address(address)
    try:
        kind: type[Log] = load("tidings.logs", scheme)
    except (PluginBroken, PluginMissing):
        return address
    return f"{scheme}:{kind.resolve(location, folder)}"


def resolve_path(location: str, folder: Path) -> str:
    """A path as `Log.resolve` returns it; what names a scheme of its own, as in `s3://…`, is left alone.

    >>> resolve_path("data/contacts", Path("/project")), resolve_path("s3://bucket/contacts", Path("/project"))
    ('/project/data/contacts', 's3://bucket/contacts')
    """
    return location if "://" in location else os.path.abspath(folder / Path(location).expanduser())


@contextlib.contextmanager
def containing_errors(stream: str) -> Iterator[None]:
    """Whatever a log raises becomes an error of ours: a log may be anybody's, and harms its own stream alone."""
    try:
        yield
    except (TidingsError, *ENDING):
        raise
    except BaseException as error:
        logger.exception("the log of stream %r failed", stream)
        raise LogUnavailable(f"the log of stream {stream!r} failed with {type(error).__name__}: {error}") from error


def identity_of(log: Log, stream: StreamDefinition) -> str | None:
    """Which log this is; None if that cannot be told, or if positions are those of replicas as well.

    A datastore's log is that of one stream: for one that was made anew it may be another datastore's.
    """
    if hasattr(log, "abandon"):  # asked often, and `isinstance` takes long
        return stream.id or None
    tell = None if stream.replicas else getattr(log, "identity", None)
    return None if tell is None else str(tell())


def check_identity(stream: str, known: str | None, found: str | None, stands: Positions) -> None:
    """Raise `LogRestored` if a reader that stands here got there in another log."""
    if known is not None and found is not None and known != found:
        raise LogRestored(
            f"the log of stream {stream!r} was deleted and made anew since it was last read: the positions of the "
            "reader are those of the old one, and mean other updates in this one",
            {shard: (Position(0), at) for shard, at in stands.items() if at.seq >= 0},
        )


def create_log(stream: StreamDefinition) -> Log:
    """Make the log of a new stream."""
    scheme, location = split_address(stream.log)
    log: Log = load("tidings.logs", scheme).create(location, stream)
    return log


def open_log(stream: StreamDefinition) -> Log:
    """Open the log of a stream that is there."""
    scheme, location = split_address(stream.log)
    log: Log = load("tidings.logs", scheme).open(location, stream)
    return log


def redefine_log(stream: StreamDefinition) -> None:
    """Let a log of ours know that its stream is defined like this now."""
    with contextlib.closing(open_log(stream)) as log:
        if isinstance(log, RedefinableLog):
            log.redefine(stream)


def is_tailed(stream: StreamDefinition) -> bool:
    """Whether the log of a stream is a datastore's own; it need not be there to be asked."""
    return hasattr(load("tidings.logs", split_address(stream.log)[0]), "abandon")


def placing(stream: StreamDefinition) -> Mapping[str, Any]:
    """The options that decide the object, the shard or the position of an update, by name; only some logs have any.

    As long as the stream lives they stay as they are; a mapping among them may get more keys.
    """
    scheme, location = split_address(stream.log)
    found: Mapping[str, Any] = getattr(load("tidings.logs", scheme), "placing", lambda *_: {})(location, stream)
    return found


def has_log(stream: StreamDefinition) -> bool:
    """Whether the log of a stream is there, and can be opened."""
    try:
        open_log(stream).close()
    except TidingsError:
        return False
    return True


def unmake_log(stream: StreamDefinition) -> None:
    """Take back what `create_log` has made for a stream."""
    scheme, location = split_address(stream.log)
    if is_tailed(stream):
        load("tidings.logs", scheme).abandon(location, stream)
        return
    with contextlib.closing(open_log(stream)) as log:
        empty = all(held.head == START for held in log.bounds().values())
        if isinstance(log, WritableLog) and empty:  # one that is not was there before, whatever was thought of it
            log.destroy()


def abandon_log(stream: StreamDefinition) -> None:
    """Let go of what datastores keep for a stream that is dropped, in all of its replicas."""
    for replica in (None, *stream.replicas):
        scheme, location = split_address(stream.at(replica).log)
        load("tidings.logs", scheme).abandon(location, stream.at(replica))


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
