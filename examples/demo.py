"""`make demo`: updates flow from a producer into a Spark query and to subscribers, all in a temporary folder.

Then the publisher that sends them is killed, and another one takes over. In the end clients keep their caches fresh
with Thialfi, though one of them goes away for a while, and their gateway is killed. With `--keep` (`make demo KEEP=1`)
everything goes on after that, with the web console open, until Ctrl-C.
"""

from __future__ import annotations

import itertools
import logging
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

import contacts
import tidings
from tidings.streams import Stream

SHARDS = 8
OBJECTS = 1_000
PUBLISHING_S = 8
UPDATES_PER_S = 2_000

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
        for number in range(PUBLISHING_S * UPDATES_PER_S):
            name = rng.choice(names)
            versions[name] += 1
            futures.append(producer.publish(name, versions[name], payload=rng.randbytes(100)))
            if number % 20 == 0:
                time.sleep(max(0.0, start + number / UPDATES_PER_S - time.monotonic()))
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


def tell(folder: str, *, keep: bool) -> int:
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
            well = follow(spark, cluster.address, stream, folder)
            well = well and fail_over(cluster, stream)
            well = well and keep_fresh(cluster, folder)
        finally:
            spark.stop()
        if well and keep:
            keep_open(cluster, stream, folder)
        elif well:
            console.print(
                "\nNext: `make demo KEEP=1` leaves the web console open; `.venv/bin/tidings init shop` makes a project."
            )
        return 0 if well else 1


def follow(spark: SparkSession, zookeeper: str, stream: Stream, folder: str) -> bool:
    counts = Counts()
    with chapter(
        f'4. A query over format("tidings") counts, while a producer makes {UPDATES_PER_S:,} changes a second'
    ):
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
        return False
    age = statistics.median(counts.ages[1:])
    console.print(f"\n[green]All {published:,} updates arrived, each once.[/]", end=" ")
    console.print(f"When it was counted, the newest update of a batch was {age * 1000:.0f} ms old (median).")
    return True


