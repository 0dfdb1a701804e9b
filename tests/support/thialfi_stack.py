"""A whole service: a back end, the server stage in Spark, a publisher, gateways in processes, and real clients.

`Cache` is what an application keeps fresh with a client: for each object, the version that it has last fetched.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.gateway_scene import Scene
from tidings.cluster import Cluster
from tidings.pipelines.query import PipelineRun
from tidings_thialfi.client.listener import Listener
from tidings_thialfi.client.sync import Client


class Store:
    """The back end's own store: the truth. Every change is published, with the version that it made."""

    def __init__(self, stack: Stack) -> None:
        self._producer = stack.leaving.enter_context(stack.people.producer(linger=0.005))
        self._lock = threading.Lock()
        self.versions: dict[str, int] = {}

    def change(self, name: str, source: str | None = None) -> int:
        """Change an object; its new version, published durably."""
        with self._lock:
            version = self.versions[name] = self.versions.get(name, 0) + 1
            future = self._producer.publish(name, version, source=source)
        future.result(20)
        return version


class Cache(Listener):
    """Keeps the versions of objects, by notifications and by fetching what it is told to fetch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.versions: dict[str, int] = {}
        self.notified: list[tuple[str, int | None]] = []
        self.wanted: set[str] = set()
        self.state: bytes | None = None
        self.client: Client | None = None

    def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
        self.notified.append((object, version))
        self.versions[object] = max(version, self.versions.get(object, 0))

    def notify_unknown(self, object: str) -> None:
        self.notified.append((object, None))
        self.versions[object] = self._store.versions.get(object, 0)

    def notify_all(self) -> None:
        for name in self.wanted:
            self.notify_unknown(name)

    def reissue_registrations(self) -> None:
        if self.client is not None:
            self.client.register_many(sorted(self.wanted))

    def write_state(self, state: bytes) -> None:
        self.state = state

    def fresh(self) -> bool:
        """Whether it has the latest version of all that it wants."""
        return all(self.versions.get(name, 0) == self._store.versions.get(name, 0) for name in self.wanted)


class Stack(Scene):
    """A scene in which the server stage does what it does: in this Spark session, or else in a driver of the test's."""

    def __init__(self, cluster: Cluster, folder: Path, spark: SparkSession | None = None) -> None:
        super().__init__(cluster, folder)
        self.leaving = contextlib.ExitStack()
        self.run: PipelineRun | None = None
        self.store = Store(self)
        self._spark = spark
        if spark is not None:
            self.start_stage()

    def start_stage(self) -> None:
        assert self._spark is not None
        self.run = self.service.open(self.cluster).start(self._spark)

    def stop_stage(self) -> None:
        if self.run is not None:
            self.run.stop()
            self.run = None

    def caught_up(self) -> bool:
        """Whether the stage has seen all that was published."""
        return self.run is not None and self.run.progress.total_lag == 0

    @contextlib.contextmanager
    def cached(self, address: str, application: str, cache: Cache, **options: Any) -> Iterator[Client]:
        """A client that keeps a cache fresh, started where it was left."""
        client = Client(address, application, cache, **options)
        cache.client = client
        client.start(cache.state)
        try:
            yield client
        finally:
            client.stop()
            cache.client = None

    def close(self) -> None:
        self.leaving.close()
        self.stop_stage()
        super().close()
