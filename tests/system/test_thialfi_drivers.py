"""Drivers of a service that are killed while updates and operations come: nobody misses anything."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.drivers import Drivers, Load, applied, grows, kill
from tests.support.thialfi_stage import op, register, unregister
from tidings.cluster import Cluster
from tidings.testing import held
from tidings.updates import from_rows, timed
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest

SPEC = """
streams:
  contacts: {shards: 2, log: delta:data/contacts}
  s.operations: {shards: 2, log: delta:data/operations}
  s.notifications: {shards: 2, log: delta:data/notifications}
pipelines:
  s: {input: [contacts, s.operations], stage: thialfi, options: {service: s}, output: s.notifications}
"""
CLIENTS = range(1, 9)
NAMES = [f"object-{number}" for number in range(30)]


class World:
    """The project above, publishers, clients that change their minds all the time, and drivers."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.notifications = cluster.stream("s.notifications")
        self.latest: dict[str, int] = {}
        self.wanted: dict[int, set[str]] = {client: set() for client in CLIENTS}
        self.drivers = Drivers(cluster, folder)
        self._rng = random.Random(5)
        self._numbers = itertools.count(1)
        self._operations = cluster.stream("s.operations").writable_log
        self._contacts = cluster.stream("contacts").writable_log
        self.operate([op(client, stream_schema.CREATED) for client in CLIENTS])
        self.load = Load(self._change, every=0.1)

    def operate(self, rows: list[dict[str, Any]]) -> None:
        self._operations.append(timed(from_rows(rows)))

    def close(self) -> None:
        self.drivers.close()
        self.load.stop()

    def _change(self) -> None:
        changed = self._rng.sample(NAMES, 6)
        for name in changed:
            self.latest[name] = self.latest.get(name, 0) + 1
        self._contacts.append(timed(from_rows({"object": name, "version": self.latest[name]} for name in changed)))
        client, name = self._rng.choice(CLIENTS), self._rng.choice(NAMES)
        if name in self.wanted[client]:
            self.wanted[client].discard(name)
            self.operate([unregister(client, name, next(self._numbers))])
        else:
            self.wanted[client].add(name)
            self.operate([register(client, name, next(self._numbers))])


@pytest.fixture
def world(zookeeper: str, tmp_path: Path) -> Iterator[World]:
    with applied(SPEC, zookeeper, tmp_path) as cluster, contextlib.closing(World(cluster, tmp_path)) as own:
        yield own


@pytest.mark.slow
def test_drivers_that_are_killed_leave_nobody_without_the_latest_version(world: World, tmp_path: Path) -> None:
    rng = random.Random(11)
    for number in range(3):
        driver = world.drivers.start()
        grows(world.notifications, by=rng.randrange(50, 300))
        kill(driver)
        if number == 1:
            shutil.rmtree(tmp_path / "storage" / "pipelines" / "s" / "state" / "runs")
    world.load.stop()
    world.operate([op(client, stream_schema.ONLINE) for client in CLIENTS])
    world.drivers.finish()

    heard: dict[tuple[int, str], int] = {}
    digests: dict[int, list[str]] = {}
    for row in held(world.notifications.log).to_pylist(maps_as_pydicts="lossy"):
        client, said = int(row["object"]), row["attributes"]
        assert said["say"] != "invalid"
        if said["say"] == "notify":
            assert row["version"] <= world.latest[said["object"]]
            pair = (client, said["object"])
            assert row["version"] >= heard.get(pair, 0), "versions never go back"
            heard[pair] = row["version"]
        if said["say"] == "digest":
            digests[client] = [said["count"], said["sum"]]
    for client, names in world.wanted.items():
        assert digests[client] == Digest.of(client, names).to_json()
        for name in names & world.latest.keys():
            assert heard[client, name] == world.latest[name]
