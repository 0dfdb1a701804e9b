"""The asynchronous client: drives the state machine over a channel, and calls the listener.

Three tasks: one keeps a channel open, one sends what is due, one calls the listener, so that a slow listener holds up
nothing but itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidOption, TidingsError
from tidings_thialfi.client.backoff import Backoff
from tidings_thialfi.client.channels import (
    ChannelBroken,
    ChannelRefused,
    GatewayChannel,
    LongPollChannel,
    NoWebSocket,
    WebSocketChannel,
    addresses,
    new_session,
)
from tidings_thialfi.client.core import ClientCore
from tidings_thialfi.client.listener import Event, Handle, Listener, call
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.protocol.messages import FromClient, FromService

if TYPE_CHECKING:
    import aiohttp

Credentials = Callable[[], str | Awaitable[str | None] | None]
Objects = Iterable[str | tuple[str, int | None]]

logger = logging.getLogger(__name__)
_POLLING_S = 600.0  # then a WebSocket is tried again
_STEADY_CHANNEL_S = 60.0  # a channel that has lasted so long was a good one
_WEBSOCKET_ATTEMPTS = 3  # before polls are tried although nothing answered


class ClientStopped(TidingsError):
    """The client is not running: it was not started, or was stopped."""


class AsyncClient:
    """A client of a Thialfi service, for one event loop. Nothing here waits for the service: the listener is told.

    `address` is the gateway's: `wss://gateway.example`, or `ws://localhost:8080` without TLS. `application` names this
    client among those that publish: a change that it made itself, with this as its source, is not notified to it.
    `credentials` is called for each hello, so that they may change; they are never logged. `tls` is for a private
    certificate authority. `polling` leaves WebSockets alone.
    """

    def __init__(
        self,
        address: str,
        application: str,
        listener: Listener,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        polling: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self._socket_address, self._poll_address = addresses(address)
        self._listener = listener
        self._credentials = credentials
        self._tls = tls
        self._polling = polling
        self._pace = pace or Pace()
        self._rng = random.SystemRandom()
        self._application = application
        self._core = ClientCore(application, rng=self._rng, pace=self._pace)
        self._channel: GatewayChannel | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._due, self._news = asyncio.Event(), asyncio.Event()
        self.running = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._application} at {self._socket_address}>"

    async def __aenter__(self) -> AsyncClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self, state: bytes | None = None) -> None:
        """Begin, with what `Listener.write_state` was last given. Does not wait for a connection."""
        if self.running:
            raise ClientStopped("the client is running already: stop it before you start it again")
        self._core = ClientCore(self._application, rng=self._rng, pace=self._pace)
        self._core.start(state, now=self._now(), wall=time.time())
        self._due, self._news = asyncio.Event(), asyncio.Event()  # an event belongs to its loop
        self.running = True
        self._tasks = [asyncio.create_task(work()) for work in (self._keep_connected, self._keep_sending, self._listen)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Say what is still to be said, close the channel and end. The service keeps what it knows of the client."""
        if not self.running:
            return
        self.running = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._send_due()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        self._tasks = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def register(self, object: str, version: int | None = None) -> None:
        """Register for an object. `version` is the one that you have: what is not above it is not notified."""
        self._check_running()
        self._core.register(object, version, now=self._now())
        self._poke()

    def register_many(self, objects: Objects) -> None:
        """Register for many objects: names, or pairs of name and version."""
        self._check_running()
        if isinstance(objects, str):
            raise InvalidOption("many objects are a list: to register for one, use `register`")
        for one in objects:
            name, version = (one, None) if isinstance(one, str) else one
            self._core.register(name, version, now=self._now())
        self._poke()

    def unregister(self, object: str) -> None:
        """Do not hear of an object any more."""
        self._check_running()
        self._core.unregister(object, now=self._now())
        self._poke()

    def acknowledge(self, handle: Handle) -> None:
        """You have dealt with a notification, and need not be told again."""
        self._check_running()
        self._core.acknowledge(handle)
        self._poke()

    def _check_running(self) -> None:
        if not self.running:
            raise ClientStopped("the client is not running: start it first")

    def _now(self) -> float:
        return time.monotonic()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the client %s has failed", self._application, exc_info=error)
            self._core.fault("internal", f"the client has failed: {type(error).__name__}", permanent=True)
            self._poke()

    def _poke(self) -> None:
        self._due.set()
        self._news.set()

    # Sending.

    async def _keep_sending(self) -> None:
        while self.running:
            self._due.clear()
            await self._send_due()
            self._news.set()
            pause = self._core.wake(now=self._now()) - self._now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, min(pause, 3600.0))):  # wait_for may lose a cancellation
                    await self._due.wait()

    async def _send_due(self) -> None:
        for message in self._core.messages(now=self._now()):
            ready = await self._introduced(message)
            if ready is not None and self._channel is not None:
                await self._channel.send(ready)

    async def _introduced(self, message: FromClient) -> FromClient | None:
        """The message with the credentials that a hello needs; None if they cannot be had now."""
        if message.hello is None or self._credentials is None:
            return message
        try:
            credentials = await self._ask(self._credentials)
        except Exception as error:  # noqa: BLE001 - it is the application's, and may raise anything
            # Not with what the error says, which may be a secret.
            logger.warning("credentials for %s cannot be had: %s", self._application, type(error).__name__)
            self._core.fault("credentials", f"credentials cannot be had: {type(error).__name__}")
            return None
        return replace(message, hello=replace(message.hello, credentials=credentials))

    async def _ask(self, credentials: Credentials) -> str | None:
        found = credentials()
        return await found if inspect.isawaitable(found) else found

    # The channel.

    async def _keep_connected(self) -> None:
        pauses = Backoff(self._pace.first_retry, self._pace.most_retry, self._rng)
        failures, polling = 0, self._polling
        async with new_session() as session:
            while self.running and not self._core.halted:
                began = self._now()
                try:
                    async with asyncio.timeout(_POLLING_S if polling and not self._polling else None):
                        await self._converse(self._new_channel(session, polling))
                except TimeoutError:
                    polling, failures = False, 0  # polls have worked; perhaps a WebSocket does again
                    continue
                except ChannelRefused as error:
                    if not self._core.halted:
                        self._core.fault("refused", str(error), permanent=True)
                    self._poke()
                    return
                except (ChannelBroken, NoWebSocket) as error:
                    failures = 0 if self._now() - began >= _STEADY_CHANNEL_S else failures + 1
                    logger.info("%s has no channel: %s", self._application, error)
                    self._core.fault("disconnected", str(error))
                    blocked = isinstance(error, NoWebSocket) or failures % _WEBSOCKET_ATTEMPTS == 0
                    polling = self._polling or (not polling and failures > 0 and blocked)
                    if not failures:
                        pauses.reset()
                self._poke()
                await asyncio.sleep(pauses.next())

    def _new_channel(self, session: aiohttp.ClientSession, polling: bool) -> GatewayChannel:
        if polling:
            return LongPollChannel(session, self._poll_address, self._tls, lambda: self._core.token)
        return WebSocketChannel(session, self._socket_address, self._tls)

    async def _converse(self, channel: GatewayChannel) -> None:
        try:
            await channel.open()
            self._channel = channel
            self._core.connected(now=self._now(), introduce=self._credentials is not None)
            self._poke()
            await channel.run(self._receive)
        finally:
            self._channel = None
            self._core.disconnected()
            await channel.close()

    def _receive(self, message: FromService) -> None:
        self._core.received(message, now=self._now())
        self._poke()
        if self._core.halted:
            raise ChannelRefused("the service will not have this client")

    # The listener.

    async def _listen(self) -> None:
        while self.running:
            self._news.clear()
            while self.running and (event := self._core.next_event()):
                await self._deliver(event)
            if self.running:  # the listener may have stopped the client
                await self._news.wait()

    async def _deliver(self, event: Event) -> None:
        try:
            explicit = await self._call(event)
        except Exception:
            logger.exception("the listener of %s failed at %s, and is told again", self._application, event.method)
            self._core.redeliver(event, now=self._now())
        else:
            if event.handle is not None and not explicit:
                self._core.acknowledge(event.handle)
            self._core.delivered(event, now=self._now())
        self._due.set()

    async def _call(self, event: Event) -> bool:
        """Call the listener; whether the application acknowledges by itself."""
        explicit, found = call(self._listener, event)
        if inspect.isawaitable(found):
            await _finished(found)
        return explicit


async def _finished(work: Awaitable[Any]) -> None:
    await work
