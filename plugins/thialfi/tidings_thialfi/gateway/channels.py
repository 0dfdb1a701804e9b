"""Channels: how a message reaches one client, over a WebSocket, a trunk or a long poll.

Sending never waits: what cannot be written at once is queued. Whoever has much to send asks first whether there is
`room`, and is called when there is some again; and nothing is read from a peer that does not read its answers. A peer
that takes nothing for a while is sent away. It comes again, and is told what it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from tidings_thialfi.gateway.addresses import counted
from tidings_thialfi.protocol.messages import BadMessage, FromService, encode, split
from tidings_thialfi.protocol.rate_limit import Bucket

if TYPE_CHECKING:
    from tidings_thialfi.gateway.sessions import Session

SHUTDOWN, DISPLACED, DISCONNECTED, SLOW, SILENT = 3001, 3002, 3003, 3008, 3012
MALFORMED, DENIED = 3501, 3507
SHORT_CHARACTERS = 8 * 2**10  # of a text: asyncio pauses whoever writes at 64 KiB, and a character has up to 4 bytes
CLOSE_TIMEOUT_S = 5.0  # what a client has to read why it is sent away


class Pipe:
    """Text out of a WebSocket, in order. A task writes only while something waits: it costs more than most texts.

    There is `room` below `ahead` bytes; at `limit` bytes, or when none was taken for `stall` seconds, the other side is
    too slow, and is given up.
    """

    __slots__ = ("_ahead", "_bytes", "_closer", "_gave_up", "_limit", "_queue", "_request", "_socket", "_stall",
                 "_waiters", "_watchdog", "_writer", "_written", "closed", "peer")  # fmt: skip

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        *,
        ahead: int,
        limit: int,
        stall: float,
        gave_up: Callable[[], None],
    ) -> None:
        self._request = request
        self._socket = socket
        self._ahead = ahead
        self._limit = limit
        self._stall = stall
        self._gave_up = gave_up
        self._queue: deque[str] = deque()
        self._bytes = 0
        self._waiters: deque[Callable[[], None]] = deque()
        self._written = 0
        self._writer: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._closer: asyncio.Task[None] | None = None
        self.closed = False
        self.peer = ""
        """Which gateway is at the other end, if one is."""

    def send(self, text: str) -> bool:
        """Send this, soon; False if the other side is gone, or is too slow, and is sent away."""
        if self.closed:
            return False
        if self._writer is None and self._write_at_once(text):
            return not self.closed
        self._queue.append(text)
        self._bytes += len(text)
        if self._bytes > self._limit:
            self._give_up()
            return False
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
            self._watch()
        return True

    def close(self, code: int, reason: str) -> None:
        """Close the WebSocket once what waits is written; at once if it is too slow for that."""
        if self.closed:
            return
        self.closed = True
        if code == SLOW:
            self._queue.clear()
        self._closer = asyncio.create_task(self._close(code, reason))
        self._call_waiters()

    async def ended(self) -> None:
        """Wait until the other side knows why it was closed, if it was: whoever reads must not end before that."""
        if self._closer is not None:
            await self._closer

    @property
    def waiting(self) -> int:
        """How many bytes wait."""
        return self._bytes

    @property
    def room(self) -> bool:
        """Whether more may be sent; a pipe that is closed has room, and takes nothing."""
        return self._bytes < self._ahead or self.closed

    def when_room(self, work: Callable[[], None]) -> None:
        """Call this, once, when there is room."""
        self._waiters.append(work)

    async def until_room(self) -> None:
        """Wait until there is room."""
        if not self.room:
            found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_room(lambda: None if found.done() else found.set_result(None))
            await found

    def _write_at_once(self, text: str) -> bool:
        """Write this, if it is short and the transport holds nothing: then aiohttp has nothing to wait for."""
        transport = self._request.transport
        if transport is None or len(text) > SHORT_CHARACTERS or transport.get_write_buffer_size():
            return False
        writing = self._socket.send_str(text)
        try:
            writing.send(None)
            writing.close()  # it would wait until some is read; the text itself is with the transport
        except StopIteration:
            pass
        except (ConnectionError, RuntimeError):
            self._gone()
        return True

    async def _write(self) -> None:
        try:
            while self._queue:
                text = self._queue.popleft()
                await self._socket.send_str(text)
                self._bytes -= len(text)
                self._written += 1
                self._call_waiters()
        except (ConnectionError, RuntimeError):
            self._gone()
        finally:
            self._writer = None
            if self._watchdog is not None:
                self._watchdog.cancel()

    def _gone(self) -> None:
        """The other side is gone; whoever reads from it finds out, and cleans up."""
        self.closed = True
        self._queue.clear()
        self._call_waiters()

    def _watch(self) -> None:
        """Look after a while whether something was written meanwhile.

        The write itself is not given a timeout: aiohttp does not outlive a cancellation of one.
        """

        def look() -> None:
            if self._written == before:
                self._give_up()
            else:
                self._watch()

        before = self._written
        self._watchdog = asyncio.get_running_loop().call_later(self._stall, look)

    def _call_waiters(self) -> None:
        while self._waiters and self.room:
            self._waiters.popleft()()

    def _give_up(self) -> None:
        if not self.closed:
            self._gave_up()
            self.close(SLOW, "too slow")

    async def _close(self, code: int, reason: str) -> None:
        transport = self._request.transport
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._writer is not None:
                    await asyncio.wait([self._writer])
                await self._socket.close(code=code, message=reason.encode()[:123])
        except (TimeoutError, ConnectionError, RuntimeError):
            if transport is not None:
                transport.abort()  # a closing transport would wait for a reader that does not read


class ClientChannel:
    """One client's way: what is known of it, and how to send to it."""

    __slots__ = ("address", "authorization", "bucket", "counted", "faults", "session", "since", "user", "warned")
    kind = "channel"
    weighed = False
    """Whether the bytes of its messages were counted before they came here."""

    def __init__(self, address: str, authorization: str | None, bucket: Bucket) -> None:
        self.address = address
        self.counted: str | None = counted(address)
        """What its address is counted as; None if it is that of many clients."""
        self.authorization = authorization
        self.bucket = bucket
        self.session: Session | None = None
        self.user: str | None = None
        """Who is there, once it has said so; the name is empty if nobody is asked."""
        self.since = int(1000 * time.time())
        """Since when who is there is, in milliseconds since 1970: since it came, or was last asked who it is."""
        self.faults = 0
        self.warned = float("-inf")
        """When it was last told that it is too fast."""

    def send(self, message: FromService) -> bool:
        """Send a message, soon; False if the client is gone or is sent away."""
        try:
            return self.send_text(encode(message))
        except BadMessage:
            return all(self.send_text(encode(one)) for one in split(message))

    def send_text(self, text: str) -> bool:
        """Send a message that is encoded already."""
        raise NotImplementedError

    def close(self, code: int, reason: str) -> None:
        """End the channel."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether something waits to be read by the client."""
        return False

    @property
    def room(self) -> bool:
        """Whether more may be sent; a channel that is closed has room, and takes nothing."""
        return True

    def when_room(self, work: Callable[[], None]) -> None:
        """Call this, once, when there is room."""
        raise NotImplementedError