class ArrivalLog(tidings.Handler):
    """A subscriber's handler: notes each update, and when it came."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, float]] = []

    def on_update(self, update: tidings.Update) -> None:
        self.seen.append((update.shard, update.seq, time.monotonic()))


@contextmanager
def publisher(name: str, zookeeper: str) -> Iterator[subprocess.Popen[bytes]]:
    """A publisher in a process of its own, as an operator would run it."""
    command = [str(Path(sys.executable).with_name("tidings")), "publisher", "--name", name, "--zookeeper", zookeeper]
    settings = ["--session-timeout", "2", "--token-interval", "0.5"]
    with subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def owners(cluster: tidings.Cluster) -> Counter[str]:
    """How many flows each publisher owns."""
    places = [("flows", "cache", "contacts", str(shard), "owner") for shard in range(SHARDS)]
    return Counter(owner["publisher"] for place in places if (owner := cluster.coordination.read(*place)))


def wait_for(condition: Callable[[], bool], timeout: float = 60) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def fail_over(cluster: tidings.Cluster, stream: Stream) -> bool:
    """Two publishers, two subscribers, a filter; the busier publisher is killed while updates flow."""
    caches = [ArrivalLog(), ArrivalLog()]
    with ExitStack() as stack:
        with chapter("6. An application with a filter, two subscribers and two publishers"):
            cluster.create_application("cache", ["contacts"], filter="region = eu", start="latest", balance="zookeeper")
            for cache in caches:
                stack.enter_context(cluster.subscribe("cache", cache))
            processes = {name: stack.enter_context(publisher(name, cluster.address)) for name in ("north", "south")}
            if not wait_for(lambda: len(owners(cluster)) == 2 and owners(cluster).total() == SHARDS):
                console.print("[red]The publishers did not take the flows.[/]")
                return False
            for name, flows in sorted(owners(cluster).items()):
                console.print(f"  publisher {name} owns {flows} of {SHARDS} flows")
        with chapter("7. The owner of most flows is killed with -9, in the midst of it"):
            victim = owners(cluster).most_common(1)[0][0]
            published = publish_and_kill(stream, processes[victim])
            console.print(f"  {victim} is dead; {len(published):,} updates passed the filter")
            places = {(shard, seq) for shard, seq in published}
            complete = wait_for(lambda: places <= {row[:2] for cache in caches for row in cache.seen}, timeout=30)
            for name, flows in owners(cluster).items():
                console.print(f"  publisher {name} owns {flows} of {SHARDS} flows now")
    return judge(places, caches, complete)


def publish_and_kill(stream: Stream, victim: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
    """Publish for some seconds, kill a process half way, and say where the updates are that pass the filter."""
    seconds, rate = 8, 500
    futures = []
    start = time.monotonic()
    with stream.producer() as producer:
        for number in range(seconds * rate):
            name = f"contacts/{number % OBJECTS}"
            region = "eu" if number % 2 else "us"
            future = producer.publish(name, number, attributes={"region": region})
            if region == "eu":
                futures.append((stream.shard_of(name), future))
            if number == seconds * rate // 2:
                victim.kill()
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
    return [(shard, future.result().seq) for shard, future in futures]


def judge(published: set[tuple[int, int]], caches: list[ArrivalLog], complete: bool) -> bool:
    """Whether all updates came, in order within a shard; and the longest silence of a shard."""
    everything = sorted((row for cache in caches for row in cache.seen), key=lambda row: row[2])
    newest: dict[int, int] = {}
    last: dict[int, float] = {}
    gap, repeats, disorder = 0.0, 0, 0
    expected = {shard: sorted(seq for each, seq in published if each == shard) for shard in range(SHARDS)}
    for shard, seq, at in everything:
        if seq <= newest.get(shard, -1):
            repeats += 1
        else:
            following = [one for one in expected[shard] if one > newest.get(shard, -1)]
            disorder += bool(following) and seq != following[0]
            newest[shard] = seq
        gap = max(gap, at - last.get(shard, at))
        last[shard] = at
    if not complete or disorder:
        console.print(f"[red]{len(published):,} updates were published; lost or out of order: {disorder}.[/]")
        return False
    console.print(
        f"\n[green]All {len(published):,} updates arrived, in order within each shard[/] ({repeats:,} repeated)."
    )
    console.print(f"The longest that a shard was silent was {gap:.1f} s; ZooKeeper takes 2 s to notice a death.")
    return True


def keep_fresh(cluster: tidings.Cluster, folder: str) -> bool:
    """A phone and a laptop register for people; the laptop is shut for a while, then the gateway is killed."""
    names = ["alice", "bob"]
    with ExitStack() as stack:
        with chapter("8. Thialfi: a back end with SQLite, a gateway, and two clients that keep their caches fresh"):
            back_end = stack.enter_context(contacts.serving(cluster, folder))
            gateway = stack.enter_context(contacts.Gateway(cluster.address, folder))
            phone, laptop = (contacts.Phonebook(one, back_end, names, console.print) for one in ("phone", "laptop"))
            stack.enter_context(phone.connected(gateway.address))
            with laptop.connected(gateway.address):
                if not wait_for(lambda: len(phone.heard) >= 2 and len(laptop.heard) >= 2):
                    console.print("[red]The clients did not register.[/]")
                    return False
        with chapter("9. The laptop is shut; bob's number changes five times; the laptop is opened again"):
            laptop.heard.clear()
            for number in range(5):
                back_end.change("bob", f"555-200{number}")
                wait_for(phone.fresh)
            stack.enter_context(laptop.connected(gateway.address))
            heard_in_time = wait_for(laptop.fresh)
            if not heard_in_time or any(one.startswith("bob: version") and "5" not in one for one in laptop.heard):
                console.print(f"[red]The laptop heard of {laptop.heard}, and not of the latest version alone.[/]")
                return False
        with chapter("10. The gateway is killed with -9; alice's number changes; another gateway takes its place"):
            gateway.process.kill()
            gateway.process.wait()
            back_end.change("alice", "555-3000")
            stack.enter_context(contacts.Gateway(cluster.address, folder, gateway.listens))
            if not wait_for(lambda: phone.fresh() and laptop.fresh()):
                console.print("[red]A cache is not fresh.[/]")
                return False
    console.print("\n[green]Both caches are fresh: nothing was missed.[/]")
    return True


class Nothing(tidings.Handler):
    """A subscriber's handler that has nothing to do."""

    def on_update(self, update: tidings.Update) -> None:
        pass


def keep_open(cluster: tidings.Cluster, stream: Stream, folder: str) -> None:
    """The web console, with publishers, subscribers and some updates a second to look at, until Ctrl-C."""
    command = [str(Path(sys.executable).with_name("tidings")), "console", "--zookeeper", cluster.address]
    users = ["--users", f"{folder}/console-users.json"]
    with ExitStack() as stack:
        console.print("\n[bold]11. The web console: move a flow, drain a publisher, and watch; Ctrl-C ends it[/]")
        for _ in range(2):
            stack.enter_context(cluster.subscribe("cache", Nothing()))
        for name in ("north", "south"):
            stack.enter_context(publisher(name, cluster.address))
        shown = stack.enter_context(subprocess.Popen([*command, *users]))
        stack.callback(shown.terminate)
        producer = stack.enter_context(stream.producer())
        for number in itertools.count():
            if shown.poll() is not None:
                return
            producer.publish(f"contacts/{number % OBJECTS}", number, attributes={"region": "eu"})
            time.sleep(0.02)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A publisher warns of a connection that breaks; here that is what the tale is about.
    logging.getLogger("tidings").setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="tidings-demo-", ignore_cleanup_errors=True) as folder:
            return tell(folder, keep="--keep" in sys.argv[1:])
    except tidings.TidingsError as error:
        Console(stderr=True).print(f"error: {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
