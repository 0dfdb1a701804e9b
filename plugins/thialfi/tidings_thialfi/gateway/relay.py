"""Rows between gateways: a client's socket is at one, and the flow of its shard is with another.

The session stays where the socket is, with all that is known of the client; only rows travel. A gateway opens a link
to each gateway that holds flows of its clients and says whose rows it wants; the holder confirms it, and only then is
the client marked online, so nothing that the stage answers can be missed. When a flow moves, the holder says so, and
the other asks the next holder. A client that is wanted from a second place has come there on another channel, and the
first one is told to close the older. A gateway that was cut off meanwhile asks `again`, and is told that it lost.

A frame that makes no sense is left alone, and counted; so many of them end the connection, which is then opened anew.

| frame | from | |
| --- | --- | --- |
| `["want", [client, …]]`, `["drop", [client, …]]` | the gateway of the socket | they have come; they are gone |
| `["again", [client, …]]` | the gateway of the socket | as before: whoever came since keeps them |
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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import aiohttp

from tidings_thialfi.gateway.channels import Pipe
from tidings_thialfi.gateway.notification_rows import NotificationRow
from tidings_thialfi.protocol.fields import BadMessage, number

RELAY_SUBPROTOCOL = "tidings.thialfi.relay.v1"
HEARTBEAT_S = 10.0
RECONNECT_PAUSES_S = (0.1, 0.5, 1.0, 2.0)
FRAME_ENTRIES = 500  # clients, or rows
MAX_BAD_FRAMES = 10  # of one connection of many clients, before it is closed
PEER_HEADER = "Tidings-Gateway"  # which gateway a relay is from
MAX_FRAME_BYTES = 64 * 2**20  # of a relay, or of a trunk

logger = logging.getLogger(__name__)


def frames(kind: str, clients: Iterable[int]) -> list[str]:
    """Frames about many clients."""
    names = [str(client) for client in clients]
    return [json.dumps([kind, names[at : at + FRAME_ENTRIES]]) for at in range(0, len(names), FRAME_ENTRIES)]


def parse_frame(text: str) -> tuple[str, list[int]]:
    """What a frame about clients says; `ValueError` if that makes no sense.

    >>> parse_frame('["want", ["7", "8"]]')
    ('want', [7, 8])
    """
    kind, entries = _parts(text)
    return kind, _clients(entries)


class RelayAnswer(NamedTuple):
    """What a holder says of clients that it was asked for: `have`, `not` or `lost`."""

    kind: str
    clients: list[int]


class RelayedRows(NamedTuple):
    """Rows for clients here, from the holder of their flows."""

    rows: list[NotificationRow]


class Link:
    """A connection to another gateway, for as long as `events` is read; it comes again by itself."""

    def __init__(self, url: str, secret: str, me: str = "", *, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.wanted: set[int] = set()
        self._again: set[int] = set()
        """Those whose rows were had before, here or elsewhere."""
        self._headers = {"Authorization": f"Bearer {secret}", PEER_HEADER: me}
        self._tls = tls
        self._outbox: asyncio.Queue[str] | None = None  # while there is a connection

    def want(self, clients: Iterable[int], *, again: bool = False) -> None:
        """Ask for the rows of these clients; `again`, if another gateway may have them by now, and is to keep them."""
        new = set(clients) - self.wanted
        self.wanted |= new
        self._again = self._again | new if again else self._again - new
        self._put(frames("again" if again else "want", new))

    def drop(self, clients: Iterable[int]) -> None:
        """Ask for them no more."""
        old = self.wanted & set(clients)
        self.wanted -= old
        self._put(frames("drop", old))

    async def events(self) -> AsyncGenerator[RelayAnswer | RelayedRows]:
        """Connect, and give what the holder says; `not` of all clients whenever the connection is lost. Has no end."""
        attempt = 0
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    bad = 0
                    async with self._connected(http) as socket:
                        async for message in socket:
                            if message.type is not aiohttp.WSMsgType.TEXT:  # it fell silent, or makes no sense
                                raise ConnectionError(f"{message.type.name.lower()}: {message.data}")
                            try:
                                event = _event_of(message.data)
                            except ValueError:
                                bad += 1
                                if bad == MAX_BAD_FRAMES:
                                    raise ConnectionError("what it says makes no sense") from None
                            else:
                                yield event
                    attempt = 0
                except Exception as error:  # noqa: BLE001 - whatever a peer can bring about must not leave us deaf
                    logger.warning("gateway %s cannot be reached: %s", self.url, error)
                if self.wanted:
                    yield RelayAnswer("not", sorted(self.wanted))
                await asyncio.sleep(RECONNECT_PAUSES_S[min(attempt, len(RECONNECT_PAUSES_S) - 1)])
                attempt += 1

    def _put(self, some: list[str]) -> None:
        if self._outbox is not None:
            for frame in some:
                self._outbox.put_nowait(frame)

    @contextlib.asynccontextmanager
    async def _connected(self, http: aiohttp.ClientSession) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with http.ws_connect(
            f"{self.url}/v1/relay",
            headers=self._headers,
            protocols=[RELAY_SUBPROTOCOL],
            heartbeat=HEARTBEAT_S,
            max_msg_size=MAX_FRAME_BYTES,
            ssl=self._tls or True,
        ) as socket:
            self._outbox = asyncio.Queue()
            self._put(frames("want", self.wanted - self._again) + frames("again", self.wanted & self._again))
            writer = asyncio.create_task(_write(socket, self._outbox))
            try:
                yield socket
            finally:
                self._outbox = None
                writer.cancel()


async def _write(socket: aiohttp.ClientWebSocketResponse, outbox: asyncio.Queue[str]) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            await socket.send_str(await outbox.get())


def _event_of(text: str) -> RelayAnswer | RelayedRows:
    kind, entries = _parts(text)
    if kind != "rows":
        return RelayAnswer(kind, _clients(entries))
    try:
        return RelayedRows([NotificationRow.from_json(entry) for entry in entries])
    except TypeError:
        raise ValueError("a row is a list") from None


def _parts(text: str) -> tuple[str, list[Any]]:
    try:
        kind, entries = json.loads(text)
    except (TypeError, RecursionError):
        raise ValueError("a frame is [word, entries]") from None
    if not isinstance(kind, str) or not isinstance(entries, list):
        raise ValueError("a frame is [word, entries]")
    return kind, entries


def _clients(entries: list[Any]) -> list[int]:
    try:
        return [number("client", entry) for entry in entries]
    except BadMessage as error:
        raise ValueError(str(error)) from None


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
            if self.taken(pipe, client):
                _send(self._by_client[client], "lost", [client])
            self._by_client[client] = pipe

    def taken(self, pipe: Pipe, client: int) -> bool:
        """Whether another gateway wants a client; an older connection of the same one is none."""
        before = self._by_client.get(client)
        return before is not None and before is not pipe and (before.peer != pipe.peer or not pipe.peer)

    def drop(self, pipe: Pipe, clients: Iterable[int]) -> None:
        """A gateway wants these no more."""
        for client in clients:
            if self._by_client.get(client) is pipe:
                del self._by_client[client]

    def displace(self, client: int) -> None:
        """A client has come to this gateway itself."""
        pipe = self._by_client.pop(client, None)
        if pipe is not None:
            _send(pipe, "lost", [client])

    def leave(self, pipe: Pipe) -> None:
        """A gateway is gone."""
        self._by_client = {client: one for client, one in self._by_client.items() if one is not pipe}

    def moved(self, gone: Callable[[int], bool]) -> None:
        """The flow of these clients is not here any more."""
        moved = [client for client in self._by_client if gone(client)]
        pipes: dict[Pipe, list[int]] = {}
        for client in moved:
            pipes.setdefault(self._by_client.pop(client), []).append(client)
        for pipe, clients in pipes.items():
            _send(pipe, "not", clients)

    def relay(self, rows: Iterable[NotificationRow]) -> int:
        """Pass rows on; how many had a taker."""
        pipes: dict[Pipe, list[Any]] = {}
        for row in rows:
            pipe = self._by_client.get(row.client)
            if pipe is not None:
                pipes.setdefault(pipe, []).append(row.to_json())
        for pipe, some in pipes.items():
            for at in range(0, len(some), FRAME_ENTRIES):
                pipe.send(json.dumps(["rows", some[at : at + FRAME_ENTRIES]], ensure_ascii=False))
        return sum(map(len, pipes.values()))


def _send(pipe: Pipe, kind: str, clients: Iterable[int]) -> None:
    for frame in frames(kind, clients):
        pipe.send(frame)
