"""Rows between gateways: a client's socket is at one, and the flow of its shard is with another.

The session stays where the socket is, with all that is known of the client; only rows travel. A gateway opens a link
to each gateway that holds flows of its clients and says whose rows it wants; the holder confirms it, and only then is
the client marked online, so nothing that the stage answers can be missed. When a flow moves, the holder says so, and
the other asks the next holder. A client that is wanted from a second place has come there on another channel, and the
first one is told to close the older.

| frame | from | |
| --- | --- | --- |
| `["want", [client, …]]`, `["drop", [client, …]]` | the gateway of the socket | |
| `["have", [client, …]]` | the holder | their rows will come |
| `["not", [client, …]]` | the holder | it does not hold their flow, or not any more |
| `["lost", [client, …]]` | the holder | they have come on another channel elsewhere |
| `["rows", [row, …]]` | the holder | |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp

from tidings_thialfi.gateway.channels import Pipe
from tidings_thialfi.gateway.notification_rows import Said

SUBPROTOCOL = "tidings.thialfi.relay.v1"
PAUSES = (0.1, 0.5, 1.0, 2.0)  # seconds between attempts to reach a holder
AT_ONCE = 500  # clients in a frame

logger = logging.getLogger(__name__)


def frames(kind: str, clients: Iterable[int]) -> list[str]:
    """Frames about many clients."""
    names = [str(client) for client in clients]
    return [json.dumps([kind, names[at : at + AT_ONCE]]) for at in range(0, len(names), AT_ONCE)]


class Link:
    """A connection to another gateway, for as long as there is someone to ask for; it comes again by itself.

    `heard(kind, clients)` is called with what the holder says of clients, and `said` with rows.
    """

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        heard: Callable[[str, list[int]], None],
        said: Callable[[list[Said]], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self.wanted: set[int] = set()
        self._secret = secret
        self._heard = heard
        self._said = said
        self._tls = tls
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._outbox: asyncio.Queue[str] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    def want(self, clients: Iterable[int]) -> None:
        """Ask for the rows of these clients."""
        new = set(clients) - self.wanted
        self.wanted |= new
        self._put(frames("want", new))

    def drop(self, clients: Iterable[int]) -> None:
        """Ask for them no more."""
        old = self.wanted & set(clients)
        self.wanted -= old
        self._put(frames("drop", old))

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _put(self, some: list[str]) -> None:
        if self._socket is not None:
            for frame in some:
                self._outbox.put_nowait(frame)

    async def _run(self) -> None:
        attempt = 0
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    await self._converse(http)
                    attempt = 0
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    logger.warning("gateway %s cannot be reached: %s", self.url, error)
                finally:
                    self._socket = None
                if self.wanted:
                    self._heard("not", sorted(self.wanted))
                await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
                attempt += 1

    async def _converse(self, http: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {self._secret}"}
        async with http.ws_connect(
            f"{self.url}/v1/relay",
            headers=headers,
            protocols=[SUBPROTOCOL],
            heartbeat=10.0,
            max_msg_size=64 * 2**20,
            ssl=self._tls or True,
        ) as socket:
            self._outbox = asyncio.Queue()
            self._socket = socket
            self._put(frames("want", self.wanted))
            writer = asyncio.create_task(self._write(socket))
            try:
                async for message in socket:
                    self._take(json.loads(message.data))
            finally:
                writer.cancel()

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await socket.send_str(await self._outbox.get())

    def _take(self, frame: Any) -> None:
        kind, those = frame
        if kind == "rows":
            self._said([Said.from_json(one) for one in those])
        else:
            self._heard(kind, [int(client) for client in those])


class Watchers:
    """Which clients other gateways want the rows of."""

    def __init__(self) -> None:
        self._by_client: dict[int, Pipe] = {}

    def __contains__(self, client: object) -> bool:
        return client in self._by_client

    def __len__(self) -> int:
        return len(self._by_client)

    def want(self, pipe: Pipe, clients: Iterable[int]) -> None:
        """A gateway wants these; one that wanted them before is told that they have gone elsewhere."""
        for client in clients:
            before = self._by_client.get(client)
            self._by_client[client] = pipe
            if before is not None and before is not pipe:
                self._say(before, "lost", [client])

    def drop(self, pipe: Pipe, clients: Iterable[int]) -> None:
        """A gateway wants these no more."""
        for client in clients:
            if self._by_client.get(client) is pipe:
                del self._by_client[client]

    def lose(self, client: int) -> None:
        """A client has come to this gateway itself."""
        pipe = self._by_client.pop(client, None)
        if pipe is not None:
            self._say(pipe, "lost", [client])

    def leave(self, pipe: Pipe) -> None:
        """A gateway is gone."""
        self._by_client = {client: one for client, one in self._by_client.items() if one is not pipe}

    def moved(self, gone: Callable[[int], bool]) -> None:
        """The flow of these clients is not here any more."""
        those = [client for client in self._by_client if gone(client)]
        pipes: dict[Pipe, list[int]] = {}
        for client in those:
            pipes.setdefault(self._by_client.pop(client), []).append(client)
        for pipe, clients in pipes.items():
            self._say(pipe, "not", clients)

    def tell(self, those: Iterable[Said]) -> int:
        """Pass rows on; how many had a taker."""
        pipes: dict[Pipe, list[Any]] = {}
        for one in those:
            pipe = self._by_client.get(one.client)
            if pipe is not None:
                pipes.setdefault(pipe, []).append(one.to_json())
        for pipe, some in pipes.items():
            for at in range(0, len(some), AT_ONCE):
                pipe.send(json.dumps(["rows", some[at : at + AT_ONCE]], ensure_ascii=False))
        return sum(map(len, pipes.values()))

    def _say(self, pipe: Pipe, kind: str, clients: Iterable[int]) -> None:
        for frame in frames(kind, clients):
            pipe.send(frame)
