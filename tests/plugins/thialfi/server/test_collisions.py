"""A key is a place to look, and the name decides: names that were made to have one key are as any others."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.collisions import colliding
from tests.support.thialfi_stage import Service, op, register, unregister
from tidings.stages.state import State
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server import compaction
from tidings_thialfi.server.compaction import compact

MINE, THEIRS, OTHER = colliding(3)
CREATED = [op(client, stream_schema.CREATED) for client in (1, 2, 3)]


def without_digests(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [row for row in rows if row[1] != "digest"]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    own = Service(tmp_path, repeat=True)
    own.batch(ops=CREATED)
    return own


def test_a_client_is_told_of_the_name_it_registered_for_and_of_none_like_it(service: Service) -> None:
    service.batch(ops=[register(1, MINE, 10), register(2, THEIRS, 10)])
    assert service.batch(updates=[{"object": THEIRS, "version": 2**60, "payload": b"secret"}]) == [
        (2, "notify", THEIRS, 2**60, b"secret")
    ]
    assert service.batch(updates=[{"object": MINE, "version": 1}]) == [(1, "notify", MINE, 1)]
    both = [{"object": MINE, "version": 3}, {"object": THEIRS, "version": 2**61}, {"object": OTHER, "version": 9}]
    assert service.batch(updates=both) == [(1, "notify", MINE, 3), (2, "notify", THEIRS, 2**61)]


def test_who_registers_late_is_told_of_the_version_of_that_name(service: Service) -> None:
    service.batch(updates=[{"object": THEIRS, "version": 5, "payload": b"secret"}])
    told = service.batch(ops=[register(1, MINE, 10)])
    assert told == [(1, "digest", 10, 1), (1, "registered", MINE, 10), (1, "unknown", MINE, 10)]
    told = service.batch(updates=[{"object": MINE, "version": None}, {"object": THEIRS, "version": None}])
    assert [row[:3] for row in told] == [(1, "unknown", MINE)]


def test_one_client_may_be_registered_for_both_and_ends_one(service: Service) -> None:
    told = service.batch(ops=[register(1, MINE, 10), register(1, THEIRS, 11)])
    assert told[0] == (1, "digest", 11, 2)
    assert len(without_digests(told)) == 4
    assert service.batch(ops=[unregister(1, THEIRS, 12)]) == [
        (1, "digest", 12, 1),
        (1, "unregistered", THEIRS, 12),
    ]
    updates = [{"object": MINE, "version": 1}, {"object": THEIRS, "version": 1}]
    assert service.batch(updates=updates) == [(1, "notify", MINE, 1)]


def test_an_acknowledgement_counts_for_its_name_only(service: Service) -> None:
    service.batch(ops=[register(1, MINE, 10), register(1, THEIRS, 10)])
    service.batch(updates=[{"object": MINE, "version": 1}, {"object": THEIRS, "version": 1}])
    acknowledged = [
        op(1, stream_schema.ACKNOWLEDGE, 9, object=THEIRS),
        op(1, stream_schema.ACKNOWLEDGE_UNKNOWN, 10, object=THEIRS),
    ]
    for ops in (acknowledged, []):
        told = service.batch(ops=[*ops, op(1, stream_schema.ONLINE)])
        assert without_digests(told) == [(1, "notify", MINE, 1)]


def test_runs_and_tables_keep_what_has_one_key_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SPARE_ROWS", -1000)
    service = Service(tmp_path, parts=1)
    service.batch(ops=[*CREATED, register(1, MINE, 10), register(1, THEIRS, 10), register(1, OTHER, 10)])
    service.batch(updates=[{"object": name, "version": 1} for name in (MINE, THEIRS, OTHER)])
    service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, 1, object=name) for name in (MINE, THEIRS)])
    service.batch(ops=[unregister(1, THEIRS, 11)])
    service.now += dt.timedelta(seconds=1)
    index = service.stage.opened(State(tmp_path, "test", service.batch_id))
    index.advance(service.batch_id)
    for name, held in index.snapshot().items():
        assert compact(index, name, service.batch_id - 1, held) == ("rewritten" if name != "fanouts" else None)
    service.restart()
    shutil.rmtree(tmp_path / "runs")
    told = service.batch(ops=[op(1, stream_schema.ONLINE)])
    assert told == [(1, "digest", 11, 2), (1, "notify", OTHER, 1)]
    updates = [{"object": name, "version": 2} for name in (MINE, THEIRS, OTHER)]
    assert service.batch(updates=updates) == sorted((1, "notify", name, 2) for name in (MINE, OTHER))


def test_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    service = Service(tmp_path, spark=spark)
    service.batch(ops=[*CREATED, register(1, MINE, 10), register(2, THEIRS, 10)])
    told = service.batch(updates=[{"object": THEIRS, "version": 7, "payload": b"secret"}])
    assert told == [(2, "notify", THEIRS, 7, b"secret")]
