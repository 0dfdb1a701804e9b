"""Reading a stream with Spark: a micro-batch source and a batch source over any `Log`.

An offset is the position a shard at which the query stands, and the log that these are in, if it can be told from
another in its place: as in `{"0": 22, "1": -1, "log": "7d0c…"}`. It is all that a checkpoint holds. A batch is planned
in the driver from two offsets, so that a repeated batch has the very same rows, and read by the executors, slice by
slice, as Arrow.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pyspark_tidings.options import ReadOptions
from pyspark_tidings.plain_errors import plain_errors
from tidings.errors import LogRestored, TidingsError
from tidings.log_opening import check_identity, identity_of, open_log
from tidings.logs import Log, Slice
from tidings.offsets import Offset
from tidings.positions import Bounds, Positions
from tidings.updates import TOMBSTONE

SMALL_BATCH_ROWS = 5_000  # so few are handed over faster by the driver than read by a worker
SMALL_BATCH_BYTES = 16 * 2**20  # Spark holds all that it is handed over in memory

logger = logging.getLogger(__name__)


class SlicePartition(InputPartition):
    """A slice of the log, on its way to an executor."""

    def __init__(self, piece: Slice, *, tombstones: bool) -> None:
        self._piece = piece
        self._tombstones = tombstones

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows of the slice; without tombstones, if these are not wanted."""
        with plain_errors():
            for batch in self._piece.read():
                yield batch if self._tombstones else batch.filter(pc.not_equal(batch["kind"], TOMBSTONE))


@dataclass
class _ReadPlanner:
    """The log and the options of one query, in the driver; executors get the options only."""

    options: ReadOptions
    _log: Log | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_log": None}

    @property
    def log(self) -> Log:
        if self._log is None:
            self._log = open_log(self.options.stream)
        return self._log

    @property
    def identity(self) -> str | None:
        """The log, as it was last looked at."""
        return identity_of(self.log, self.options.stream)

    def offset(self, positions: Positions) -> dict[str, Any]:
        """What is noted of positions in this log."""
        return Offset(positions, self.identity).to_json()

    def stand(self, noted: dict[str, Any]) -> Positions | None:
        """Where a query stands in this log; None if that was in another one, and it was told to go on all the same."""
        offset = Offset.from_json(noted)
        self.log.bounds()  # a look at which log it is
        try:
            check_identity(self.options.stream.name, offset.log, self.identity, offset.positions)
        except LogRestored as error:
            if self.options.fail_on_data_loss:
                raise
            logger.warning("%s", error)
            return None
        return offset.positions

    def stand_or_floors(self, noted: dict[str, Any]) -> Positions:
        """The same; in a log that was made anew, the query stands before the oldest that it holds."""
        stand = self.stand(noted)
        return self.floors() if stand is None else stand

    def start(self) -> Positions:
        """Where the query stands before its first row."""
        match self.options.start:
            case Positions() as first:
                return Positions({shard: position.before for shard, position in first.items()})
            case "latest":
                return self.heads()
            case _:
                return self.floors()

    def end(self) -> Positions:
        """Where a batch read ends."""
        return self.options.end if isinstance(self.options.end, Positions) else self.heads()

    def floors(self) -> Positions:
        return self._chosen({shard: held.floor for shard, held in self.log.bounds().items()})

    def heads(self) -> Positions:
        return self._chosen({shard: held.head for shard, held in self.log.bounds().items()})

    def reach(self, after: Positions, limit: int | None) -> Positions:
        bounds = self.log.bounds()
        return self._chosen(self.log.reach(self._whole(self._held(after, bounds), bounds), limit))

    def partitions(self, after: Positions, upto: Positions) -> list[SlicePartition]:
        bounds = self.log.bounds()
        after, upto = self._held(after, bounds), self._held(upto, bounds)
        pieces = self.log.slices(self._whole(after, bounds), self._whole(upto, bounds))
        if not self.options.fail_on_data_loss:  # in a datastore's own log, something may be missing in its midst
            pieces = [piece.past_losses() if hasattr(piece, "past_losses") else piece for piece in pieces]
        return [SlicePartition(piece, tombstones=self.options.tombstones) for piece in pieces]

    def noted_partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SlicePartition]:
        """What lies between two offsets; nothing, if both are those of a log that was made anew since."""
        after, upto = self.stand_or_floors(start), self.stand(end)
        if upto is None:
            return []
        found = self.partitions(after, upto)
        # It may have been made anew just now.
        check_identity(self.options.stream.name, Offset.from_json(end).log, self.identity, upto)
        return found

    def _chosen(self, positions: Any) -> Positions:
        return Positions({shard: positions[shard] for shard in self.options.shards})

    def _whole(self, chosen: Positions, bounds: dict[int, Bounds]) -> Positions:
        """The positions for all shards: one that is not chosen stands at its head, so nothing of it is read."""
        return Positions({**{shard: held.head for shard, held in bounds.items()}, **chosen})

    def _held(self, positions: Positions, bounds: dict[int, Bounds]) -> Positions:
        """The positions, moved past what is lost if the query was told to go on in spite of it."""
        if self.options.fail_on_data_loss:
            return positions
        lost = {shard: at for shard, at in positions.items() if at < bounds[shard].floor}
        for shard, at in lost.items():
            first, last = at.seq + 1, bounds[shard].floor.seq
            logger.warning("stream %r: %d to %d of shard %d are lost", self.options.stream.name, first, last, shard)
        return Positions({shard: max(at, bounds[shard].floor) for shard, at in positions.items()})


