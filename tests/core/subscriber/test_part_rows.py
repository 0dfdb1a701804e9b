"""Rows of several flows in one message: each flow sees its own, as if they had come alone."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.subscriber import part_rows
from tidings.subscriber.part_rows import PartRows
from tidings.updates import SCHEMA, to_updates

KINDS = ("data", "gc", "tombstone")


def rows_of(kinds: list[str]) -> pa.RecordBatch:
    count = len(kinds)
    columns = {
        "shard": [0] * count,
        "seq": range(100, 100 + count),
        "index": [0] * count,
        "object": [f"o{number}" for number in range(count)],
        "kind": kinds,
        "range": [1] * count,
    }
    arrays = [pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
              for field in SCHEMA]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.mark.parametrize("shared", [0, 1_000])
@given(parts=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), min_size=1, max_size=6))
def test_a_flow_sees_its_own_rows_whether_these_are_looked_at_together_or_not(
    shared: int, parts: list[list[str]]
) -> None:
    batch = rows_of([kind for part in parts for kind in part])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_rows, "SHARED_ROWS", shared)
        split = list(PartRows.split(batch, "contacts", [len(part) for part in parts]))
    start = 0
    for kinds, part in zip(parts, split, strict=True):
        alone = batch.slice(start, len(kinds))
        assert part.batch.equals(alone)
        assert part.updates == to_updates(alone, "contacts")
        assert part.tombstones == [place for place, kind in enumerate(kinds) if kind == "tombstone"]
        assert [one.kind for one in part.without_tombstones().updates] == [one for one in kinds if one != "tombstone"]
        assert part.part(1, len(kinds)).updates == part.updates[1:]
        first, last = 100 + start, 100 + start + len(kinds) - 1
        assert part.gap(None, first - 1, last) is None
        assert part.gap(first, first - 1, last) == f"it goes on after {first - 1}, and {first} was the last"
        assert part.gap(None, first - 2, last) == f"{first} comes after {first - 2}"
        assert part.gap(None, first - 1, last + 1) == f"it ends at {last}, not {last + 1}"
        start += len(kinds)


def test_a_row_that_cannot_be_an_update_harms_its_own_flow_alone() -> None:
    batch = rows_of(["data", "data"])
    beyond = pa.array([0, 2**62], pa.int64()).cast(SCHEMA.field("time").type)  # there is no such year
    batch = batch.set_column(SCHEMA.get_field_index("time"), SCHEMA.field("time"), beyond)
    well, odd = PartRows.split(batch, "contacts", [1, 1])
    assert [one.object for one in well.updates] == ["o0"]
    with pytest.raises(AttributeError):
        odd.updates  # noqa: B018 - which makes them


def test_many_bytes_are_not_made_objects_of_before_it_is_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows_of(["data"] * 4)
    assert len({id(one._message) for one in list(PartRows.split(batch, "contacts", [2, 2]))}) == 1
    monkeypatch.setattr(part_rows, "SHARED_BYTES", batch.nbytes - 1)
    assert len({id(one._message) for one in list(PartRows.split(batch, "contacts", [2, 2]))}) == 2
