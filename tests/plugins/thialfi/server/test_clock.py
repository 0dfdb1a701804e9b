"""Time is the machine's: no row makes it go on, and nobody is forgotten for what a row says."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.thialfi_stage import Service, op, register
from tidings.cluster import Cluster
from tidings.testing import held, read_table
from tidings_thialfi import service as services
from tidings_thialfi.protocol import stream_schema

CREATED = [op(1, stream_schema.CREATED), op(2, stream_schema.CREATED)]
AHEAD, BEHIND = dt.timedelta(days=60), dt.timedelta(days=-60)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    own = Service(tmp_path, repeat=True, away_days=1, collect_every=1, parts=1)
    own.batch(ops=[*CREATED, register(1, "a", 10), register(2, "a", 10)])
    return own


def dated(service: Service, by: dt.timedelta, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "time": service.now + by}


def invalid(rows: list[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows if row[1] == "invalid"]


@pytest.mark.parametrize("by", [AHEAD, BEHIND])
def test_an_update_makes_nobody_forgotten_whatever_its_time(service: Service, by: dt.timedelta) -> None:
    alive = op(2, stream_schema.ACKNOWLEDGE, 0, object="a")
    told = service.batch(updates=[dated(service, by, {"object": "a", "version": 1})], ops=[alive])
    assert told == [(1, "notify", "a", 1), (2, "notify", "a", 1)]


@pytest.mark.parametrize("by", [AHEAD, BEHIND])
def test_a_gateway_whose_clock_is_wrong_makes_nobody_forgotten(service: Service, by: dt.timedelta) -> None:
    assert not invalid(service.batch(ops=[dated(service, by, op(2, stream_schema.ONLINE))]))
    assert not invalid(service.batch(ops=[op(1, stream_schema.ONLINE)]))
    service.now += dt.timedelta(days=2)
    assert invalid(service.batch(ops=[op(1, stream_schema.ONLINE)])) == [2], "nor is anybody kept for longer"


def test_after_a_standstill_nobody_is_forgotten_whose_operations_are_not_read_yet(service: Service) -> None:
    service.now += dt.timedelta(days=50)
    assert not invalid(service.batch(updates=[{"object": "a", "version": 1}]))
    assert not invalid(service.batch(ops=[dated(service, dt.timedelta(days=-50), op(1, stream_schema.ONLINE))]))
    assert not invalid(service.batch(ops=[op(2, stream_schema.ONLINE)]))


def test_the_number_of_an_unknown_version_does_not_follow_an_update_s_time(service: Service) -> None:
    [(*_, first), _] = service.batch(updates=[dated(service, AHEAD, {"object": "a"})])
    assert first == 10 + int(service.now.timestamp() * 1_000_000)


def test_spark_s_time_of_a_batch_counts_which_is_the_same_when_it_is_repeated(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    people = cluster.create_stream("people", 1)
    options = {"away_days": 1, "collect_every": 1, "parts": 1}
    own = services.create(cluster, "contacts", ["people"], storage=tmp_path, shards=1, options=options)
    for batch, rows in enumerate([CREATED, [op(2, stream_schema.ONLINE)]]):
        with cluster.stream("contacts.operations").producer() as producer:
            producer.publish_many(rows).result()
        with people.producer() as producer:
            producer.publish("a", batch, time=dt.datetime.now(dt.UTC) + batch * AHEAD).result()
        own.open(cluster).run(spark, once=True)
    said = held(cluster.stream("contacts.notifications").log).to_pylist(maps_as_pydicts="lossy")
    assert [(row["object"], row["attributes"]["say"]) for row in said] == [("2", "digest")]
    noted = (own.folder / "checkpoint" / "offsets" / "0").read_text().splitlines()[1]
    [seen] = {row["time"] for row in read_table(own.folder / "state", "clients") if row["client"] == 1}
    assert seen == json.loads(noted)["batchTimestampMs"] * 1000