class BatchReader(DataSourceReader):
    """Reads what lies between two positions."""

    def __init__(self, options: ReadOptions) -> None:
        self._planner = _ReadPlanner(options)

    @plain_errors()
    def partitions(self) -> list[SlicePartition]:
        planner = self._planner
        return planner.partitions(planner.start(), planner.end())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class StreamReader(_SimpleStreamReaderWrapper, SupportsTriggerAvailableNow):
    """Follows a stream.

    A small batch is read right here, in the driver, and handed to Spark as it is; no Python worker has to be woken for
    it. Spark takes such rows from its own wrapper of simple readers only, so that is what this is, with every method
    its own. A larger batch is read by the executors.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._planner = _ReadPlanner(options)
        self._target: Positions | None = None

    @property
    def simple_reader(self) -> StreamReader:  # type: ignore[override]  # asked only whether it knows AvailableNow
        return self

    @plain_errors()
    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:  # noqa: N802
        after, upto = self._planner.stand_or_floors(start), self._planner.stand(end)
        if upto is not None and sum(upto[shard].seq - after[shard].seq for shard in upto) > SMALL_BATCH_ROWS:
            return None
        partitions = self._planner.noted_partitions(start, end)
        # Spark wants the rows to be those of one partition: none if nothing is to be read, or nothing is held any more.
        return _if_small(partitions[0].read()) if len(partitions) == 1 else None

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are those below
        return self._planner.offset(self._planner.start())

    @plain_errors()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._planner.options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._planner.heads()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        after = self._planner.stand_or_floors(start)
        reached = self._planner.reach(after, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if (target := self._target) is not None:
            reached = Positions({shard: max(after[shard], min(at, target[shard])) for shard, at in reached.items()})
        return self._planner.offset(reached)

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SlicePartition]:
        return self._planner.noted_partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log keeps what retention says, not what this query has read."""

    def stop(self) -> None:
        """The query has ended. If Spark has hung up already, its runner of readers would print that as a failure."""
        if isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            sys.excepthook = lambda *_: None


class RefusedReader(StreamReader):
    """Says at its first use what is wrong with the options of a query.

    It cannot be said before: Spark's runner of readers stops what it has made, and stumbles if there is nothing.
    """

    def __init__(self, error: TidingsError) -> None:
        self._error = error

    @property
    def _planner(self) -> _ReadPlanner:  # type: ignore[override]  # all that a reader does begins with it
        raise self._error


def _if_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    read: list[pa.RecordBatch] = []
    for batch in batches:
        read.append(batch)
        if sum(one.nbytes for one in read) > SMALL_BATCH_BYTES:
            return None
    return iter(read)


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark hands out one partition without a slice when there is nothing to read.
    return partition.read() if isinstance(partition, SlicePartition) else iter(())
