"""What a subscriber gets of a stream of which some updates were collected, and how it tells a gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from tests.support.burying import bury
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position
from tidings.publisher import read_batch
from tidings.streams import Stream
from tidings.subscriber.part_rows import PartRows
from tidings.testing import eventually, held, make_updates
from tidings.tombstones import Tombstones
from tidings.updates import TOMBSTONE, Update

Seen = tuple[int, int, int]  # shard, first, last


class Updates(Handler):
    """Keeps what it is given, in the order in which it comes."""

    def __init__(self) -> None:
        self.updates: list[Seen] = []
        self.tombstones: list[Seen] = []
        self.order: list[Seen] = []

    def on_update(self, update: Update) -> None:
        self.updates.append((update.shard, update.seq, update.seq))
        self.order.append(self.updates[-1])

    def on_tombstone(self, flow: Flow, first: Position, last: Position, count: int) -> None:
        assert count == last.seq - first.seq + 1
        self.tombstones.append((flow.shard, first.seq, last.seq))
        self.order.append(self.tombstones[-1])


class Batches(Updates):
    """The same, a batch at a time."""

    def on_batch(self, rows: pa.RecordBatch) -> None:
        assert TOMBSTONE not in rows["kind"].to_pylist()
        seqs = rows["seq"].to_pylist()
        self.updates += [(shard, seq, seq) for shard, seq in zip(rows["shard"].to_pylist(), seqs, strict=True)]
        self.order += self.updates[-len(seqs) :]


class Unaware(Handler):
    """Knows nothing of tombstones."""

    def __init__(self) -> None:
        self.updates: list[Seen] = []

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.updates += [(row["shard"], row["seq"], row["seq"]) for row in rows.to_pylist()]


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    """A stream of which nine in ten updates were collected."""
    stream = cluster.create_stream("contacts", shards=2)
    for seed in range(3):
        stream.writable_log.append(make_updates(500, seed=seed))
    rows = held(stream.log)
    gone = np.random.default_rng(1).random(len(rows)) < 0.9
    gone[np.append(np.diff(rows["shard"].to_numpy()) != 0, True)] = False  # the newest of each shard stays
    bury(stream.log, Tombstones.at(rows["shard"].to_numpy()[gone], rows["seq"].to_numpy()[gone]))
    return stream


def places(stream: Stream, *, tombstones: bool) -> list[Seen]:
    rows = held(stream.log)
    rows = rows.filter(pc.equal(pc.equal(rows["kind"], TOMBSTONE), tombstones))
    return [(row["shard"], row["seq"] - row["range"] + 1, row["seq"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("handler", [Updates, Batches])
@pytest.mark.parametrize("wanted", [None, "region = eu"])
def test_each_update_or_a_tombstone_for_it_is_delivered_in_order_and_the_datamarker_passes_both(
    cluster: Cluster, stream: Stream, handler: type[Updates], wanted: str | None
) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest", filter=wanted)
    notes = handler()
    expected = places(stream, tombstones=False)
    if wanted is not None:
        rows = held(stream.log)
        eu = rows.filter(pc.equal(pc.map_lookup(rows["attributes"], "region", "first"), "eu"))
        expected = [(row["shard"], row["seq"], row["seq"]) for row in eu.to_pylist()]
    with cluster.publisher(token_interval=0.1), cluster.subscribe("cache", notes):
        eventually(lambda: len(notes.updates) >= len(expected) and len(notes.tombstones) > 0)
        eventually(lambda: all(flow.lag == 0 for flow in status(cluster)))
    assert sorted(notes.updates) == expected
    assert Tombstones.runs(*zip(*notes.tombstones, strict=True)) == Tombstones.from_rows(held(stream.log))
    for shard in (0, 1):
        seqs = [last for one, _, last in notes.order if one == shard]
        assert seqs == sorted(seqs)


def test_a_handler_that_knows_no_tombstones_is_given_none(cluster: Cluster, stream: Stream) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest")
    notes = Unaware()
    expected = places(stream, tombstones=False)
    with cluster.publisher(token_interval=0.1), cluster.subscribe("cache", notes):
        eventually(lambda: all(flow.lag == 0 for flow in status(cluster)) and len(notes.updates) >= len(expected))
    assert sorted(notes.updates) == expected


@pytest.mark.slow
def test_sparks_executors_send_tombstones_too(spark: SparkSession, cluster: Cluster, stream: Stream) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest", filter="region = eu")
    notes = Updates()
    with (
        cluster.publisher(token_interval=0.1, spark=spark, bulk_rows=10),
        cluster.subscribe("cache", notes),
    ):
        eventually(lambda: all(flow.lag == 0 for flow in status(cluster)) and notes.updates, timeout=60)
    assert Tombstones.runs(*zip(*notes.tombstones, strict=True)) == Tombstones.from_rows(held(stream.log))


def test_a_flow_whose_publisher_leaves_something_out_begins_again_at_its_datamarker(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = read_batch.ReadBatch.wanted
    skipped: list[int] = []

    def forgetful(self: read_batch.ReadBatch, filter: Any) -> Any:
        rows = real(self, filter)
        if not skipped and len(rows) > 10:
            skipped.append(int(rows[5]))
            return np.delete(rows, 5)
        return rows

    monkeypatch.setattr(read_batch.ReadBatch, "wanted", forgetful)
    cluster.create_application("cache", ["contacts"], start="earliest")
    notes = Updates()
    expected = places(stream, tombstones=False)
    with cluster.publisher(token_interval=0.1), cluster.subscribe("cache", notes):
        eventually(lambda: all(flow.lag == 0 for flow in status(cluster)) and len(notes.updates) >= len(expected))
    assert skipped
    assert sorted(set(notes.updates)) == expected


def rows_of(*places: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch({"seq": [last for _, last in places], "range": [last - first + 1 for first, last in places]})


@pytest.mark.parametrize(
    ("rows", "at", "after", "upto", "gap"),
    [
        ([(5, 5), (6, 9), (10, 10)], 4, 4, 10, None),
        ([(2, 6), (7, 7)], 4, 4, 7, None),  # the first may begin before
        ([(5, 5), (7, 7)], None, 4, 7, "7 comes after 5"),
        ([(6, 6)], None, 4, 6, "6 comes after 4"),
        ([(5, 5), (5, 7)], None, 4, 7, "5 comes after 5"),
        ([(5, 5)], None, 4, 6, "ends at 5, not 6"),
        ([(8, 8)], 6, 7, 8, "goes on after 7, and 6 was the last"),
        ([(8, 8), (12, 12)], 2, None, 12, None),  # something may be left out
    ],
)
def test_a_gap_is_what_no_tombstone_stands_for(
    rows: list[tuple[int, int]], at: int | None, after: int | None, upto: int, gap: str | None
) -> None:
    found = PartRows.of(rows_of(*rows), "contacts").gap(at, after, upto)
    assert found is None if gap is None else gap in (found or "")
