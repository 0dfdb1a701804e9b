"""Tombstones are sets of positions, whatever is done to them; a table that they are put over keeps each place."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidPosition
from tidings.tombstones import NO_TOMBSTONES, Tombstones, settle, trim
from tidings.updates import SCHEMA

SHARDS, SEQS = 3, 12
Places = set[tuple[int, int]]
Row = dict[str, Any]

runs = st.lists(st.tuples(st.integers(0, SHARDS - 1), st.integers(0, SEQS - 1), st.integers(1, 5)), max_size=12)
bounds = st.lists(st.integers(-1, SEQS + 4), min_size=SHARDS, max_size=SHARDS)


def made(found: list[tuple[int, int, int]]) -> Tombstones:
    return Tombstones.runs([run[0] for run in found], [run[1] for run in found], [sum(run[1:]) - 1 for run in found])


tombstones = runs.map(made)


def positions(of: Tombstones) -> Places:
    found = zip(of.shard.tolist(), of.first.tolist(), of.last.tolist(), strict=True)
    return {(shard, seq) for shard, first, last in found for seq in range(first, last + 1)}


def check_form(of: Tombstones) -> None:
    """Sorted, none empty, and so long that none adjoins another."""
    places = list(zip(of.shard.tolist(), of.first.tolist(), of.last.tolist(), strict=True))
    assert places == sorted(places)
    assert all(first <= last for _, first, last in places)
    for (shard, _, last), (next_shard, first, _) in itertools.pairwise(places):
        assert shard != next_shard or first > last + 1
    assert [part.dtype.name for part in (of.shard, of.first, of.last)] == ["int32", "int64", "int64"]
    assert of.count == len(positions(of)) == of.counts.sum()


@given(runs)
def test_runs_cover_what_they_cover_in_any_order(found: list[tuple[int, int, int]]) -> None:
    covered = {(shard, first + n) for shard, first, count in found for n in range(count)}
    check_form(made(found))
    assert positions(made(found)) == covered
    assert made(found[::-1]) == made(found)
    rows = [(shard, first + count - 1, count) for shard, first, count in found]
    assert Tombstones.at(*(np.array([row[n] for row in rows], np.int64) for n in range(3))) == made(found)


@given(tombstones, tombstones, tombstones)
def test_union_is_associative_commutative_and_idempotent_and_leaves_no_hole(
    a: Tombstones, b: Tombstones, c: Tombstones
) -> None:
    check_form(a | b)
    assert (a | b) | c == a | (b | c)
    assert a | b == b | a
    assert a | a == a
    assert a | NO_TOMBSTONES == a == NO_TOMBSTONES | a
    assert positions(a | b) == positions(a) | positions(b)


@given(tombstones, tombstones, bounds, bounds)
def test_cutting_and_subtracting_is_that_of_sets(
    a: Tombstones, b: Tombstones, after: list[int], upto: list[int]
) -> None:
    for ours, theirs in (
        (a & b, positions(a) & positions(b)),
        (a - b, positions(a) - positions(b)),
        (a.within(after, upto), {(s, n) for s, n in positions(a) if after[s] < n <= upto[s]}),
    ):
        check_form(ours)
        assert positions(ours) == theirs
    assert (a - b) | (a & b) == a


@given(tombstones, runs)
def test_a_run_is_covered_if_each_of_its_positions_is(a: Tombstones, asked: list[tuple[int, int, int]]) -> None:
    covered = positions(a)
    shards, firsts, counts = ([run[n] for run in asked] for n in range(3))
    lasts = [first + count - 1 for first, count in zip(firsts, counts, strict=True)]
    meant = [all((s, first + n) in covered for n in range(count)) for s, first, count in asked]
    assert a.covers(shards, firsts, lasts).tolist() == meant
    assert a.covers(shards, firsts).tolist() == [(s, first) in covered for s, first, _ in asked]


@given(tombstones)
def test_rows_of_tombstones_are_the_tombstones(a: Tombstones) -> None:
    rows = a.rows()
    assert rows.schema == SCHEMA
    assert Tombstones.from_rows(rows) == a
    assert a.covers_rows(rows).all()
    for row in rows.to_pylist():
        assert row == tombstone(row["shard"], row["seq"] - row["range"] + 1, row["seq"])


def test_what_is_no_run_is_refused() -> None:
    for shard, first, last in ((0, 5, 4), (0, -1, 4), (-1, 0, 0)):
        with pytest.raises(InvalidPosition, match=f"shard {shard} cannot reach from {first} to {last}"):
            Tombstones.runs([shard], [first], [last])
    with pytest.raises(InvalidPosition, match="too far apart"):
        Tombstones.runs([4095, 0], [0, 2**60], [0, 2**60])
    far = Tombstones.runs([4095, 0], [0, 2**49], [0, 2**49])
    assert far.covers([4095, 0, 0], [0, 2**49, 0]).tolist() == [True, True, False]
    assert Tombstones.runs([], [], []) == NO_TOMBSTONES
    assert NO_TOMBSTONES != [], "it is compared with tombstones only"


# ---- tables ----------------------------------------------------------------------------------------------------------


def tombstone(shard: int, first: int, last: int) -> Row:
    empty = dict.fromkeys(SCHEMA.names) | {"index": 0, "object": "", "kind": "tombstone"}
    return empty | {"shard": shard, "seq": last, "range": last - first + 1}


def data(shard: int, seq: int) -> Row:
    row = dict.fromkeys(SCHEMA.names) | {"shard": shard, "seq": seq, "index": 0, "kind": "data", "range": 1}
    row |= {"object": f"o{seq}", "payload": b"x" * (seq % 3), "version": seq}
    return row | {"attributes": [("a", str(seq))] if seq % 2 else None}


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows that begin anywhere, mostly dense; some are tombstones, also such as adjoin."""
    found: list[Row] = []
    for shard in range(SHARDS):
        at = draw(st.integers(0, 4))
        for kind, count, gap in draw(
            st.lists(
                st.tuples(st.sampled_from(["data", "data", "tombstone"]), st.integers(1, 3), st.integers(0, 9)),
                max_size=6,
            )
        ):
            at += gap - 8 if gap > 8 else 0
            if kind == "data":
                found.append(data(shard, at))
                at += 1
            else:
                found.append(tombstone(shard, at, at + count - 1))
                at += count
    return found


