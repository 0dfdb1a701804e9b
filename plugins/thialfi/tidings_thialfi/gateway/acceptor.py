"""Accepting connections: counted by address before anything is made of them, TLS and requests waited for so long.

A peer that opens more than its share is cut off without a word: an answer would have to wait for its request. So the
files that a process may have open are never taken by one address, and not all of them by clients.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from typing import Any

from aiohttp import web

from tidings.errors import InvalidOption
from tidings.runtime.limits import take_all_files
from tidings_thialfi.gateway.addresses import Addresses, counted
from tidings_thialfi.gateway.connection_limits import AddressQuota
from tidings_thialfi.gateway.counted_connection import CountedConnection
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.rates import Rates

BACKLOG_CONNECTIONS = 4096
ACCEPTS_AT_ONCE = 64  # before others have their turn
PAUSE_S = 0.1  # when the process or the machine can have no more files open
RESERVED_FILES = 256  # for logs, ZooKeeper, publishers and other gateways
SPARE_PER_ADDRESS = 32  # connections that wait for their refusal, look at metrics, or ask whether the gateway is well
KEEPALIVE_S = 75.0  # between two requests; longer than proxies wait, which would send one into a closed connection
LINGER_S = 2.0  # in which who is refused can read why, while it still sends what nobody reads

logger = logging.getLogger(__name__)


class Acceptor:
    """Where clients connect."""

    def __init__(
        self,
        server: web.Server,
        addresses: Addresses,
        *,
        most_per_address: int,
        patience: float,
        tls: ssl.SSLContext | None,
        rates: Rates,
        metrics: GatewayMetrics,
        logger: logging.Logger,
    ) -> None:
        self._server = server
        self._addresses = addresses
        self._patience = patience
        self._tls = tls
        self._rates = rates
        self._metrics = metrics
        self._settings = {
            "access_log": None,
            "logger": logger,
            "keepalive_timeout": KEEPALIVE_S,
            "lingering_time": LINGER_S,
            "auto_decompress": False,  # a small body could become a very large one
        }
        self._quota = AddressQuota(most=room_for_files(), most_per_address=most_per_address + SPARE_PER_ADDRESS)
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def open(self, host: str, port: int) -> None:
        """Listen there."""
        loop = asyncio.get_running_loop()
        try:
            for family, _, _, _, place in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                self._listen(family, place)
        except OSError as error:
            self.close()
            raise InvalidOption(f"nothing can be served at {host}:{port}: {error.strerror or error}") from None
        for one in self._sockets:
            loop.add_reader(one, self._accept, one)
        where = self._sockets[0].getsockname()
        self.address = f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"

    def close(self) -> None:
        """Accept no more connections; those that are there go on."""
        for one in self._sockets:
            asyncio.get_running_loop().remove_reader(one)
            one.close()
        self._sockets.clear()

    def _listen(self, family: int, place: Any) -> None:
        made = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(made)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.listen(BACKLOG_CONNECTIONS)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                made, place = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            address, shared = counted(str(place[0])), self._addresses.trusts(str(place[0]))
            if self._quota.accept(address, shared=shared):
                self._metrics.limited.labels("sockets").inc()
                made.close()
                continue
            made.setblocking(False)
            task = asyncio.create_task(self._serve(made, address, shared=shared))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, made: socket.socket, address: str, *, shared: bool) -> None:
        loop = asyncio.get_running_loop()
        counts = True

        def gone() -> None:
            nonlocal counts
            if counts:
                counts = False
                self._quota.release(address)

        def connection() -> CountedConnection:
            source = None if shared else address
            return CountedConnection(
                self._server, gone, self._patience, source, self._rates, self._metrics, loop=loop, **self._settings
            )

        try:
            await loop.connect_accepted_socket(
                connection, made, ssl=self._tls, ssl_handshake_timeout=self._patience if self._tls else None
            )
        except (OSError, TimeoutError):  # it is gone, or speaks no TLS
            gone()
            made.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Wait until some files are closed: to ask again at once would keep the loop from closing them."""
        loop = asyncio.get_running_loop()
        logger.warning("no connection can be accepted at the moment: %s", error.strerror or error)
        loop.remove_reader(listening)

        def again() -> None:
            if listening in self._sockets:
                loop.add_reader(listening, self._accept, listening)

        loop.call_later(PAUSE_S, again)


def room_for_files() -> int:
    """How many connections the process can have, beside what it needs itself; its own limit is raised first."""
    take_all_files()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(soft // 4, soft - RESERVED_FILES)
