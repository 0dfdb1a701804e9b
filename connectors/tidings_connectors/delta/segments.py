"""Segments: the Parquet files of a Delta log, and what they tell of it.

A segment is one Parquet file, sorted by shard and seq. Its footer says which positions it covers, for *every* shard of
the stream, so the live segments alone tell all there is to know of a log: where each shard begins and ends.
"""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.positions import Bounds, Position
from tidings.updates import SCHEMA

Offsets = npt.NDArray[np.int64]
"""A seq for each shard of the stream, by shard."""

SPAN = b"tidings.span"
UNKNOWN = np.iinfo(np.int64).max  # the floor of a shard of which a file that another engine wrote tells nothing
ROW_GROUP_ROWS = 65_536
SMALL_ROWS = 10_000
DICTIONARY = ["kind", "source", "attributes.key_value.key", "attributes.key_value.value"]


@dataclass(frozen=True)
class Span:
    """What a segment covers: in each shard the seqs above `floors`, up to and including `heads`."""

    floors: Offsets
    heads: Offsets
    time: int  # when its newest row was committed, in milliseconds since 1970
    memory: int = 0  # bytes of its rows when they are read
    exact: bool = True  # or read off the rows of a file that another engine wrote; these may be in any order

    def to_json(self) -> str:
        """As it stands in a segment's footer."""
        value = {"floors": self.floors.tolist(), "heads": self.heads.tolist(), "time": self.time, "memory": self.memory}
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: bytes) -> Span:
        """The span in a segment's footer."""
        value = json.loads(text)
        floors, heads = np.array(value["floors"], np.int64), np.array(value["heads"], np.int64)
        return cls(floors, heads, value["time"], value["memory"])


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
        text = (pq.read_metadata(self.path).metadata or {}).get(SPAN)
        return Span.from_json(text) if text else self._measure()

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
        rows = pq.read_table(self.path, columns=["shard", "seq"]).group_by("shard").aggregate([("seq", "min_max")])
        seqs = pc.struct_field(rows["seq_min_max"], "min"), pc.struct_field(rows["seq_min_max"], "max")
        floors = np.full(self.shards, UNKNOWN)
        heads = np.full(self.shards, -1)
        floors[rows["shard"]] = np.asarray(seqs[0]) - 1
        heads[rows["shard"]] = seqs[1]
        return Span(floors, heads, int(self.path.stat().st_mtime * 1000), 4 * self.size, exact=False)


@dataclass(frozen=True)
class SegmentSnapshot:
    """The table at one version."""

    version: int
    shards: int
    live: Mapping[str, Segment]
    transactions: Mapping[str, int] = field(default_factory=dict)
    past: Offsets | None = None  # where the shards ended when another engine wrote

    @functools.cached_property
    def segments(self) -> list[Segment]:
        """The live segments, oldest first."""
        exact = [segment for segment in self.live.values() if segment.span.exact]
        placed = sorted(exact, key=lambda segment: segment.order)
        if len(placed) == len(self.live):
            return placed
        for segment in self.live.values():
            if not segment.span.exact:
                before = [at for at, other in enumerate(placed) if other.precedes(segment)]
                placed.insert(before[-1] + 1 if before else 0, segment)
        return self._completed(placed)

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

    def holding(self, after: Offsets, upto: Offsets) -> list[Segment]:
        """The segments that may hold a row after the one and up to the other, oldest first."""
        return [
            segment
            for segment in self.segments
            if np.any(np.maximum(segment.span.floors, after) < np.minimum(segment.span.heads, upto))
        ]


def write_segment(folder: Path, rows: pa.Table, span: Span) -> Segment:
    """Write rows of the canonical schema, sorted by shard and seq, to a file that no commit names yet."""
    path = folder / f"{uuid.uuid4()}.parquet"
    span = replace(span, memory=rows.nbytes)
    table = rows.replace_schema_metadata({SPAN: span.to_json()})
    try:
        with open(path, "xb") as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                compression_level=1,
                row_group_size=ROW_GROUP_ROWS,
                use_dictionary=DICTIONARY,
            )
            file.flush()
            os.fsync(file.fileno())
        size = path.stat().st_size
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Segment(path, size, len(span.heads), span)


def is_clean_cut(segments: Sequence[Segment], at: int) -> bool:
    """Whether all rows before this place come before all after it, as in files of other engines they need not."""
    if not 0 < at < len(segments) or all(segment.span.exact for segment in segments):
        return True
    ends = np.maximum.reduce([segment.span.heads for segment in segments[:at]])
    return bool(np.all(ends <= np.minimum.reduce([segment.span.floors for segment in segments[at:]])))


def read_segments(
    segments: Iterable[Path], after: Offsets, upto: Offsets, *, in_order: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows of these segments that lie after the one and up to the other; sorted, if they are not in order."""
    if not in_order:
        rows = pa.Table.from_batches(read_segments(segments, after, upto), SCHEMA)
        yield from rows.take(np.lexsort((rows["seq"].to_numpy(), rows["shard"].to_numpy()))).to_batches()
        return
    for path in segments:
        file = pq.ParquetFile(
            path, memory_map=True, coerce_int96_timestamp_unit="us"
        )  # as Spark's OPTIMIZE writes them
        groups = [n for n in range(file.num_row_groups) if _may_hold(file.metadata.row_group(n), after, upto)]
        for batch in _batches(file, groups):
            shards = batch["shard"].to_numpy()
            seqs = batch["seq"].to_numpy()
            wanted = (seqs > after[shards]) & (seqs <= upto[shards])
            if wanted.any():
                rows = batch if wanted.all() else batch.filter(pa.array(wanted))
                yield rows.replace_schema_metadata(None).cast(SCHEMA)


def _batches(file: pq.ParquetFile, groups: list[int]) -> Iterator[pa.RecordBatch]:
    """The rows of these row groups, one after the other."""
    for group in groups:
        # To wake threads takes longer than to read a few rows.
        threads = file.metadata.row_group(group).num_rows > SMALL_ROWS
        yield from file.read_row_group(group, use_threads=threads).to_batches()


def _may_hold(group: Any, after: Offsets, upto: Offsets) -> bool:
    """Whether a row group's statistics leave room for a wanted row."""
    shard, seq = group.column(0).statistics, group.column(1).statistics
    if shard is None or seq is None:
        return True
    between = slice(shard.min, shard.max + 1)
    return bool(np.any(np.maximum(after[between], seq.min - 1) < np.minimum(upto[between], seq.max)))
