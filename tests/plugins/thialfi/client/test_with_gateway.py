"""The client against a real gateway, in a process of its own; a stand-in for the stage answers the gateway's rows."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.thialfi.client.test_client import Notes
from tests.support.gateway_scene import Process, Scene, scene_of
from tests.support.service_model import Registrar
from tidings.cluster import Cluster
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.client.sync import Client
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest

OPTIONS = ("--resend", "1", "--heartbeat", "2", "--offline-after", "6")
PATIENCE = 30.0
PACE = Pace(first_retry=0.1, most_retry=1, answer=2, settle=0.3, resume=4, rate=100, burst=100)


class StandIn:
    """Does for a few clients what the stage does for millions."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._clients: dict[int, Registrar] = {}
        self._versions: dict[str, int] = {}
        self._said: list[dict[str, Any]] = []
        self._after = Positions()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def publish(self, name: str, version: int) -> None:
        with self._lock:
            self._versions[name] = version
            for client in self._clients:
                self._tell(client)
            self._say_it()

    def registered(self) -> list[set[str]]:
        return [set(about.registered()) for about in self._clients.values()]

    def acked(self, name: str) -> set[int | None]:
        return {about.acked.get(name) for about in self._clients.values()}

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            found = self._scene.operations.log.tail(self._after, 10_000)
            with self._lock:
                heard = set()
                for row in found.to_pylist(maps_as_pydicts="lossy"):
                    self._after = Positions({**self._after, row["shard"]: Position(row["seq"])})
                    self._take(int(row["object"]), row["version"] or 0, row["attributes"])
                    if "acknowledge" not in row["attributes"]["op"]:
                        heard.add(int(row["object"]))
                for client in heard:
                    self._tell(client)
                self._say_it()

    def _say_it(self) -> None:
        said, self._said = self._said, []
        if said:
            self._scene.tell_many(said)

    def _say(self, client: int, say: str, number: int, **about: str) -> None:
        self._said.append({"object": str(client), "version": number, "attributes": {"say": say, **about}})

    def _take(self, client: int, number: int, about: dict[str, str]) -> None:
        known = self._clients.setdefault(client, Registrar())
        name = about.get("object", "")
        match about["op"]:
            case stream_schema.REGISTER | stream_schema.UNREGISTER as op:
                known.operate(name, number, op == stream_schema.REGISTER)
                number, registered = known.operations[name]
                say = stream_schema.REGISTERED if registered and number >= known.floor else stream_schema.UNREGISTERED
                self._say(client, say, known.operations[name][0], object=name)
            case stream_schema.SYNC:
                known.floor, known.seen = max(known.floor, number), max(known.seen, number)
            case stream_schema.ACKNOWLEDGE:
                known.acked[name] = max(number, known.acked.get(name, -1))
            case stream_schema.ACKNOWLEDGE_UNKNOWN:
                known.acked_unknown[name] = max(number, known.acked_unknown.get(name, -1))

    def _tell(self, client: int) -> None:
        known = self._clients[client]
        registered = known.registered()
        for name, number in registered.items():
            version = self._versions.get(name)
            if version is None and known.acked_unknown.get(name, -1) < number:
                self._say(client, stream_schema.UNKNOWN, number, object=name)
            elif version is not None and known.acked.get(name, -1) < version:
                self._say(client, stream_schema.NOTIFY, version, object=name)
        digest = Digest.of(client, registered)
        self._say(client, stream_schema.DIGEST, known.seen, count=str(digest.count), sum=str(digest.sum))


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


@pytest.fixture
def stage(scene: Scene) -> Iterator[StandIn]:
    with contextlib.closing(StandIn(scene)) as own:
        yield own


@pytest.mark.parametrize("polling", [False, True], ids=["websocket", "poll"])
def test_a_client_hears_of_what_it_registered_for(scene: Scene, stage: StandIn, polling: bool) -> None:
    gateway = scene.gateway("g1", *OPTIONS)
    notes = Notes()
    with Client(gateway.url, "web", notes, polling=polling, pace=PACE) as client:
        client.register_many(["alice", "bob", ("carol", 7)])
        eventually(lambda: {("unknown", "alice"), ("status", "bob", True)} <= set(notes.told), PATIENCE)
        stage.publish("alice", 3)
        stage.publish("carol", 7)
        eventually(lambda: ("notify", "alice", 3) in notes.told, PATIENCE)
        eventually(lambda: stage.acked("carol") == {7} and stage.acked("alice") == {3}, PATIENCE)
        client.unregister("bob")
        eventually(lambda: ("status", "bob", False) in notes.told, PATIENCE)
        assert stage.registered() == [{"alice", "carol"}]
        assert ("notify", "carol", 7) not in notes.told


def test_what_a_limit_keeps_out_is_told_and_works_once_others_are_given_up(scene: Scene, stage: StandIn) -> None:
    gateway = scene.gateway("g1", *OPTIONS, "--max-registrations", "3")
    notes = Notes()
    names = ["a", "b", "c", "d", "e"]
    with Client(gateway.url, "web", notes, pace=PACE) as client:
        client.register_many(names)
        reason = "more than 3 registrations"
        eventually(
            lambda: {("failure", "d", True, reason), ("failure", "e", True, reason)} <= set(notes.told), PATIENCE
        )
        eventually(lambda: {("status", name, True) for name in "abc"} <= set(notes.told), PATIENCE)
        client.unregister("a")
        eventually(lambda: ("status", "a", False) in notes.told, PATIENCE)
        client.register("d")
        eventually(lambda: ("status", "d", True) in notes.told, PATIENCE)
        assert stage.registered() == [{"b", "c", "d"}]


def test_a_client_goes_on_where_it_was_when_its_gateway_is_killed(scene: Scene, stage: StandIn) -> None:
    gateway = scene.gateway("g1", *OPTIONS)
    notes = Notes()
    with Client(gateway.url, "web", notes, pace=PACE) as client:
        client.register("alice")
        eventually(lambda: ("status", "alice", True) in notes.told, PATIENCE)
        port = gateway.url.rpartition(":")[2]
        gateway.end(signal.SIGKILL)
        stage.publish("alice", 5)
        another = Process(scene, "g2", *OPTIONS, "--listen", f"127.0.0.1:{port}")
        scene._gateways.append(another)
        client.register("bob")
        eventually(lambda: {("notify", "alice", 5), ("status", "bob", True)} <= set(notes.told), PATIENCE)
        assert stage.registered() == [{"alice", "bob"}]


def test_a_client_that_starts_again_with_its_state_sends_no_registrations(scene: Scene, stage: StandIn) -> None:
    gateway = scene.gateway("g1", *OPTIONS)
    notes, again = Notes(), Notes()
    with Client(gateway.url, "web", notes, pace=PACE) as client:
        client.register_many(["alice", "bob"])
        eventually(lambda: ("status", "bob", True) in notes.told, PATIENCE)
    stage.publish("alice", 5)
    before = sum(row["op"] in ("register", "sync") for row in scene.rows())
    client = Client(gateway.url, "web", again, pace=PACE)
    client.start(notes.state)
    client.register_many(["alice", "bob"])
    wanted = {("notify", "alice", 5), ("status", "alice", True), ("status", "bob", True)}
    eventually(lambda: wanted <= set(again.told), PATIENCE)
    client.stop()
    assert sum(row["op"] in ("register", "sync") for row in scene.rows()) == before
