"""What collection costs: of a history, of what is new, and beside readers; and what it spares those who catch up.

A history has as many updates as keys, and each update is of any key, all alike. That is the worst that can be: what an
update collects may be anywhere, and 37 % of the history is collected at first. The collector is kept open, as that of a
pipeline is. In each round so many updates come, and are collected. What a round costs is not even: some fold files. So
there are several, and they report the mean and the longest; CPU is that of the whole process.

Delta's own way, in the same run, on a copy of the table: Spark finds the latest update of each key by a window
function, deletes the others by `MERGE`, and puts small files together by `OPTIMIZE`. For what is new, `MERGE` deletes
what is earlier than a new update of its key. Kafka's way: a broker on this machine compacts a topic with the same keys.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import tidings
from bench.gc_peers import compact_by_delta, compact_by_kafka, merge_by_delta, spark_session
from bench.gc_savings import updates
from bench.processes import SPAWN, collect_when_told, publish, running, subscribe
from bench.report import Row, less_is_better, milliseconds, more_is_better
from tidings.collection import collectable
from tidings.errors import TidingsError
from tidings.stream_definition import StreamDefinition
from tidings.updates import timed
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones.collector import Collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICIES = {"latest_per_key": True}
SHARDS = 16
PAYLOAD_BYTES = 100
APPEND_ROWS = 1_000_000  # so files are as large as they become
NEW_SHARE = 0.01  # of a history, in each round
RATE = 1_000  # updates a second of the live flow
SETTLING_S = 3
LATENCY_AIM, SIZE_AIM = 1.3, 1.5
CAPTION = (
    f"Aims: what is new costs at most {SIZE_AIM} times as much on the larger history, and the p99 of a live flow is at "
    f"most {LATENCY_AIM} times as long while a collection runs."
)


@dataclass
class World:
    """A log that is collected, and the updates that come into it."""

    folder: Path
    keys: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.stream = StreamDefinition("bench", SHARDS, f"delta:{self.folder}/log", collect=POLICIES)
        self.log = DeltaLog.create(f"{self.folder}/log", self.stream)

    def grow(self, count: int) -> None:
        """Let so many updates come."""
        for start in range(0, count, APPEND_ROWS):
            self.log.append(some_updates(self.rng, self.keys, min(APPEND_ROWS, count - start)))


def some_updates(rng: np.random.Generator, keys: int, count: int) -> pa.Table:
    """Updates of keys that are all alike, with payloads that cannot be compressed."""
    rows = updates(rng.integers(keys, size=count))
    payload = pa.Array.from_buffers(
        pa.binary(PAYLOAD_BYTES), count, [None, pa.py_buffer(rng.bytes(count * PAYLOAD_BYTES))]
    )
    return timed(rows.set_column(rows.schema.get_field_index("payload"), "payload", payload.cast(pa.binary())))


@contextmanager
def history(size: int) -> Iterator[World]:
    """A log of so many updates, of as many keys."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), size, np.random.default_rng(7))
        world.grow(size)
        yield world
        world.log.close()


def seconds_to_collect(collector: Collector, spark: Callable[[], SparkSession] | None = None) -> float:
    start = time.perf_counter()
    for _ in collector.run(spark):
        pass
    return time.perf_counter() - start


# ---- a history, and what is new ------------------------------------------------------------------------------------


@dataclass
class Rounds:
    """Seconds of each round with so many new updates, wall clock and CPU; and of one by Delta."""

    new: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    by_delta: float | None = None

    @property
    def mean_ms(self) -> float:
        return 1000 * sum(self.seconds) / len(self.seconds)

    @property
    def mean_cpu_ms(self) -> float:
        return 1000 * sum(self.cpu_seconds) / len(self.cpu_seconds)

    def rows(self, name: str) -> Iterator[Row]:
        named = f"{name}, {self.new:,} new"
        mean = f"{named}: mean of {len(self.seconds)} rounds"
        if self.by_delta is None:
            yield Row(mean, self.mean_ms, "ms")
        else:
            yield less_is_better(mean, self.mean_ms, "ms", "Spark: MERGE, OPTIMIZE", self.by_delta * 1000)
        yield Row(f"{named}: longest", max(self.seconds) * 1000, "ms")
        yield Row(f"{named}: mean CPU", self.mean_cpu_ms, "ms")
        yield Row(f"{named}: mean for each", self.mean_ms * 1000 / self.new, "µs")


