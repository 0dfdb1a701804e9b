"""A client in Java, written from the protocol's page alone, passes the vectors and lives with a real gateway."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.plugins.thialfi.client.test_with_gateway import OPTIONS, StandIn
from tests.support import make_vectors
from tests.support.gateway_scene import Loop, Process, Scene, scene_of
from tests.support.places import ROOT
from tidings.cluster import Cluster
from tidings.runtime import java
from tidings.testing import eventually
from tidings_thialfi.protocol.constants import SUBPROTOCOL
from tidings_thialfi.protocol.digests import Digest

SOURCES = ROOT / "tests" / "plugins" / "thialfi" / "java"
TRANSPORTS = pytest.mark.parametrize("scheme", ["ws", "http"], ids=["websocket", "poll"])
MANY = 10_000
LARGEST = 2**63 - 1
PATIENCE = 60.0


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, compiled."""
    folder = tmp_path_factory.mktemp("classes")
    compiler = java.find().path.with_name("javac")
    if not compiler.exists():
        pytest.skip(f"there is no {str(compiler)!r}: a client in Java needs a JDK, and not only what runs Java")
    subprocess.run(
        [compiler, "-J-XX:TieredStopAtLevel=1", "-Xlint:all", "-Werror", "-d", folder, *SOURCES.glob("*.java")],
        check=True,
    )
    return folder


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own, contextlib.closing(StandIn(own)):
        yield own


def program(classes: Path, name: str, *arguments: str) -> list[str]:
    return [str(java.find().path), "-XX:TieredStopAtLevel=1", "-cp", str(classes), name, *arguments]


class Console:
    """A client in a process: told what to do, it says what it hears."""

    def __init__(self, classes: Path, url: str, objects: list[str], state: str | None = None) -> None:
        command = program(classes, "Console", url, "web", *([state] if state else []))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        self._told: dict[str, list[list[Any]]] = defaultdict(list)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.say("register", objects)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *about = json.loads(line)
            self._told[kind].append(about)

    def say(self, what: str, objects: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, objects]) + "\n")
        self._process.stdin.flush()

    def told(self, kind: str) -> list[list[Any]]:
        """What it was told of this kind."""
        return list(self._told[kind])

    def of(self, kind: str) -> Counter[Any]:
        """How often it was told this of what."""
        return Counter(one[0] for one in self.told(kind))

    @property
    def state(self) -> str:
        found: str = self.told("keep")[-1][0]
        return found

    @property
    def client(self) -> int:
        return int(self.state.split()[1])

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)
        self._reader.join(PATIENCE)


def until_quiet(gateway: Process) -> None:
    eventually(lambda: gateway.metric("unacknowledged_notifications") == 0, PATIENCE, 0.1)


