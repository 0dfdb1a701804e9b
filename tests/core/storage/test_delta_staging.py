from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidings.stages.state import State
from tidings.storage import delta_staging
from tidings.testing import read_table

SCHEMA = pa.schema([("key", pa.int64())])


def append(folder: Path, batch_id: int) -> None:
    state = State(folder, "test", batch_id)
    state.table("t", SCHEMA).append(pa.table({"key": [batch_id]}, SCHEMA))
    state.commit()


def replace(folder: Path, batch_id: int) -> None:
    state = State(folder, "test", batch_id)
    state.table("t", SCHEMA).replace(pa.table({"key": [-1]}, SCHEMA))
    state.commit()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for batch_id in range(5):
        append(tmp_path, batch_id)
    return tmp_path


def test_what_is_added_during_a_rewrite_is_not_lost(folder: Path) -> None:
    def join(table: DeltaTable) -> None:
        for batch_id in (5, 6):
            append(folder, batch_id)
        table.optimize.compact()

    assert delta_staging.rewrite(folder / "t", join)
    assert sorted(row["key"] for row in read_table(folder, "t")) == list(range(7))
    assert len(DeltaTable(folder / "t").file_uris()) == 3
    append(folder, 7)
    assert len(read_table(folder, "t")) == 8


def test_a_rewrite_of_what_is_not_there_any_more_is_given_up(folder: Path) -> None:
    def join(table: DeltaTable) -> None:
        replace(folder, 5)
        table.optimize.compact()

    assert not delta_staging.rewrite(folder / "t", join)
    assert read_table(folder, "t") == [{"key": -1}]


def test_a_rewrite_that_finds_nothing_to_do_makes_no_version(folder: Path) -> None:
    replace(folder, 5)
    before = DeltaTable(folder / "t").version()
    assert not delta_staging.rewrite(folder / "t", lambda table: table.optimize.compact())
    assert DeltaTable(folder / "t").version() == before
