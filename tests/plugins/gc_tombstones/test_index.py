"""The index of a collected stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tidings.storage.sorted_runs import RunReader
from tidings_gc_tombstones.index import NO_PLACES, KeyIndex, KeyPlaces


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
    assert len(NO_PLACES.groups()) == 0


def test_a_key_is_found_in_its_own_shard_up_to_its_mark(tmp_path: Path) -> None:
    with KeyIndex(tmp_path) as index:
        held = places((0, 1, b"a"), (0, 2, b"a"), (1, 3, b"a"), (0, 4, b"b"))
        index.update(held, places((0, 2, b"a")), NO_PLACES, {"step": 1})
        assert found(index, (0, 9, b"a")) == {(0, 2, b"a")}
        assert found(index, (1, 9, b"a"), (0, 9, b"b")) == {(1, 3, b"a"), (0, 4, b"b")}
        assert found(index, (2, 9, b"a"), (0, 9, b"c")) == set()


def test_hashes_stay_with_their_places(tmp_path: Path) -> None:
    some = places((0, 1, b"a"), (1, 2, b"b"))
    both = some.take(np.array([False, True])) + places((0, 1, b"a"))
    assert both.hash.tolist() == some.hash[::-1].tolist()
    with KeyIndex(tmp_path) as index:
        index.update(some, NO_PLACES, NO_PLACES, {})
        rows = index.find(some)
        assert set(rows.hash.tolist()) == set(some.hash.tolist())


def test_a_place_that_is_collected_by_itself_is_not_found(tmp_path: Path) -> None:
    with KeyIndex(tmp_path) as index:
        index.update(places((0, 1, b"a"), (0, 2, b"a"), (0, 3, b"a")), NO_PLACES, NO_PLACES, {})
        index.update(NO_PLACES, NO_PLACES, places((0, 2, b"a")), {})
        assert found(index, (0, 9, b"a")) == {(0, 1, b"a"), (0, 3, b"a")}


def test_what_is_passed_is_not_found_and_goes_when_runs_are_merged(tmp_path: Path) -> None:
    with KeyIndex(tmp_path) as index:
        for number in range(100):
            index.pass_over(np.array([number - 10]))
            index.update(places((0, number, b"%d" % number)), NO_PLACES, NO_PLACES, {})
        assert found(index, (0, 999, b"5"), (0, 999, b"95")) == {(0, 95, b"95")}
        while index.take_over().merge():
            pass
    assert sum(run.rows for run in RunReader(tmp_path).runs) < 50