class SocketChannel(ClientChannel):
    """A WebSocket of one client."""

    __slots__ = ("pipe",)
    kind = "websocket"

    def __init__(self, pipe: Pipe, address: str, authorization: str | None, bucket: Bucket) -> None:
        super().__init__(address, authorization, bucket)
        self.pipe = pipe

    def send_text(self, text: str) -> bool:
        """Send a message that is encoded already."""
        return self.pipe.send(text)

    def close(self, code: int, reason: str) -> None:
        """End the channel."""
        self.pipe.close(code, reason)

    @property
    def busy(self) -> bool:
        """Whether something waits to be read by the client."""
        return self.pipe.waiting > 0

    @property
    def room(self) -> bool:
        """Whether more may be sent."""
        return self.pipe.room

    def when_room(self, work: Callable[[], None]) -> None:
        """Call this, once, when there is room."""
        self.pipe.when_room(work)


class TagChannel(ClientChannel):
    """One client on a trunk, behind its tag."""

    __slots__ = ("_pipe", "_tag", "inbox", "open", "working")
    kind = "trunk"

    def __init__(self, pipe: Pipe, tag: str | int, address: str, authorization: str | None, bucket: Bucket) -> None:
        super().__init__(address, authorization, bucket)
        self.counted = None  # the proxy's
        self._pipe = pipe
        self._tag = json.dumps(tag, ensure_ascii=False)
        self.inbox: deque[str] = deque()
        self.working = False
        self.open = True

    def send_text(self, text: str) -> bool:
        """Send a message that is encoded already."""
        return self.open and self._pipe.send(f"[{self._tag},{text}]")

    def close(self, code: int, reason: str) -> None:
        """Tell the proxy that the client is sent away; the trunk goes on."""
        if self.open:
            self.open = False
            self._pipe.send(f"[{self._tag},null]")

    @property
    def busy(self) -> bool:
        """Whether something waits to be read by the proxy."""
        return self._pipe.waiting > 0

    @property
    def room(self) -> bool:
        """Whether more may be sent."""
        return self._pipe.room

    def when_room(self, work: Callable[[], None]) -> None:
        """Call this, once, when there is room."""
        self._pipe.when_room(work)


class PollChannel(ClientChannel):
    """A client that polls: what it is told waits for its next poll. There is room below `ahead` bytes."""

    __slots__ = ("_ahead", "_bytes", "_queue", "_ready", "_waiters", "clients", "closed", "counts", "key",
                 "polled", "polling")  # fmt: skip
    kind = "poll"
    weighed = True

    def __init__(self, ahead: int, address: str, authorization: str | None, bucket: Bucket, now: float) -> None:
        super().__init__(address, authorization, bucket)
        self._ahead = ahead
        self._bytes = 0
        self._queue: deque[str] = deque()
        self._waiters: deque[Callable[[], None]] = deque()
        self._ready = asyncio.Event()
        self.key = secrets.token_urlsafe(16)
        """What the client's next polls show: a token alone does not say that they come from who said hello."""
        self.clients: set[int] = set()
        """Whose channel it is, or was."""
        self.counts = False
        """Whether it counts for its address."""
        self.polled = now
        self.polling = 0
        self.closed = False

    def send_text(self, text: str) -> bool:
        """Send a message that is encoded already."""
        if self.closed:
            return False
        self._queue.append(text)
        self._bytes += len(text)
        self._ready.set()
        return True

    def close(self, code: int, reason: str) -> None:
        """End the channel: a poll that is under way returns."""
        self.closed = True
        self._ready.set()

    async def receive(self, seconds: float) -> list[str]:
        """What there is for the client, waiting so long for it."""
        if not self._queue and not self.closed and seconds > 0:
            self._ready.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), seconds)
        found = list(self._queue)
        self._queue.clear()
        self._bytes = 0
        while self._waiters and self.room:
            self._waiters.popleft()()
        return found

    @property
    def busy(self) -> bool:
        """Whether something waits to be polled."""
        return self._bytes > 0

    @property
    def room(self) -> bool:
        """Whether more may be sent."""
        return self._bytes < self._ahead or self.closed

    def when_room(self, work: Callable[[], None]) -> None:
        """Call this, once, when there is room."""
        self._waiters.append(work)
