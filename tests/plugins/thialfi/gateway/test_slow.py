"""A client that does not read: it is sent away, and nobody else waits for it."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.gateway_scene import Process, Scene, online, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.protocol import stream_schema


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own:
        yield own


class Sluggard:
    """A WebSocket by hand, so that nothing reads unless it is told to."""

    def __init__(self, gateway: Process) -> None:
        place = urlsplit(gateway.url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect((place.hostname, place.port))
        self._socket.settimeout(20)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /v1/client HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: tidings.thialfi.v1\r\n\r\n".encode()
        )
        self._file = self._socket.makefile("rb")
        while self._file.readline() not in (b"\r\n", b""):
            pass

    def say(self, text: str) -> None:
        raw = text.encode()
        self._socket.sendall(struct.pack(">BBH4x", 0x81, 0x80 | 126, len(raw)) + raw)

    def read(self) -> tuple[int, bytes]:
        """The kind of the next frame, and what it holds."""
        first, second = self._file.read(2)
        size = second & 127
        if size >= 126:
            size = struct.unpack(">H" if size == 126 else ">Q", self._file.read(2 if size == 126 else 8))[0]
        return first & 15, self._file.read(size)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_a_client_that_does_not_read_is_sent_away_and_the_others_hear_at_once(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--max-queue", "32MiB", "--max-pending", "32MiB", "--stall", "1")
    quick = online(scene, gateway)
    slow = scene.client(gateway)
    slow.hello()
    name, token = slow.client, slow.token
    slow.close()
    scene.await_row(name, stream_schema.OFFLINE)
    sluggard = Sluggard(gateway)
    sluggard.say(f'{{"v": "1.0", "token": "{token}"}}')
    scene.await_row(name, stream_schema.ONLINE, 2)
    flood = [
        {
            "object": str(name),
            "version": 1,
            "payload": os.urandom(20_000),
            "attributes": {"say": "notify", "object": f"o{n}"},
        }
        for n in range(600)
    ]
    scene.tell_many(flood)
    scene.notify(quick.client, "alice", 1)
    assert quick.hear_of("notify", 5)["notify"] == [["alice", "1"]]
    eventually(lambda: gateway.metric("limited_total", limit="slow") == 1)
    kind, held = 1, b""
    while kind != 8:
        kind, held = sluggard.read()
    assert struct.unpack(">H", held[:2])[0] == 3008
    sluggard.close()
    scene.await_row(name, stream_schema.OFFLINE, 2)


def test_a_client_that_never_reads_again_is_cut_off(scene: Scene) -> None:
    gateway = scene.gateway("g1", "--max-queue", "32MiB", "--max-pending", "32MiB", "--stall", "1", "--ping", "0")
    sluggard = Sluggard(gateway)
    sluggard.say('{"v": "1.0", "hello": {"nonce": "n", "application": "a"}}')
    kind, text = sluggard.read()
    assert kind == 1
    name = int(text.decode().partition('"client":"')[2].partition('"')[0])
    scene.await_row(name, stream_schema.ONLINE)
    flood = [
        {
            "object": str(name),
            "version": 1,
            "payload": os.urandom(20_000),
            "attributes": {"say": "notify", "object": f"o{n}"},
        }
        for n in range(600)
    ]
    scene.tell_many(flood)
    scene.await_row(name, stream_schema.OFFLINE)
    eventually(lambda: gateway.metric("connections") == 0)
    sluggard.close()
