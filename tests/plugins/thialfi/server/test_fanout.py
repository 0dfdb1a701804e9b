"""What a batch tells is bounded, in rows and bytes; the rest is told in the next ones, and others in between."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.collisions import colliding
from tests.support.thialfi_stage import Service, op, register
from tidings.cluster import Cluster
from tidings.testing import eventually, held
from tidings_thialfi import service as services
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server import notifications, stage

CLIENTS = range(1, 41)
ROOM = 8
HOT, LIKE_HOT = colliding(2)

Told = list[tuple[Any, ...]]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    own = Service(tmp_path)
    own.batch(ops=[op(client, stream_schema.CREATED) for client in CLIENTS])
    own.batch(ops=[register(client, HOT, 10) for client in CLIENTS])
    own.batch(ops=[register(client, name, 10) for client in (1, 2) for name in ("cold", LIKE_HOT)])
    monkeypatch.setattr(stage, "ROOM_ROWS", ROOM)
    return own


def rest(service: Service) -> list[Told]:
    """What the following batches tell, until there is nothing more."""
    told = []
    while service.more:
        told.append(service.batch())
        assert len(told) < 100
    return told


def without_digests(rows: Told) -> Told:
    return [row for row in rows if row[1] != "digest"]


def test_an_object_with_many_clients_is_told_in_parts_and_others_in_between(service: Service) -> None:
    service.repeat = True
    told = [service.batch(updates=[{"object": HOT, "version": 1, "payload": b"one"}])]
    told.append(service.batch(updates=[{"object": "cold", "version": 1}]))
    assert {row[:3] for row in told[1]} >= {(1, "notify", "cold"), (2, "notify", "cold")}
    told.append(service.batch(updates=[{"object": LIKE_HOT, "version": 1}]))
    told += rest(service)
    assert all(len(rows) <= ROOM + 2 for rows in told)
    found = Counter(row for rows in told for row in rows if row[2] == HOT)
    assert found == {(client, "notify", HOT, 1, b"one"): 1 for client in CLIENTS}
    assert not service.more
    assert service.batch(updates=[{"object": "cold", "version": 2}]) == [
        (1, "notify", "cold", 2),
        (2, "notify", "cold", 2),
    ]


def test_whoever_waits_is_told_the_latest_version_though_the_object_goes_on_changing(service: Service) -> None:
    heard: dict[int, int] = {}
    for version in range(1, 30):
        for client, _say, _name, at in service.batch(updates=[{"object": HOT, "version": version}]):
            assert at == version > heard.get(client, 0)
            heard[client] = at
    assert heard.keys() == set(CLIENTS), "nobody waits for ever"
    for rows in rest(service):
        heard |= {row[0]: row[3] for row in rows}
    assert heard == dict.fromkeys(CLIENTS, 29)


def test_what_waits_outlives_a_driver_and_the_loss_of_runs(service: Service) -> None:
    told = [service.batch(updates=[{"object": HOT, "version": 1}])]
    for _ in range(2):
        more = service.more
        service.restart()
        shutil.rmtree(service.folder / "runs")
        service.more = more
        told.append(service.batch())
    told += rest(service)
    assert Counter(row[0] for rows in told for row in rows) == dict.fromkeys(CLIENTS, 1)
    told = [service.batch(updates=[{"object": HOT, "version": 2}]), *rest(service)]
    assert Counter(row[0] for rows in told for row in rows) == dict.fromkeys(CLIENTS, 1)


def test_clients_that_all_come_at_once_are_told_in_their_turn(service: Service) -> None:
    told = [service.batch(ops=[op(client, stream_schema.ONLINE) for client in CLIENTS]), *rest(service)]
    assert len(told) > len(CLIENTS) / ROOM
    assert all(len(without_digests(rows)) <= ROOM for rows in told)
    assert Counter(row[0] for rows in told for row in rows if row[1] == "digest") == dict.fromkeys(CLIENTS, 1)
    assert {row[0] for rows in told for row in rows if row[1] == "unknown"} == set(CLIENTS)


def test_a_pipeline_goes_on_by_itself_until_everyone_is_told(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = cluster.create_stream("people", 1)
    own = services.create(cluster, "contacts", ["people"], storage=tmp_path, shards=1)
    operations, notified = (cluster.stream(f"contacts.{name}") for name in ("operations", "notifications"))
    with operations.producer() as producer:
        producer.publish_many([op(client, stream_schema.CREATED) for client in CLIENTS]).result()
        producer.publish_many([register(client, HOT, 10) for client in CLIENTS]).result()

    def told() -> Counter[str]:
        rows = held(notified.log).to_pylist(maps_as_pydicts="lossy")
        return Counter(row["object"] for row in rows if row["attributes"]["say"] == "notify")

    own.open(cluster).run(spark, once=True)
    monkeypatch.setattr(stage, "ROOM_ROWS", ROOM)
    with people.producer() as producer:
        producer.publish(HOT, 1).result()
    with own.open(cluster).start(spark):
        eventually(lambda: told() == {str(client): 1 for client in CLIENTS}, timeout=60)


# Bytes


def test_a_payload_that_no_client_could_be_sent_is_left_out_however_many_want_it(tmp_path: Path) -> None:
    service = Service(tmp_path)
    everyone = range(1, 2301)
    service.batch(ops=[op(client, stream_schema.CREATED) for client in everyone])
    service.batch(ops=[register(client, "a", 10) for client in everyone])
    told = service.batch(updates=[{"object": "a", "version": 1, "payload": b"x" * 2**20}])
    assert sorted(told) == [(client, "notify", "a", 1) for client in everyone]


def test_the_payloads_of_a_batch_have_so_many_bytes_and_the_others_are_told_without(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "ROOM_ROWS", 1000)
    monkeypatch.setattr(notifications, "PAYLOAD_BYTES_A_BATCH", 10 * 5000)
    told = service.batch(updates=[{"object": HOT, "version": 1, "payload": b"x" * 5000}])
    assert Counter(len(row) for row in told) == {5: 10, 4: 30}


def test_the_larger_the_payloads_that_are_kept_the_fewer_clients_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "ROOM_BYTES", 8 * 2000)
    service = Service(tmp_path, payload_bytes=2000)
    service.batch(ops=[op(client, stream_schema.CREATED) for client in CLIENTS])
    service.batch(ops=[register(client, HOT, 10) for client in CLIENTS])
    table = service.table(updates=[{"object": HOT, "version": 1, "payload": b"x" * 2000}])
    told = rest(service)
    assert table.nbytes < 2 * 8 * 2000
    assert all(row[4] == b"x" * 2000 for rows in told for row in rows)
    assert len(table) + sum(map(len, told)) == len(CLIENTS)
