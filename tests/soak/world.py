"""The world of a soak: servers, and processes that are started, watched and ended; each a real one.

```
producer-1, producer-2 ─▶ contacts ─┬─▶ publishers ─▶ cache-1, cache-2
                                    ├─▶ driver-of-evens ─▶ evens ─▶ publishers ─▶ evens-1
                                    └─▶ driver-of-soak ─▶ publishers ─▶ gateway-1, gateway-2 ─▶ clients
postgres-writer ─▶ PostgreSQL ─┬─▶ publishers ─▶ shop-1, shop-2
mariadb-writer ──▶ MariaDB ────┘
```

Publishers, subscribers, gateways and drivers reach ZooKeeper, publishers the databases, subscribers the publishers, and
some of the clients and the other gateway a gateway, each through a proxy that can be cut. Streams are on a disk of
their own, if there can be one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak import bodies, clocks, committing
from tests.soak.history import Audience
from tests.soak.members import Member
from tests.support import mysql_install, mysql_server, postgres_server, power_loss
from tests.support.commands import PROGRAM
from tests.support.drivers import HASTY
from tests.support.places import ROOT
from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper
from tidings_thialfi import service

SHARDS = 4
PRODUCERS = ("producer-1", "producer-2")
OBJECTS = 60  # of each producer
SERVICE = "soak"
SESSION = ("--session-timeout", "4")
DISK_BYTES = 2**30
DISK_BYTES_A_MINUTE = 2**29
DATABASES, SPARK = PARTS = ("databases", "spark")

PIPELINES = f"""
storage: {{storage}}
pipelines:
  evens: {{{{input: contacts, stage: filter, options: {{{{filter: parity = even}}}}, output: evens}}}}
  {SERVICE}:
    input: [contacts, {SERVICE}.operations]
    stage: thialfi
    options: {{{{service: {SERVICE}}}}}
    output: {SERVICE}.notifications