def measure(size: int, news: list[int], rounds: int, *, spark: bool, delta: bool) -> tuple[list[Row], list[Rounds]]:
    """What it costs to collect a history, by steps and by Spark, and then what is new in each round."""
    name, peer = f"{size / 1e6:g} M", "Spark: window, MERGE, OPTIMIZE"
    by_steps, by_spark = f"{name}, first, by steps", f"{name}, first, by Spark"
    rows, found = [], [Rounds(new) for new in news]
    with history(size) as world:
        copy, again = world.folder / "copy", World(world.folder / "again", size, world.rng)
        if delta:
            shutil.copytree(world.folder / "log", copy)
        if spark:
            again.grow(size)
        with Collector(world.stream, world.log) as collector:
            ours = size / seconds_to_collect(collector)
            if delta:
                theirs = size / compact_by_delta(spark_session(), copy)
                rows.append(more_is_better(by_steps, ours, "updates/s", peer, theirs))
            else:
                rows.append(Row(by_steps, ours, "updates/s"))
            for one in found:
                for _ in range(rounds):
                    world.grow(one.new)
                    began = time.process_time()
                    one.seconds.append(seconds_to_collect(collector))
                    one.cpu_seconds.append(time.process_time() - began)
                if delta:
                    one.by_delta = merge_by_delta(spark_session(), copy, some_updates(world.rng, size, one.new))
                rows += one.rows(name)
        world.grow(news[0])
        start = time.perf_counter()
        with Collector(world.stream, world.log) as collector:
            seconds_to_collect(collector)
        opened = (time.perf_counter() - start) * 1000
        rows.append(Row(f"{name}, {news[0]:,} new: opened for it", opened, "ms"))
        if spark:
            with (
                Collector(again.stream, again.log) as collector,
                patch("tidings_gc_tombstones.collector.HISTORY_ROWS", 0),
            ):
                rows.insert(1, Row(by_spark, size / seconds_to_collect(collector, spark_session), "updates/s"))
            again.log.close()
    return rows, found


def collecting(small: int, large: int, rounds: int) -> list[Row]:
    """Histories of two sizes, the same number of new updates in both, and the same share."""
    few, many = int(small * NEW_SHARE), int(large * NEW_SHARE)
    with history(1_000) as world:  # so that nobody pays for the start of Spark
        compact_by_delta(spark_session(), world.folder / "log")
    rows, (on_small,) = measure(small, [few], rounds, spark=False, delta=True)
    # Delta's own way takes too long there.
    more, (on_large, share_of_large) = measure(large, [few, many], rounds, spark=True, delta=False)
    rows += more
    for name, ours, theirs in (
        (f"{few:,} new", on_large.mean_ms, on_small.mean_ms),
        (f"{few:,} new, CPU", on_large.mean_cpu_ms, on_small.mean_cpu_ms),
        ("1 % new, for each", share_of_large.mean_ms / many, on_small.mean_ms / few),
        ("1 % new, for each, CPU", share_of_large.mean_cpu_ms / many, on_small.mean_cpu_ms / few),
    ):
        metric = f"{large / small:g} times the history: {name}"
        rows.append(less_is_better(metric, ours / theirs, "times the cost", "aim, at most", SIZE_AIM))
    return rows


def beside_kafka(size: int) -> list[Row]:
    """The first collection, beside a broker that compacts the same keys."""
    rng = np.random.default_rng(7)
    with history(size) as world, Collector(world.stream, world.log) as collector:
        ours = size / seconds_to_collect(collector)
    name = f"{size / 1e6:g} M, first"
    try:
        count, seconds = compact_by_kafka(spark_session(), rng.integers(size, size=size), PAYLOAD_BYTES)
    except (TidingsError, OSError, subprocess.SubprocessError) as error:
        return [Row(f"{name}; no Kafka broker: {error}", ours, "updates/s")]
    return [more_is_better(name, ours, "updates/s", "Kafka: log compaction", count / seconds)]


# ---- beside a live flow --------------------------------------------------------------------------------------------


