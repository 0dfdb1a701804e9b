from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tidings
from tidings.cluster import Cluster
from tidings.errors import CoordinationUnavailable, LogMismatch, TidingsError
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.publisher.ownership import Member, Ownership, plan_ownership
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually

FLOWS = [Flow("cache", "orders", shard) for shard in range(3)]


def test_who_reads_the_preferred_replica_owns_the_flows() -> None:
    here = Member("p1", frozenset({"orders"}))
    east, west = (Member(name, frozenset({"orders"}), False, {"orders": rank}) for name, rank in (("p2", 1), ("p3", 2)))
    for present, owner in (([west, here, east], "p1"), ([west, east], "p2"), ([west], "p3")):
        assert set(plan_ownership(present, FLOWS).values()) == {owner}
    draining = Member("p1", frozenset({"orders"}), draining=True)
    assert set(plan_ownership([draining, west, east], FLOWS).values()) == {"p2"}
    pins = dict.fromkeys(FLOWS, "p3")
    assert set(plan_ownership([here, west], FLOWS, pins).values()) == {"p3"}, "an operator's word comes first"


def test_a_replica_has_a_name_and_a_log() -> None:
    with pytest.raises(TidingsError, match="is no log"):
        StreamDefinition("orders", 1, "delta:/a", replicas={"east": "nowhere"})
    with pytest.raises(TidingsError):
        StreamDefinition("orders", 1, "delta:/a", replicas={"e/st": "delta:/b"})
    known = StreamDefinition("orders", 1, "delta:/a", replicas={"east": "delta:/b"})
    assert StreamDefinition.from_json(known.to_json()) == known
    assert (known.at(None).log, known.at("east").log) == ("delta:/a", "delta:/b")


class Store:
    """A table in two copies. What is written to the one comes to the other when it is copied."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = folder / "a" / "shop" / "orders", folder / "b" / "shop" / "orders"
        self.count = 0
        self.write()
        self.copy()

    def write(self) -> None:
        self.count += 1
        rows = pa.table({"id": pa.array([self.count], pa.int64())})
        write_deltalake(
            self.primary,
            rows,
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"} if self.count == 1 else None,
        )

    def copy(self) -> None:
        shutil.copytree(self.primary, self.replica, dirs_exist_ok=True)


class Orders(tidings.Handler):
    def __init__(self) -> None:
        self.ids: list[int] = []

    def on_update(self, update: tidings.Update) -> None:
        self.ids.append(int(update.object.rpartition("/")[2]))


def owners(cluster: Cluster) -> set[str | None]:
    return {one.owner for one in status(cluster)}


def follow(cluster: Cluster, store: Store) -> None:
    cluster.create_stream(
        "orders",
        2,
        f"delta-cdf:{store.primary}",
        options={"key": ["id"], "object": "orders/{key}"},
        replicas={"east": f"delta-cdf:{store.replica}"},
    )
    cluster.create_application("cache", ["orders"], start="earliest")


def test_flows_go_to_the_replica_when_the_primary_is_gone_and_come_back(cluster: Cluster, tmp_path: Path) -> None:
    store, orders = Store(tmp_path), Orders()
    follow(cluster, store)

    def heard() -> bool:
        return sorted(set(orders.ids)) == list(range(1, store.count + 1))

    with (
        cluster.subscribe("cache", orders),
        cluster.publisher(name="p-east", replica="east", token_interval=0.2, patience=1.0),
    ):
        eventually(lambda: owners(cluster) == {"p-east"})
        eventually(heard)
        with cluster.publisher(name="p", token_interval=0.2, patience=1.0):
            eventually(lambda: owners(cluster) == {"p"}, timeout=30)
            for _ in range(3):
                store.write()
            eventually(heard)
            # The publisher is there, and its datastore is not.
            store.copy()
            hidden = store.primary.with_name("away")
            store.primary.rename(hidden)
            eventually(lambda: owners(cluster) == {"p-east"}, timeout=30)
            hidden.rename(store.primary)
            eventually(lambda: owners(cluster) == {"p"}, timeout=30)
            store.write()
            eventually(heard)
        # A replica that is not as far yet is waited for, and nothing is missed.
        eventually(lambda: owners(cluster) & {"p-east", None}, timeout=30)
        store.write()
        store.copy()
        eventually(heard, timeout=30)
    assert len(orders.ids) - len(set(orders.ids)) <= 4, "what came twice came around a move"


def test_flows_are_given_up_though_zookeeper_fails_just_then(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    follow(cluster, store)
    release = Ownership.release_many
    failed: list[Flow] = []

    def fails_at_first(self: Ownership, owned: Sequence[tuple[Flow, int]]) -> list[bool]:
        if owned and len(failed) < 3:
            failed.append(owned[0][0])
            raise CoordinationUnavailable("ZooKeeper does not answer")
        return release(self, owned)

    with cluster.subscribe("cache", Orders()), cluster.publisher(name="p", patience=0.5):
        eventually(lambda: owners(cluster) == {"p"})
        with cluster.publisher(name="p-east", replica="east"):
            monkeypatch.setattr(Ownership, "release_many", fails_at_first)
            store.primary.rename(store.primary.with_name("away"))
            eventually(lambda: owners(cluster) == {"p-east"}, timeout=30)
            assert len(failed) == 3


def test_a_publisher_at_a_replica_that_no_stream_has_says_so_when_it_starts(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follow(cluster, Store(tmp_path))
    cluster.create_stream("other", 1, f"delta:{tmp_path / 'other'}")

    def told(**options: Any) -> list[str]:
        caplog.clear()
        cluster.publisher(**options).close()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    ending = "so this publisher reads nothing until one has: correct the name, or add the replica by `tidings apply`"
    assert told(replica="esat") == [f"no stream has a replica 'esat' (replicas: east), {ending}"]
    assert told(replica="east", streams=["other"]) == [f"none of other has a replica 'east' (replicas: none), {ending}"]
    assert told(replica="east") == told() == []


def test_a_replica_is_one_of_the_same_datastore(cluster: Cluster, tmp_path: Path) -> None:
    store, other = Store(tmp_path), Store(tmp_path / "other")
    log, options = f"delta-cdf:{store.primary}", {"key": ["id"]}
    refused = rf"the table in {other.replica} has the id \S+, and stream 'orders' was read from "
    with pytest.raises(LogMismatch, match=refused):
        cluster.create_stream("orders", 2, log, options=options, replicas={"east": f"delta-cdf:{other.replica}"})
    with pytest.raises(LogMismatch, match="no other kind of log is a replica"):
        cluster.create_stream("orders", 2, log, options=options, replicas={"east": f"delta:{other.replica}"})
    assert cluster.streams() == []
    cluster.create_stream("orders", 2, log, options=options, replicas={"east": f"delta-cdf:{store.replica}"})
