"""Large backlogs, sent by Spark's executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidings.cluster import Cluster
from tidings.handlers import Handler
from tidings.positions import Position
from tidings.streams import Stream
from tidings.testing import eventually, held, make_updates


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
