"""Sending a large range from Spark's executors, in parallel: for flows that are far behind.

Spark reads the range with its own readers, evaluates every application's filter as columns in one pass, brings the rows
of each shard together in their order, and the tasks serve them: a task that has rows for a subscriber offers them to
the publisher, which tells the subscriber where to fetch them. A task ends when all that it sent is processed; so when
the job ends, the flows stand at the end of the range. A task that fails is not tried again: it would repeat rows that
were sent, out of turn. The flows then start again at their datamarkers.

Nothing here looks at a lease: a job outlives it when ZooKeeper is away. What it sends bears the epoch, though, and a
subscriber that holds the flow in a later one refuses it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.errors import DeliveryFailed
from tidings.metrics import parse_address
from tidings.positions import Position, Positions
from tidings.publisher.read_batch import MESSAGE_BYTES
from tidings.updates import SCHEMA, TOMBSTONE, portions, row_sizes
from tidings.wire.channel import say
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.protocol import Era, Message, pair, reason_of
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
    key: tuple[str, str]
    filter: int


class BulkSender:
    """Has large ranges sent, by the tasks of one job at a time for each caravan."""

    def __init__(self, server: ExchangeServer, security: Security) -> None:
        self._server = server
        self._security = security
        self._jobs: dict[str, Job] = {}

    def send(
        self, spark: SparkSession, log: Log, after: Positions, upto: Positions, group: Sequence[FlowSession]
    ) -> int:
        """Send the rows between to the flows, and return how many when they are processed; `DeliveryFailed` if not."""
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as sf

        filters = list(dict.fromkeys(one.filter for one in group))
        targets = _targets(group, filters)
        job = self._job({target.key for target in targets})
        tombstones = sf.col("kind") == TOMBSTONE
        chosen = [(one.column() | tombstones).alias(f"_{number}") for number, one in enumerate(filters)]
        shards = sorted({target.shard for target in targets})
        rows = log.scan(spark, after, upto).where(sf.col("shard").isin(shards)).select("*", *chosen)
        parts = max(1, min(len(shards), spark.sparkContext.defaultParallelism))
        ordered = rows.repartition(parts, "shard").sortWithinPartitions("shard", "seq", "index")
        self._jobs[job.name] = job
        try:
            found = ordered.mapInArrow(_Task(tuple(targets), job), "sent long").agg(sf.sum("sent")).collect()
            return found[0][0] or 0
        except PySparkException as error:
            raise DeliveryFailed(f"a large step failed: {str(error).splitlines()[0]}") from None
        finally:
            del self._jobs[job.name]

    def _job(self, subscribers: set[tuple[str, str]]) -> Job:
        name = f"job-{secrets.token_hex(8)}"
        applications = {application for application, _ in subscribers}
        keys = {one: self._security.job_keys(one, name) for one in applications}
        ours = self._security
        # A task trusts its publisher by the certificate that both have, if there is no authority for both.
        tls = Security(certificate=ours.certificate, key=ours.key, authority=ours.authority or ours.certificate)
        return Job(name, self._server.address, secrets.token_urlsafe(), frozenset(subscribers), keys, tls)

    def on_offer(self, message: Message) -> None:
        """A task has rows for a subscriber: tell the subscriber. ValueError if it is no task of ours."""
        job = self._jobs.get(str(message.get("job")))
        if job is None or not hmac.compare_digest(str(message.get("proof")).encode(), job.proof(message).encode()):
            raise ValueError("an offer of no task of ours")
        key = (str(message["application"]), str(message["subscriber"]))
        if key in job.subscribers:
            self._server.connection(key).send({"t": "fetch", "publisher": job.name, "address": message["address"]})


@dataclass(frozen=True)
class Job:
    """What tasks know: where their publisher is, whom they send to, and keys that are good for that alone."""

    name: str
    publisher: str
    secret: str
    subscribers: frozenset[tuple[str, str]]
    keys: Mapping[str, list[str]]
    tls: Security

    def proof(self, offer: Message) -> str:
        """What only a task of this job can say of an offer."""
        said = json.dumps([offer.get(name) for name in ("job", "address", "application", "subscriber")]).encode()
        return hmac.digest(self.secret.encode(), said, "sha256").hex()

    def offer(self, address: str, key: tuple[str, str]) -> Message:
        """What a task says to its publisher."""
        said = {"t": "offer", "job": self.name, "address": address, "application": key[0], "subscriber": key[1]}
        return {**said, "proof": self.proof(said)}


def _targets(group: Sequence[FlowSession], filters: Sequence[Filter]) -> list[Target]:
    return [
        Target(*one.flow, one.era, one.sent, one.connection.key, filters.index(one.filter))
        for one in group
        if one.connection is not None
    ]


class _Task:
    """What a task does with the rows of its shards."""

    def __init__(self, targets: Sequence[Target], job: Job) -> None:
        self._targets = targets
        self._job = job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise RuntimeError("a task that sends is not tried again")
        sent = 0
        endpoint = _Endpoint(self._job)
        try:
            for batch in batches:
                sent += self._send(batch, endpoint)
            endpoint.finish()
        finally:
            endpoint.close()
        yield pa.record_batch({"sent": pa.array([sent], pa.int64())})

    def _send(self, batch: pa.RecordBatch, endpoint: _Endpoint) -> int:
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
            exchange = endpoint.exchange(target.key)
            part = rows.slice(first, end - first)
            piece = part if wanted.all() else part.filter(pa.array(wanted))
            for run in portions(row_sizes(piece), piece.num_rows, MESSAGE_BYTES):
                some = piece.slice(run.start, run.stop - run.start)
                last = end - 1 if run.stop == piece.num_rows else first + int(np.flatnonzero(wanted)[run.stop - 1])
                exchange.send(target, some, Position(int(seqs[last]), int(indexes[last])))
            sent += piece.num_rows
        return sent


class _Endpoint:
    """Where subscribers fetch what a task has for them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._exchanges: dict[tuple[str, str], _Exchange] = {}
        host = _host_towards(job.publisher)
        self._server = ExchangeServer(
            job.name, f"{host}:0", job.tls, lambda name: job.keys.get(name, []), patience_s=PATIENCE_S
        )
        self._server.start(self._on_message, self._on_broken)

    def exchange(self, key: tuple[str, str]) -> _Exchange:
        """The exchange with a subscriber, who is told of it if this is the first time."""
        if key not in self._exchanges:
            self._exchanges[key] = _Exchange(self._server.connection(key))
            say(self._job.publisher, self._job.tls, self._job.offer(self._server.address, key))
        return self._exchanges[key]

    def finish(self) -> None:
        """Wait until all is processed."""
        for exchange in self._exchanges.values():
            exchange.finish()

    def close(self) -> None:
        self._server.close()

    def _on_message(self, connection: Connection, message: Message) -> None:
        self._exchanges[connection.key].on_message(message)

    def _on_broken(self, connection: Connection, reason: str) -> None:
        if connection.key in self._exchanges:
            self._exchanges[connection.key].fail(reason)


