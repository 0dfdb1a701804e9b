"""Publishers and subscribers as processes of their own, for benchmarks."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any

import pyarrow as pa

import tidings
from tidings.wire.security import OPEN, Security

SPAWN = multiprocessing.get_context("spawn")  # delta-rs does not survive a fork


def publish(address: str, options: dict[str, Any], stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session_timeout = options.pop("session_timeout", 10.0)
    with tidings.connect(address, session_timeout=session_timeout) as cluster, cluster.publisher(**options):
        stop.wait()


class Counting(tidings.Handler):
    """Notes when which versions came, and how many updates."""

    def __init__(self) -> None:
        self.count = 0
        self.seen: list[tuple[int, float]] = []

    def on_update(self, update: tidings.Update) -> None:
        self.count += 1
        self.seen.append((update.version or 0, time.time()))


class CountingBatches(Counting):
    """The same by whole batches."""

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.count += rows.num_rows
        self.seen.append((rows["version"][rows.num_rows - 1].as_py() or 0, time.time()))


def subscribe(
    address: str,
    application: str,
    each: bool,
    expected: int,
    ready: Event,
    results: Any,
    stop: Event,
    security: Security = OPEN,
) -> None:
    """Receive until so many updates have come, or until told to stop; then report what was seen and when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = Counting() if each else CountingBatches()
    with tidings.connect(address) as cluster, cluster.subscribe(application, handler, security=security):
        ready.set()
        while not stop.wait(0.01) and handler.count < expected:
            pass
        results.put((handler.count, handler.seen[:: max(1, len(handler.seen) // 100_000)]))
        stop.wait(60)


@contextlib.contextmanager
def running(*processes: Any, stop: Event) -> Iterator[None]:
    """Start processes, and end them however this ends."""
    for process in processes:
        process.start()
    try:
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()


def collect_when_told(address: str, stream: str, ready: Event, go: Event, spans: Any) -> None:
    """Collect a stream once, as `tidings gc run` does, when told to; then report when that began and ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from tidings_gc_tombstones.cli import give_way
    from tidings_gc_tombstones.collector import Collector

    give_way()
    with tidings.connect(address) as cluster:
        one = cluster.stream(stream)
        log: Any = one.log
        with Collector(one.definition, log) as collector:
            ready.set()
            go.wait(120)
            began = time.time()
            for _ in collector.run():
                pass
            spans.put((began, time.time()))
