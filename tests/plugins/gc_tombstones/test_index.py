"""The index of a collected stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tidings_gc_tombstones.index import KeyIndex, KeyPlaces


def places(*some: tuple[int, int, bytes]) -> KeyPlaces:
    shards, seqs, keys = zip(*some, strict=True)
    return KeyPlaces.at(np.array(shards, np.int32), np.array(seqs, np.int64), pa.array(keys, pa.binary()))


def found(index: KeyIndex, *some: tuple[int, int, bytes]) -> set[tuple[int, int, bytes]]:
    rows = index.find(places(*some))
    return set(zip(rows.shard.tolist(), rows.seq.tolist(), rows.key.to_pylist(), strict=True))


def test_groups_are_those_of_a_shard_and_a_key_without_holes() -> None:
    in_one = places((0, 1, b"a"), (1, 1, b"b"), (0, 2, b"a")).groups()
    assert in_one.tolist() == [0, 1, 0]
    in_several = places((0, 1, b"a"), (1, 1, b"a"), (0, 2, b"a"), (2, 1, b"b")).groups()
    assert in_several[0] == in_several[2]
    assert sorted(set(in_several.tolist())) == [0, 1, 2]
    assert len(KeyPlaces.none().groups()) == 0


def test_a_key_is_found_in_its_own_shard_up_to_its_mark(tmp_path: Path) -> None:
    with KeyIndex(tmp_path) as index:
        held = places((0, 1, b"a"), (0, 2, b"a"), (1, 3, b"a"), (0, 4, b"b"))
        index.update(held, places((0, 2, b"a")), {"step": 1})
        assert found(index, (0, 9, b"a")) == {(0, 2, b"a")}
        assert found(index, (1, 9, b"a"), (0, 9, b"b")) == {(1, 3, b"a"), (0, 4, b"b")}
        assert found(index, (2, 9, b"a"), (0, 9, b"c")) == set()


def test_hashes_stay_with_their_places(tmp_path: Path) -> None:
    some = places((0, 1, b"a"), (1, 2, b"b"))
    both = some.take(np.array([False, True])) + places((0, 1, b"a"))
    assert both.hash.tolist() == some.hash[::-1].tolist()
    with KeyIndex(tmp_path) as index:
        index.update(some, KeyPlaces.none(), {})
        rows = index.find(some)
        assert set(rows.hash.tolist()) == set(some.hash.tolist())
