"""The property that the service is for: once faults stop, every client knows the latest version of all it wants.

Clients, connections, gateways, the server stage and its state fail at random, by seed, while objects change and clients
change their minds.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.flows.proxy import Proxy

from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi import service

from .gateway_scene import Process
from .stack import Cache, Stack

SECONDS = 25.0
OBJECTS = [f"person-{number}" for number in range(10)]
CLIENTS = 4


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Trouble:
    """Two gateways, clients that reach them through a network that fails, and everything that may go wrong."""

    def __init__(self, stack: Stack, rng: random.Random, leaving: contextlib.ExitStack) -> None:
        self.stack, self.rng = stack, rng
        self.peers = stack.secret_file("peers", "a-secret-of-gateways")
        self.ports = [free_port(), free_port()]
        self.gateways: list[Process] = [self._gateway(number) for number in range(2)]
        self.proxies = [leaving.enter_context(Proxy(f"127.0.0.1:{port}")) for port in self.ports]
        self.caches = [Cache(stack.store) for _ in range(CLIENTS)]
        self.running: list[contextlib.ExitStack] = [contextlib.ExitStack() for _ in range(CLIENTS)]
        for number, cache in enumerate(self.caches):
            cache.wanted = set(rng.sample(OBJECTS, 4))
            leaving.push(lambda *_, number=number: self.running[number].close())
            self._start(number)

    def _gateway(self, number: int) -> Process:
        options = ("--listen", f"127.0.0.1:{self.ports[number]}", "--peer-secret", str(self.peers), "--resend", "2")
        return self.stack.gateway(f"g{number}-{self.rng.randrange(10**9)}", *options)

    def _start(self, number: int) -> None:
        address = f"ws://{self.proxies[number % 2].address}"
        self.running[number] = contextlib.ExitStack()
        self.running[number].enter_context(self.stack.cached(address, f"web-{number}", self.caches[number]))

    # What happens

    def change(self) -> None:
        self.stack.store.change(self.rng.choice(OBJECTS))

    def change_minds(self) -> None:
        cache, name = self.rng.choice(self.caches), self.rng.choice(OBJECTS)
        assert cache.client is not None
        if name in cache.wanted:
            cache.wanted.discard(name)
            cache.versions.pop(name, None)
            cache.client.unregister(name)
        else:
            cache.wanted.add(name)
            cache.client.register(name)

    def cut(self) -> None:
        proxy = self.rng.choice(self.proxies)
        proxy.cut()
        proxy.heal()

    def freeze(self) -> None:
        proxy = self.rng.choice(self.proxies)
        proxy.freeze()
        time.sleep(self.rng.random())
        proxy.heal()

    def kill_gateway(self) -> None:
        number = self.rng.randrange(2)
        self.gateways[number].end(signal.SIGKILL)
        self.gateways[number] = self._gateway(number)

    def restart_client(self) -> None:
        number = self.rng.randrange(CLIENTS)
        self.running[number].close()
        if self.rng.random() < 0.3:
            self.caches[number].state = None  # its storage is gone, too
        self._start(number)

    def restart_stage(self) -> None:
        self.stack.stop_stage()
        self.stack.start_stage()

    def drop_state(self) -> None:
        self.stack.stop_stage()
        self.stack.service = service.drop_state(self.stack.cluster, self.stack.service.name)
        self.stack.start_stage()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_once_faults_stop_every_client_knows_the_latest_version_of_all_it_wants(
    cluster: Cluster, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    stack = Stack(cluster, tmp_path, spark)
    with contextlib.ExitStack() as leaving:
        leaving.callback(stack.close)
        trouble = Trouble(stack, rng, leaving)
        rare = [trouble.kill_gateway, trouble.restart_client, trouble.restart_stage, trouble.drop_state]
        common = [trouble.cut, trouble.freeze, trouble.change_minds, trouble.change_minds]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for _ in range(rng.randrange(1, 8)):
                trouble.change()
            rng.choice(rare if rng.random() < 0.2 else common)()
        for name in OBJECTS:
            stack.store.change(name)
        stale = lambda: [(n, one.versions, one.wanted) for n, one in enumerate(trouble.caches) if not one.fresh()]  # noqa: E731
        with contextlib.suppress(AssertionError):
            eventually(lambda: not stale(), 90)
        assert stale() == [], stack.store.versions
