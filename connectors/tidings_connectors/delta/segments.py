"""Segments: the Parquet files of a Delta log, and what they tell of it.

A segment is one Parquet file, sorted by shard and seq. Its footer says which positions it covers, for *every* shard of
the stream, so the live segments alone tell all there is to know of a log: where each shard begins and ends.

An *overlay* is such a file, too: it holds tombstones for updates that are still in segments, and that no reader gets
any more. So what is collected costs a small file at first; maintenance puts the tombstones into the segments later.

A reader gets the rows that were written, or an error: every page has a checksum, the checksum of the footer is part of
the file's name, and in each shard the rows are those of the span, one after the other; a tombstone stands for a run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.errors import LogUnavailable
from tidings.positions import Bounds, Position
from tidings.storage.delta_commits import Fingerprint
from tidings.tombstones import Tombstones, settle, trim
from tidings.updates import SCHEMA, TOMBSTONE, portions, row_sizes
from tidings_connectors.delta.retention import Retention

Offsets = npt.NDArray[np.int64]
"""A seq for each shard of the stream, by shard."""

SPAN = b"tidings.span"
UNKNOWN = np.iinfo(np.int64).max  # the floor of a shard of which a file that another engine wrote tells nothing
ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 16 * 2**20  # of rows in memory, which is what a reader of one row needs
SMALL_ROWS = 10_000
LONG_RUN_ROWS = 64  # so many are moved sooner by a slice than one by one
OF_TOMBSTONES = ("shard", "seq", "index", "object", "kind", "range")  # all else of them is null
NOT_OF_TOMBSTONES = frozenset(SCHEMA.names).difference(OF_TOMBSTONES)
DICTIONARY = ["kind", "source", "attributes.key_value.key", "attributes.key_value.value"]


@dataclass(frozen=True)
class Span:
    """What a segment covers: in each shard the seqs above `floors`, up to and including `heads`."""

    floors: Offsets
    heads: Offsets
    time: int  # when its newest row was committed, in milliseconds since 1970
    memory: int = 0  # bytes of its rows when they are read
    rows: int = 0
    updates: int = 0  # rows that are no tombstones
    overlay: bool = False  # it holds tombstones for updates in other segments, and covers nothing itself
    gone: int = 0  # of an overlay: how many updates its tombstones stand for; 0 if it does not say
    exact: bool = True  # or read off the rows of a file that another engine wrote; these may be in any order

    def to_json(self) -> str:
        """As it stands in a segment's footer."""
        value = {
            "floors": self.floors.tolist(),
            "heads": self.heads.tolist(),
            "time": self.time,
            "memory": self.memory,
            "rows": self.rows,
            "updates": self.updates,
            "overlay": self.overlay,
            "gone": self.gone,
        }
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: bytes) -> Span:
        """The span in a segment's footer."""
        value = json.loads(text)
        floors, heads = np.array(value["floors"], np.int64), np.array(value["heads"], np.int64)
        rows = value.get("rows", int((heads - floors).sum()))
        updates, overlay, gone = value.get("updates", rows), value.get("overlay", False), value.get("gone", 0)
        return cls(floors, heads, value["time"], value["memory"], rows, updates, overlay, gone)

    @classmethod
    def around(cls, spans: Sequence[Span]) -> Span:
        """What these cover together."""
        floors = np.minimum.reduce([span.floors for span in spans])
        heads = np.maximum.reduce([span.heads for span in spans])
        return cls(floors, heads, max(span.time for span in spans))

    @property
    def positions(self) -> int:
        """How many it covers."""
        return int((self.heads - self.floors).sum())

    def meets(self, after: Offsets, upto: Offsets) -> bool:
        """Whether it has a position after the one and up to the other."""
        return bool(np.any(np.maximum(self.floors, after) < np.minimum(self.heads, upto)))

    def lies_within(self, other: Span) -> bool:
        """Whether the other covers all that lies between its ends."""
        inside = (self.floors >= other.floors) & (self.heads <= other.heads)
        return bool(np.all(inside | (self.floors == self.heads)))


