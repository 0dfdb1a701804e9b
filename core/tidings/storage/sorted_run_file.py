"""One sorted run: an Arrow IPC file whose rows are sorted by a 64-bit key, mapped into memory and searched in place.

A small run is one record batch. A large one has a batch for each part of the keys (`key mod parts`, in the order of the
parts), so that a reader of one part touches no page of the others, and a merge holds one part in memory at a time.

The file's regions (what comes before the batches, each batch, what comes after them) have checksums, which the manifest
keeps. A region is checked when it is first read.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import LogUnavailable

MAX_UNSPLIT_ROWS = 65_536  # a run of more has a batch for each part

Checksums = tuple[tuple[int, int], ...]
"""For each region of a run's file where it ends, and its checksum."""

Longs = npt.NDArray[np.int64]
Forget = Callable[[pa.Table], npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class Layout:
    """What the rows of runs are: sorted by `key`, one for each key and `identity`, the one with the largest `order`.

    Key and order are columns of 64-bit integers, and an identity is of these or of text, all without nulls; the others
    are what one likes.
    """

    schema: pa.Schema
    key: str
    identity: tuple[str, ...]
    order: str
    parts: int

    def newest(self, rows: pa.Table) -> pa.Table:
        """The rows sorted, and of those with one key and identity the newest; among equals the one that came last."""
        names = (self.key, *self.identity)
        if len(rows) < 2:
            return rows
        columns = [_numbers(rows, name) for name in names]
        at = np.lexsort((longs(rows, self.order), *reversed(columns)))
        same = np.ones(len(at) - 1, bool)
        for column in columns:
            placed = column[at]
            same &= placed[1:] == placed[:-1]
        return rows.take(pa.array(at[np.append(~same, True)]))


@dataclass(frozen=True)
class Share:
    """Of rows of one key, those with `column mod parts` = `part`: a key may have more rows than one wants at once."""

    column: str
    part: int
    parts: int


class RunFile:
    """A run that is there. Its memory is the file's pages, which the system takes back when it needs them."""

    def __init__(self, path: Path, layout: Layout, checksums: Checksums) -> None:
        self.path = path
        self._layout = layout
        self._checksums = checksums
        self._checked: set[int] = set()
        # The reader keeps the mapping, and every slice of it does: the file may be deleted meanwhile.
        self._mapped = pa.memory_map(str(path)).read_buffer()
        self._check(0)
        self._check(len(checksums) - 1)
        self._file = pa.ipc.open_file(self._mapped)
        self._batches: dict[int, pa.RecordBatch] = {}
        self.split = self._file.num_record_batches > 1

    def find(self, keys: Longs, share: Share | None = None) -> Iterator[pa.Table]:
        """The rows with these keys, which are sorted and unlike."""
        for part, chosen in self._parts(keys):
            yield self._found(part, keys[chosen], share)

    def counts(self, keys: Longs) -> Longs:
        """How many rows each of these keys has."""
        counts = np.zeros(len(keys), np.int64)
        for part, chosen in self._parts(keys):
            first, last = self._bounds(part, keys[chosen])
            counts[chosen] = last - first
        return counts

    def part(self, part: int) -> pa.Table:
        """The rows of one part."""
        if self.split:
            return pa.Table.from_batches([self._batch(part)])
        rows = pa.Table.from_batches([self._batch(0)])
        mine = longs(rows, self._layout.key) % self._layout.parts == part
        return rows if mine.all() else rows.filter(pa.array(mine))

    def _parts(self, keys: Longs) -> Iterator[tuple[int, Any]]:
        """The batches to look into, and which of the keys may be there."""
        if not self.split:
            yield 0, slice(None)
            return
        parts = keys % self._layout.parts
        for part in np.unique(parts).tolist():
            yield part, parts == part

    def _bounds(self, at: int, keys: Longs) -> tuple[Longs, Longs]:
        held = longs(self._batch(at), self._layout.key)
        return np.searchsorted(held, keys, "left"), np.searchsorted(held, keys, "right")

    def _found(self, at: int, keys: Longs, share: Share | None) -> pa.Table:
        first, last = self._bounds(at, keys)
        found = ranges(first, last - first)
        if share is not None:
            found = found[longs(self._batch(at), share.column)[found] % share.parts == share.part]
        rows = pa.Table.from_batches([self._batch(at)])
        return rows.take(pa.array(found)) if len(found) else rows.slice(0, 0)

    def _batch(self, at: int) -> pa.RecordBatch:
        if at not in self._batches:
            self._check(at + 1)
            self._batches[at] = self._file.get_batch(at)
        return self._batches[at]

    def check(self) -> None:
        """Raise `LogUnavailable` if the file is not what was written."""
        for region in range(len(self._checksums)):
            self._check(region)

    def _check(self, region: int) -> None:
        if region in self._checked:
            return
        start = self._checksums[region - 1][0] if region else 0
        end, checksum = self._checksums[region]
        if zlib.crc32(self._mapped[start:end]) != checksum:
            raise LogUnavailable(f"run {self.path} is damaged between bytes {start} and {end}: restart its writer")
        self._checked.add(region)


def write_run(path: Path, layout: Layout, rows: Sequence[pa.Table], size: int) -> tuple[int, Checksums]:
    """Write the newest of these rows, given in the order of their coming, as a run; how many, and its checksums.

    `size` is how many rows there are at most. The file is on the disk when this returns.
    """
    tables = [layout.newest(pa.concat_tables(rows))] if size <= MAX_UNSPLIT_ROWS else _split(rows, layout)
    return write_batches(path, layout, tables)


def merge_runs(
    path: Path, layout: Layout, runs: Sequence[RunFile], size: int, forget: Sequence[Forget] = ()
) -> tuple[int, Checksums]:
    """Write one run in the place of several, the oldest first; how many rows it has, and its checksums."""

    def kept(rows: pa.Table) -> pa.Table:
        rows = layout.newest(rows)
        for needless in forget:
            rows = rows.filter(pa.array(~needless(rows)))
        return rows

    parts = (pa.concat_tables([run.part(part) for run in runs]) for part in range(layout.parts))
    if size <= MAX_UNSPLIT_ROWS:
        return write_batches(path, layout, [kept(pa.concat_tables(list(parts)))])
    return write_batches(path, layout, map(kept, parts))


def write_batches(path: Path, layout: Layout, tables: Iterable[pa.Table]) -> tuple[int, Checksums]:
    """Write a file of one record batch a table, and wait until it is on the disk; how many rows, and its checksums."""
    count = 0
    with open(path, "wb") as raw:
        file = _Summed(raw)
        with pa.ipc.new_file(pa.PythonFile(file, "w"), layout.schema) as writer:
            for table in tables:
                count += len(table)
                batch = _batch(table)
                file.end_region()
                writer.write_batch(batch)
            file.end_region()
        file.end_region()
        raw.flush()
        os.fsync(raw.fileno())
    return count, tuple(file.regions)


class _Summed:
    """A file that sums up what is written to it, region by region."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._checksum = 0
        self.regions: list[tuple[int, int]] = []

    def write(self, data: bytes) -> int:
        self._checksum = zlib.crc32(data, self._checksum)
        return self._file.write(data)

    def end_region(self) -> None:
        self.regions.append((self._file.tell(), self._checksum))
        self._checksum = 0

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True


def longs(rows: pa.Table | pa.RecordBatch, name: str) -> Longs:
    """A column of 64-bit integers as numpy has it."""
    column = rows.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    found: Longs = column.to_numpy(zero_copy_only=True)
    return found


def _numbers(rows: pa.Table, name: str) -> Longs:
    """The column, or numbers that are alike exactly where its texts are."""
    if rows.schema.field(name).type == pa.int64():
        return longs(rows, name)
    chunks = rows[name].dictionary_encode().chunks
    return np.concatenate([chunk.indices.to_numpy() for chunk in chunks]).astype(np.int64)


def ranges(firsts: npt.NDArray[Any], counts: npt.NDArray[Any]) -> Longs:
    """All numbers of several ranges, one range after the other.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    found: Longs = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)
    return found


def _split(rows: Sequence[pa.Table], layout: Layout) -> Iterator[pa.Table]:
    whole = pa.concat_tables(rows)
    parts = longs(whole, layout.key) % layout.parts
    for part in range(layout.parts):
        yield layout.newest(whole.filter(pa.array(parts == part)))


def _batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=table.schema)
