"""Many clients of a gateway in one process: sockets of their own, or a trunk; each as light as it can be."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import struct
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench.doorman import credentials_of

TOGETHER = 200  # clients that connect at once


class Wire:
    """A WebSocket by hand: text only, and no larger than the protocol's messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls, url: str, path: str, protocol: str, authorization: str | None = None, tls: ssl.SSLContext | None = None
    ) -> Wire:
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**17, ssl=tls)
        lines = [f"GET {path} HTTP/1.1", f"Host: {place.netloc}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        lines += [f"Sec-WebSocket-Protocol: {protocol}"] + (
            [f"Authorization: {authorization}"] if authorization else []
        )
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in answer:
            raise ConnectionError(answer.splitlines()[0].decode())
        return cls(reader, writer)

    def say(self, text: str) -> None:
        raw = text.encode()
        head = struct.pack(">BB", 0x81, 0x80 | len(raw)) if len(raw) < 126 else struct.pack(">BBH", 0x81, 254, len(raw))
        self._writer.write(head + bytes(4) + raw)

    async def hear(self) -> str:
        """The next text; pings are answered."""
        while True:
            first, second = await self._reader.readexactly(2)
            size = second & 127
            if size >= 126:
                size = struct.unpack(
                    ">H" if size == 126 else ">Q", await self._reader.readexactly(2 if size == 126 else 8)
                )[0]
            held = await self._reader.readexactly(size)
            if first & 15 == 9:
                self._writer.write(struct.pack(">BB4x", 0x8A, 0x80 | size) + held)
            elif first & 15 == 8:
                raise ConnectionError(f"closed with {struct.unpack('>H', held[:2])[0]}")
            elif first & 15 == 1:
                return held.decode()

    def close(self) -> None:
        self._writer.close()


class Crowd:
    """Clients that have said hello, and count what they are told. `signed`: each shows a user's credentials."""

    def __init__(self, *, signed: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self._signed = signed
        self._tls = tls
        self.clients: list[int] = []
        self.received = 0
        self.taken: list[float] = []
        """Seconds that each notification took whose version is the time in microseconds at which it was sent."""
        self.refused = 0
        self._wires: list[Wire] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()

    async def connect(self, url: str, count: int) -> None:
        """So many sockets, a client each."""
        for at in range(0, count, TOGETHER):
            await asyncio.gather(*(self._plain(url) for _ in range(min(TOGETHER, count - at))))

    async def connect_trunk(self, url: str, token: str, count: int) -> None:
        """One socket, so many clients."""
        wire = await Wire.open(url, "/v1/trunk", "tidings.thialfi.trunk.v1", f"Bearer {token}")
        self._wires.append(wire)
        before = len(self.clients)
        self._tasks.append(asyncio.create_task(self._listen(wire)))
        for tag in range(count):
            wire.say(f'[{tag},{{"v":"1.0","hello":{{"nonce":"n","application":"crowd"}}}}]')
            if tag % TOGETHER == 0:
                await asyncio.sleep(0.01)
        await self.until(lambda: len(self.clients) - before >= count)

    async def until(self, holds: object, seconds: float = 120.0) -> None:
        """Wait until something is so."""
        assert callable(holds)
        async with asyncio.timeout(seconds):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def forget(self) -> None:
        """Count anew."""
        self.received = 0
        self.taken = []

    async def close(self) -> None:
        for wire in self._wires:
            wire.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _plain(self, url: str) -> None:
        wire = await Wire.open(url, "/v1/client", "tidings.thialfi.v1", tls=self._tls)
        self._wires.append(wire)
        shown = {"credentials": credentials_of(f"user-{len(self._wires)}")} if self._signed else {}
        wire.say(json.dumps({"v": "1.0", "hello": {"nonce": "n", "application": "crowd", **shown}}))
        self._take(json.loads(await wire.hear()))
        self._tasks.append(asyncio.create_task(self._listen(wire)))

    async def _listen(self, wire: Wire) -> None:
        while True:
            message = json.loads(await wire.hear())
            self._take(message[1] if isinstance(message, list) else message)

    def _take(self, message: dict[str, object]) -> None:
        if isinstance(grant := message.get("grant"), dict):
            self.clients.append(int(grant["client"]))
        if isinstance(notices := message.get("notify"), Sequence):
            now = time.time()
            self.received += len(notices)
            self.taken += [now - int(notice[1]) / 1e6 for notice in notices]
        self.refused += "error" in message
        self._changed.set()
