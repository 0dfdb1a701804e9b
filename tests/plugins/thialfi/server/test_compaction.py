from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.support import power_loss
from tests.support.thialfi_stage import Service, op, register, unregister
from tidings.stages.state import State
from tidings.testing import eventually, read_table
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server import compaction
from tidings_thialfi.server.compaction import Compactor, compact
from tidings_thialfi.server.tables import row_counts

EVERYONE = range(1, 6)


def filled(folder: Path) -> Service:
    service = Service(folder)
    service.batch(ops=[op(client, stream_schema.CREATED) for client in EVERYONE])
    service.batch(ops=[register(client, "a", 10) for client in EVERYONE])
    return service


def change(service: Service, version: int) -> None:
    ops = [op(client, stream_schema.ACKNOWLEDGE, version - 1, object="a") for client in EVERYONE]
    told = service.batch(updates=[{"object": "a", "version": version}], ops=ops)
    assert told == [(client, "notify", "a", version) for client in EVERYONE]


def test_compacted_tables_have_few_rows_and_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_ROWS", 10)
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
    told = service.batch(ops=[op(client, stream_schema.ONLINE) for client in EVERYONE])
    assert [row for row in told if row[1] != "digest"] == [(client, "notify", "a", 24) for client in EVERYONE]
    change(service, 25)
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, 25, object="a")])
    assert service.batch(ops=[op(1, stream_schema.ONLINE)]) == [(1, "digest", 10, 1)]


def test_a_client_that_is_away_costs_its_registrations_and_of_each_object_the_latest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SPARE_ROWS", 10)
    service = filled(tmp_path)
    service.batch(ops=[op(client, stream_schema.OFFLINE) for client in EVERYONE])
    compactor = Compactor()
    sizes = []
    for version in range(1, 81):
        service.batch(updates=[{"object": "a", "version": version, "payload": b"%d" % version}])
        index = service.stage.opened(State(tmp_path, "test", service.batch_id))
        index.advance(service.batch_id)
        compactor.look(index, service.batch_id, every=5)
        compactor.join()
        for runs in index._runs.values():
            while runs.merge():
                pass
        sizes.append(sum(row_counts(tmp_path).values()) + sum(held.rows for held in index.snapshot().values()))
    assert max(sizes[40:]) <= max(sizes[:40]), "what is kept does not grow with the versions"
    told = service.batch(ops=[op(client, stream_schema.ONLINE) for client in EVERYONE])
    assert [row for row in told if row[1] != "digest"] == [(client, "notify", "a", 80, b"80") for client in EVERYONE]


def test_many_small_files_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_FILES", 3)
    service = filled(tmp_path)
    for version in range(1, 7):
        change(service, version)
    index = service.stage.opened(State(tmp_path, "test", service.batch_id))
    index.advance(service.batch_id)
    held = index.snapshot()
    assert compact(index, "objects", service.batch_id - 1, held["objects"]) == "joined"
    assert compact(index, "objects", service.batch_id - 1, held["objects"]) is None
    assert row_counts(tmp_path)["objects"] == 6
    change(service, 7)


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize(("limit", "done"), [("SPARE_ROWS", "rewritten"), ("MAX_FILES", "joined")])
def test_compacted_tables_outlive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: bool, limit: str, done: str
) -> None:
    monkeypatch.setattr(compaction, limit, -1000 if limit == "SPARE_ROWS" else 3)
    with power_loss.disk(tmp_path) as disk:
        service = filled(disk.folder / "service")
        for version in range(1, 7):
            change(service, version)
        index = service.stage.opened(State(service.folder, "test", service.batch_id))
        index.advance(service.batch_id)
        assert compact(index, "objects", service.batch_id - 1, index.snapshot()["objects"]) == done
        change(service, 7)
        service.close()
        with disk.after_power_loss(names=names) as folder:
            again = Service(folder / "service")
            again.batch_id = service.batch_id
            told = again.batch(ops=[op(client, stream_schema.ONLINE) for client in EVERYONE])
            assert [row for row in told if row[1] != "digest"] == [(client, "notify", "a", 7) for client in EVERYONE]
            again.close()


def test_what_has_ended_is_forgotten_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_ROWS", -1000)
    service = Service(tmp_path, away_days=1, collect_every=1, parts=1)
    service.batch(ops=[op(client, stream_schema.CREATED) for client in EVERYONE])
    service.batch(ops=[register(client, name, 10) for client in EVERYONE for name in "ab"])
    service.batch(updates=[{"object": "a", "version": 1}, {"object": "b", "version": 1}])
    service.batch(ops=[op(client, stream_schema.ACKNOWLEDGE, 1, object=name) for client in EVERYONE for name in "ab"])
    service.batch(ops=[unregister(client, "b", 11) for client in EVERYONE])
    service.now += dt.timedelta(days=2)
    told = service.batch(ops=[op(client, stream_schema.ONLINE) for client in (1, 2)])
    assert [row for row in told if row[1] == "invalid"] == [(client, "invalid") for client in (3, 4, 5)]
    service.batch(updates=[{"object": "a", "version": 2}])
    index = service.stage.opened(State(tmp_path, "test", service.batch_id))
    index.advance(service.batch_id)
    for name, held in index.snapshot().items():
        assert compact(index, name, service.batch_id - 1, held) == ("rewritten" if name != "fanouts" else None)
    left = {name: {row["client"] for row in read_table(tmp_path, name)} for name in ("acknowledgements", "clients")}
    assert left == {"acknowledgements": {1, 2}, "clients": {1, 2}}
    assert [(row["client"], row["object"]) for row in read_table(tmp_path, "registrations")] == [(1, "a"), (2, "a")]
    for name in ("registered_for", "registrations_of", "acknowledgements", "clients"):
        for _ in range(4):
            rows = index[name].scan(0)
            index[name].append(rows.filter(pc.equal(rows["client"], 1)))  # so that there is something to merge
        eventually(lambda: set(index[name].scan(0)["client"].to_pylist()) == {1, 2})  # noqa: B023
    assert service.batch(ops=[op(3, stream_schema.ONLINE)]) == [(3, "invalid")]
    told = service.batch(ops=[op(1, stream_schema.ONLINE), register(1, "b", 20)])
    assert [row for row in told if row[1] == "notify"] == [(1, "notify", "a", 2), (1, "notify", "b", 1)]