def table(rows: list[Row], chunk_rows: int = 100) -> pa.Table:
    whole = pa.Table.from_pylist(rows, SCHEMA)
    return pa.concat_tables(
        [SCHEMA.empty_table(), *(whole.slice(n, chunk_rows) for n in range(0, len(rows), chunk_rows))]
    )


def places(row: Row) -> range:
    return range(row["seq"] - row["range"] + 1, row["seq"] + 1)


def settled(rows: list[Row], covered: Places) -> list[Row]:
    """What `settle` does, row by row."""
    found: list[Row] = []
    for row in rows:
        if row["kind"] != "tombstone" and not all((row["shard"], seq) in covered for seq in places(row)):
            found.append(row)
            continue
        before = found[-1] if found else None
        joins = before and before["kind"] == "tombstone" and before["shard"] == row["shard"]
        if before and joins and before["seq"] + 1 == places(row)[0]:
            found[-1] = tombstone(row["shard"], places(before)[0], row["seq"])
        else:
            found.append(tombstone(row["shard"], places(row)[0], row["seq"]))
    return found


@given(tables(), tombstones, tombstones, st.integers(1, 100))
def test_what_is_covered_becomes_one_tombstone_a_run_and_the_rest_stays(
    rows: list[Row], over: Tombstones, more: Tombstones, chunk_rows: int
) -> None:
    before = table(rows, chunk_rows)
    after = settle(before, over)
    after.validate(full=True)
    assert after.schema == SCHEMA
    if over.covers_rows(before).any():
        assert after.to_pylist() == settled(rows, positions(over))
    else:
        assert after is before
    assert covered_by(after.to_pylist()) == covered_by(rows), "no place is lost, and none is made up"
    assert settle(after, over).to_pylist() == after.to_pylist()
    if over.covers_rows(before).any() and more.covers_rows(after).any():
        assert settle(after, more).to_pylist() == settled(rows, positions(over | more))


def covered_by(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row["shard"], seq) for row in rows for seq in places(row)]


@given(tables(), bounds, bounds, st.integers(1, 100))
def test_a_table_is_cut_to_what_lies_within(
    rows: list[Row], after: list[int], upto: list[int], chunk_rows: int
) -> None:
    found = trim(table(rows, chunk_rows), np.array(after), np.array(upto))
    found.validate(full=True)
    meant = []
    for row in rows:
        left = [seq for seq in places(row) if after[row["shard"]] < seq <= upto[row["shard"]]]
        if left:
            meant.append(row if len(left) == row["range"] else tombstone(row["shard"], left[0], left[-1]))
    assert found.to_pylist() == meant
    assert found.schema == SCHEMA


def test_nothing_is_copied_where_nothing_changes() -> None:
    rows = table([data(0, 1), tombstone(0, 2, 4), data(0, 5)])
    assert settle(rows, NO_TOMBSTONES) is rows
    assert settle(rows, Tombstones.runs([1, 0], [1, 6], [5, 9])) is rows
    assert trim(rows, [0], [5]) is rows
    empty = SCHEMA.empty_table()
    assert settle(empty, Tombstones.runs([0], [1], [5])) is empty
    assert trim(empty, [0], [5]).num_rows == 0


def test_the_range_of_an_update_that_is_no_tombstone_means_nothing() -> None:
    odd = table([data(0, 4) | {"range": 4}, data(0, 5) | {"range": 0}])
    assert settle(odd, Tombstones.runs([0], [5], [5])).to_pylist() == [data(0, 4) | {"range": 4}, tombstone(0, 5, 5)]
    assert trim(odd, [3], [9]) is odd


def test_columns_that_were_not_read_are_not_made_up() -> None:
    rows = table([data(0, 1), data(0, 2)]).select(["seq", "kind", "shard", "range", "attributes"])
    found = settle(rows, Tombstones.runs([0], [2], [2]))
    assert found.schema == rows.schema
    assert found.to_pylist()[1] == {"seq": 2, "kind": "tombstone", "shard": 0, "range": 1, "attributes": None}
