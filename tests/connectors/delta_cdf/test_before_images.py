"""What a row of a Delta table was before it changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.connectors.delta_cdf.test_log import FEED, merge, opened, start
from tidings.errors import InvalidOption

WANTED: dict[str, Any] = {"key": ["id", "shop"], "attributes": ["city"], "before": True}


def people(*rows: tuple[int, str | None, str | None]) -> pa.Table:
    ids, shops, cities = zip(*rows, strict=True)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "shop": pa.array(shops, pa.string()), "city": pa.array(cities, pa.string())}
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "shop" / "people"
    write_deltalake(folder, people((1, "a", "Rome"), (2, "b", None), (3, "c", "Oslo")), configuration=FEED)
    return folder


def told(place: Path, **options: Any) -> list[tuple[Any, ...]]:
    """What the versions after the first say: object, operation, and the city, before and after."""
    log = opened(place, shards=1, **WANTED | options)
    rows = log.tail(start(log), 100).to_pylist(maps_as_pydicts="strict")
    return [
        (
            row["object"].removeprefix("shop.people/"),
            row["attributes"]["operation"],
            row["attributes"].get("before.city"),
            row["attributes"].get("city"),
        )
        for row in rows
        if row["seq"]
    ]


def test_updates_and_deletes_say_what_the_row_was(place: Path) -> None:
    merge(place, people((1, "a", "Paris"), (2, "b", "Rome"), (4, "d", "Rome")), "new.id = old.id")
    DeltaTable(place).delete("id = 2")
    assert told(place) == [
        ("1,a", "update", "Rome", "Paris"),
        ("2,b", "update", None, "Rome"),
        ("4,d", "insert", None, "Rome"),
        ("2,b", "delete", "Rome", "Rome"),
    ]


def test_a_row_with_a_new_key_is_ended_with_what_it_was_and_the_new_one_was_nothing(place: Path) -> None:
    DeltaTable(place).update({"shop": "'z'", "city": "'Bern'"}, predicate="id = 1")
    assert told(place) == [("1,a", "delete", "Rome", "Rome"), ("1,z", "update", None, "Bern")]


def test_a_row_that_goes_to_another_shard_is_ended_and_told_with_what_it_was(place: Path) -> None:
    DeltaTable(place).update({"city": "'Bern'"}, predicate="id = 1")
    log = opened(place, shards=64, **WANTED, shard="city")
    rows = [row for row in log.tail(start(log), 100).to_pylist(maps_as_pydicts="strict") if row["seq"]]
    assert {(row["attributes"]["operation"], row["attributes"]["before.city"]) for row in rows} == {
        ("delete", "Rome"),
        ("update", "Rome"),
    }


def test_a_key_that_is_null_tells_no_row_from_another(place: Path) -> None:
    write_deltalake(place, people((8, None, "Rome"), (9, None, "Oslo")), mode="append")
    DeltaTable(place).update({"city": "'Bern'"}, predicate="shop IS NULL")
    assert [row[2:] for row in told(place) if row[1] == "update"] == [(None, "Bern")] * 2


def test_without_a_key_it_is_refused(place: Path) -> None:
    with pytest.raises(InvalidOption, match="'before' needs 'key'"):
        opened(place, attributes=["city"], before=True)
