"""Steps that the tests of snapshots on demand share, whatever the datastore is."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import pytest

from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.publisher import snapshot_taker
from tidings.snapshot_requests import SnapshotRequest, read_request
from tidings.snapshots import plan_snapshot, request_snapshot
from tidings.testing import eventually
from tidings.updates import Update
from tidings_connectors.cdc.demanded_snapshot import DemandedSnapshot

KEYS = 400


class Table(Protocol):
    """A table with the columns `id` and `name`, in a datastore."""

    def put(self, key: int, name: str) -> None:
        """Insert or update a row."""

    def delete(self, key: int) -> None: ...

    def rows(self) -> dict[str, Any]:
        """The rows as they are now, by the names of their objects."""


class Store(Copy):
    """A copy of rows that looks at what it gets: no version of an object, and no position, goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[Update] = []

    def on_update(self, update: Update) -> None:
        super().on_update(update)
        self.updates.append(update)

    def empty(self) -> None:
        """Lose all rows."""
        self.rows = {}

    @property
    def operations(self) -> Counter[str]:
        return Counter((update.attributes or {})["operation"] for update in self.updates)

    def check_order(self) -> None:
        for shard in {update.shard for update in self.updates}:
            places = [update.position for update in self.updates if update.shard == shard]
            assert places == sorted(set(places))
        versions: dict[str, int] = {}
        for update in self.updates:
            assert update.version is not None
            assert versions.get(update.object, -1) <= update.version
            versions[update.object] = update.version


@contextlib.contextmanager
def changing(table: Table, seed: int) -> Iterator[None]:
    """Change rows at random, until this is left; some at least."""
    random_, over, count = random.Random(seed), threading.Event(), [0]

    def change() -> None:
        while not over.wait(0.03):  # so that others come to read what changes
            key = random_.randrange(KEYS)
            if random_.random() < 0.4:
                table.delete(key)
            else:
                table.put(key, f"{count[0]}")
            count[0] += 1

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
        seen = count[0]
        eventually(lambda: count[0] > seen + 3)
    finally:
        over.set()
        thread.join()


def heard(table: Table, *stores: Store) -> bool:
    """Whether these get what changes by now; something does."""
    table.put(KEYS + 1, str(time.monotonic()))
    return all(store.rows for store in stores)


def ask(cluster: Cluster, stream: str, applications: Sequence[str], tables: Sequence[str] = ()) -> SnapshotRequest:
    """Ask for a snapshot."""
    return request_snapshot(cluster, plan_snapshot(cluster, stream, applications, tables))


def placed(cluster: Cluster, stream: str) -> bool:
    """Whether it is known where the rows stand of the snapshot that runs."""
    known = read_request(cluster.coordination, stream)
    return known is not None and known.state == "placed"


def ended(cluster: Cluster, stream: str, timeout: float = 60) -> SnapshotRequest:
    """The newest request of a stream, when it has ended."""

    def found() -> bool:
        known = read_request(cluster.coordination, stream)
        return known is not None and known.ended is not None

    eventually(found, timeout=timeout)
    known = read_request(cluster.coordination, stream)
    assert known is not None
    return known


def a_lost_store_is_filled_while_rows_change(
    cluster: Cluster, stream: str, table: Table, seed: int = 7, trouble: Callable[[], object] | None = None
) -> tuple[Store, Store]:
    """The store of one of two applications is lost, and filled by a snapshot, while rows change; with some trouble."""
    other, cache = Store(), Store()
    for name in ("other", "cache"):
        cluster.create_application(name, [stream], start="latest")
    with (
        cluster.publisher(token_interval=0.2),
        cluster.subscribe("other", other),
        cluster.subscribe("cache", cache),
    ):
        eventually(lambda: heard(table, other, cache))
        with changing(table, seed):
            eventually(lambda: len(cache.updates) > 5)
            cache.empty()
            ask(cluster, stream, ["cache"])
            if trouble is not None:
                trouble()
            assert ended(cluster, stream).ended == "complete"
        eventually(lambda: cache.rows == table.rows())
        table.put(KEYS + 2, "last")
        eventually(lambda: cache.rows == table.rows() and other.operations.total() > 0)
        eventually(lambda: other.updates[-1].object == cache.updates[-1].object)
    assert other.operations["snapshot"] == 0
    assert cache.operations["snapshot"] > 0
    assert not cache.lost
    assert not other.lost
    other.check_order()
    return other, cache


class Gate(NamedTuple):
    """Holds back who reads the tables of a snapshot on demand, when it has begun."""

    begun: threading.Event
    open: threading.Event
    reading: list[DemandedSnapshot]

    def wait_until_placed(self, cluster: Cluster, stream: str) -> None:
        """Wait until it is known where the rows stand."""
        assert self.begun.wait(60)
        eventually(lambda: placed(cluster, stream))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers look more often."""
    monkeypatch.setattr(snapshot_taker, "FOLLOW_INTERVAL_S", 0.1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Snapshots on demand, in this process, have their place, and read no table until the gate is open."""
    gate, read = Gate(threading.Event(), threading.Event(), []), DemandedSnapshot._read

    def read_later(self: DemandedSnapshot, *given: Any) -> None:
        gate.reading.append(self)
        gate.begun.set()
        assert gate.open.wait(60)
        read(self, *given)

    monkeypatch.setattr(DemandedSnapshot, "_read", read_later)
    return gate
