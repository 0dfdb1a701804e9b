"""`make demo`: updates flow from a producer through a stream into a Spark query, all in a temporary folder."""

from __future__ import annotations

import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

import tidings
from tidings.streams import Stream

SHARDS = 8
OBJECTS = 1_000
SECONDS = 12
RATE = 2_000

console = Console(highlight=False)


@contextmanager
def chapter(title: str) -> Iterator[None]:
    console.print(f"\n[bold]{title}[/]")
    start = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - start:.1f} s[/]")


class Counts:
    """What the query has counted so far: updates a shard, and how old the newest update of each batch was."""

    def __init__(self) -> None:
        self.by_shard = dict.fromkeys(range(SHARDS), 0)
        self.ages: list[float] = []
        self.changed = threading.Condition()

    @property
    def total(self) -> int:
        return sum(self.by_shard.values())

    def add(self, batch: DataFrame, number: int) -> None:
        newest = sf.max("time").cast("double").alias("newest")
        found = batch.groupBy("shard").agg(sf.count("*").alias("updates"), newest).collect()
        with self.changed:
            for row in found:
                self.by_shard[row.shard] += row.updates
            if found:
                self.ages.append(time.time() - max(row.newest for row in found))
                here = sum(row.updates for row in found)
                console.print(f"  micro-batch {number:>3}: {here:>6,} updates, {self.total:>7,} in all")
            self.changed.notify_all()

    def wait_for(self, total: int, timeout: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.total >= total, timeout)


def publish(stream: Stream) -> int:
    """Change objects at random, a few thousand times a second; the number of updates that are durable."""
    rng = random.Random(1)
    versions = dict.fromkeys((f"contacts/{number}" for number in range(OBJECTS)), 0)
    names = list(versions)
    futures = []
    start = time.monotonic()
    with stream.producer() as producer:
        for number in range(SECONDS * RATE):
            name = rng.choice(names)
            versions[name] += 1
            futures.append(producer.publish(name, versions[name], payload=rng.randbytes(100)))
            if number % 20 == 0:
                time.sleep(max(0.0, start + number / RATE - time.monotonic()))
    for future in futures:
        future.result()
    return len(futures)


def publish_first(stream: Stream) -> int:
    """One update, so that the query has made its first steps, which are slow, before the clock matters."""
    with stream.producer() as producer:
        producer.publish("contacts/0", 0).result()
    return 1


def show(counts: Counts) -> None:
    table = Table("shard", "updates", "", box=None, pad_edge=False)
    most = max(counts.by_shard.values())
    for shard, updates in counts.by_shard.items():
        table.add_row(str(shard), f"{updates:,}", "█" * round(40 * updates / most))
    console.print(table)


def tell(folder: str) -> int:
    with chapter("1. A cluster of our own: an embedded ZooKeeper in a temporary folder"):
        cluster = tidings.embedded(folder)
        console.print(f"  ZooKeeper answers at {cluster.address}")
    with cluster:
        stream = cluster.create_stream("contacts", shards=SHARDS)
        console.print(f"\n[bold]2. A stream[/]\n  {stream.name}: {SHARDS} shards, kept in {stream.definition.log}")
        with chapter("3. Spark starts"):
            spark: SparkSession = tidings.session("tidings demo", master="local[2]")
            console.print(f"  Spark {spark.version}, on 2 threads of this machine")
        try:
            return follow(spark, cluster.address, stream, folder)
        finally:
            spark.stop()


def follow(spark: SparkSession, zookeeper: str, stream: Stream, folder: str) -> int:
    counts = Counts()
    with chapter(f'4. A query over format("tidings") counts, while a producer makes {RATE:,} changes a second'):
        updates = spark.readStream.format("tidings").options(stream=stream.name, zookeeper=zookeeper).load()
        writer = updates.writeStream.foreachBatch(counts.add)
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        published = publish_first(stream)
        if counts.wait_for(published, timeout=60):
            published += publish(stream)
        arrived = counts.wait_for(published, timeout=60)
        query.stop()
    console.print("\n[bold]5. What the query saw[/]")
    show(counts)
    if not arrived or counts.total != published:
        console.print(f"[red]{published:,} updates were published, but {counts.total:,} were counted.[/]")
        return 1
    age = statistics.median(counts.ages[1:])
    console.print(f"\n[green]All {published:,} updates arrived, each once.[/]", end=" ")
    console.print(f"When it was counted, the newest update of a batch was {age * 1000:.0f} ms old (median).")
    return 0


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="tidings-demo-", ignore_cleanup_errors=True) as folder:
            return tell(folder)
    except tidings.TidingsError as error:
        Console(stderr=True).print(f"error: {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
