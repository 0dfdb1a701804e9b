"""Flows go on, whatever goes wrong beside them: or they say why they do not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.controls import pin
from tidings.coordination.zookeeper import Coordination
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position, Positions
from tidings.publisher import read_batch
from tidings.publisher.ownership import Ownership
from tidings.streams import Stream
from tidings.testing import eventually, make_updates
from tidings_connectors.delta.log import DeltaLog

MIB = 2**20


class Counting(Handler):
    """Counts what it gets, and keeps how large the largest batch was, and what it was told to be lost."""

    def __init__(self) -> None:
        self.count = self.largest_bytes = 0
        self.lost: list[tuple[Position, Position]] = []

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.count += rows.num_rows
        self.largest_bytes = max(self.largest_bytes, rows.nbytes)

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self.lost.append((first, last))


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed for this")


def take_flows(cluster: Cluster, **options: Any) -> None:
    """Have flows begin where the log ends now: a publisher takes them, and leaves."""
    with cluster.publisher(**options) as publisher:
        eventually(lambda: publisher.flows, timeout=30)


@pytest.mark.slow
def test_flows_that_are_taken_while_the_connection_breaks_are_all_sent(
    cluster: Cluster, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = 300
    stream = cluster.create_stream("contacts", shards)
    cluster.create_application("cache", ["contacts"], start="earliest")
    stream.writable_log.append(make_updates(5_000))
    begin, begun = Ownership._begin, []
    with Proxy(zookeeper) as proxy:
        root = cluster.address.partition("/")[2]

        def broken_in_the_midst(*arguments: Any) -> Any:
            begun.append(1)
            if len(begun) == shards // 2:
                threading.Thread(target=break_off).start()
            return begin(*arguments)

        def break_off() -> None:
            proxy.cut()
            time.sleep(0.5)
            proxy.heal()

        monkeypatch.setattr(Ownership, "_begin", broken_in_the_midst)
        counting = Counting()
        with (
            Cluster(Coordination(f"{proxy.address}/{root}", session_timeout=30)) as other,
            other.publisher() as publisher,
            cluster.subscribe("cache", counting),
        ):
            eventually(lambda: len(publisher.flows) == shards, timeout=60)
            eventually(lambda: counting.count >= 5_000, timeout=60)


@pytest.mark.slow
def test_a_large_backlog_of_which_a_part_was_truncated_is_told_and_the_rest_is_sent(
    spark: SparkSession, cluster: Cluster
) -> None:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"])
    cluster.create_application("other", ["contacts"])
    take_flows(cluster)
    for seed in range(5):
        stream.writable_log.append(make_updates(2_000, seed=seed))
    stream.writable_log.truncate(Positions({0: Position(4_000)}))
    cache, other = Counting(), Counting()
    with (
        cluster.subscribe("cache", cache),
        cluster.subscribe("other", other),
        cluster.publisher(spark, bulk_rows=3_000),
    ):
        eventually(lambda: (cache.count, other.count) == (6_000, 6_000), timeout=90)
    assert cache.lost == other.lost == [(Position(0), Position(3_999))]


def test_a_realtime_flow_that_is_far_behind_is_served(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], mode="realtime", max_age=3600)
    take_flows(cluster)
    stream.writable_log.append(make_updates(5_000))
    counting = Counting()
    with cluster.subscribe("cache", counting), cluster.publisher(no_spark, bulk_rows=1_000):
        eventually(lambda: counting.count == 5_000, timeout=30)


def test_a_read_that_fails_as_nobody_thought_of_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    stream.writable_log.append(make_updates(100))
    tail = DeltaLog.tail
    failures: list[int] = []

    def failing_once(self: DeltaLog, after: Positions, limit: int) -> pa.Table:
        if not failures:
            failures.append(1)
            raise ZeroDivisionError("as nobody thought of")
        return tail(self, after, limit)

    monkeypatch.setattr(DeltaLog, "tail", failing_once)
    counting = Counting()
    with cluster.subscribe("cache", counting), cluster.publisher():
        eventually(lambda: counting.count == 100, timeout=30)
    assert failures


def test_rows_of_which_no_message_could_be_made_are_sent_later_and_none_is_passed_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    stream.writable_log.append(make_updates(100))
    build = read_batch._message
    failures: list[int] = []

    def failing_once(batch: Any, parts: Any) -> Any:
        if not failures:
            failures.append(1)
            raise MemoryError
        return build(batch, parts)

    monkeypatch.setattr(read_batch, "_message", failing_once)
    counting = Counting()
    with cluster.subscribe("cache", counting), cluster.publisher():
        eventually(lambda: counting.count == 100, timeout=15)
    assert failures


def test_a_log_that_fails_as_nobody_thought_of_harms_its_own_stream_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "contacts"):
        cluster.create_stream(name, shards=2).writable_log.append(make_updates(100))
    cluster.create_application("cache", ["broken", "contacts"], start="earliest")
    bounds = DeltaLog.bounds

    def failing(self: DeltaLog) -> Any:
        if self.folder.name == "broken":
            raise ZeroDivisionError("as nobody thought of")
        return bounds(self)

    monkeypatch.setattr(DeltaLog, "bounds", failing)
    counting = Counting()
    with cluster.subscribe("cache", counting), cluster.publisher(name="p1"):
        eventually(lambda: counting.count == 100, timeout=30)
        eventually(
            lambda: (cluster.coordination.read("publishers", "p1") or {})["unreadable"].keys() == {"broken"}, timeout=30
        )


def test_an_application_that_is_made_again_during_a_callback_is_served(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    entered, released, got = threading.Event(), threading.Event(), []

    class Slow(Handler):
        def on_update(self, update: Any) -> None:
            got.append(update.object)
            entered.set()
            released.wait(60)

    with cluster.publisher() as publisher, cluster.subscribe("cache", Slow()):
        take_over_epochs(cluster, publisher.name)
        publish(stream, "first")
        assert entered.wait(30)
        cluster.drop_application("cache")
        eventually(lambda: not publisher.flows, timeout=30)
        cluster.create_application("cache", ["contacts"], start="earliest")
        eventually(lambda: publisher.flows, timeout=30)
        released.set()
        publish(stream, "second")
        eventually(lambda: got[-2:] == ["first", "second"], timeout=30)


def take_over_epochs(cluster: Cluster, publisher: str) -> None:
    """Have the flow's epoch be larger than that of one which is made anew."""
    with cluster.publisher(name="z-other") as other:
        flow = Flow("cache", "contacts", 0)
        for owner in (other.name, publisher):
            pin(cluster, [flow], owner)
            eventually(lambda: (status(cluster)[0].owner, status(cluster)[0].state) == (owner, "running"), timeout=30)  # noqa: B023


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        for one in objects:
            producer.publish(one, 1).result()


@pytest.mark.slow
def test_rows_that_are_large_among_many_small_ones_travel_in_messages_of_a_bounded_size(
    cluster: Cluster, tmp_path: Path
) -> None:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    rows = [{"object": f"small/{n}", "version": 1} for n in range(20_000)]
    rows[10_000:10_000] = [{"object": f"large/{n}", "version": 1, "payload": bytes(MIB)} for n in range(80)]
    with stream.producer(max_bytes=256 * MIB, buffer_bytes=512 * MIB) as producer:
        producer.publish_many(rows).result()
    counting = Counting()
    with cluster.subscribe("cache", counting), cluster.publisher():
        eventually(lambda: counting.count == 20_080, timeout=60)
    assert counting.largest_bytes < 6 * MIB