def test_it_agrees_with_the_vectors(classes: Path) -> None:
    done = subprocess.run(program(classes, "Vectors", str(make_vectors.FILE)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@TRANSPORTS
def test_ten_thousand_registrations_are_confirmed_and_all_is_heard(scene: Scene, classes: Path, scheme: str) -> None:
    gateway = scene.gateway("g1")
    url = gateway.url.replace("http", scheme)
    rest = MANY - len(make_vectors.OBJECTS)
    names = [*make_vectors.OBJECTS, *(f"contacts/{n:06}/Zoë" for n in range(rest))]
    with contextlib.closing(Console(classes, url, names)) as console:
        eventually(lambda: len(console.of("registered")) == MANY, PATIENCE, 0.1)
        eventually(lambda: console.of("agreed")[str(MANY)], PATIENCE)
        eventually(lambda: len(console.of("unknown")) == MANY, PATIENCE, 0.1)
        until_quiet(gateway)

        console.say("register", ["one too many"])
        eventually(lambda: console.told("failed"), PATIENCE)
        assert console.told("failed") == [["one too many", True, "more than 10,000 registrations"]]

        say = {"say": "notify"}
        news = [{"version": LARGEST, "attributes": {**say, "object": name}} for name in names]
        for one in news[:300]:
            one["payload"] = b"\x00\xff" * 500
        scene.tell_many([{"object": str(console.client), **one} for one in news])
        eventually(lambda: len(console.of("notify")) == MANY, PATIENCE, 0.1)
        until_quiet(gateway)
        assert Counter(payload is not None for _, _, payload in console.told("notify")) == {
            True: 300,
            False: MANY - 300,
        }

        console.say("unregister", [names[0], "never registered"])
        eventually(lambda: set(console.of("unregistered")) == {names[0], "never registered"}, PATIENCE)
    assert console.of("registered").keys() == set(names)
    assert set(console.of("registered").values()) == {1}
    assert not console.of("trouble")

    written = len(scene.rows(console.client))
    with contextlib.closing(Console(classes, url, names[1:], console.state)) as again:
        eventually(lambda: len(again.of("registered")) == MANY - 1, PATIENCE, 0.1)
    assert {row["op"] for row in scene.rows(console.client)[written:]} <= {"online", "offline"}


@TRANSPORTS
def test_it_goes_on_with_a_forged_token_and_when_its_gateway_is_killed(
    scene: Scene, classes: Path, scheme: str
) -> None:
    gateway = scene.gateway("g1", *OPTIONS)
    url = gateway.url.replace("http", scheme)
    with contextlib.closing(Console(classes, url, ["alice", "bob"], "forged 5")) as console:
        eventually(lambda: console.of("registered").keys() == {"alice", "bob"}, PATIENCE)
        assert console.client != 5
        gateway.end(signal.SIGKILL)
        console.say("unregister", ["bob"])
        console.say("register", ["carol"])
        scene.gateway("g2", *OPTIONS, "--listen", gateway.url.removeprefix("http://"))
        eventually(lambda: "carol" in console.of("registered") and "bob" in console.of("unregistered"), PATIENCE)
        scene.notify(console.client, "alice", 7, b"payload")
        eventually(lambda: ["alice", "7", "cGF5bG9hZA=="] in console.told("notify"), PATIENCE)
        eventually(lambda: console.of("agreed")["2"], PATIENCE)


@TRANSPORTS
def test_it_says_hello_again_when_its_token_expires(scene: Scene, classes: Path, scheme: str) -> None:
    gateway = scene.gateway("g1", *OPTIONS, "--token-lifetime", "3")
    with contextlib.closing(Console(classes, gateway.url.replace("http", scheme), ["alice"])) as console:
        eventually(lambda: "alice" in console.of("registered") and len(console.of("keep")) > 1, PATIENCE)
        console.say("register", ["bob"])
        eventually(lambda: "bob" in console.of("registered"), PATIENCE)
    assert len({state.split()[1] for state in console.of("keep")}) == 1


class Scripted:
    """A gateway that says what the test tells it to."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._socket: web.WebSocketResponse | None = None
        self.url = self._loop.run(self._start())

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_get("/v1/client", self._converse)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"ws://{host}:{port}"

    async def _converse(self, request: web.Request) -> web.WebSocketResponse:
        socket = self._socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,))
        await socket.prepare(request)
        async for frame in socket:
            self._heard.put(json.loads(frame.data))
        return socket

    def say(self, **parts: Any) -> None:
        assert self._socket is not None
        self._loop.run(self._socket.send_str(json.dumps({"v": "1.0", **parts})))

    def hear(self, part: str) -> dict[str, Any]:
        """The next message, which has this part."""
        message = self._heard.get(timeout=PATIENCE)
        assert part in message
        return message

    def grant(self, token: str, client: int) -> dict[str, Any]:
        """Answer a hello."""
        message = self.hear("hello")
        nonce = message["hello"]["nonce"]
        granted = {"token": token, "client": str(client), "again": False}
        self.say(grant={**granted, "nonce": "of another", "client": "1"}, notify=[["alice", "99"]])
        self.say(grant={**granted, "nonce": nonce})
        self.say(grant={**granted, "nonce": nonce, "token": "late"})
        return message

    def close(self) -> None:
        self._loop.run(self._runner.cleanup())
        self._loop.close()


def test_it_keeps_the_rules_whatever_a_service_says(classes: Path) -> None:
    def digest(client: int, *objects: str) -> list[str]:
        return Digest.of(client, objects).to_json()

    with contextlib.closing(Scripted()) as service:
        console = Console(classes, service.url, ["alice", "bob"])
        assert "token" not in service.grant("one", 5)
        first = service.hear("register")
        assert (first["token"], first["digest"]) == ("one", digest(5, "alice", "bob"))

        service.say(invalid="forgotten", token="one")
        service.say(invalid="forgotten", token="one", status=[["alice", True, str(LARGEST)]])
        assert "token" not in service.grant("two", 6)
        service.say(invalid="late", token="one", stale=True)
        second = service.hear("register")
        assert (second["token"], second["digest"]) == ("two", digest(6, "alice", "bob"))
        (_, low), (_, high) = second["register"]
        assert int(first["register"][1][1]) < int(low) < int(high)

        ahead = int(high) + 1_000_000
        service.say(digest=["0", "0"], seen=str(ahead))
        third = service.hear("register")["register"]
        assert ahead < int(third[0][1]) < int(third[1][1])

        service.say(digest=["0", "0"], seen=third[1][1], sync=True)  # what is outstanding explains it
        service.say(status=[["alice", True, third[0][1]]], failed=[["bob", third[1][1], True, "too many"]])
        service.say(digest=digest(6, "alice", "eve"), seen=third[0][1])
        sync = service.hear("sync")["sync"]
        assert (sync["objects"], sync["part"], sync["parts"]) == (["alice"], 0, 1)
        service.say(digest=digest(6, "alice"), seen=sync["number"])
        eventually(lambda: console.of("agreed") == {"1": 1}, PATIENCE)
        assert console.told("registered") == [["alice"]]
        assert console.told("failed") == [["bob", True, "too many"]]

        service.say(notify=[["bob", "1"], ["alice", "7", ""], ["alice", "6"], ["alice", "3", "unknown"]])
        assert service.hear("acknowledge")["acknowledge"] == [["alice", "7"], ["alice", "6"], ["alice", "3", "unknown"]]
        assert console.told("notify") == [["alice", "7", ""]]
        assert console.told("unknown") == [["alice"]]

        service.say(error={"code": "denied", "message": "you are not let in"})
        eventually(lambda: ["alice", False, "you are not let in"] in console.told("failed"), PATIENCE)
        console.close()