@dataclass(frozen=True)
class Segment:
    """One Parquet file of the table."""

    path: Path
    size: int
    shards: int
    written: Span | None = None  # known without a look at the file, because this process wrote it

    @functools.cached_property
    def span(self) -> Span:
        """What the segment covers."""
        if self.written:
            return self.written
        with open_segment(self.path) as file:
            return _span(file) or self._measure()

    @functools.cached_property
    def order(self) -> tuple[int, int]:
        """Segments are laid down one after the other: an older one has seen fewer rows before it, or ends before."""
        return int(self.span.floors.sum()), int(self.span.heads.sum())

    def precedes(self, other: Segment) -> bool:
        """Whether it begins before the other in a shard that both know of."""
        mine, others = self.span.floors, other.span.floors
        return bool(np.any((mine < others) & (others != UNKNOWN)))

    def _measure(self) -> Span:
        """The span of a file that another engine wrote, say Spark's OPTIMIZE: read off its rows."""
        rows = pq.read_table(self.path, columns=["shard", "seq", "range", "kind"])
        rows = rows.append_column("before", pc.subtract(rows["seq"], rows["range"]))
        found = rows.group_by("shard").aggregate([("before", "min"), ("seq", "max")])
        floors = np.full(self.shards, UNKNOWN)
        heads = np.full(self.shards, -1)
        floors[found["shard"]] = found["before_min"]
        heads[found["shard"]] = found["seq_max"]
        time = int(self.path.stat().st_mtime * 1000)
        return Span(floors, heads, time, 4 * self.size, len(rows), _updates(rows), exact=False)


@dataclass(frozen=True)
class SegmentSnapshot:
    """The table at one version."""

    version: int
    shards: int
    live: Mapping[str, Segment]
    transactions: Mapping[str, int] = field(default_factory=dict)
    past: Offsets | None = None  # where the shards ended when another engine wrote
    table: str | None = None  # its id, which is made with it
    last: Fingerprint | None = None  # the file of this version
    retention: Retention | None = None  # None if the table does not say

    @functools.cached_property
    def segments(self) -> list[Segment]:
        """The live segments, oldest first, without overlays."""
        live = [segment for segment in self.live.values() if not segment.span.overlay]
        placed = sorted((segment for segment in live if segment.span.exact), key=lambda segment: segment.order)
        if len(placed) == len(live):
            return placed
        for segment in live:
            if not segment.span.exact:
                before = [at for at, other in enumerate(placed) if other.precedes(segment)]
                placed.insert(before[-1] + 1 if before else 0, segment)
        return self._completed(placed)

    @functools.cached_property
    def overlays(self) -> list[Segment]:
        """The live overlays, in no order."""
        return [segment for segment in self.live.values() if segment.span.overlay]

    def _completed(self, placed: list[Segment]) -> list[Segment]:
        """The segments with what the others tell of shards that some know nothing of."""
        first = np.minimum.reduce([segment.span.floors for segment in placed])
        reached = np.where(first == UNKNOWN, self._past, first)
        completed = []
        for segment in placed:
            span, known = segment.span, segment.span.floors != UNKNOWN
            floors, heads = np.where(known, span.floors, reached), np.where(known, span.heads, reached)
            completed.append(replace(segment, written=replace(span, floors=floors, heads=heads)))
            reached = np.maximum(reached, heads)
        return completed

    @property
    def _past(self) -> Offsets:
        return np.full(self.shards, -1, np.int64) if self.past is None else self.past

    @functools.cached_property
    def floors(self) -> Offsets:
        """For each shard, the last seq that is not held any more."""
        spans = [segment.span.floors for segment in self.segments]
        return np.minimum.reduce(spans) if spans else self._past

    @functools.cached_property
    def heads(self) -> Offsets:
        """For each shard, the newest seq."""
        heads: Offsets = np.maximum.reduce([self._past, *(segment.span.heads for segment in self.segments)])
        return heads

    @functools.cached_property
    def bounds(self) -> dict[int, Bounds]:
        """What is held of each shard, as positions."""
        pairs = zip(self.floors.tolist(), self.heads.tolist(), strict=True)
        return {shard: Bounds(Position(floor), Position(head)) for shard, (floor, head) in enumerate(pairs)}

    def without(self, count: int) -> SegmentSnapshot:
        """What is left when the oldest so many segments are gone."""
        heads = self.heads
        left = self.segments[count:] or [Segment(Path(), 0, self.shards, Span(heads, heads, 0))]
        return SegmentSnapshot(self.version, self.shards, {str(n): segment for n, segment in enumerate(left)})

    def holding(self, after: Offsets, upto: Offsets) -> Selection:
        """Where the rows are that lie after the one and up to the other."""
        return Selection.of(
            [segment for segment in self.segments if segment.span.meets(after, upto)],
            [overlay for overlay in self.overlays if overlay.span.meets(after, upto)],
        )