def beside_a_flow(size: int, seconds: int) -> list[Row]:
    """How long updates take from their commit to the callback, without a collection and while one runs."""
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("bench", shards=SHARDS, collect=POLICIES)
        rng = np.random.default_rng(7)
        for start in range(0, size, APPEND_ROWS):
            stream.writable_log.append(some_updates(rng, size, min(APPEND_ROWS, size - start)))
        cluster.create_application("cache", ["bench"], start="latest")
        stop, ready, set_up, go = (SPAWN.Event() for _ in range(4))
        results, spans = SPAWN.Queue(), SPAWN.Queue()
        receiver = SPAWN.Process(target=subscribe, args=(cluster.address, "cache", True, 2**62, ready, results, stop))
        sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
        collector = SPAWN.Process(target=collect_when_told, args=(cluster.address, "bench", set_up, go, spans))
        committed: dict[int, float] = {}
        with running(sender, receiver, collector, stop=stop), stream.producer() as producer:
            assert ready.wait(60)
            assert set_up.wait(60)
            began, number, span = time.perf_counter(), 0, None
            while span is None:
                number += 1
                version = 2**40 + number

                def note(future: object, version: int = version) -> None:
                    committed[version] = time.time()

                producer.publish(f"live-{number % 5_000}", version, payload=b"x" * 500).add_done_callback(note)
                time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
                if number == RATE * (seconds + SETTLING_S):
                    quiet_until = time.time()
                    go.set()
                if number > RATE * (seconds + SETTLING_S) and not spans.empty():
                    span = spans.get()
            producer.flush()
            time.sleep(1)
            stop.set()
            _, seen = results.get(timeout=60)
    taken = {version: max(0.0, at - committed[version]) for version, at in seen if version in committed}
    quiet = [one for version, one in taken.items() if quiet_until - seconds < committed[version] < quiet_until]
    busy = [one for version, one in taken.items() if span[0] < committed[version] < span[1]]
    rows = [Row("live flow: length of the collection beside it", span[1] - span[0], "s")]
    for p in (50, 99):
        without, beside = milliseconds(quiet, p), milliseconds(busy, p)
        rows.append(less_is_better(f"live flow beside a collection, p{p}", beside, "ms", "without", without))
        rows.append(
            less_is_better(f"live flow, p{p}: beside a collection", beside / without, "times", "aim", LATENCY_AIM)
        )
    return rows


# ---- catching up ---------------------------------------------------------------------------------------------------


def catching_up(size: int) -> list[Row]:
    """How long a new flow takes from the beginning of a stream of which a tenth is left, and of the whole."""
    taken = {}
    for collected in (False, True):
        with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
            stream = cluster.create_stream("bench", shards=SHARDS, collect=POLICIES)
            log, rng = collectable(stream.definition, stream.log), np.random.default_rng(7)
            for start in range(0, size, APPEND_ROWS):
                log.append(some_updates(rng, size // 10, min(APPEND_ROWS, size - start)))
            if collected:
                with Collector(stream.definition, log) as collector:
                    seconds_to_collect(collector)
            left = log.sizes().updates
            cluster.create_application("cache", ["bench"], start="earliest")
            stop, ready, results = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
            receiver = SPAWN.Process(
                target=subscribe, args=(cluster.address, "cache", False, left, ready, results, stop)
            )
            sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
            began = time.time()
            with running(receiver, sender, stop=stop):
                _, seen = results.get(timeout=300)
            taken[collected] = (seen[-1][1] - began, seen[-1][1] - seen[0][1])
    name = f"catch up with {size / 1e6:g} M updates of {size / 1e7:g} M keys"
    return [
        less_is_better(f"{name}, {since}", ours, "s", "not collected", theirs)
        for since, ours, theirs in zip(
            ("from the start of processes", "from the first"), taken[True], taken[False], strict=True
        )
    ]


def run(quick: bool) -> list[Row]:
    small, large = (200_000, 1_000_000) if quick else (1_000_000, 20_000_000)
    rows = collecting(small, large, 10 if quick else 30)
    rows += beside_kafka(small)
    rows += beside_a_flow(1_000_000 if quick else 3_000_000, 4 if quick else 20)
    return rows + catching_up(500_000 if quick else 3_000_000)
