"""Drivers of a service that are killed while updates and operations come: nobody misses anything."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.testing import eventually, held
from tidings.updates import from_rows, timed
from tidings_thialfi import rows as words
from tidings_thialfi.digests import Digest

from .stages import op, register, unregister

PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
PATIENCE = 240.0
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
    """Publishers, and clients that change their minds, until it is stopped."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.latest: dict[str, int] = {}
        self.wanted: dict[int, set[str]] = {client: set() for client in CLIENTS}
        self.drivers: list[subprocess.Popen[bytes]] = []
        self._number = 0
        self._operations = cluster.stream("s.operations").writable_log
        self._contacts = cluster.stream("contacts").writable_log
        self._stop = threading.Event()
        self._load = threading.Thread(target=self._publish, daemon=True)
        self._load.start()

    def driver(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "driver.log", "ab") as log:
            command = [*PROGRAM, "run", "--session-timeout", "4", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.drivers.append(process)
        return process

    def grows(self, by: int) -> None:
        target = self._told() + by
        eventually(lambda: self._told() >= target, timeout=PATIENCE, every=0.1)

    def stop(self) -> None:
        self._stop.set()
        self._load.join()

    def operate(self, rows: list[dict[str, Any]]) -> None:
        self._operations.append(timed(from_rows(rows)))

    def _told(self) -> int:
        return sum(one.head.seq + 1 for one in self.cluster.stream("s.notifications").log.bounds().values())

    def _publish(self) -> None:
        rng = random.Random(5)
        self.operate([op(client, words.CREATED) for client in CLIENTS])
        while not self._stop.wait(0.1):
            changed = rng.sample(NAMES, 6)
            for name in changed:
                self.latest[name] = self.latest.get(name, 0) + 1
            self._contacts.append(timed(from_rows({"object": name, "version": self.latest[name]} for name in changed)))
            client, name = rng.choice(CLIENTS), rng.choice(NAMES)
            self._number += 1
            if name in self.wanted[client]:
                self.wanted[client].discard(name)
                self.operate([unregister(client, name, self._number)])
            else:
                self.wanted[client].add(name)
                self.operate([register(client, name, self._number)])


@pytest.fixture
def world(zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", f"{zookeeper}/{uuid.uuid4()}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidings.yml").write_text(SPEC)
    assert main(["apply"]) == 0
    with connect(os.environ["TIDINGS_ZOOKEEPER"]) as cluster:
        own = World(cluster, tmp_path)
        yield own
        own.stop()
        for driver in own.drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


@pytest.mark.slow
def test_drivers_that_are_killed_leave_nobody_without_the_latest_version(world: World) -> None:
    rng = random.Random(11)
    for number in range(3):
        driver = world.driver()
        world.grows(by=rng.randrange(50, 300))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        if number == 1:
            shutil.rmtree(world.folder / "storage" / "pipelines" / "s" / "state" / "runs")
    world.stop()
    world.operate([op(client, words.ONLINE) for client in CLIENTS])
    assert world.driver("--once").wait(PATIENCE) == 0, (world.folder / "driver.log").read_text()

    heard: dict[tuple[int, str], int] = {}
    digests: dict[int, list[str]] = {}
    for row in held(world.cluster.stream("s.notifications").log).to_pylist(maps_as_pydicts="lossy"):
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
