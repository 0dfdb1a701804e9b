"""Caravans with a real log: applications come back that are behind by equal parts of it, and a publisher serves them.

Clusters share the log, one for each number of caravans that is tried; one process has a publisher in each of them.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from typing import Any

import pyarrow as pa

import tidings
from bench.caravan_simulation import Outcome, Trace
from bench.processes import SPAWN, running
from tidings.logs import Log
from tidings.positions import Positions
from tidings.testing import eventually
from tidings.updates import from_rows, timed
from tidings_log_tailing.control import reports

STREAM = "contacts"
SHARDS = 1  # as in the simulation, where an application has one flow
PORTION = 50_000


class Waiting(tidings.Handler):
    """Adds up when its updates came."""

    def __init__(self) -> None:
        self.count = 0
        self._moments = 0.0

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.count += rows.num_rows
        self._moments += rows.num_rows * time.monotonic()

    def waited(self, since: float) -> float:
        """Seconds that an update took, on average."""
        return self._moments / self.count - since


def replay(trace: Trace, allowed: Sequence[int]) -> dict[int, Outcome]:
    """What it takes to catch up, by the number of caravans that a publisher may have."""
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as home, contextlib.ExitStack() as stack:
        stream = home.create_stream(STREAM, shards=SHARDS)
        fill(stream, trace.rows)
        once = size(stream.log)
        clusters = {}
        for number in allowed:
            clusters[number] = stack.enter_context(tidings.connect(f"{home.address}-{number}"))
            define(clusters[number], stream, trace, number)
        stop = SPAWN.Event()
        addresses = [cluster.address for cluster in clusters.values()]
        with running(SPAWN.Process(target=publish_in_each, args=(addresses, stop)), stop=stop):
            for cluster in clusters.values():
                eventually(functools.partial(reports, cluster), 60)  # it has heard of the limits when it reports
            return {number: catch_up(cluster, trace, once) for number, cluster in clusters.items()}


def fill(stream: tidings.Stream, rows: int) -> None:
    """Publish a backlog."""
    portion = timed(from_rows({"object": f"object-{n}", "version": n} for n in range(PORTION)))
    with stream.producer(max_rows=PORTION) as producer:
        for future in [producer.publish_many(portion) for _ in range(rows // PORTION)]:
            future.result()


def size(log: Log) -> int:
    """The bytes that one reader gets who reads the log once."""
    at, total = Positions({shard: held.floor for shard, held in log.bounds().items()}), 0
    with contextlib.closing(log), contextlib.closing(log.reader()) as reader:
        while len((read := reader.read(at, PORTION)).rows):
            at, total = read.upto, total + read.rows.nbytes
    return total


def define(cluster: tidings.Cluster, stream: tidings.Stream, trace: Trace, caravans: int) -> None:
    """The log as a stream of this cluster, and applications that begin where they are in the trace."""
    limits = {"caravans": caravans, "rate": trace.rate}
    cluster.create_stream(STREAM, shards=SHARDS, log=stream.definition.log, caravans=limits)
    for number, start in enumerate(trace.starts):
        cluster.create_application(f"a{number}", [STREAM], start={STREAM: {0: start}})


def publish_in_each(addresses: Sequence[str], stop: Event) -> None:
    """Run a publisher in each cluster."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.ExitStack() as stack:
        for address in addresses:
            cluster = stack.enter_context(tidings.connect(address))
            stack.enter_context(cluster.publisher())
        stop.wait()


def catch_up(cluster: tidings.Cluster, trace: Trace, once: int) -> Outcome:
    """Have all applications come back, those that are farthest behind first, and wait until nobody is behind."""
    handlers = [Waiting() for _ in trace.starts]
    wanted = [trace.rows - start for start in trace.starts]
    begun = time.monotonic()
    with subscribed(cluster, handlers):
        eventually(lambda: all(one.count >= rows for one, rows in zip(handlers, wanted, strict=True)), trace.patience)
        (report,) = eventually(lambda: [one for one in reports(cluster) if at_head(one, len(handlers))], 30)
    latency = sum(one.waited(begun) for one in handlers) / len(handlers)
    return Outcome(report["bytes_read"] / once, latency)


@contextlib.contextmanager
def subscribed(cluster: tidings.Cluster, handlers: Sequence[Waiting]) -> Iterator[None]:
    """A subscriber of each application."""
    with contextlib.ExitStack() as stack:
        for number, handler in enumerate(handlers):
            stack.enter_context(cluster.subscribe(f"a{number}", handler))
        yield


def at_head(report: dict[str, Any], flows: int) -> bool:
    """Whether a publisher told this when none of so many flows was behind."""
    told = report["caravans"]
    return sum(one["flows"] for one in told) == flows and not any(one["behind"] for one in told)
