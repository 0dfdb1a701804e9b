"""Where a fault test happens: a cluster of its own, processes that can be killed, load, and what was recorded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.support import invariants
from tests.support.recorder import Recorder
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.flows import Flow
from tidings.publisher.publisher import Publisher
from tidings.streams import Stream
from tidings.subscriber.subscriber import Subscriber
from tidings.testing import eventually, held

HERE = Path(__file__).parent
STREAM = "contacts"


class Scene:
    """A cluster in a root of its own, with one stream."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.root = "/" + address.partition("/")[2]
        self.folder = folder
        # A session that outlives a ZooKeeper that is away for a while.
        self.cluster = Cluster(Coordination(address, session_timeout=60), logs=f"delta:{folder}/streams")
        self.stream: Stream
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = contextlib.ExitStack()

    def close(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._closing.close()
        self.cluster.close()

    def prepare(self, shards: int, **options: Any) -> None:
        """Make the stream, and an application, `cache`, which reads it from its beginning."""
        self.stream = self.cluster.create_stream(STREAM, shards)
        self.cluster.create_application("cache", [STREAM], **{"start": "earliest", **options})

    # Processes

    def sender(self, name: str, *options: str, via: str | None = None) -> subprocess.Popen[bytes]:
        """A publisher, in a process; it has joined when this returns. `via` is a ZooKeeper address of its own."""
        process = self.start(name, "sender.py", self._at(via), name, *options)
        eventually(lambda: name in self.children("publishers"), timeout=20)
        return process

    def recorder(
        self, application: str, id: str, *options: str, via: str | None = None, wait: bool = True
    ) -> subprocess.Popen[bytes]:
        """A recording subscriber, in a process; it is registered when this returns."""
        process = self.start(id, "recorder.py", self._at(via), application, id, str(self.file(id)), *options)
        if wait:
            eventually(lambda: id in self.children("applications", application, "subscribers"), timeout=20)
        return process

    def start(self, name: str, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen([sys.executable, HERE / script, *arguments], stdout=log, stderr=log)
        self.processes[f"{name}-{process.pid}"] = process
        return process

    def publisher(self, name: str, **options: Any) -> Publisher:
        """A publisher in this process, with a session of its own."""
        own = self._closing.enter_context(Cluster(Coordination(self.address, session_timeout=2)))
        return self._closing.enter_context(own.publisher(name=name, **{"token_interval": 0.5, **options}))

    @contextlib.contextmanager
    def subscriber(
        self, application: str, id: str, *, file: str | None = None, load_interval: float = 10.0, **options: Any
    ) -> Iterator[Subscriber]:
        """A recording subscriber in this process, with a session of its own; the options are the recorder's."""
        handler = Recorder(self.file(file or id), **options)
        with (
            Cluster(Coordination(self.address, session_timeout=2)) as own,
            own.subscribe(
                application, handler, id=id, retries=2, backoff=0.05, load_interval=load_interval
            ) as subscriber,
        ):
            yield subscriber

    def _at(self, hosts: str | None) -> str:
        return f"{hosts}{self.root}" if hosts else self.address

    # What ZooKeeper holds

    def children(self, *parts: str) -> list[str]:
        return self.cluster.coordination.children(*parts)

    def node(self, application: str, shard: int, name: str) -> dict[str, Any] | None:
        """What ZooKeeper holds of a flow under this name."""
        return self.cluster.coordination.read(*Flow(application, STREAM, shard).place, name)

    def epoch(self, application: str, shard: int) -> int:
        """The epoch that ZooKeeper has for a flow."""
        tree = self.cluster.coordination
        stat = tree.client.exists(tree.path(*Flow(application, STREAM, shard).place, "epoch"))
        return stat.version if stat else -1

    def owners(self, application: str, shards: int) -> list[str | None]:
        """Who owns each flow."""
        records = [self.node(application, shard, "owner") for shard in range(shards)]
        return [record["publisher"] if record else None for record in records]

    def markers(self, application: str, shards: int) -> list[int]:
        """The datamarkers of all flows; -2 where there is none."""
        nodes = [self.node(application, shard, "datamarker") for shard in range(shards)]
        return [node["position"] if node else -2 for node in nodes]

    # Updates, and what became of them

    @contextlib.contextmanager
    def load(self, rows: int = 10, every: float = 0.03) -> Iterator[Callable[[], int]]:
        """Updates without an end, until the block is left; yields how many were accepted so far."""
        stop, count = threading.Event(), 0
        results: list[Future[Any]] = []

        def publish() -> None:
            nonlocal count
            with self.stream.producer(linger=0.005) as producer:
                while not stop.wait(every):
                    results.append(producer.publish_many(numbered(count, rows)))
                    count += rows

        thread = threading.Thread(target=publish, name="load", daemon=True)
        thread.start()
        try:
            yield lambda: count
        finally:
            stop.set()
            thread.join(timeout=30)
        assert not thread.is_alive()
        for result in results:
            result.result(timeout=10)

    def publish(self, first: int, count: int, **more: Any) -> None:
        """Some updates, durable when this returns."""
        with self.stream.producer() as producer:
            producer.publish_many(numbered(first, count, **more)).result(timeout=30)

    def published(self) -> pa.Table:
        """All that the log holds."""
        return held(self.stream.log)

    def file(self, id: str) -> Path:
        return self.folder / f"{id}.record"

    def record(self, *ids: str) -> invariants.Record:
        return invariants.read([self.file(id) for id in ids])

    def delivered(self, *ids: str) -> int:
        """How many different updates these recorders have between them."""
        return len(self.record(*ids).seen())

    def finish(self, *ids: str, published: pa.Table | None = None, timeout: float = 40.0, **options: Any) -> None:
        """Wait until these recorders have between them all that was published; then check all invariants."""
        table = self.published() if published is None else published
        passes = options.get("passes")
        rows = table.to_pylist() if passes else []
        for row in rows:
            row["attributes"] = dict(row["attributes"] or ())
        expected = sum(map(passes, rows)) if passes else len(table)

        def count() -> int:
            record = self.record(*ids)
            lost = {(e.shard, seq) for e in record.events("loss") for seq in range(e.numbers[0], e.numbers[1] + 1)}
            return len(record.seen() | lost)

        with contextlib.suppress(AssertionError):  # the check below says what is missing, and where
            eventually(lambda: count() >= expected, timeout=timeout, every=0.1)
        invariants.check(self.record(*ids), table, **options)


def numbered(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    """Updates of as many objects, which no two calls share if their numbers do not."""
    return [
        {"object": f"o-{n}", "version": n, "attributes": {"parity": "odd" if n % 2 else "even"}, **more}
        for n in range(first, first + count)
    ]


def stop(process: subprocess.Popen[bytes], sent: signal.Signals = signal.SIGKILL) -> None:
    """End a process, and wait for it."""
    os.kill(process.pid, sent)
    process.wait(timeout=30)
