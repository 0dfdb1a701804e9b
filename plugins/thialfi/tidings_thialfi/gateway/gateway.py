"""A gateway: clients on one side, the two streams of a Thialfi service on the other.

It is a subscriber of the notifications, so gateways share the flows and take over from each other, and a producer of
the operations. What it holds of its clients is soft, and lost with it: they connect elsewhere and are told again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tidings.cluster import Cluster
from tidings.coordination.zookeeper import check_name
from tidings.errors import InvalidOption, UnknownApplication
from tidings.wire.bearers import Bearers
from tidings.wire.security import OPEN, Security
from tidings_thialfi.gateway.channels import DISPLACED, SHUTDOWN, SILENT
from tidings_thialfi.gateway.hooks import GatewayHooks, Guard
from tidings_thialfi.gateway.http import Web
from tidings_thialfi.gateway.inbound import Desk
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.outbound import Intake, Pusher
from tidings_thialfi.gateway.presence import Presence
from tidings_thialfi.gateway.registry import Places, Registry, gateways_of
from tidings_thialfi.gateway.routes import Routes
from tidings_thialfi.gateway.sessions import Row, Session
from tidings_thialfi.protocol.messages import FromService
from tidings_thialfi.protocol.stream_schema import notifications_of, operations_of
from tidings_thialfi.protocol.tokens import TokenKeys
from tidings_thialfi.service import read

TICK = 0.5  # seconds between looks at what is due
ROUNDS = 10  # looks for what is to be sent again, in the time after which it is
REMINDER = 86_400.0  # seconds after which the stage is told again that a client is there, lest it forget the client
BACKLOG = 4096
STALE_AT_ONCE = 2_000  # clients a second that are asked to say hello again

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlace:
    """Where a gateway listens and how others reach it; secrets are never shown."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    """`host:port` for other gateways; where it listens, if it is not said."""
    tls: ssl.SSLContext | None = None
    peer_tls: ssl.SSLContext | None = None
    peer_secret: str | None = field(default=None, repr=False)
    subscriber: str = "127.0.0.1:0"
    """Where publishers send the notifications."""
    security: Security = OPEN


class Gateway:
    """A gateway of a service. Made by `gateway`, which starts and ends it."""

    def __init__(
        self,
        cluster: Cluster,
        service: str,
        keys: TokenKeys,
        *,
        id: str | None = None,
        place: GatewayPlace | None = None,
        options: GatewayOptions | None = None,
        hooks: GatewayHooks | None = None,
        publish_to: str | None = None,
        publish_tokens: Sequence[str] = (),
        trunk_tokens: Sequence[str] = (),
        serve_metrics: bool = True,
    ) -> None:
        self.service = service
        self.id = check_name("a gateway", id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self.place = place or GatewayPlace()
        self.options = options or GatewayOptions()
        self.metrics = GatewayMetrics()
        self.address = ""
        self._cluster = cluster
        self._identity = read(cluster, service).identity
        self._notifications = cluster.stream(notifications_of(service))
        self._operations = cluster.stream(operations_of(service)).async_producer(linger=0.002)
        self._publisher = cluster.stream(publish_to).async_producer() if publish_to else None
        self._guard = Guard(hooks)
        self._presence = Presence(self._write, self.id)
        self._desk = Desk(
            keys,
            lambda: self._identity,
            self._write,
            come=lambda session: self._routes.come(session),
            gone=lambda session: self._routes.gone(session),
            options=self.options,
            metrics=self.metrics,
            guard=self._guard,
        )
        self._pusher = Pusher(
            self._desk.sessions, lambda: self._routes, guard=self._guard, options=self.options, metrics=self.metrics
        )
        self._routes = Routes(
            self.id,
            self._notifications.shards,
            self._desk.sessions,
            self._presence,
            said=self._pusher.tell,
            displaced=self._displace,
            metrics=self.metrics,
            secret=self.place.peer_secret,
            tls=self.place.peer_tls,
        )
        self.web = Web(
            self._desk,
            self._routes,
            options=self.options,
            metrics=self.metrics,
            unready=self.unready,
            publish=self._published if self._publisher else None,
            publishers=Bearers(publish_tokens),
            trunks=Bearers(trunk_tokens),
            peers=Bearers([self.place.peer_secret] if self.place.peer_secret else ()),
            serve_metrics=serve_metrics,
        )
        self._closing = False
        self._listened = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics.gauge("connections", "WebSockets and polls of clients.", lambda: self.web.doors.inside)
        self.metrics.gauge("sessions", "Clients that are online here.", lambda: len(self._desk.sessions))
        self.metrics.gauge("unrouted_sessions", "Clients whose flow no gateway holds.", lambda: self._routes.unrouted)
        self.metrics.gauge("flows", "Flows of notifications that are here.", lambda: len(self._routes.here))
        self.metrics.gauge("watched_clients", "Clients of other gateways.", lambda: len(self._routes.watchers))
        self.metrics.gauge("hook_failures", "Hooks that failed or were late.", lambda: self._guard.failures)
        self.metrics.gauge(
            "unacknowledged_notifications",
            "Notifications that are kept until they are acknowledged.",
            lambda: sum(len(session.pending) for session in self._desk.sessions),
        )

    def unready(self) -> list[str]:
        """Why clients should go elsewhere; nothing if they need not."""
        reasons = []
        if self._closing:
            reasons.append("the gateway is shutting down")
        if not self._cluster.coordination.client.connected:
            reasons.append("ZooKeeper cannot be reached")
        if self._routes.unrouted and self.place.peer_secret is None and self._routes.elsewhere:
            reasons.append("flows of clients here are with other gateways, and no secret for relays was given")
        return reasons

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Serve clients until `stop` is set; then close what is open, so that clients go elsewhere.

        `started` is called once clients can connect.
        """
        loop = asyncio.get_running_loop()
        application = gateways_of(self.service)
        try:
            self._cluster.application(application)
        except UnknownApplication:
            self._cluster.create_application(
                application, [self._notifications.name], start="latest", balance="zookeeper"
            )
        runner = web.AppRunner(
            self.web.app, access_log=None, handle_signals=False, shutdown_timeout=2.0, logger=_http_logger()
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner,
                self.place.host,
                self.place.port,
                ssl_context=self.place.tls,
                backlog=BACKLOG,
                reuse_address=True,
            )
            try:
                await site.start()
            except OSError as error:
                where = f"{self.place.host}:{self.place.port}"
                raise InvalidOption(f"nothing can be served at {where}: {error.strerror or error}") from None
            self.address = _address(runner)
            async with self._joined(loop, application):
                started()
                await self._serve(stop)
                self._closing = True
                await site.stop()
                await self._send_away()
        finally:
            await runner.cleanup()
            await self._operations.close()
            if self._publisher is not None:
                await self._publisher.close()

    @asynccontextmanager
    async def _joined(self, loop: asyncio.AbstractEventLoop, application: str) -> AsyncIterator[None]:
        """Be among the service's gateways, and hold flows."""
        scheme = "https" if self.place.tls is not None else "http"
        url = f"{scheme}://{self.place.advertise or self.address}"

        def placed(places: Places) -> None:
            loop.call_soon_threadsafe(self._placed, places)

        def join() -> tuple[Registry, Any]:
            registry = Registry(
                self._cluster.coordination, self.service, self.id, url, self._notifications.shards, placed
            )
            try:
                subscriber = self._cluster.subscribe(
                    application,
                    Intake(loop, self._pusher, self._routes),
                    id=self.id,
                    address=self.place.subscriber,
                    security=self.place.security,
                )
            except BaseException:
                registry.close()
                raise
            return registry, subscriber

        registry, subscriber = await asyncio.to_thread(join)
        try:
            yield
        finally:
            await asyncio.to_thread(subscriber.close)
            await asyncio.to_thread(registry.close)
            await self._routes.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        """Do what is due now and then, until the end is asked for."""
        pause = min(TICK, self.options.resend / ROUNDS)
        swept = time.monotonic()
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                now = time.monotonic()
                self._pusher.resend(now)
                if now - swept >= TICK:
                    swept = now
                    self._sweep(now)

    async def _send_away(self) -> None:
        """Mark all clients offline, then close their channels so that they connect elsewhere: in this order.

        A client is at another gateway at once, and an `offline` after its `online` there would be wrong.
        """
        self._desk.closed = True
        for session in self._desk.sessions:
            if self._desk.sessions.end(session):
                self._routes.gone(session)
        await self._presence.flush()
        self.web.close(SHUTDOWN, "the gateway is shutting down")
        await self.web.closed()

    def _sweep(self, now: float) -> None:
        self._routes.retry()
        self.web.sweep()
        if now - self._listened < self.options.offline_after / ROUNDS:
            return
        self._listened = now
        for session in self._desk.sessions.silent(now, self.options.offline_after):
            session.channel.close(SILENT, "nothing was heard for too long")
            self._desk.leave(session.channel)
        for session in self._desk.sessions:
            if session.routed and now - session.noted >= REMINDER:
                self._routes.come(session)

    def _placed(self, places: Places) -> None:
        if places.identity is not None and places.identity != self._identity:
            logger.warning("service %s has another identity now: clients will get new tokens", self.service)
            self._identity = places.identity
            self._spawn(self._tell_stale())
        self._routes.placed(places.holders, places.urls)

    async def _tell_stale(self) -> None:
        """Have clients get tokens of the new identity, a part of them at a time; who says something is told anyway."""
        for number, session in enumerate(self._desk.sessions):
            session.channel.send(FromService(stale=True))
            if number % STALE_AT_ONCE == STALE_AT_ONCE - 1:
                await asyncio.sleep(1.0)

    def _displace(self, session: Session) -> None:
        self.metrics.displaced.inc()
        self._routes.forget(session)
        self._desk.dismiss(session, DISPLACED, "the client came on another channel")

    async def _write(self, made: Sequence[Row]) -> None:
        began = time.perf_counter()
        if len(made) == 1:  # most are alone, and a table for one row costs ten times as much
            await self._operations.publish(**made[0])
        else:
            await self._operations.publish_many(made)
        self.metrics.durable.observe(time.perf_counter() - began)
        for row in made:
            self.metrics.rows.labels(row["attributes"]["op"]).inc()

    async def _published(self, updates: Sequence[dict[str, Any]]) -> None:
        assert self._publisher is not None
        await self._publisher.publish_many(updates)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _http_logger() -> logging.Logger:
    """The logger of the HTTP server. What is no HTTP is not worth a trace, which might show a token, too."""
    found = logging.getLogger(f"{__name__}.http")
    found.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return found


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