class _Exchange:
    """A task's exchange with one subscriber, with so many messages on their way and no more."""

    def __init__(self, connection: Connection) -> None:
        self._changed = threading.Condition()
        self._in_flight = 0
        self._problem: str | None = None
        self._connection = connection

    def send(self, target: Target, rows: pa.RecordBatch, upto: Position) -> None:
        self._wait(lambda: self._in_flight < MESSAGES_IN_FLIGHT)
        with self._changed:
            self._in_flight += 1
        part = [target.shard, *target.era, rows.num_rows, *pair(upto), None]
        self._connection.send({"t": "batch", "stream": target.stream, "parts": [part]}, rows)

    def finish(self) -> None:
        """Wait until all is processed."""
        self._wait(lambda: self._in_flight == 0)

    def on_message(self, message: Message) -> None:
        with self._changed:
            if message["t"] == "done":
                self._in_flight -= 1
            else:
                self._problem = f"{message['t']}: {reason_of(message)}"
            self._changed.notify_all()

    def fail(self, reason: str) -> None:
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


def _host_towards(address: str) -> str:
    """The address of this machine that is on the way to another: there, subscribers can reach it too."""
    host, port = parse_address(address)
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # which sends nothing
        found = str(probe.getsockname()[0])
    return f"[{found}]" if ":" in found else found
