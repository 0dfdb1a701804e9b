"""Very many flows and subscribers: how soon all are open, what they cost while idle, and how soon they fail over.

Two publishers, and the subscribers in a few processes, each subscriber with a session of its own. Beside each figure
stands what was measured before the work that this benchmark was made for, with 5,000 flows, or with 200 subscribers.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc._common

import tidings
from bench.processes import SPAWN, publish
from bench.report import Row, less_is_better
from tidings.flow_status import status
from tidings.updates import shard_of

SESSION_S = 6.0
IDLE_S = 20.0
SWITCH_S = 0.1
LONERS = 4  # subscribers that are processes of their own, whose cost is measured
LONGEST_S = 240.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BEFORE, BEFORE_CROWD = "before, 5,000 flows", "before, 200 subscribers"
CAPTION = "aims: open 10 s, failover 3 s, an idle publisher 5 %, an idle subscriber 1 %"


class Newest(tidings.Handler):
    """Notes the newest version of each flow."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}

    def on_update(self, update: tidings.Update) -> None:
        self.versions[update.shard] = update.version or 0


def subscribe_many(address: str, applications: Sequence[str], asked: Connection) -> None:
    """One subscriber of each of these applications; tells how many flows are open, and how many have a version."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(applications) > 1:
        share_an_interpreter()
    with contextlib.ExitStack() as running_here:
        subscribers, handlers = [], []
        for application in applications:
            cluster = running_here.enter_context(tidings.connect(address))
            handlers.append(Newest())
            subscribers.append(running_here.enter_context(cluster.subscribe(application, handlers[-1])))
        asked.send(None)
        while (wanted := asked.recv()) is not None:
            versions = [version for one in handlers for version in list(one.versions.values())]
            opened = sum(len(one.held) for one in subscribers)
            asked.send((opened, sum(version >= wanted for version in versions)))
        os._exit(0)  # nobody waits until hundreds of flows have been given away


def share_an_interpreter() -> None:
    """Have a thousand threads wait patiently. In life each subscriber is a process, on a machine with cores to spare.

    Those that wait for the interpreter ask for it less often, and gRPC, whose threads look ten times a second whether
    they have missed a signal, lets them sleep.
    """
    sys.setswitchinterval(SWITCH_S)
    grpc._common.MAXIMUM_WAIT_TIMEOUT = SWITCH_S * 100


class Crowd:
    """The subscribers: some in processes of their own, as in life, and the rest in a few."""

    def __init__(self, address: str, applications: Sequence[str], processes: int) -> None:
        shared = applications[LONERS:]
        groups = [[one] for one in applications[:LONERS]] + [shared[number::processes] for number in range(processes)]
        self._lines = []
        self.processes = []
        for mine in groups:
            ours, theirs = SPAWN.Pipe()
            self.processes.append(SPAWN.Process(target=subscribe_many, args=(address, mine, theirs), daemon=True))
            self.processes[-1].start()
            self._lines.append(ours)
        for line in self._lines:
            line.recv()

    def opened(self) -> int:
        """How many flows are open."""
        return sum(opened for opened, _ in self._ask(0))

    def reached(self, version: int) -> int:
        """How many flows have had an update of this version."""
        return sum(reached for _, reached in self._ask(version))

    def lone_seconds(self) -> float:
        """The time of a core that one which is a process of its own has had."""
        return sum(cpu_seconds(one.pid) for one in self.processes[:LONERS]) / LONERS

    def end(self) -> None:
        for line in self._lines:
            line.send(None)
        for process in self.processes:
            process.join()

    def _ask(self, version: int) -> list[tuple[int, int]]:
        for line in self._lines:
            line.send(version)
        return [line.recv() for line in self._lines]


def cpu_seconds(pid: int | None) -> float:
    """The time that a process has had of a core."""
    with open(f"/proc/{pid}/stat") as told:
        fields = told.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def requests(cluster: tidings.Cluster) -> int:
    """How many packets ZooKeeper has received, heartbeats of sessions among them."""
    host, port = cluster.coordination.hosts.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as asking:
        asking.sendall(b"srvr")
        told = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
    found = re.search(r"Received: (\d+)", told)
    assert found, told
    return int(found[1])


def until(condition: Callable[[], bool], what: str) -> float:
    """The moment at which it holds."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LONGEST_S:g} s: {what}")
        time.sleep(0.2)  # asking takes its time, too
    return time.monotonic()