def write_segment(folder: Path, rows: pa.Table, span: Span) -> Segment:
    """Write rows of the canonical schema, sorted by shard and seq, to a file that no commit names yet."""
    name = uuid.uuid4().hex
    draft = folder / f"{name}.parquet"
    span = replace(span, memory=rows.nbytes, rows=len(rows), updates=_updates(rows))
    table = rows.replace_schema_metadata({SPAN: span.to_json()})
    try:
        with open(draft, "x+b") as file:
            with pq.ParquetWriter(
                file,
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=DICTIONARY,
                write_page_checksum=True,
            ) as writer:
                for group in portions(row_sizes(rows), ROW_GROUP_ROWS, ROW_GROUP_BYTES):
                    writer.write_table(table.slice(group.start, group.stop - group.start))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
            path = draft.rename(folder / f"{name}-{_footer_checksum(file):08x}.parquet")
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return Segment(path, size, len(span.heads), span)


def _updates(rows: pa.Table) -> int:
    """How many are no tombstones."""
    return len(rows) - (pc.sum(pc.equal(rows["kind"], TOMBSTONE)).as_py() or 0)


def write_overlay(folder: Path, gone: Tombstones, shards: int, time: int) -> Segment:
    """Write tombstones for updates that are in segments, to a file that no commit names yet."""
    floors, heads = np.full(shards, UNKNOWN), np.full(shards, -1)
    np.minimum.at(floors, gone.shard, gone.first - 1)
    np.maximum.at(heads, gone.shard, gone.last)
    floors = np.where(floors == UNKNOWN, heads, floors)
    return write_segment(folder, gone.rows(), Span(floors, heads, time, overlay=True, gone=gone.count))


@contextlib.contextmanager
def open_segment(path: Path) -> Iterator[pq.ParquetFile]:
    """A segment's file, its footer checked. Whatever is found to be wrong with it is `LogUnavailable`, and names it."""
    try:
        if named := re.fullmatch(r"[0-9a-f]{32}-([0-9a-f]{8})\.parquet", path.name):
            with open(path, "rb") as raw:
                if _footer_checksum(raw) != int(named[1], 16):
                    raise ValueError("its footer is not the one that was written")
        # Other engines write times in Spark's old way.
        yield pq.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, IndexError, pa.ArrowException) as error:
        raise LogUnavailable(f"segment {path} cannot be read, and must be restored: {error}") from error


def _footer_checksum(file: BinaryIO) -> int:
    """Of all that comes after the rows."""
    size = file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - length))
    return zlib.crc32(file.read())


def _span(file: pq.ParquetFile) -> Span | None:
    """What its footer says that it covers; None if another engine wrote it."""
    text = (file.metadata.metadata or {}).get(SPAN)
    return Span.from_json(text) if text else None


def stamp(shards: npt.NDArray[np.int32], heads: Offsets) -> npt.NDArray[np.int64]:
    """For each row the next offset of its shard, in the order of the rows.

    >>> stamp(np.array([1, 0, 1], np.int32), np.array([9, -1])).tolist()
    [0, 10, 1]
    """
    order = np.argsort(shards, kind="stable")
    counts = np.bincount(shards, minlength=len(heads))
    firsts = np.repeat(counts.cumsum() - counts, counts)
    seqs = np.empty(len(shards), np.int64)
    seqs[order] = np.arange(len(shards)) - firsts + np.repeat(heads + 1, counts)
    return seqs


def is_clean_cut(segments: Sequence[Segment], at: int) -> bool:
    """Whether all rows before this place come before all after it, as in files of other engines they need not."""
    if not 0 < at < len(segments) or all(segment.span.exact for segment in segments):
        return True
    ends = np.maximum.reduce([segment.span.heads for segment in segments[:at]])
    return bool(np.all(ends <= np.minimum.reduce([segment.span.floors for segment in segments[at:]])))


@dataclass(frozen=True)
class Selection:
    """The files of some segments, the oldest first, and of what lies over them; any process can read them."""

    paths: tuple[Path, ...]
    overlays: tuple[Path, ...]
    in_order: bool
    sparse: bool  # there are tombstones, or there may be

    @classmethod
    def of(cls, segments: Sequence[Segment], overlays: Sequence[Segment] = ()) -> Selection:
        """These segments under these overlays."""
        paths, over = (tuple(segment.path for segment in each) for each in (segments, overlays))
        in_order = all(segment.span.exact for segment in segments)
        sparse = bool(over) or not in_order or any(segment.span.rows < segment.span.positions for segment in segments)
        return cls(paths, over, in_order, sparse)

    def read(self, after: Offsets, upto: Offsets, without: frozenset[str] = frozenset()) -> Iterator[pa.RecordBatch]:
        """The rows that lie after the one and up to the other, those of each shard in order.

        The columns `without` which one can do are null, and not read.
        """
        over = read_overlays(self.overlays, after, upto)
        if not self.in_order:
            yield from self._mixed(after, upto, over, without)
            return
        for batch in _rows(self.paths, after, upto, without):
            yield from settle(pa.Table.from_batches([batch]), over).to_batches() if len(over) else (batch,)

    def _mixed(
        self, after: Offsets, upto: Offsets, over: Tombstones, without: frozenset[str]
    ) -> Iterator[pa.RecordBatch]:
        """The same of files that another engine wrote: it knows no order, and takes overlays for rows like any."""
        rows = pa.Table.from_batches(_rows(self.paths, after, upto, without), SCHEMA)
        over |= Tombstones.from_rows(rows)
        rows = rows.filter(pc.not_equal(rows["kind"], TOMBSTONE))
        rows = rows.filter(pa.array(~over.covers_rows(rows)))
        yield from sort(pa.concat_tables([rows, over.rows()])).to_batches()


