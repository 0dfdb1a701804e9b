"""Large backlogs, sent by Spark's executors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.owner import Owner, owning
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import START, Position, Positions
from tidings.publisher.bulk import Target, _Task
from tidings.streams import Stream
from tidings.testing import eventually, held, make_updates
from tidings.wire.protocol import Era
from tidings.wire.security import OPEN


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
    from tidings.publisher import bulk, publisher

    real = bulk.send_in_bulk

    def counted(*arguments: Any) -> None:
        real(*arguments)
        jobs.append(1)

    monkeypatch.setattr(publisher, "send_in_bulk", counted)
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


@pytest.fixture
def receiver(cluster: Cluster, stream: Stream) -> Iterator[tuple[Slow, Owner]]:
    """A subscriber of one flow, and who has opened it."""
    cluster.create_application("all", ["contacts"], start="earliest")
    cluster.coordination.write({"id": "r1", "epoch": ERA.epoch}, *Flow("all", "contacts", 0).place, "subscriber")
    slow = Slow()
    subscriber = cluster.subscribe("all", slow, id="r1")
    with owning("all", subscriber.address) as owner:
        assert owner.open(ERA)["t"] == "opened"
        yield slow, owner
    subscriber.close(timeout=0)


def task(owner: Owner, stream: Stream, *, after: Position = START, era: Era = ERA) -> None:
    """Have a task send all that the first shard holds after a position, in a few batches."""
    target = Target(*owner.flow(0), era, after, owner.connection.address, owner.key, filter=0)
    rows = stream.log.tail(Positions(), 10_000).sort_by([("shard", "ascending"), ("seq", "ascending")])
    batches = rows.append_column("_0", pa.array([True] * len(rows))).combine_chunks().to_batches(max_chunksize=500)
    list(_Task([target], OPEN)(batches))


def test_a_task_ends_when_all_that_it_sent_is_processed(receiver: tuple[Slow, Owner], stream: Stream) -> None:
    slow, owner = receiver
    task(owner, stream)
    assert slow.seqs == {0: expected(stream, None)[0]}


def test_a_task_sends_what_comes_after_the_place_where_the_flow_stands(
    receiver: tuple[Slow, Owner], stream: Stream
) -> None:
    slow, owner = receiver
    task(owner, stream, after=Position(700))
    assert slow.seqs == {0: [seq for seq in expected(stream, None)[0] if seq > 700]}


def test_a_task_fails_if_the_subscriber_refuses_what_it_sends(receiver: tuple[Slow, Owner], stream: Stream) -> None:
    slow, owner = receiver
    with pytest.raises(RuntimeError, match="the subscriber does not go on: refused: that epoch is over"):
        task(owner, stream, era=Era(ERA.epoch, ERA.turn + 1))
    assert slow.count == 0
