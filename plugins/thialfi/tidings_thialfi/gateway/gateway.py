"""A gateway: clients on one side, the two streams of a Thialfi service on the other.

It is a subscriber of the notifications, so gateways share the flows and take over from each other, and a producer of
the operations. What it holds of its clients is soft, and lost with it: they connect elsewhere and are told again.

Its parts are made in one order, each from those before it; what a part finds that concerns another it returns as an
effect, and `Dispatcher` carries that out.
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
from tidings.coordination.health import ZooKeeperCollector
from tidings.names import check_name
from tidings.subscriber.metrics import SubscriberCollector
from tidings.subscriber.subscriber import Subscriber
from tidings.wire.security import OPEN, Security
from tidings_thialfi.gateway.acceptor import Acceptor
from tidings_thialfi.gateway.addresses import Addresses
from tidings_thialfi.gateway.bearers import Bearers
from tidings_thialfi.gateway.channels import SHUTDOWN
from tidings_thialfi.gateway.delays import Delays
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.flow_handler import FlowHandler
from tidings_thialfi.gateway.gauges import GatewayGauges
from tidings_thialfi.gateway.hearing import Hearing
from tidings_thialfi.gateway.hooks import GatewayHooks, Guard
from tidings_thialfi.gateway.http import HttpServer
from tidings_thialfi.gateway.inbound import Inbound
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.operations import OperationWriter
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.outbound import Outbound
from tidings_thialfi.gateway.presence import Presence
from tidings_thialfi.gateway.rates import Rates
from tidings_thialfi.gateway.readiness import Readiness
from tidings_thialfi.gateway.registry import Places, Registry
from tidings_thialfi.gateway.relay import Watchers
from tidings_thialfi.gateway.routes import Routes
from tidings_thialfi.gateway.sessions import Sessions
from tidings_thialfi.places import GATEWAYS, PLACE, REVOKED, gateways_of
from tidings_thialfi.protocol.messages import FromService
from tidings_thialfi.protocol.stream_schema import notifications_of, operations_of
from tidings_thialfi.protocol.tokens import TokenKeys
from tidings_thialfi.revocations import Revocations
from tidings_thialfi.service import read

SWEEP_INTERVAL_S = 0.5
CHECKS_PER_SPAN = 10  # looks at what is due, in the time after which it is
STALE_CLIENTS_PER_S = 2_000  # that are asked to say hello again

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = Places({}, {}, None, frozenset(), frozenset(), 0)
        secret = self.place.peer_secret
        identity = read(cluster, service).identity
        guard = Guard(hooks)
        self._hearing = Hearing(cluster.coordination.client)
        self._rates = Rates(self.options)
        self._rates.share(time.monotonic(), 1 + len(cluster.coordination.children(PLACE, service, GATEWAYS)))
        self._addresses = Addresses(self.options.trusted_proxies)
        watchers = Watchers()
        self._notifications = cluster.stream(notifications_of(service))
        self._operations = OperationWriter(
            cluster.stream(operations_of(service)).async_producer(linger=0.002), self.metrics
        )
        self._producer = cluster.stream(publish_to).async_producer() if publish_to else None
        self._sessions = Sessions(self.options)
        self._inbound = Inbound(
            self._sessions,
            keys,
            identity,
            self._operations,
            options=self.options,
            metrics=self.metrics,
            guard=guard,
            rates=self._rates,
            hearing=self._hearing,
        )
        # Before any client comes: what is said from now on is heard later.
        self._inbound.revoked = Revocations(cluster.coordination.children(PLACE, service, REVOKED))
        self._outbound = Outbound(self._sessions, watchers, guard=guard, options=self.options, metrics=self.metrics)
        routes = Routes(
            self.id, self._notifications.shards, self._sessions, watchers, secret=secret, tls=self.place.peer_tls
        )
        presence = Presence(self._operations, self.id)
        self._dispatcher = Dispatcher(self._inbound, self._outbound, routes, presence, self.metrics)
        self.readiness = Readiness(self._hearing, routes, alone=secret is None)
        self.http = HttpServer(
            self._dispatcher,
            self.readiness,
            options=self.options,
            metrics=self.metrics,
            producer=self._producer,
            publishers=Bearers(publish_tokens),
            trunks=Bearers(trunk_tokens),
            peers=Bearers([secret] if secret else ()),
            addresses=self._addresses,
            rates=self._rates,
            guarded=guard.on,
            serve_metrics=serve_metrics,
        )
        self._delays = Delays()
        self._subscribers: list[Subscriber] = []
        for collector in (
            GatewayGauges(self.http.limits, self._sessions, routes, guard),
            SubscriberCollector(self._subscribers),
            ZooKeeperCollector([cluster.coordination]),
        ):
            self.metrics.registry.register(collector)

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Serve clients until `stop` is set; then close what is open, so that clients go elsewhere.

        `started` is called once clients can connect.
        """
        loop = asyncio.get_running_loop()
        application = gateways_of(self.service)
        self._cluster.application(application)
        runner = web.AppRunner(self.http.app, handle_signals=False, shutdown_timeout=2.0)
        await runner.setup()
        assert runner.server is not None
        acceptor = Acceptor(
            runner.server,
            self._addresses,
            most_per_address=self.options.max_per_address,
            patience=self.options.request_timeout,
            tls=self.place.tls,
            rates=self._rates,
            metrics=self.metrics,
            logger=_http_logger(),
        )
        try:
            await acceptor.open(self.place.host, self.place.port)
            self.address = acceptor.address
            async with self._joined(loop, application):
                started()
                await self._serve(stop)
                self.readiness.closing = True
                acceptor.close()
                await self._send_away()
        finally:
            acceptor.close()
            await runner.cleanup()
            await self._operations.close()
            if self._producer is not None:
                await self._producer.close()

    @asynccontextmanager
    async def _joined(self, loop: asyncio.AbstractEventLoop, application: str) -> AsyncIterator[None]:
        """Be among the service's gateways, and hold flows."""
        scheme = "https" if self.place.tls is not None else "http"
        url = f"{scheme}://{self.place.advertise or self.address}"

        def placed(places: Places) -> None:
            loop.call_soon_threadsafe(self._placed, places)

        def join() -> tuple[Registry, Subscriber]:
            registry = Registry(
                self._cluster.coordination,
                self.service,
                self.id,
                url,
                self._notifications.shards,
                placed,
                self._hearing,
                lambda: {"clients": len(self._sessions), "delay": self._delays.quantiles()},
            )
            try:
                subscriber = self._cluster.subscribe(
                    application,
                    FlowHandler(loop, self._dispatcher, self._outbound, self._delays),
                    id=self.id,
                    security=self.place.security,
                )
            except BaseException:
                registry.close()
                raise
            return registry, subscriber

        registry, subscriber = await asyncio.to_thread(join)
        self._subscribers.append(subscriber)
        try:
            yield
        finally:
            await asyncio.to_thread(subscriber.close)
            await asyncio.to_thread(registry.close)
            await self._dispatcher.close()

    async def _serve(self, stop: asyncio.Event) -> None:
        """Do what is due now and then, until the end is asked for."""
        pause = min(SWEEP_INTERVAL_S, self.options.resend / CHECKS_PER_SPAN)
        swept = expired = time.monotonic()
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), pause)
            except TimeoutError:
                now = time.monotonic()
                self._dispatcher.resend(now)
                if now - swept >= SWEEP_INTERVAL_S:
                    swept = now
                    self._dispatcher.find_routes()
                    self.http.sweep()
                    if now - expired >= self.options.offline_after / CHECKS_PER_SPAN:
                        expired = now
                        self._dispatcher.expire(now)

    async def _send_away(self) -> None:
        """Mark all clients offline, then close their channels so that they connect elsewhere: in this order.

        A client is at another gateway at once, and an `offline` after its `online` there would be wrong.
        """
        await self._dispatcher.end_sessions()
        self.http.close(SHUTDOWN, "the gateway is shutting down")
        await self.http.closed()

    def _placed(self, places: Places) -> None:
        if places.identity is not None and places.identity != self._inbound.identity:
            logger.warning("service %s has another identity now: clients will get new tokens", self.service)
            self._inbound.identity = places.identity
            self._spawn(self._send_stale())
        if places.revoked != self._places.revoked:
            self._dispatcher.revoke(Revocations(places.revoked))
        if places.disconnected != self._places.disconnected:
            self._dispatcher.disconnect(Revocations(places.disconnected))
        self._rates.share(time.monotonic(), max(1, len(places.urls)))
        self._places = places
        self._hearing.heard(places.losses)
        self._dispatcher.flows_placed(places.holders, places.urls)

    async def _send_stale(self) -> None:
        """Have clients get tokens of the new identity, a part of them at a time; who says something is told anyway."""
        for number, session in enumerate(self._sessions):
            session.channel.send(FromService(stale=True, token=session.token))
            if number % STALE_CLIENTS_PER_S == STALE_CLIENTS_PER_S - 1:
                await asyncio.sleep(1.0)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _http_logger() -> logging.Logger:
    """The logger of the HTTP server. What is no HTTP is not worth a trace, which might show a token, too."""
    found = logging.getLogger(f"{__name__}.http")
    found.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return found