def sort(rows: pa.Table) -> pa.Table:
    """The rows as a segment has them.

    Those of segments one after the other are a few long runs: they are put in their places whole, and not row by row.
    """
    order = np.lexsort((rows["seq"].to_numpy(), rows["shard"].to_numpy()))
    begins = np.flatnonzero(np.diff(order, prepend=-2) != 1)
    if len(begins) * LONG_RUN_ROWS > len(order):
        return rows.take(order)
    counts = np.diff(begins, append=len(order))
    pieces = zip(order[begins].tolist(), counts.tolist(), strict=True)
    return pa.concat_tables([rows.schema.empty_table(), *(rows.slice(at, count) for at, count in pieces)])


def read_overlays(paths: Iterable[Path], after: Offsets, upto: Offsets) -> Tombstones:
    """What overlays have after the one and up to the other."""
    return Tombstones.from_rows(pa.Table.from_batches(_rows(paths, after, upto, NOT_OF_TOMBSTONES), SCHEMA))


def _rows(
    paths: Iterable[Path], after: Offsets, upto: Offsets, without: frozenset[str] = frozenset()
) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with open_segment(path) as file:
            yield from _read(file, after, upto, without)


def _read(file: pq.ParquetFile, after: Offsets, upto: Offsets, without: frozenset[str]) -> Iterator[pa.RecordBatch]:
    span = _span(file)
    dense = span is not None and not span.overlay
    if span and dense:
        reached, end = np.maximum(after, span.floors), np.minimum(upto, span.heads)
    groups = [n for n in range(file.num_row_groups) if _may_hold(file.metadata.row_group(n), after, upto)]
    for read in _batches(file, groups, without):
        rows = trim(_whole(pa.Table.from_batches([read]), without), after, upto)
        if dense and len(rows):
            _check_dense(rows, reached)
        yield from rows.to_batches()
    if dense and np.any(reached < end):
        shard = int(np.argmax(reached < end))
        raise ValueError(f"of shard {shard} it has no row {reached[shard] + 1}, though it should have {end[shard]}")


def _whole(read: pa.Table, without: frozenset[str]) -> pa.Table:
    """The rows in the canonical schema, with nulls for what was not read."""
    for at, column in enumerate(SCHEMA) if without else ():
        if column.name in without:
            read = read.add_column(at, column, pa.nulls(len(read), column.type))
    return read.replace_schema_metadata(None).cast(SCHEMA)


def _check_dense(rows: pa.Table, reached: Offsets) -> None:
    """Raise ValueError unless these rows of a segment come one after the other, and after those that were reached."""
    shards, seqs = rows["shard"].to_numpy(), rows["seq"].to_numpy()
    before = seqs - rows["range"].to_numpy()
    follows = np.append(False, shards[1:] == shards[:-1])
    expected = np.where(follows, np.append(-1, seqs[:-1]), reached[shards])
    if np.any(before != expected) or np.any(np.diff(shards) < 0):
        raise ValueError("its rows are not one after the other")
    np.maximum.at(reached, shards, seqs)


def _batches(file: pq.ParquetFile, groups: list[int], without: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these row groups, one after the other."""
    columns = [name for name in SCHEMA.names if name not in without] if without else None
    for group in groups:
        # To wake threads takes longer than to read a few rows.
        threads = file.metadata.row_group(group).num_rows > SMALL_ROWS
        yield from file.read_row_group(group, columns=columns, use_threads=threads).to_batches()


def _may_hold(group: Any, after: Offsets, upto: Offsets) -> bool:
    """Whether a row group's statistics leave room for a wanted row."""
    shard, seq, length = (group.column(SCHEMA.get_field_index(name)).statistics for name in ("shard", "seq", "range"))
    if shard is None or seq is None or length is None:
        return True
    between = slice(shard.min, shard.max + 1)
    return bool(np.any(np.maximum(after[between], seq.min - length.max) < np.minimum(upto[between], seq.max)))