"""

DROPS, LIES, LEAKS, DEAF = SABOTAGE = ("drops", "lies", "leaks", "deaf")
"""Faults that are built in on purpose, which the soak must find."""


@dataclass(frozen=True)
class Shape:
    """What of the world there is."""

    seed: int
    minutes: float
    clients: int = 240
    without: frozenset[str] = frozenset()
    sabotage: frozenset[str] = frozenset()


class World:
    """Made by `world`. The members have not been started yet."""

    def __init__(self, shape: Shape, folder: Path, leaving: contextlib.ExitStack) -> None:
        self.shape = shape
        self.folder = folder
        self._leaving = leaving
        self.members: dict[str, Member] = {}
        self.proxies: dict[str, Proxy] = {}
        self.audiences: list[Audience] = []
        self.left_out: dict[str, str] = {}
        """Faults that cannot be had here, and why."""
        self.databases: dict[str, postgres_server.PostgresServer | mysql_server.Server] = {}
        self.disk = self._disk()
        self.clocks = self._clocks()
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        self.zookeeper.start()
        leaving.callback(self.zookeeper.stop)
        # A session that outlives a ZooKeeper that is away for a while.
        coordination = Coordination(f"{self.zookeeper.address}/soak", session_timeout=60)
        self.cluster = leaving.enter_context(Cluster(coordination, logs=f"delta:{self.streams}/streams"))
        self._streams_and_subscribers()
        if DATABASES not in shape.without:
            self._postgres()
            self._mariadb()
            self._application("shop", ["postgres", "mariadb"], subscribers=2)
        if SPARK not in shape.without:
            self._pipelines()
            self._gateways_and_clients()
        for name in ("publisher-1", "publisher-2"):
            self._publisher(name)

    @property
    def streams(self) -> Path:
        """The folder of all that the product keeps of streams and pipelines."""
        return self.disk.folder if self.disk else self.folder

    @property
    def clients_of(self) -> str | None:
        """The stream of whose objects clients are told, if there are clients."""
        return None if SPARK in self.shape.without else "contacts"

    @property
    def writers(self) -> list[Member]:
        return [one for name, one in self.members.items() if name.startswith("producer") or name.endswith("writer")]

    @property
    def journals(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))

    def subscribers(self, application: str) -> list[Member]:
        return [one for name, one in self.members.items() if name.rpartition("-")[0] == application]

    def start_drivers(self) -> None:
        """Start what takes longest, and what it needs to have something to do."""
        for name, member in self.members.items():
            if name.startswith(("driver", "producer")):
                member.start()

    def drivers_work(self) -> bool:
        """Whether the pipeline has written something, if there is one."""
        if SPARK in self.shape.without:
            return True
        return not all(bounds.empty for bounds in self.cluster.stream("evens").log.bounds().values())

    def start(self) -> None:
        for member in self.members.values():
            member.start()

    def revive(self) -> None:
        for member in self.members.values():
            member.revive()

    # What it is made of

    def _disk(self) -> power_loss.Disk | None:
        if (lacking := power_loss.missing()) is not None:
            self.left_out["disk"] = lacking
            return None
        size = DISK_BYTES + int(DISK_BYTES_A_MINUTE * self.shape.minutes)
        return self._leaving.enter_context(power_loss.disk(self.folder, size))

    def _clocks(self) -> clocks.Clocks | None:
        if (lacking := clocks.missing()) is not None:
            self.left_out["clock"] = lacking
            return None
        return clocks.Clocks(self.folder)

    def _streams_and_subscribers(self) -> None:
        self.cluster.create_stream("contacts", SHARDS)
        lying = ["--lie-every", "50"] if LIES in self.shape.sabotage else []
        for name in PRODUCERS:
            more = ["--objects", str(OBJECTS), *lying]
            self._writer(name, "producing", self.zookeeper.address + "/soak", "contacts", name, more=more)
        self._application("cache", ["contacts"], subscribers=2, drops=DROPS in self.shape.sabotage)

    def _postgres(self) -> None:
        server = postgres_server.PostgresServer()
        self._leaving.callback(server.close)
        database = server.database()
        database.execute(committing.TABLE.format(text=committing.TEXTS["postgres"]))
        self.databases["postgres"] = server
        proxy = self._proxy("publishers to postgres", f"127.0.0.1:{server.port}")
        address = f"postgres:postgresql://{postgres_server.ADMIN}@{proxy.address}/{database.name}"
        self.cluster.create_stream("postgres", SHARDS, address, options={**database.options(), "version": "n"})
        self._writer("postgres-writer", "committing", f"postgres:{server.port}/{database.name}", "postgres")

    def _mariadb(self) -> None:
        os.environ.setdefault("MYSQL_PWD", mysql_server.PASSWORD)
        server = self._leaving.enter_context(mysql_server.running())
        server.sql("CREATE DATABASE shop", "USE shop", committing.TABLE.format(text=committing.TEXTS["mariadb"]))
        self.databases["mariadb"] = server
        proxy = self._proxy("publishers to mariadb", f"127.0.0.1:{server.port}")
        options = {"tables": ["shop.item"], "version": "n"}
        self.cluster.create_stream("mariadb", SHARDS, f"mysql:mysql://tidings@{proxy.address}/shop", options=options)
        self._writer("mariadb-writer", "committing", f"mariadb:{server.socket}/shop", "mariadb")

    def _pipelines(self) -> None:
        storage = self.streams / "storage"
        self.cluster.create_stream("evens", SHARDS)
        self._application("evens", ["evens"], subscribers=1)
        service.create(self.cluster, SERVICE, ["contacts"], storage=storage, shards=SHARDS)
        (self.folder / "tidings.yml").write_text(PIPELINES.format(storage=storage))
        # A process each: in one that runs both, one that has failed would wait until the other has ended, too.
        for pipeline in ("evens", SERVICE):
            name = f"driver-of-{pipeline}"
            options = ["--zookeeper", self._zookeeper_of(name), "--session-timeout", "12"]  # it is slow to start again
            self._command(name, "run", pipeline, *options, env=HASTY, clock=False)

    def _gateways_and_clients(self) -> None:
        keys = self._secret("keys", f"k1 {base64.b64encode(secrets.token_bytes(32)).decode()}")
        peers = self._secret("peers", secrets.token_hex(16))
        addresses = []
        for name in ("gateway-1", "gateway-2"):
            address = f"127.0.0.1:{mysql_install.free_port()}"
            relay = self._proxy(f"the other gateway to {name}", address)
            clients = self._proxy(f"clients to {name}", address)
            addresses += [f"ws://{address}", f"ws://{clients.address}"]
            options = ["--service", SERVICE, "--keys", keys, "--peer-secret", peers, "--id", name, "--resend", "2"]
            options += ["--listen", address, "--advertise", relay.address, "--zookeeper", self._zookeeper_of(name)]
            self._command(name, "gateway", *options, *SESSION)
        objects = self.folder / "objects"
        objects.write_text(json.dumps([bodies.name(one, number) for one in PRODUCERS for number in range(OBJECTS)]))
        deaf = ["--deaf", "1"] if DEAF in self.shape.sabotage else []
        files = [str(self.folder / "clients.journal"), str(self.folder / "states"), str(objects)]
        more = [str(self.shape.seed), *addresses, "--count", str(self.shape.clients), *deaf]
        self._module("clients", "listening", *files, *more)

    def _publisher(self, name: str) -> None:
        address = f"127.0.0.1:{mysql_install.free_port()}"
        subscribers = self._proxy(f"subscribers to {name}", address)
        options = ["--name", name, "--token-interval", "1", "--zookeeper", self._zookeeper_of(name), *SESSION]
        options += ["--listen", address, "--advertise", subscribers.address]
        program = ["-m", "tests.soak.leaking"] if LEAKS in self.shape.sabotage else PROGRAM[1:]
        self._member(name, [sys.executable, *program, "publisher", *options])

    def _application(self, name: str, streams: Sequence[str], subscribers: int, drops: bool = False) -> None:
        self.cluster.create_application(name, streams, start="earliest")
        sources = {"evens": ("contacts", 2)}
        for stream in streams:
            self.audiences.append(Audience(name, stream, *sources.get(stream, (stream, 1))))
        for number in range(1, subscribers + 1):
            id = f"{name}-{number}"
            more = ["--drop-every", "50"] if drops and number == 1 else []
            self._module(id, "recording", self._zookeeper_of(id), name, id, str(self.folder / f"{id}.journal"), *more)

    def _writer(self, name: str, module: str, *arguments: str, more: Sequence[str] = ()) -> None:
        self._module(name, module, *arguments, str(self.folder / f"{name}.journal"), str(self.shape.seed), *more)

    def _command(self, name: str, *arguments: str, env: dict[str, str] | None = None, clock: bool = True) -> None:
        self._member(name, [*PROGRAM, *arguments], env, clock)

    def _module(self, name: str, module: str, *arguments: str) -> None:
        self._member(name, [sys.executable, "-m", f"tests.soak.{module}", *arguments])

    def _member(self, name: str, command: Sequence[str], env: dict[str, str] | None = None, clock: bool = True) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = self.clocks.environment(name) if self.clocks and clock else {}
        self.members[name] = Member(name, command, self.folder, {"PYTHONPATH": path, **own, **(env or {})})

    def _zookeeper_of(self, name: str) -> str:
        return f"{self._proxy(f'{name} to zookeeper', self.zookeeper.address).address}/soak"

    def _proxy(self, name: str, target: str) -> Proxy:
        self.proxies[name] = self._leaving.enter_context(Proxy(target))
        return self.proxies[name]

    def _secret(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text + "\n")
        return str(path)

    def end(self) -> None:
        """Kill all members."""
        for member in self.members.values():
            member.resume()
            member.kill()


@contextlib.contextmanager
def world(shape: Shape, folder: Path) -> Iterator[World]:
    """A world in this folder, which ends with the block."""
    with contextlib.ExitStack() as leaving:
        made = World(shape, folder, leaving)
        leaving.callback(made.end)
        yield made
