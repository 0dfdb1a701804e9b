"""A crowd from one address, which does what it can to stop a gateway; others are served as if it were not there."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.support import gateway_scene
from tests.support.gateway_scene import Client, Process, Scene, online, scene_of
from tests.support.places import ROOT
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.protocol import stream_schema

HOSTILE, HONEST = "127.0.0.3", "127.0.0.2"
LIMIT = 5
HELLO = {"v": "1.0", "hello": {"nonce": "n", "application": "crowd"}}


scene = gateway_scene.scene


@pytest.fixture(scope="module")
def gateway(scene: Scene) -> Process:
    """A gateway that can have few files open, as those are what silent sockets take."""
    return scene.gateway("g1", "--max-per-address", str(LIMIT), "--request-timeout", "2", files=400)


@pytest.fixture(scope="module")
def hostile(scene: Scene) -> aiohttp.ClientSession:
    return scene.http_from(HOSTILE)


@pytest.fixture(scope="module")
def honest(scene: Scene) -> aiohttp.ClientSession:
    return scene.http_from(HONEST)


def post(scene: Scene, http: aiohttp.ClientSession, gateway: Process, body: Any, **headers: str) -> tuple[int, Any]:
    async def ask() -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with http.post(f"{gateway.url}/v1/poll", data=raw, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text.startswith("{") else text

    found: tuple[int, Any] = scene.loop.run(ask())
    return found


def connect(gateway: Process, sends: bytes = b"", address: str = HOSTILE) -> socket.socket:
    """A socket that sends this and nothing more."""
    place = urlsplit(gateway.url)
    made = socket.create_connection((place.hostname or "", place.port or 0), 20, source_address=(address, 0))
    with contextlib.suppress(ConnectionError):
        made.sendall(sends)
    return made


def ended(one: socket.socket) -> bool:
    """Whether the other side ends this, in the time that a socket has."""
    try:
        while one.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def served(scene: Scene, gateway: Process, client: Client, version: int) -> None:
    """The client is told of a version, acknowledges it and is answered, within its ordinary patience."""
    scene.notify(client.client, "alice", version)
    while ["alice", str(version)] not in client.hear_of("notify")["notify"]:
        pass
    client.say(acknowledge=[["alice", str(version)]], heartbeat=True)
    client.hear()


def limited(gateway: Process, limit: str) -> float:
    return gateway.metric("limited_total", limit=limit)


def test_clients_that_poll_count_for_their_address_as_long_as_they_are_online(
    scene: Scene, gateway: Process, hostile: aiohttp.ClientSession, honest: aiohttp.ClientSession
) -> None:
    answers = [post(scene, hostile, gateway, {"send": [HELLO], "wait": 0})[0] for _ in range(3 * LIMIT)]
    assert answers == [200] * LIMIT + [429] * 2 * LIMIT
    made = [row for row in scene.rows() if row["op"] == stream_schema.CREATED and row["source"] == "crowd"]
    assert len(made) == LIMIT
    assert limited(gateway, "polls") == 2 * LIMIT
    assert post(scene, honest, gateway, {"send": [HELLO], "wait": 0})[0] == 200


def test_clients_that_have_stopped_polling_make_room_for_others(scene: Scene, hostile: aiohttp.ClientSession) -> None:
    gateway = scene.gateway("g-gap", "--max-per-address", "1", "--poll-gap", "0.5")
    assert post(scene, hostile, gateway, {"send": [HELLO], "wait": 0})[0] == 200
    eventually(lambda: post(scene, hostile, gateway, {"send": [HELLO], "wait": 0})[0] == 200)
    gateway.end()


def test_a_body_that_is_too_large_for_a_poll_is_refused_unread(
    scene: Scene, gateway: Process, hostile: aiohttp.ClientSession
) -> None:
    before = limited(gateway, "large")
    body = json.dumps({"send": [HELLO], "padding": "x" * 8 * 2**20}).encode()
    assert post(scene, hostile, gateway, body)[0] == 413
    head = f"POST /v1/poll HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(gateway, head.encode()) as one:
        assert one.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert limited(gateway, "large") == before + 2


def test_a_body_that_does_not_say_its_size_is_read_no_further_than_a_poll_may_be(gateway: Process) -> None:
    before = limited(gateway, "large")
    part = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    head = b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(gateway, head + part * 17) as one:  # a part more than a poll may have, and no end of it
        assert one.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert limited(gateway, "large") == before + 1


def test_silent_sockets_of_one_address_take_no_room_from_others(
    scene: Scene, gateway: Process, honest: aiohttp.ClientSession
) -> None:
    client = online(scene, gateway, lambda: scene.client_from(honest, gateway))
    silent = [connect(gateway) for _ in range(600)]  # more than the gateway can have files open
    try:
        served(scene, gateway, client, 1)
        online(scene, gateway, lambda: scene.client_from(honest, gateway)).close()
    finally:
        for one in silent:
            one.close()
        client.close()
    assert limited(gateway, "sockets") > 0


@pytest.mark.parametrize(
    "sends",
    [
        b"",
        b"GET /v1/client HTTP/1.1\r\nHost: x\r\nX-Half: ",
        b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["silent", "half a head", "half a body"],
)
def test_a_request_that_does_not_come_is_not_waited_for(gateway: Process, sends: bytes) -> None:
    with connect(gateway, sends) as one:
        assert ended(one)


POST = b"POST /v1/poll HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("sends", "codes"),
    [
        (POST + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone", {b"415"}),
        (POST + b"Content-Encoding: br\r\nContent-Length: 4\r\n\r\nnone", {b"415"}),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nnone\r\n", {b"400"}),
        (POST + b"Content-Length: 99\r\n\r\n{", {b"408"}),
        (POST + b"Content-Length: 40\r\n\r\n" + b"[" * 40, {b"400"}),
        (POST + b"Content-Length: 4\r\nAccept: ;;;=\r\n\r\nnone", {b"400"}),
        (SCRAPE + b"Accept: text/plain;version\r\n\r\n", {b"200"}),
        (SCRAPE + b"Accept: application/openmetrics-text;version=9.9.9\r\n\r\n", {b"200"}),
        (SCRAPE + b"Accept: application/openmetrics-text;version=x\r\n\r\n", {b"200"}),
        (b"PUT /v1/poll HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", {b"405"}),
    ],
)
def test_what_is_wrong_with_a_request_is_never_a_fault_of_the_gateway(
    gateway: Process, sends: bytes, codes: set[bytes]
) -> None:
    with connect(gateway, sends) as one:
        head = b""
        with contextlib.suppress(ConnectionError):
            while some := one.recv(65536):
                head += some
    assert head[9:12] in codes, head
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)


def test_a_body_that_is_cut_off_leaves_no_trace(gateway: Process) -> None:
    with connect(gateway, POST + b"Content-Length: 99\r\n\r\n{") as one:
        one.shutdown(socket.SHUT_WR)
        assert ended(one)
    assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)


@contextlib.contextmanager
def crowd(gateway: Process) -> Iterator[Callable[[], set[str]]]:
    """A process that does all it can from one address; what it has done at least once is called for."""
    command = [sys.executable, "-m", "tests.support.crowd", gateway.url, HOSTILE]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said: set[str] = set()

    def read() -> None:
        assert process.stdout is not None
        said.update(line.strip() for line in process.stdout)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield lambda: said
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def test_who_is_elsewhere_is_served_while_an_address_does_all_it_can(cluster: Cluster, tmp_path: Path) -> None:
    with scene_of(cluster, tmp_path) as scene:  # of its own: another gateway would hold some of the flows
        options = ("--max-per-address", "20", "--request-timeout", "2", "--address-entries", "2000")
        gateway = scene.gateway("g1", *options, files=400)
        honest = scene.http_from(HONEST)
        client = online(scene, gateway, lambda: scene.client_from(honest, gateway))
        code, poller = post(scene, honest, gateway, {"send": [HELLO], "wait": 0})
        assert code == 200
        token = {"v": "1.0", "token": poller["receive"][0]["grant"]["token"], "heartbeat": True}
        with crowd(gateway) as done:
            version = 0

            def untried() -> set[str]:
                limits = {
                    limit for limit in ("sockets", "polls", "large", "address-entries") if not limited(gateway, limit)
                }
                return limits | ({"sockets", "bodies", "polls", "entries"} - done())

            while version < 10 or untried():
                version += 1
                served(scene, gateway, client, version)
                another = scene.client_from(honest, gateway)
                another.hello()
                another.close()
                assert post(scene, honest, gateway, {"send": [token], "wait": 5})[0] == 200
                assert version < 200, untried()
        made = [row for row in scene.rows() if row["op"] == stream_schema.REGISTER]
        assert len(made) < 100_000, "what is within the limits of one address"
        assert not any("Traceback" in line for line in gateway.lines), "".join(gateway.lines)


def test_a_trusted_proxy_says_whose_limits_count_and_nobody_else_does(
    scene: Scene, hostile: aiohttp.ClientSession
) -> None:
    gateway = scene.gateway("g-proxied", "--max-per-address", "1", "--trusted-proxy", "127.0.0.4")
    proxy = scene.http_from("127.0.0.4")

    def came(http: aiohttp.ClientSession, said: str) -> int:
        return post(scene, http, gateway, {"send": [HELLO], "wait": 0}, **{"X-Forwarded-For": said})[0]

    assert [came(proxy, f"6.6.6.6, 192.0.2.{number}") for number in (1, 2, 3, 1)] == [200, 200, 200, 429]
    assert [came(proxy, f"2001:db8::{number}") for number in (1, 2)] == [200, 429]
    assert [came(hostile, f"192.0.2.{number}") for number in (4, 5)] == [200, 429]
    gateway.end()
