"""The property that the service is for: once faults stop, every client knows the latest version of all it wants.

Clients, connections, gateways, the driver of the server stage and its state fail at random, by seed, while objects
change and clients change their minds.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.drivers import PATIENCE, Driver, Drivers, Load, grows, kill
from tests.support.gateway_scene import SERVICE, Process
from tests.support.proxy import Proxy
from tests.support.thialfi_stack import Cache, Stack
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi import service
from tidings_thialfi.client.pace import Pace

SPEC = f"""
pipelines:
  {SERVICE}:
    input: [people, {SERVICE}.operations]
    stage: thialfi
    options: {{service: {SERVICE}}}
    output: {SERVICE}.notifications
"""
OBJECTS = [f"person-{number}" for number in range(10)]
CLIENTS = 4
PACE = Pace(most_retry=5.0, resume=5.0)  # a client tries less and less often; here it is not to take minutes


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
        client = self.stack.cached(address, f"web-{number}", self.caches[number], pace=PACE)
        self.running[number].enter_context(client)

    # What goes wrong

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

    def happen(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            self.change()
        common = [self.cut, self.freeze, self.change_minds, self.change_minds]
        rare = [self.kill_gateway, self.restart_client]
        self.rng.choice(rare if self.rng.random() < 0.07 else common)()

    def stale(self) -> list[tuple[int, dict[str, int], set[str]]]:
        """The clients that do not have the latest version of all they want: what they have, and what they want."""
        return [(n, one.versions, one.wanted) for n, one in enumerate(self.caches) if not one.fresh()]


def start(drivers: Drivers, cluster: Cluster) -> Driver:
    """A driver that has the service's pipeline to itself, and is about to run it."""
    driver = drivers.start()

    def has_it() -> bool:
        assert driver.poll() is None, drivers.log.read_text()
        holder = cluster.coordination.read("pipelines", SERVICE)
        return holder is not None and holder["pid"] == driver.pid

    eventually(has_it, PATIENCE, every=0.1)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_once_faults_stop_every_client_knows_the_latest_version_of_all_it_wants(
    cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(f"ends {seed}")
    ends = [signal.SIGKILL, rng.choice([signal.SIGKILL, signal.SIGTERM])]  # few: a driver takes long to start
    rng.shuffle(ends)
    drops = rng.randrange(3)  # after which of them the state is dropped; after none, if it is 2
    (tmp_path / "tidings.yml").write_text(SPEC)
    stack, drivers = Stack(cluster, tmp_path), Drivers(cluster, tmp_path)
    with contextlib.ExitStack() as leaving:
        leaving.callback(stack.close)
        leaving.callback(drivers.close)
        trouble = Trouble(stack, random.Random(seed), leaving)
        load = Load(trouble.happen, every=0.25)
        leaving.callback(load.stop)
        for number, sent in enumerate(ends):
            driver = start(drivers, cluster)
            for _ in range(rng.randrange(4)):
                grows(stack.notifications, by=1)
            time.sleep(rng.choice((0.0, rng.random())))  # anywhere in a batch
            if sent == signal.SIGKILL:
                kill(driver)
            else:
                driver.send_signal(sent)
                assert driver.wait(PATIENCE) == 128 + sent, drivers.log.read_text()
            if number == drops:
                eventually(lambda: cluster.coordination.read("pipelines", SERVICE) is None)
                service.drop_state(cluster, SERVICE)
        driver = start(drivers, cluster)
        grows(stack.notifications, by=1)
        load.stop()
        for name in OBJECTS:
            stack.store.change(name)
        with contextlib.suppress(AssertionError):
            eventually(lambda: not trouble.stale(), 90)
        assert trouble.stale() == [], stack.store.versions
        assert driver.poll() is None, drivers.log.read_text()