def one_a_shard(shards: int) -> list[str]:
    """An object of each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < shards:
        found.setdefault(shard_of(f"object-{number}", shards), f"object-{number}")
        number += 1
    return list(found.values())


@contextlib.contextmanager
def publisher(cluster: tidings.Cluster, name: str) -> Iterator[Any]:
    options = {"session_timeout": SESSION_S, "name": name}
    never = SPAWN.Event()  # which a process that is killed waits for cannot be set
    process = SPAWN.Process(target=publish, args=(cluster.address, options, never))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def run(quick: bool) -> list[Row]:
    applications, shards, subscribers, processes = (4, 100, 20, 2) if quick else (10, 1_000, 500, 4)
    flows = applications * shards
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [f"application-{number}" for number in range(applications)]
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("bench", shards=shards)
        for name in names:
            cluster.create_application(name, ["bench"], start="earliest")
        crowd = Crowd(cluster.address, [names[number % applications] for number in range(subscribers)], processes)
        try:
            return measure(cluster, stream, crowd, flows, subscribers)
        finally:
            crowd.end()


def measure(cluster: tidings.Cluster, stream: tidings.Stream, crowd: Crowd, flows: int, subscribers: int) -> list[Row]:
    objects = one_a_shard(stream.shards)

    def update(producer: tidings.Producer, version: int) -> float:
        """Seconds until an update of each shard has reached all."""
        begun = time.monotonic()
        for future in [producer.publish(one, version) for one in objects]:
            future.result()
        return until(lambda: crowd.reached(version) == flows, f"version {version} has reached all") - begun

    begun, asked = time.monotonic(), requests(cluster)
    with stream.producer() as producer, contextlib.ExitStack() as rest:
        first = rest.enter_context(publisher(cluster, "a"))
        opened = until(lambda: crowd.opened() == flows, "all flows are open") - begun
        to_open = requests(cluster) - asked
        alone = update(producer, 1)
        second = rest.enter_context(publisher(cluster, "b"))
        until(lambda: min(owned(cluster, "a"), owned(cluster, "b")) > flows / 4, "the second has its share")
        until(lambda: crowd.opened() == flows, "all flows are open again")
        reached = update(producer, 2)
        time.sleep(12)  # all markers are written, and all loads were looked at
        busy = [cpu_seconds(one.pid) for one in (first, second)]
        busy_loner = crowd.lone_seconds()
        asked, since = requests(cluster), time.monotonic()
        time.sleep(IDLE_S)
        lasted = time.monotonic() - since
        idle_requests = (requests(cluster) - asked) / lasted
        idle = [(cpu_seconds(one.pid) - was) / lasted for one, was in zip((first, second), busy, strict=True)]
        idle_loner = (crowd.lone_seconds() - busy_loner) / lasted
        since = time.monotonic()
        listed = status(cluster)
        listing = time.monotonic() - since
        assert len(listed) == flows
        asked = requests(cluster)
        os.kill(first.pid or 0, signal.SIGKILL)
        failed = update(producer, 3)
        failover_requests = requests(cluster) - asked
    size = f"{flows:,} flows, {subscribers:,} subscribers"
    return [
        less_is_better(f"{size}: publisher's start to all open", opened, "s", BEFORE, 29.0),
        Row("the same, requests to ZooKeeper a flow", to_open / flows, ""),
        less_is_better("kill -9 to all delivered again, beyond the session", failed - SESSION_S, "s", BEFORE, 22.0),
        Row("the same, requests to ZooKeeper a flow that moves", failover_requests / (flows / 2), ""),
        less_is_better("an idle publisher, with half of the flows", 100 * max(idle), "% of a core", BEFORE, 40.0),
        Row("an idle subscriber, with its share of the flows", 100 * idle_loner, "% of a core"),
        less_is_better("requests to ZooKeeper, all idle", idle_requests, "1/s", BEFORE_CROWD, 1060.0),
        less_is_better("one update a shard to all, one publisher", alone, "s", BEFORE_CROWD, 12.0),
        less_is_better("one update a shard to all, two publishers", reached, "s", BEFORE_CROWD, 12.0),
        less_is_better("how all flows stand, as `flows list` reads it", listing, "s", "before, 532 flows", 5.6),
    ]


def owned(cluster: tidings.Cluster, name: str) -> int:
    """How many flows a publisher owns."""
    return sum(one.owner == name for one in status(cluster))
