"""Rows whose column changes that says in which shard they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connectors.cdc.test_mapping import changes
from tidings_connectors.cdc.changes import Changes, Column
from tidings_connectors.cdc.mapping import RowMapping, updates_of
from tidings_connectors.cdc.moved_rows import updates_with_ends

cities = st.none() | st.sampled_from(["Rome", "Oslo", "Bern", "Paris"])


def updated(moves: list[tuple[str | None, str | None]]) -> Changes:
    """Updates of rows that were in one place, and are in another."""
    ids, after = [str(place) for place in range(len(moves))], [now for _, now in moves]
    made = changes({"id": ids, "city": after, "name": ids}, operations=["update"] * len(moves))  # type: ignore[dict-item]
    was = Column("city", pa.array([before for before, _ in moves], pa.string()), unknown=pa.repeat(False, len(moves)))
    return replace(made, before=[was])


@given(st.lists(st.tuples(cities, cities), min_size=1, max_size=8), st.integers(1, 3))
@settings(deadline=None)
def test_an_end_is_in_the_shard_that_was_left_and_in_no_other(
    moves: list[tuple[str | None, str | None]], shards: int
) -> None:
    mapping, made = RowMapping(shard="city"), updated(moves)
    rows = updates_with_ends(made, mapping, shards).to_pylist(maps_as_pydicts="strict")
    before = replace(made, columns=[made.column("id"), made.before[0], made.column("name")])
    old, new = (
        {row["object"]: row["shard"] for row in updates_of(one, mapping, shards).to_pylist()} for one in (before, made)
    )
    ends = {row["object"]: row["shard"] for row in rows if row["attributes"]["operation"] == "delete"}
    assert ends == {name: shard for name, shard in old.items() if new[name] != shard}
    assert [row["object"] for row in rows if row["attributes"]["operation"] == "update"] == list(new)
    assert [(row["seq"], row["index"]) for row in rows] == sorted((row["seq"], row["index"]) for row in rows)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, {}),
        ({"shard": "city"}, {"key": ()}),
        ({"shard": "city", "object": "{name}"}, {}),
        ({"shard": "city"}, {"before": []}),
        ({"shard": "city"}, {"before": [Column("city", pa.array(["Rome"]), unknown=pa.array([True]))]}),
    ],
)
def test_without_a_place_a_key_or_a_name_that_stays_nothing_is_ended(
    options: dict[str, Any], change: dict[str, Any]
) -> None:
    made = replace(updated([("Rome", "Oslo")]), **change)
    assert updates_with_ends(made, RowMapping(**options), 64).num_rows == 1
