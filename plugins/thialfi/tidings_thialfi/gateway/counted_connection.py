"""One connection: how long its first request is waited for, and how fast it is read, whatever it sends.

What comes is counted as it is received, in bytes and in pieces: frames, or some lines of a request, which chunks of a
body have too. A connection that owes more than it may send, or whose address does, is not read until that is made good,
and TCP holds its sender back. Frames without end, of which nothing becomes a message, end it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable
from typing import Any, cast

from aiohttp import web

from tidings_thialfi.gateway.channels import MALFORMED, SLOW
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.rates import Amount, Rates
from tidings_thialfi.gateway.websocket_frames import FollowedParser, Frames

READ_BYTES = 16 * 2**10  # at once: what is parsed before others have their turn
LINES_PER_PIECE = 5
REST_S = 0.25  # at least: a crowd that rests together must not be looked after all the time

_BUFFER = memoryview(bytearray(READ_BYTES))  # of all: what is read is taken out of it at once
_NUMBERS = itertools.count()


class Valve:
    """A transport that is read from only while both its reader and its connection want that."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._wanted = self._open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        """Nothing is wanted."""
        self._wanted = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """More is wanted."""
        self._wanted = True
        self._turn()

    def shut(self) -> None:
        """Nothing is let through."""
        self._open = False
        self._transport.pause_reading()

    def open(self) -> None:
        """All is let through that is wanted."""
        self._open = True
        self._turn()

    def _turn(self) -> None:
        if self._wanted and self._open:
            self._transport.resume_reading()


class CountedConnection(web.RequestHandler, asyncio.BufferedProtocol):
    """The HTTP of one connection; `gone` is called once, at its end. Its first request has to come in `patience` s.

    `source` is the address that it counts for; None if it is a proxy's, and of many.
    """

    __slots__ = ("_ahead", "_clock", "_first", "_frames", "_gone", "_held", "_late", "_metrics", "_patience", "_rates",
                 "_send_away", "_valve", "_whose")  # fmt: skip

    def __init__(
        self,
        server: web.Server,
        gone: Callable[[], None],
        patience: float,
        source: str | None,
        rates: Rates,
        metrics: GatewayMetrics,
        *,
        loop: asyncio.AbstractEventLoop,
        **settings: Any,
    ) -> None:
        super().__init__(server, loop=loop, **settings)
        self._gone = gone
        self._patience = patience
        self._rates = rates
        self._metrics = metrics
        self._clock = loop.time
        self._whose: dict[str, Hashable] = {}
        if source is not None:
            self.count_for(source)
        self._first: asyncio.TimerHandle | None = None
        self._ahead: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._valve: Valve | None = None
        self._held = b""
        self._frames: Frames | None = None
        self._send_away: Callable[[int, str], None] | None = None

    def count_for(self, source: str, send_away: Callable[[int, str], None] | None = None) -> None:
        """From now on all that comes is of one client, at this address; `send_away` ends its WebSocket."""
        self._whose = {"connection": next(_NUMBERS), "source": source}
        self._send_away = send_away

    def trust(self) -> None:
        """Who is there has shown a token of the gateway's: it is read as fast as it sends."""
        self._whose = {}
        if self._ahead is not None:
            self._ahead.cancel()
            self._take()

    def arrived(self) -> None:
        """A request is here."""
        if self._first is not None:
            self._first.cancel()
            self._first = None

    # What a transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._first = self._loop.call_later(self._patience, self.force_close)
        self._valve = Valve(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, self._valve))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no more."""
        self.arrived()
        for timer in (self._ahead, self._late):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        self._held += bytes(_BUFFER[:nbytes])
        if self._ahead is None:
            self._take()

    # What aiohttp calls

    def set_parser(self, parser: Any, *more: Any, **named: Any) -> None:
        """From now on there are frames."""
        self._frames = Frames()
        super().set_parser(cast(Any, FollowedParser(parser, self._frames, self._clock)), *more, **named)
        self._count(self._frames, 0)  # those that have come behind the request

    def _take(self) -> None:
        """Have parsed what has come, if it is due, and see when more may come."""
        self._ahead = None
        if self._rests():
            return
        if self._held:
            data, self._held = self._held, b""
            frames = self._frames
            self.data_received(data)
            if frames is None:
                pieces = 1 + data.count(b"\n") // LINES_PER_PIECE
                self._rates.owe(self._clock(), Amount(pieces, len(data)), self._whose)
            else:
                self._count(frames, len(data))
            if self._rests():
                return
        if self._valve is not None:
            self._valve.open()

    def _count(self, frames: Frames, size: int) -> None:
        """Count the frames that have come, and see whether they make sense."""
        self._rates.owe(self._clock(), Amount(1 + frames.count, size), self._whose)
        frames.count = 0
        if self._send_away is None:
            return
        if frames.unmasked:
            self._metrics.refused.labels("malformed").inc()
            self._send_away(MALFORMED, "frames of a client are masked")
        elif frames.begun is not None and self._late is None:
            self._late = self._loop.call_later(self._patience, self._look_for_end)

    def _rests(self) -> bool:
        """Whether nothing is read for a while: until what is owed is made good."""
        over = self._rates.owed(self._clock(), self._whose)
        if over is None or self._valve is None:
            return False
        self._metrics.limited.labels("pace").inc()
        self._valve.shut()
        self._ahead = self._loop.call_later(max(REST_S, over.wait), self._take)
        if over.limit == "connection-entries" and self._send_away is not None:
            self._send_away(MALFORMED, "too many frames")
        return True

    def _look_for_end(self) -> None:
        """A message had begun; it is not waited for without end."""
        self._late = None
        begun = None if self._frames is None else self._frames.begun
        if begun is None or self._send_away is None:
            return
        if (left := begun + self._patience - self._clock()) > 0:
            self._late = self._loop.call_later(left, self._look_for_end)
            return
        self._metrics.limited.labels("timeout").inc()
        self._send_away(SLOW, f"a message ends within {self._patience:g} s")
