"""All of Thialfi at once: clients, a gateway in a process of its own, the stage in Spark, and updates."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.client import Client
from tidings_thialfi.client_core import Pace
from tidings_thialfi.service import create, drop_state

from .gateway_scene import SERVICE, Process, Scene, scene_of
from .test_client import Notes

OPTIONS = ("--resend", "2", "--heartbeat", "3", "--offline-after", "10")
PATIENCE = 90.0
PACE = Pace(first_retry=0.1, most_retry=2, settle=0.5, resume=5)


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path, shards=2) as own:
        yield own


@pytest.mark.slow
def test_clients_always_learn_the_latest_version_in_the_end(
    spark: SparkSession, cluster: Cluster, scene: Scene, tmp_path: Path
) -> None:
    people = cluster.create_stream("people", shards=2)
    service = create(cluster, SERVICE, ["people"], storage=tmp_path / "storage", shards=2)
    gateway = scene.gateway("g1", *OPTIONS)
    web, phone = Notes(), Notes()
    with (
        people.producer(linger=0.0) as updates,
        service.open(cluster).start(spark) as run,
        Client(gateway.url, "web", web, pace=PACE) as first,
        Client(gateway.url, "phone", phone, polling=True, pace=PACE) as second,
    ):
        # An object without a version, one that changes, one whose change a client made itself.
        first.register_many(["alice", "bob"])
        second.register("alice")
        eventually(lambda: ("unknown", "alice") in web.told and ("unknown", "alice") in phone.told, PATIENCE)
        updates.publish("alice", 5, payload=b"five")
        eventually(lambda: ("notify", "alice", 5) in web.told and ("notify", "alice", 5) in phone.told, PATIENCE)
        updates.publish("alice", 6, source="web")
        eventually(lambda: ("notify", "alice", 6) in phone.told, PATIENCE)
        assert ("notify", "alice", 6) not in web.told

        # The gateway dies, and another takes its place.
        port = gateway.url.rpartition(":")[2]
        gateway.end(signal.SIGKILL)
        updates.publish("bob", 1)
        scene._gateways.append(Process(scene, "g2", *OPTIONS, "--listen", f"127.0.0.1:{port}"))
        first.register("carol")
        eventually(lambda: {("notify", "bob", 1), ("status", "carol", True)} <= set(web.told), PATIENCE)

        # The service loses everything it knows of its clients.
        web.told.clear()
        run.stop()
        drop_state(cluster, SERVICE)
        updates.publish("bob", 2)
        with service.open(cluster).start(spark):
            eventually(lambda: ("notify", "bob", 2) in web.told, PATIENCE)
            updates.publish("carol", 1)
            eventually(lambda: ("notify", "carol", 1) in web.told, PATIENCE)
            first.stop()

            # A client that starts again with its state hears of what it missed.
            updates.publish("carol", 2)
            again = Notes()
            third = Client(gateway.url, "web", again, pace=PACE)
            third.start(web.state)
            third.register_many([("alice", 6), ("bob", 2), ("carol", 1)])
            eventually(lambda: ("notify", "carol", 2) in again.told, PATIENCE)
            third.stop()
            assert ("notify", "bob", 2) not in again.told
