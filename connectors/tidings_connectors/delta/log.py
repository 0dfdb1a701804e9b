"""The Delta log: a stream's updates in a Delta table on a file system. The embedded default.

Address: `delta:<folder>`. Any number of processes append and read; any Delta reader can read the table too.

An append takes the heads of all shards from the newest version, stamps dense offsets onto its rows and commits. When
another writer comes first, the append stamps its rows anew and tries again: no lock is held. One that goes on losing,
as a large one does beside small ones, asks for a turn. What `append` returned is synced to the disk, rows first, then
the commit.

Rows are never changed. Compaction replaces runs of neighbouring segments by one that holds the same rows; truncation
lets go of the oldest segments. Files that no version names any more are deleted an hour later, so that readers which
have just planned to read them still can.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidOption, InvalidOptions, InvalidPosition, LogMismatch, LogUnavailable
from tidings.filters import Equals, Filter, Not
from tidings.log_opening import resolve_path
from tidings.log_reading import TailReader, check_held
from tidings.logs import UNKNOWN_ENDS, Appended, LogSizes, Slice, Transaction
from tidings.positions import Bounds, Position, Positions
from tidings.storage.delta_commits import milliseconds
from tidings.storage.durable import time_in
from tidings.tombstones import Tombstones
from tidings.updates import SCHEMA, TOMBSTONE, portions, row_sizes, shards_of
from tidings_connectors.delta.find import find
from tidings_connectors.delta.maintenance import Maintenance, plan_retention, plan_truncation
from tidings_connectors.delta.retention import Retention
from tidings_connectors.delta.segments import (
    Offsets,
    Segment,
    SegmentSnapshot,
    Selection,
    Span,
    read_overlays,
    stamp,
    write_overlay,
    write_segment,
)
from tidings_connectors.delta.spark_scan import scan
from tidings_connectors.delta.table import SegmentTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.stream_definition import StreamDefinition

logger = logging.getLogger(__name__)

SEGMENT_ROWS = 1_000_000
SEGMENT_BYTES = 128 * 2**20
READ_BYTES = 32 * 2**20  # of rows in one read of the tail
APPEND_TIMEOUT_S = 60.0  # that an append competes with other writers before it gives up
SLICE_ROWS = 100_000  # so many are worth a reader of their own


class DeltaLog:
    """A `WritableLog` in a Delta table. Made by `create` and `open`."""

    def __init__(self, table: SegmentTable, stream: StreamDefinition) -> None:
        self._table = table
        self._stream = stream
        self.maintenance = Maintenance(table, stream)

    @classmethod
    def preflight(cls, location: str, stream: StreamDefinition) -> None:
        """As `tidings.log_checks` has it; a log that is not there yet tells nothing."""
        _check_options(stream)
        with _translating_errors(stream.name, location):
            SegmentTable.check_place(_folder(location), stream.name, stream.shards)

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> DeltaLog:
        _check_options(stream)
        with _translating_errors(stream.name, location):
            retention = Retention.of(stream)
            return cls(SegmentTable.create(_folder(location), stream.name, stream.shards, retention), stream)

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> DeltaLog:
        with _translating_errors(stream.name, location):
            return cls(SegmentTable(_folder(location), stream.name, stream.shards), stream)

    @classmethod
    def resolve(cls, location: str, folder: Path) -> str:
        return resolve_path(location, folder)

    def redefine(self, stream: StreamDefinition) -> None:
        with self._translating_errors():
            self._table.set_retention(Retention.of(stream))

    def identity(self) -> str:
        return self._table.identity

    def origin(self) -> dict[str, Any]:
        return {"table": self.identity(), **self._table.mark()}

    @classmethod
    def prove(cls, location: str, stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
        with contextlib.closing(cls.open(location, stream)) as log:
            here = log.identity()
            if here != known.get("table"):
                raise LogMismatch(
                    f"{location} holds log {here} of a stream {stream.name!r}, and this stream is in log "
                    f"{known.get('table')}: move that one"
                )
            log._table.check_mark(known)

    def bounds(self) -> dict[int, Bounds]:
        with self._translating_errors():
            snapshot = self._table.refresh()
            return snapshot.bounds

    def reach(self, after: Positions, limit: int | None) -> Positions:
        with self._translating_errors():
            snapshot = self._table.refresh()
            return _positions(_reach(snapshot, self._held(snapshot, after), limit))

    def reader(self) -> TailReader:
        """A reader, for one who reads on and on."""
        return TailReader(self)

    def tail(self, after: Positions, limit: int) -> pa.Table:
        with self._translating_errors():
            while True:
                snapshot = self._table.refresh()
                start = self._held(snapshot, after)
                upto = _reach(snapshot, start, limit)
                try:
                    batches = snapshot.holding(start, upto).read(start, upto)
                    return pa.Table.from_batches(_first(batches, READ_BYTES), SCHEMA)
                except FileNotFoundError:
                    if self._table.refresh().version == snapshot.version:
                        raise

    def slices(self, after: Positions, upto: Positions) -> list[Slice]:
        with self._translating_errors():
            snapshot = self._table.refresh()
            start, end = self._held(snapshot, after), self._held(snapshot, upto)
            backlog = np.maximum(end - start, 0)
            total = int(backlog.sum())
            if total == 0:
                return []
            pieces = -(-total // SLICE_ROWS)
            piece_of_shard = np.minimum((backlog.cumsum() - 1) * pieces // total, pieces - 1)
            files = snapshot.holding(start, end)
            return [
                DeltaSlice(self._stream.name, files, start, np.where(piece_of_shard == piece, end, start))
                for piece in np.unique(piece_of_shard[backlog > 0])
            ]

    def scan(self, spark: SparkSession, after: Positions | None = None, upto: Positions | None = None) -> DataFrame:
        with self._translating_errors():
            snapshot = self._table.refresh()
            start = snapshot.floors if after is None else self._held(snapshot, after)
            end = snapshot.heads if upto is None else self._held(snapshot, upto)
            whole = bool(np.all(start <= snapshot.floors)) and bool(np.all(end >= snapshot.heads))
            return scan(spark, snapshot.holding(start, end), None if whole else (start, end))

    @property
    def folder(self) -> Path:
        """Where the Delta table is."""
        return self._table.folder

    @property
    def staging(self) -> Path:
        return self._table.staging

    def append(self, updates: pa.Table, transaction: Transaction | None = None) -> Appended | None:
        with self._translating_errors(), self._table.turns.place() as place:
            shards = shards_of(updates["object"], self._stream.shards)
            deadline = time.monotonic() + APPEND_TIMEOUT_S
            attempt = 0
            while True:
                place.wait()
                snapshot = self._table.refresh()
                if transaction and self._is_repeat(transaction):
                    self._table.sync()
                    return None
                seqs = stamp(shards, snapshot.heads)
                if len(seqs) == 0:
                    return Appended(shards, seqs)
                if self._commit(snapshot, updates, shards, seqs, transaction):
                    self.maintenance.after_commit(snapshot.version + 1)
                    return Appended(shards, seqs)
                attempt += 1
                if time.monotonic() > deadline:
                    raise LogUnavailable(
                        f"other writers kept stream {self._stream.name!r} busy for {APPEND_TIMEOUT_S:g} s"
                    )
                time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.05)))

    def _is_repeat(self, transaction: Transaction) -> bool:
        """Whether the log holds this very transaction."""
        app, number, ends = transaction
        last = self._table.transaction(app)
        if number > last:
            return False
        if number == last:
            known = self._table.ends(app)
            if known == ends or UNKNOWN_ENDS in (known, ends):
                return True
        raise LogMismatch(
            f"stream {self._stream.name!r} holds batch {last} of {app!r}, and batch {number} is no repeat of it: the "
            "checkpoint went back; put its newest copy in its place, or begin with a new one, which writes again "
            "what it has written"
        )

    def truncate(self, before: Positions, *, dry_run: bool = False) -> dict[int, Bounds]:
        with self._translating_errors():
            upto = Positions({shard: Position(at.seq - 1) for shard, at in before.items() if at.seq > 0})
            snapshot = self._table.refresh()
            return self._drop(snapshot, plan_truncation(snapshot.segments, self._offsets(upto)), dry_run)

    def retain(
        self, max_age: float | None = None, max_bytes: int | None = None, *, dry_run: bool = False
    ) -> dict[int, Bounds]:
        with self._translating_errors():
            snapshot = self._table.refresh()
            now = time_in(self._table.folder)
            return self._drop(snapshot, plan_retention(snapshot.segments, max_age, max_bytes, now), dry_run)

    def compact(self) -> int:
        """Merge small segments now, as maintenance does by itself; the number of segments that went away."""
        with self._translating_errors():
            return self.maintenance.compact()

    def collect(self, gone: Tombstones, transaction: Transaction, after: int) -> None:
        with self._translating_errors():
            drafts: list[Segment] = []
            identity = self._table.identity
            try:
                while True:
                    snapshot = self._table.refresh()
                    if (self._table.transaction(transaction.app), self._table.identity) != (after, identity):
                        raise LogMismatch(
                            f"stream {self._stream.name!r} was collected by another, or made anew, meanwhile"
                        )
                    gone = gone.within(snapshot.floors, snapshot.heads)
                    if len(gone) and not drafts:
                        drafts.append(write_overlay(self._table.folder, gone, self._stream.shards, milliseconds()))
                    if self._table.commit(snapshot, drafts, transaction=transaction):
                        break
            except (OSError, LogMismatch):
                for draft in drafts:
                    draft.path.unlink(missing_ok=True)
                raise
            self.maintenance.after_collection()

    def updates(self, after: Positions, upto: Positions) -> Iterator[pa.Table]:
        with self._translating_errors():
            snapshot = self._table.refresh()
            start, end = self._held(snapshot, after), self._held(snapshot, upto)
            for batch in snapshot.holding(start, end).read(start, end, without=frozenset(["payload"])):
                rows = pa.Table.from_batches([batch])
                is_update = pc.not_equal(rows["kind"], TOMBSTONE)
                yield rows if pc.all(is_update).as_py() else rows.filter(is_update)

    def find(self, *wanted: Filter) -> Iterator[pa.Table]:
        with self._translating_errors():
            snapshot = self._table.refresh()
            files = snapshot.holding(snapshot.floors, snapshot.heads)
            over = read_overlays(files.overlays, snapshot.floors, snapshot.heads)
            updates = Not(Equals("kind", TOMBSTONE))
            for rows in find(files.paths, [one & updates for one in wanted]):
                yield rows.filter(pa.array(~over.covers_rows(rows)))

    def sizes(self) -> LogSizes:
        with self._translating_errors():
            snapshot = self._table.refresh()
            files = snapshot.holding(snapshot.floors, snapshot.heads)
            covered = read_overlays(files.overlays, snapshot.floors, snapshot.heads).count
            updates = sum(segment.span.updates for segment in snapshot.segments) - covered
            positions = int((snapshot.heads - snapshot.floors).sum())
            return LogSizes(updates, positions - updates, sum(segment.size for segment in snapshot.live.values()))

    def last_transaction(self, app: str) -> int:
        with self._translating_errors():
            return self._table.transaction(app)

    @property
    def collection_folder(self) -> Path:
        return self._table.folder / "_collection"

    def destroy(self) -> None:
        self.close()
        with self._translating_errors():
            shutil.rmtree(self._table.folder)

    def close(self) -> None:
        self.maintenance.close()

    def _commit(
        self,
        snapshot: SegmentSnapshot,
        updates: pa.Table,
        shards: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int64],
        transaction: Transaction | None,
    ) -> bool:
        drafts: list[Segment] = []
        named = True  # by a commit that may be seen, unless it is sure that there is none
        try:
            floors = snapshot.heads
            for rows in portions(row_sizes(updates), SEGMENT_ROWS, SEGMENT_BYTES):
                heads = floors.copy()
                np.maximum.at(heads, shards[rows], seqs[rows])
                order = np.lexsort((seqs[rows], shards[rows]))
                table = _stamped(updates.slice(rows.start, len(order)), shards[rows], seqs[rows]).take(order)
                drafts.append(write_segment(self._table.folder, table, Span(floors, heads, milliseconds())))
                floors = heads
            named = self._table.commit(snapshot, drafts, transaction=transaction)
        except FileNotFoundError as error:
            named = False
            if not self._table.folder.is_dir():
                raise
            # A draft was deleted, perhaps by somebody with a clock of another time.
            logger.warning(
                "stream %r: what is to be committed is gone, and written again: %s", self._stream.name, error
            )
        except OSError:
            named = False
            raise
        finally:
            if not named:
                for draft in drafts:
                    draft.path.unlink(missing_ok=True)
        return named

    def _drop(self, snapshot: SegmentSnapshot, count: int, dry_run: bool) -> dict[int, Bounds]:
        """Let go of the oldest so many segments, and say what is left."""
        if dry_run:
            return snapshot.without(count).bounds
        self.maintenance.drop(snapshot.segments[:count])
        return self.bounds()

    def _held(self, snapshot: SegmentSnapshot, positions: Positions) -> Offsets:
        """The positions as offsets, if the log holds all that comes after them."""
        offsets = self._offsets(positions)
        if np.any(offsets < snapshot.floors) or np.any(offsets > snapshot.heads):
            check_held(self._stream.name, snapshot.bounds, _positions(offsets))
        return offsets

    def _offsets(self, positions: Positions) -> Offsets:
        shards = self._stream.shards
        if len(positions) and max(positions) >= shards:
            raise InvalidPosition(f"stream {self._stream.name!r} has shards 0 to {shards - 1}, not {max(positions)}")
        each = map(positions.__getitem__, range(shards))
        # Our index is always 0: a position below it stands before that row, at the row of the last seq.
        return np.array([at.seq if at.index >= 0 else at.seq - 1 for at in each], np.int64)

    def _translating_errors(self) -> contextlib.AbstractContextManager[None]:
        return _translating_errors(self._stream.name, str(self._table.folder))


@dataclass(frozen=True)
class DeltaSlice:
    """The rows of some shards between two positions."""

    stream: str
    files: Selection
    after: Offsets
    upto: Offsets

    def read(self) -> Iterator[pa.RecordBatch]:
        with _translating_errors(self.stream, str(self.files.paths[0].parent)):
            yield from self.files.read(self.after, self.upto)


def _reach(snapshot: SegmentSnapshot, start: Offsets, limit: int | None) -> Offsets:
    """Where a reader ends that takes the oldest rows first, and of a segment that is too large one shard after another.

    It rather ends with a segment than within the next: so most reads are of whole segments, or of few row groups. Each
    row is decoded about once, however often one reads, and rows need not be picked out. Tombstones are taken to be
    spread evenly over a segment.
    """
    if limit is None or int(np.maximum(snapshot.heads - start, 0).sum()) <= limit:
        return np.maximum(snapshot.heads, start)
    reached, left = start.copy(), float(limit)
    for segment in snapshot.segments:
        span = segment.span
        if not span.meets(start, snapshot.heads):
            continue
        positions = np.maximum(span.heads - reached, 0)
        rows_each = min(1.0, span.rows / max(1, span.positions))
        if left < limit and positions.sum() * rows_each > left:
            break
        room = max(1, int(left / rows_each)) if rows_each else int(positions.sum())
        taken = np.clip(room - (positions.cumsum() - positions), 0, positions)
        reached += taken
        left -= int(taken.sum()) * rows_each
        if left < 1:
            break
    return reached


def _stamped(updates: pa.Table, shards: npt.NDArray[np.int32], seqs: npt.NDArray[np.int64]) -> pa.Table:
    columns = {"shard": pa.array(shards), "seq": pa.array(seqs), "index": pa.array(np.zeros(len(seqs), np.int32))}
    return pa.table([columns[name] if name in columns else updates[name] for name in SCHEMA.names], schema=SCHEMA)


def _first(batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The first rows, of so many bytes in all; one at least, if there is one."""
    left = max_bytes
    for batch in batches:
        sizes = row_sizes(batch)
        if sizes.sum() >= left:
            fitting = int(np.searchsorted(sizes.cumsum(), left, "right"))
            yield batch.slice(0, fitting if fitting or left < max_bytes else 1)
            return
        yield batch
        left -= int(sizes.sum())


def _positions(offsets: Offsets) -> Positions:
    return Positions({shard: Position(seq) for shard, seq in enumerate(offsets.tolist())})


def _check_options(stream: StreamDefinition) -> None:
    if given := sorted(stream.options):
        raise InvalidOptions(
            f"stream {stream.name!r} has options ({', '.join(given)}), and a log of ours takes none",
            [((name,), "a log of ours takes no options") for name in given],
        )


def _folder(location: str) -> Path:
    if "://" in location and not location.startswith("file://"):
        raise InvalidOption(f"a Delta log lives on a file system; {location!r} is not a folder")
    return Path(location.removeprefix("file://")).absolute()


@contextlib.contextmanager
def _translating_errors(stream: str, location: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogUnavailable(f"the log of stream {stream!r} in {location}: {error.strerror or error}") from error
