"""The index of a collected stream: where the updates of each key are that are not collected yet.

Sorted runs (`tidings.storage.sorted_runs`) of three kinds of rows. A *place* says that an update of a key is at a
`seq`; a *mark* says that all places of its key before a `seq` are collected, so to collect the earlier updates of a key
costs one row, however many they are; a *hole* says that one place is. What these make needless goes when runs are
merged, and so does what lies before the oldest update that is held.

Runs are sorted by a hash of shard and key. The hash is where to look, and the key itself, which the rows have, decides:
two keys with one hash are told apart, and where runs keep only one of them, the other is not collected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tidings.errors import LogUnavailable
from tidings.storage.sorted_runs import RunReader, Runs

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MARK = -1  # in the place of the seq
ROWS = pa.schema(
    [("hash", pa.int64()), ("place", pa.int64()), ("seq", pa.int64()), ("shard", pa.int32()), ("key", pa.binary())]
)


@dataclass(frozen=True)
class KeyPlaces:
    """Updates, by shard, position and key; and by a hash of shard and key, which is where the index has them."""

    shard: npt.NDArray[np.int32]
    seq: Integers
    key: pa.Array
    hash: Integers

    @classmethod
    def at(cls, shard: npt.NDArray[np.int32], seq: Integers, key: pa.Array) -> KeyPlaces:
        """Updates at these places. The shard is the seed of the hash: an update finds those of its own shard."""
        digest = xxhash.xxh64_intdigest
        hashes = np.fromiter(map(digest, key.to_pylist(), shard.tolist()), np.uint64, len(seq))
        return cls(shard, seq, key, hashes.view(np.int64))

    @classmethod
    def of(cls, rows: pa.Table, keys: pa.Array) -> KeyPlaces:
        """Those of a table of updates that have a key."""
        keyed = keys.is_valid()
        if keys.null_count:
            rows, keys = rows.select(["shard", "seq"]).filter(keyed), keys.filter(keyed)
        return cls.at(rows["shard"].to_numpy(), rows["seq"].to_numpy(), keys)

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, chosen: Mask) -> KeyPlaces:
        """Those for which the mask holds."""
        return KeyPlaces(self.shard[chosen], self.seq[chosen], self.key.filter(pa.array(chosen)), self.hash[chosen])

    def __add__(self, other: KeyPlaces) -> KeyPlaces:
        if not len(self) or not len(other):
            return self if len(self) else other
        shards, seqs = np.append(self.shard, other.shard), np.append(self.seq, other.seq)
        return KeyPlaces(shards, seqs, pa.concat_arrays([self.key, other.key]), np.append(self.hash, other.hash))

    def groups(self) -> Integers:
        """A number for each, from 0 on without holes, the same for those of one shard and key."""
        codes: Integers = self.key.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        shards = np.zeros(codes.max(initial=-1) + 1, np.int32)
        shards[codes] = self.shard
        if np.array_equal(shards[codes], self.shard):  # a key is in one shard, as an object always is
            return codes
        numbers: Integers = np.unique(codes * (int(self.shard.max()) + 1) + self.shard, return_inverse=True)[1]
        return numbers


NO_PLACES = KeyPlaces.at(np.empty(0, np.int32), np.empty(0, np.int64), pa.array([], pa.binary()))


class KeyIndex:
    """The index in a folder. Any number of processes read it; whoever writes it takes it over. A context manager.

    Whatever goes wrong with its files is `LogUnavailable`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = RunReader(folder)
        self._writer: Runs | None = None
        self._passed = np.empty(0, np.int64)
        self._lost = False

    @property
    def note(self) -> dict[str, Any]:
        """What the index has seen, as `update` was told; empty if it has seen nothing."""
        try:
            with _translating_errors():
                return {} if self._lost else dict(self._reader.note or {})
        except LogUnavailable:  # there is none, or none that can be read
            return {}

    def check(self) -> None:
        """Take the index for lost, if it is damaged: as whoever takes it over does."""
        try:
            with _translating_errors():
                self._reader.snapshot().check()
        except LogUnavailable:
            self._lost = True

    def find(self, some: KeyPlaces) -> KeyPlaces:
        """The places of the keys of these, as far as they are not collected."""
        with _translating_errors():
            rows = (self._writer or self._reader).lookup(some.hash)
        is_place = rows["place"].to_numpy() == rows["seq"].to_numpy()
        found = _places(rows.filter(pa.array(is_place & ~self._needless(rows))), "place")
        groups = (some + found).groups()
        wanted = np.zeros(groups.max(initial=-1) + 1, np.bool_)
        wanted[groups[: len(some)]] = True
        return found.take(wanted[groups[len(some) :]])

    def take_over(self) -> Runs:
        """Be the one who writes it, and check all that is there."""
        if self._writer is None:
            with _translating_errors():
                self._writer = Runs(
                    self._folder,
                    ROWS,
                    key="hash",
                    identity=("place",),
                    order="seq",
                    superseded=self._needless,
                    forget=lambda rows: rows["place"].to_numpy() != rows["seq"].to_numpy(),
                )
        return self._writer

    def pass_over(self, upto: Integers) -> None:
        """Whatever is at these positions and before them, a seq for each shard, is collected."""
        self._passed = upto

    def update(self, new: KeyPlaces, marks: KeyPlaces, gone: KeyPlaces, note: Mapping[str, Any]) -> None:
        """Change the note, and in the same step add places, marks before which all of their key are collected, and
        places that are.
        """
        rows = [
            pa.table([some.hash, places, seqs, some.shard, some.key], schema=ROWS)
            for some, places, seqs in (
                (new, new.seq, new.seq),
                (marks, np.full(len(marks), MARK), marks.seq),
                (gone, gone.seq, gone.seq + 1),
            )
        ]
        writer = self.take_over()
        with _translating_errors():
            writer.append(pa.concat_tables(rows), dict(note))

    def clear(self, note: Mapping[str, Any]) -> None:
        """Forget everything but this."""
        writer = self.take_over()
        with _translating_errors():
            writer.rebuild([], note=dict(note))

    def close(self) -> None:
        """Stop merging runs."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> KeyIndex:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _needless(self, rows: pa.Table) -> Mask:
        """Which places are collected, as marks say, or passed; the rows are all those of some hashes, and sorted."""
        places, passed = rows["place"].to_numpy(), self._passed
        needless = _marked(rows)
        if len(passed):
            needless |= (places != MARK) & (places <= passed[rows["shard"].to_numpy()])
        return needless


@contextlib.contextmanager
def _translating_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogUnavailable(f"the index of the collection cannot be used: {error}") from error


def _places(rows: pa.Table, seq: str) -> KeyPlaces:
    shards, seqs, hashes = (rows[name].to_numpy() for name in ("shard", seq, "hash"))
    return KeyPlaces(shards, seqs, rows["key"].combine_chunks(), hashes)


def _marked(rows: pa.Table) -> Mask:
    """Which places lie before a mark of their key."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    places, seqs = rows["place"].to_numpy(), rows["seq"].to_numpy()
    groups = _places(rows, "seq").groups()
    marked = np.full(groups.max() + 1, -1, np.int64)
    is_mark = places == MARK
    np.maximum.at(marked, groups[is_mark], seqs[is_mark])
    found: Mask = ~is_mark & (places < marked[groups])
    return found
