from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.thialfi_stage import Service, op, register
from tidings.errors import LogUnavailable
from tidings.testing import read_table
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server import overflow


@contextmanager
def unwritable(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[None]:
    """Tables that cannot be written, as far as `scratch` can see."""
    with monkeypatch.context() as broken:
        broken.setattr(overflow, "writable", lambda place: place.name not in names)
        yield


def test_a_table_that_cannot_be_written_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path, repeat=True)
    service.batch(ops=[op(1, stream_schema.CREATED), register(1, "a", 10)], updates=[{"object": "a", "version": 1}])
    with unwritable(monkeypatch, "objects", "registrations"):
        for version in (2, 3):
            told = service.batch(updates=[{"object": "a", "version": version}], ops=[register(1, "b", 10 + version)])
            assert (1, "notify", "a", version) in told
            assert (1, "registered", "b", 10 + version) in told
        assert [row["number"] for row in read_table(tmp_path, "objects")] == [1]
        waiting = [row for one in overflow.folders(tmp_path, "objects") for row in read_table(tmp_path, one.name)]
        assert [row["number"] for row in waiting] == [3], "the latest only"
        service.restart()
        for run in (tmp_path / "runs").rglob("*.arrow"):
            run.unlink()
        assert service.batch(updates=[{"object": "a", "version": 3}]) == [], "what waits is known"
    told = service.batch(updates=[{"object": "c", "version": 1}])
    assert sorted((row["object"], row["number"]) for row in read_table(tmp_path, "objects")) == [
        ("a", 1),
        ("a", 3),
        ("c", 1),
    ]
    service.batch(updates=[{"object": "c", "version": 2}])
    assert not any(read_table(tmp_path, one.name) for one in overflow.folders(tmp_path, "objects"))
    assert not any(read_table(tmp_path, one.name) for one in overflow.folders(tmp_path, "registrations"))
    assert len(read_table(tmp_path, "objects")) == 4


def test_rows_go_to_another_place_when_theirs_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path)
    updates = [{"object": f"o{number}", "version": 1} for number in range(50)]
    with unwritable(monkeypatch, "objects", "scratch-0.objects", "scratch-1.objects"):
        service.batch(updates=updates)
    found = {one.name: len(read_table(tmp_path, one.name)) for one in overflow.folders(tmp_path, "objects")}
    assert set(found) == {"scratch-2.objects", "scratch-3.objects"}
    assert sum(found.values()) == 50


def test_if_nothing_can_be_written_the_batch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(tmp_path)
    every = [overflow.name_of("objects", place) for place in range(overflow.SCRATCH_TABLES)]
    with (
        unwritable(monkeypatch, "objects", *every),
        pytest.raises(LogUnavailable, match=r"neither table .*objects nor the scratch tables"),
    ):
        service.batch(updates=[{"object": "a", "version": 1}])


def test_a_folder_that_cannot_be_written_is_found_out(tmp_path: Path) -> None:
    assert overflow.writable(tmp_path / "none yet")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    assert overflow.writable(tmp_path / "table")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_delta_log").write_text("a file where a folder was")
    assert not overflow.writable(tmp_path / "other")
