from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tidings.stages.state import State
from tidings_thialfi import compaction
from tidings_thialfi import rows as words
from tidings_thialfi.compaction import Compactor, compact
from tidings_thialfi.tables import row_counts

from .stages import Service, op, register

EVERYONE = range(1, 6)


def filled(folder: Path) -> Service:
    service = Service(folder)
    service.batch(ops=[op(client, words.CREATED) for client in EVERYONE])
    service.batch(ops=[register(client, "a", 10) for client in EVERYONE])
    return service


def change(service: Service, version: int) -> None:
    ops = [op(client, words.ACKNOWLEDGE, version - 1, object="a") for client in EVERYONE]
    told = service.batch(updates=[{"object": "a", "version": version}], ops=ops)
    assert told == [(client, "notify", "a", version) for client in EVERYONE]


def test_compacted_tables_have_few_rows_and_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE", 10)
    service = filled(tmp_path)
    compactor = Compactor()
    for version in range(1, 25):
        change(service, version)
        index = service.stage.opened(State(tmp_path, "test", service.batch_id))
        index.advance(service.batch_id)
        compactor.look(index, service.batch_id, every=5)  # runs beside the next batches
    compactor.join()
    counts = row_counts(tmp_path)
    assert counts["acknowledgements"] < 60 < 24 * 5
    assert counts["registrations"] == 5
    service.restart()
    shutil.rmtree(tmp_path / "runs")
    service.repeat = True
    told = service.batch(ops=[op(client, words.ONLINE) for client in EVERYONE])
    assert [row for row in told if row[1] != "digest"] == [(client, "notify", "a", 24) for client in EVERYONE]
    change(service, 25)
    service.batch(ops=[op(1, words.ACKNOWLEDGE, 25, object="a")])
    assert service.batch(ops=[op(1, words.ONLINE)]) == [(1, "digest", 10, 1)]


def test_many_small_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FILES", 3)
    service = filled(tmp_path)
    for version in range(1, 7):
        change(service, version)
    index = service.stage.opened(State(tmp_path, "test", service.batch_id))
    index.advance(service.batch_id)
    held = index.snapshot()
    assert compact(tmp_path / "objects", "test", service.batch_id - 1, held["objects"]) == "joined"
    assert compact(tmp_path / "objects", "test", service.batch_id - 1, held["objects"]) is None
    assert row_counts(tmp_path)["objects"] == 6
    change(service, 7)
