"""Sending a large range from Spark's executors, in parallel: for flows that are far behind.

Spark reads the range with its own readers, evaluates every application's filter as columns in one pass, brings the rows
of each shard together in their order, and the tasks send them to the subscribers. A task ends when all that it sent is
processed; so when the job ends, the flows stand at the end of the range. A task that fails is not tried again: it
would repeat rows that were sent, out of turn. The flows then start again at their datamarkers.

Nothing here looks at a lease: a job outlives it when ZooKeeper is away. What it sends bears the epoch, though, and a
subscriber that holds the flow in a later one refuses it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.errors import DeliveryFailed
from tidings.positions import Position, Positions
from tidings.publisher.read_batch import MESSAGE_BYTES
from tidings.updates import SCHEMA, TOMBSTONE, portions, row_sizes
from tidings.wire.connection import Connection
from tidings.wire.protocol import PROTOCOL, Era, Message, pair
from tidings.wire.security import Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.filters import Filter
    from tidings.logs import Log
    from tidings.publisher.flow_session import FlowSession

BULK_ROWS = 1_000_000  # a backlog that is worth a Spark job
BULK_LIMIT_ROWS = 5_000_000  # in one job
MESSAGES_IN_FLIGHT = 8
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Target:
    """A flow, as a task needs to know it."""

    application: str
    stream: str
    shard: int
    era: Era
    after: Position
    address: str
    key: tuple[str, str]
    filter: int


def send_in_bulk(
    spark: SparkSession,
    log: Log,
    after: Positions,
    upto: Positions,
    group: Sequence[FlowSession],
    security: Security,
) -> None:
    """Send the rows between to the flows, and return when they are processed; `DeliveryFailed` if that fails."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as sf

    filters = list(dict.fromkeys(one.filter for one in group))
    targets = _targets(group, filters)
    tombstones = sf.col("kind") == TOMBSTONE
    chosen = [(one.column() | tombstones).alias(f"_{number}") for number, one in enumerate(filters)]
    shards = sorted({target.shard for target in targets})
    rows = log.scan(spark, after, upto).where(sf.col("shard").isin(shards)).select("*", *chosen)
    parts = max(1, min(len(shards), spark.sparkContext.defaultParallelism))
    ordered = rows.repartition(parts, "shard").sortWithinPartitions("shard", "seq", "index")
    try:
        ordered.mapInArrow(_Task(tuple(targets), security), "sent long").agg(sf.sum("sent")).collect()
    except PySparkException as error:
        raise DeliveryFailed(f"a large step failed: {str(error).splitlines()[0]}") from None


def _targets(group: Sequence[FlowSession], filters: Sequence[Filter]) -> list[Target]:
    return [
        Target(
            *one.flow,
            one.era,
            one.sent,
            one.connection.address,
            one.connection.key,
            filters.index(one.filter),
        )
        for one in group
        if one.connection is not None
    ]


class _Task:
    """What a task does with the rows of its shards."""

    def __init__(self, targets: Sequence[Target], security: Security) -> None:
        self._targets = targets
        self._security = security

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError("a task that sends is not tried again")
        exchanges: dict[tuple[str, str], _Exchange] = {}
        sent = 0
        try:
            for batch in batches:
                sent += self._send(batch, exchanges)
            for exchange in exchanges.values():
                exchange.finish()
        finally:
            for exchange in exchanges.values():
                exchange.close()
        yield pa.record_batch({"sent": pa.array([sent], pa.int64())})

    def _send(self, batch: pa.RecordBatch, exchanges: dict[tuple[str, str], _Exchange]) -> int:
        shards, seqs, indexes = (batch[name].to_numpy() for name in ("shard", "seq", "index"))
        rows = batch.select(SCHEMA.names).cast(SCHEMA)
        sent = 0
        for target in self._targets:
            first, end = np.searchsorted(shards, [target.shard, target.shard + 1]).tolist()
            if first == end:
                continue
            fresh = (seqs[first:end] > target.after.seq) | (
                (seqs[first:end] == target.after.seq) & (indexes[first:end] > target.after.index)
            )
            wanted = fresh & batch[f"_{target.filter}"].to_numpy(zero_copy_only=False)[first:end]
            if not wanted.any():
                continue
            place = (target.application, target.address)
            if place not in exchanges:
                exchanges[place] = _Exchange(target, self._security)
            part = rows.slice(first, end - first)
            piece = part if wanted.all() else part.filter(pa.array(wanted))
            for run in portions(row_sizes(piece), piece.num_rows, MESSAGE_BYTES):
                some = piece.slice(run.start, run.stop - run.start)
                last = end - 1 if run.stop == piece.num_rows else first + int(np.flatnonzero(wanted)[run.stop - 1])
                exchanges[place].send(target, some, Position(int(seqs[last]), int(indexes[last])))
            sent += piece.num_rows
        return sent


class _Exchange:
    """A task's exchange with one subscriber, with so many messages on their way and no more."""

    def __init__(self, target: Target, security: Security) -> None:
        hello: Message = {"t": "hello", "protocol": PROTOCOL, "publisher": "", "application": target.application}
        self._changed = threading.Condition()
        self._in_flight = 0
        self._problem: str | None = None
        self._connection = Connection(
            target.key, target.address, hello, security, self._on_message, lambda _, reason: self._fail(reason)
        )

    def send(self, target: Target, rows: pa.RecordBatch, upto: Position) -> None:
        self._wait(lambda: self._in_flight < MESSAGES_IN_FLIGHT)
        self._in_flight += 1
        part = [target.shard, *target.era, rows.num_rows, *pair(upto), None]
        self._connection.send({"t": "batch", "stream": target.stream, "parts": [part]}, rows)

    def finish(self) -> None:
        """Wait until all is processed."""
        self._wait(lambda: self._in_flight == 0)

    def close(self) -> None:
        self._connection.close()

    def _on_message(self, connection: Connection, message: Message) -> None:
        with self._changed:
            if message["t"] == "done":
                self._in_flight -= 1
            else:
                self._problem = f"{message['t']}: {message.get('reason')}"
            self._changed.notify_all()

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._problem = self._problem or reason
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while self._problem is None and not ready():
                before = self._in_flight
                self._changed.wait(PATIENCE_S)
                if self._in_flight == before and self._problem is None:
                    raise RuntimeError(f"the subscriber has processed nothing for {PATIENCE_S:g} s")
            if self._problem is not None:
                raise RuntimeError(f"the subscriber does not go on: {self._problem}")
