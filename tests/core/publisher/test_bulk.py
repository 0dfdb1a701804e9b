"""Large backlogs, sent by Spark's executors."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.owner import NAME
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import START, Position, Positions
from tidings.publisher.bulk import BulkSender, Job, Target, _Task
from tidings.streams import Stream
from tidings.testing import eventually, held, make_updates
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.protocol import Era, Message, flow_message
from tidings.wire.security import Security


class Rows(Handler):
    """Keeps where each row was, flow by flow, in the order in which it came."""

    def __init__(self) -> None:
        self.seqs: dict[int, list[int]] = {}

    def on_batch(self, rows: pa.RecordBatch) -> None:
        for shard, seq in zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True):
            self.seqs.setdefault(shard, []).append(seq)

    @property
    def count(self) -> int:
        return sum(map(len, self.seqs.values()))


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=4)
    for seed in range(5):
        stream.writable_log.append(make_updates(2_000, seed=seed))
    return stream


def expected(stream: Stream, region: str | None) -> dict[int, list[int]]:
    wanted: dict[int, list[int]] = {}
    for row in held(stream.log).to_pylist(maps_as_pydicts="lossy"):
        if region is None or row["attributes"]["region"] == region:
            wanted.setdefault(row["shard"], []).append(row["seq"])
    return wanted


@pytest.mark.slow
def test_a_large_backlog_is_sent_by_the_executors_filtered_whole_and_in_order(
    spark: SparkSession, cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs: list[int] = []
    real = BulkSender.send

    def counted(*arguments: Any) -> int:
        jobs.append(1)
        return real(*arguments)

    monkeypatch.setattr(BulkSender, "send", counted)
    cluster.create_application("all", ["contacts"], start="earliest")
    cluster.create_application("european", ["contacts"], start="earliest", filter="region = eu")
    everything, european = Rows(), Rows()
    with (
        cluster.subscribe("all", everything),
        cluster.subscribe("european", european),
        cluster.publisher(spark, bulk_rows=4_000, token_interval=0.2),
    ):
        eventually(lambda: everything.count >= 10_000 and european.seqs == expected(stream, "eu"), timeout=90)
        stream.writable_log.append(make_updates(100, seed=9))
        eventually(lambda: everything.count >= 10_100, timeout=60)
        heads = {shard: bounds.head for shard, bounds in stream.log.bounds().items()}

        def marker(shard: int) -> Position:
            value = cluster.coordination.read("flows", "all", "contacts", str(shard), "datamarker")
            return Position.from_json(value["position"]) if value else Position(-1)

        eventually(lambda: all(marker(shard) == head for shard, head in heads.items()), timeout=60)
    assert jobs, "a Spark job did it"
    assert everything.seqs == expected(stream, None)
    assert european.seqs == expected(stream, "eu")


@pytest.mark.slow
def test_a_subscriber_that_leaves_during_a_large_step_costs_a_repeat_and_no_update(
    spark: SparkSession, cluster: Cluster, stream: Stream
) -> None:
    cluster.create_application("all", ["contacts"], start="earliest")
    first, second = Rows(), Rows()
    with cluster.publisher(spark, bulk_rows=4_000, token_interval=0.2):
        with cluster.subscribe("all", first):
            eventually(lambda: first.count > 0, timeout=90)
        with cluster.subscribe("all", second):
            wanted = {(shard, seq) for shard, seqs in expected(stream, None).items() for seq in seqs}
            eventually(
                lambda: (
                    wanted
                    <= {(shard, seq) for rows in (first, second) for shard, seqs in rows.seqs.items() for seq in seqs}
                ),
                timeout=90,
            )


# What a task does, without Spark


class Slow(Rows):
    """Takes its time for each batch."""

    def on_batch(self, rows: pa.RecordBatch) -> None:
        time.sleep(0.05)
        super().on_batch(rows)


ERA = Era(1, 1)
FLOW = Flow("all", "contacts", 0)


class Receiver:
    """A subscriber of one flow, and the publisher that has opened it and has tasks send it."""

    def __init__(self, cluster: Cluster, secret: str | None) -> None:
        security = Security(secret=secret)
        self.slow = Slow()
        self.key = ("all", "r1")
        self.subscriber = cluster.subscribe("all", self.slow, id="r1", security=security)
        self.server = ExchangeServer(NAME, "127.0.0.1:0", security, security.keys, patience_s=10.0)
        self.bulk = BulkSender(self.server, security)
        self.opened = threading.Event()
        self.server.start(self._on_message, lambda *_: None, self.bulk.on_offer)
        record = {"address": self.server.address, "applications": ["all"], "streams": [], "draining": True}
        cluster.coordination.create(record, "publishers", NAME, ephemeral=True)

    def open(self) -> None:
        self.server.connection(self.key).send(flow_message("open", FLOW, ERA, after=[-1, 0]))
        assert self.opened.wait(10)

    def task(self, stream: Stream, *, after: Position = START, era: Era = ERA, job: Job | None = None) -> None:
        """Have a task send all that the first shard holds after a position, in a few batches."""
        target = Target(*FLOW, era, after, self.key, filter=0)
        rows = stream.log.tail(Positions(), 10_000).sort_by([("shard", "ascending"), ("seq", "ascending")])
        batches = rows.append_column("_0", pa.array([True] * len(rows))).combine_chunks().to_batches(max_chunksize=500)
        job = job or self.job()
        list(_Task([target], job)(batches))

    def job(self) -> Job:
        job = self.bulk._job({self.key})
        self.bulk._jobs[job.name] = job
        return job

    def close(self) -> None:
        self.subscriber.close(timeout=0)
        self.server.close()

    def _on_message(self, connection: Connection, message: Message) -> None:
        if message["t"] == "opened":
            self.opened.set()


@pytest.fixture(params=[None, "the secret of a cluster"])
def receiver(cluster: Cluster, stream: Stream, request: pytest.FixtureRequest) -> Iterator[Receiver]:
    cluster.create_application("all", ["contacts"], start="earliest")
    cluster.coordination.write({"id": "r1", "epoch": ERA.epoch}, *FLOW.place, "subscriber")
    receiver = Receiver(cluster, request.param)
    receiver.open()
    yield receiver
    receiver.close()


def test_a_task_ends_when_all_that_it_sent_is_processed(receiver: Receiver, stream: Stream) -> None:
    receiver.task(stream)
    assert receiver.slow.seqs == {0: expected(stream, None)[0]}


def test_a_task_sends_what_comes_after_the_place_where_the_flow_stands(receiver: Receiver, stream: Stream) -> None:
    receiver.task(stream, after=Position(700))
    assert receiver.slow.seqs == {0: [seq for seq in expected(stream, None)[0] if seq > 700]}


def test_a_task_fails_if_the_subscriber_refuses_what_it_sends(receiver: Receiver, stream: Stream) -> None:
    with pytest.raises(RuntimeError, match="the subscriber does not go on: refused: that epoch is over"):
        receiver.task(stream, era=Era(ERA.epoch, ERA.turn + 1))
    assert receiver.slow.count == 0


def test_what_is_offered_by_no_task_of_ours_reaches_nobody(receiver: Receiver, stream: Stream) -> None:
    job = receiver.job()
    for stranger in (dataclasses.replace(job, secret="guessed"), dataclasses.replace(job, name="job-0")):
        with pytest.raises(OSError, match="an offer of no task of ours"):
            receiver.task(stream, job=stranger)
    assert receiver.slow.count == 0
