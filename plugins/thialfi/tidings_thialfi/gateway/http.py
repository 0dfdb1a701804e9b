"""The addresses of a gateway: WebSockets, long polls, trunks, relays, publishing, metrics and health, over aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from math import ceil

from aiohttp import WSMsgType, web

from tidings.errors import InvalidUpdate, TidingsError
from tidings.metrics import encoder_for
from tidings.producers import AsyncProducer
from tidings_thialfi.gateway.addresses import Addresses, counted
from tidings_thialfi.gateway.bearers import Bearers
from tidings_thialfi.gateway.bodies import read_body
from tidings_thialfi.gateway.channels import MALFORMED, Pipe, SocketChannel
from tidings_thialfi.gateway.connection_limits import AddressQuota, Origins
from tidings_thialfi.gateway.counted_connection import CountedConnection
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.polls import Polls, TooManyPollers
from tidings_thialfi.gateway.publish_api import MAX_BODY_BYTES, updates_of
from tidings_thialfi.gateway.rates import Amount, Rates
from tidings_thialfi.gateway.readiness import Readiness
from tidings_thialfi.gateway.relay import (
    MAX_BAD_FRAMES,
    MAX_FRAME_BYTES,
    PEER_HEADER,
    RELAY_SUBPROTOCOL,
    parse_frame,
)
from tidings_thialfi.gateway.trunk import Trunk
from tidings_thialfi.protocol.constants import SUBPROTOCOL, TRUNK_SUBPROTOCOL, VERSION
from tidings_thialfi.protocol.messages import BadMessage

CLIENT_AHEAD_BYTES = 64 * 2**10  # that wait for a client; while there are more, nothing is read from it
PEER_AHEAD_BYTES = 4 * 2**20  # that wait for a proxy, or for another gateway
MAX_PUBLISHING_BYTES = 64 * 2**20  # of all bodies that are read, parsed and published at once
RETRY_AFTER_S = 5  # what who is one too many is told
KEPT_HEADERS = ("Retry-After", "Allow")  # of an answer that refuses something
QUEUE_PER_AHEAD = 16  # so many times as much waits for nobody, whatever happens

logger = logging.getLogger(__name__)


class HttpServer:
    """Turns requests into calls of the dispatcher; holds every channel that is open."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        readiness: Readiness,
        *,
        options: GatewayOptions,
        metrics: GatewayMetrics,
        producer: AsyncProducer | None,
        publishers: Bearers,
        trunks: Bearers,
        peers: Bearers,
        addresses: Addresses,
        rates: Rates,
        guarded: bool,
        serve_metrics: bool = True,
    ) -> None:
        self._dispatcher = dispatcher
        self._readiness = readiness
        self._options = options
        self._metrics = metrics
        self._producer = producer
        self._publishers = publishers
        self._trunks = trunks
        self._peers = peers
        self._addresses = addresses
        self._rates = rates
        self._origins = Origins(options.origins)
        self.limits = AddressQuota(most=options.max_connections, most_per_address=options.max_per_address)
        self._sockets: set[Pipe] = set()
        self._polls = Polls(dispatcher, options, keyed=guarded)
        self._closing: tuple[int, str] | None = None
        self._publishing = 0
        self.app = web.Application(middlewares=[self._guarded])
        self.app.router.add_get("/v1/client", self._client)
        self.app.router.add_post("/v1/poll", self._poll)
        self.app.router.add_route("OPTIONS", "/v1/poll", self._preflight)
        self.app.router.add_get("/v1/trunk", self._trunk)
        self.app.router.add_get("/v1/relay", self._relay)
        self.app.router.add_post("/v1/publish", self._published)
        self.app.router.add_get("/health/live", self._live)
        self.app.router.add_get("/health/ready", self._ready)
        if serve_metrics:
            self.app.router.add_get("/metrics", self._scrape)

    def close(self, code: int, reason: str) -> None:
        """Close every channel, and accept no other."""
        self._closing = (code, reason)
        for pipe in list(self._sockets):
            pipe.close(code, reason)
        self._polls.close(code, reason)

    async def closed(self) -> None:
        """Wait until every WebSocket is closed."""
        while self._sockets:
            await asyncio.sleep(0.02)

    def sweep(self) -> None:
        """End the sessions of clients that have stopped polling, and forget who has said little."""
        self._polls.sweep()
        self._rates.sweep(time.monotonic())

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse browsers of other pages; and say in one sentence what went wrong, never in a trace."""
        if connection := _connection(request):
            connection.arrived()
        origin = request.headers.get("Origin")
        if not self._origins.allow(origin):
            self._metrics.limited.labels("origin").inc()
            return _plain(403, "pages of that origin may not connect here")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _plain(error.status, error.reason[:1].lower() + error.reason[1:])
            response.headers.update({name: error.headers[name] for name in KEPT_HEADERS if name in error.headers})
        if origin is not None and not response.prepared:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
        return response

    # One client a WebSocket

    async def _client(self, request: web.Request) -> web.StreamResponse:
        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            authorization = request.headers.get("Authorization")
            channel = SocketChannel(pipe, self._address(request), authorization, self._options.bucket())
            try:
                async for message in socket:
                    if message.type is not WSMsgType.TEXT:
                        self._metrics.refused.labels("malformed").inc()
                        pipe.close(MALFORMED, "messages are text")
                        break
                    await self._dispatcher.receive(channel, message.data)
                    await pipe.until_room()
                    if pipe.closed:
                        break
            finally:
                self._dispatcher.leave(channel)

        return await self._socket(request, SUBPROTOCOL, converse, limited=True)

    # Many clients a WebSocket

    async def _trunk(self, request: web.Request) -> web.StreamResponse:
        if not self._trunks.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _plain(403, "a trunk needs a bearer token of this gateway's")

        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            trunk = Trunk(pipe, request.remote or "", self._dispatcher, self._options, self._metrics)
            await trunk.converse(socket)

        return await self._socket(request, TRUNK_SUBPROTOCOL, converse, limited=False)

    # Other gateways

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        if not self._peers.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _plain(403, "a relay needs the secret that gateways share")

        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            pipe.peer = request.headers.get(PEER_HEADER, "")
            bad = 0
            try:
                async for message in socket:
                    try:
                        self._dispatcher.relay_frame(pipe, *parse_frame(message.data))
                    except ValueError:
                        self._metrics.refused.labels("malformed").inc()
                        bad += 1
                        if bad == MAX_BAD_FRAMES:
                            pipe.close(MALFORMED, "a relay's frames are [word, clients]")
                            break
            finally:
                self._dispatcher.relay_closed(pipe)

        return await self._socket(request, RELAY_SUBPROTOCOL, converse, limited=False)

    # Long polls

    async def _poll(self, request: web.Request) -> web.StreamResponse:
        if self._closing is not None:
            return _plain(503, "the gateway is shutting down")
        address = self._address(request)
        source = counted(address)
        if limit := self.limits.accept(source):
            self._metrics.limited.labels(limit).inc()
            return _later(_plain(429, "too many connections"))
        try:
            self._pay(source, Amount(entries=1))
            body = await read_body(
                request,
                self._options.max_poll,
                self._options.request_timeout,
                self._metrics,
                lambda size: self._pay(source, Amount(bytes=size)),
            )
            answer = await self._polls.answer(body, address, request.headers.get("Authorization"))
        except BadMessage as error:
            self._metrics.refused.labels("malformed").inc()
            fault = {"v": VERSION, "error": {"code": error.code, "message": str(error)}}
            return web.json_response({"receive": [fault]}, status=400)
        except TooManyPollers:
            self._metrics.limited.labels("polls").inc()
            return _later(_plain(429, "too many clients poll"))
        finally:
            self.limits.release(source)
        return web.Response(text=answer.encode(), content_type="application/json")

    def _pay(self, source: str, amount: Amount) -> None:
        """Count what an address sends in polls, before anything is made of it."""
        if over := self._rates.take(time.monotonic(), amount, {"address": source, "total": ""}):
            self._metrics.limited.labels(over.limit).inc()
            raise web.HTTPTooManyRequests(reason=over.reason, headers={"Retry-After": str(ceil(over.wait))})

    async def _preflight(self, request: web.Request) -> web.StreamResponse:
        headers = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "authorization, content-type",
            "Access-Control-Max-Age": "3600",
        }
        return web.Response(status=204, headers=headers)

    # Publishing

    async def _published(self, request: web.Request) -> web.StreamResponse:
        if self._producer is None:
            return _plain(404, "this gateway takes no updates: it was given no stream to publish to")
        if not self._publishers.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _plain(401, "publishing needs a bearer token of this gateway's")
        if connection := _connection(request):
            connection.trust()
        size = min(request.content_length or MAX_BODY_BYTES, MAX_BODY_BYTES)
        if self._publishing + size > MAX_PUBLISHING_BYTES:
            self._metrics.limited.labels("bodies").inc()
            return _later(_plain(503, "too much is being published; publish it again"))
        self._publishing += size
        try:
            body = await read_body(request, MAX_BODY_BYTES, self._options.request_timeout, self._metrics)
            updates = await asyncio.to_thread(updates_of, body)  # clients do not wait for it
            if updates:
                await self._producer.publish_many(updates)
        except InvalidUpdate as error:
            self._metrics.refused.labels("malformed").inc()
            return _plain(400, str(error))
        except TidingsError as error:
            logger.warning("updates could not be published: %s", error)
            self._metrics.refused.labels("unavailable").inc()
            return _plain(503, "the updates could not be made durable; publish them again")
        finally:
            self._publishing -= size
        self._metrics.published.inc(len(updates))
        return web.json_response({"published": len(updates)})

    # Operators

    async def _live(self, request: web.Request) -> web.StreamResponse:
        return _plain(200, "alive")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        reasons = self._readiness.reasons()
        return _plain(503 if reasons else 200, "\n".join(reasons) or "ready")

    async def _scrape(self, request: web.Request) -> web.StreamResponse:
        encode, kind = encoder_for(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._metrics.everything), headers={"Content-Type": kind})

    # What all WebSockets share

    async def _socket(
        self,
        request: web.Request,
        protocol: str,
        converse: Callable[[web.WebSocketResponse, Pipe], Awaitable[None]],
        *,
        limited: bool,
    ) -> web.StreamResponse:
        offered = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if protocol not in offered:
            return _plain(400, f"this is a WebSocket of the subprotocol {protocol}")
        source = counted(self._address(request))
        if limited and (limit := self.limits.accept(source)):
            self._metrics.limited.labels(limit).inc()
            return _later(_plain(503 if limit == "connections" else 429, "too many connections"))
        socket = web.WebSocketResponse(
            protocols=(protocol,),
            compress=False,  # it would cost tens of kilobytes a connection
            heartbeat=self._options.ping or None,
            # One that is too large by little is told so; one that is much too large, of this size or more, is cut off.
            max_msg_size=2 * self._options.max_message + 1 if protocol == SUBPROTOCOL else MAX_FRAME_BYTES,
            timeout=5.0,
        )
        ahead = CLIENT_AHEAD_BYTES if protocol == SUBPROTOCOL else PEER_AHEAD_BYTES
        pipe = Pipe(
            request,
            socket,
            ahead=ahead,
            limit=QUEUE_PER_AHEAD * ahead,
            stall=self._options.stall,
            gave_up=self._metrics.limited.labels("slow").inc,
        )
        if connection := _connection(request):
            connection.count_for(source, pipe.close) if limited else connection.trust()
        try:
            try:
                await socket.prepare(request)
            except ValueError:  # of a header that is no text
                raise web.HTTPBadRequest(reason="these headers open no WebSocket") from None
            if self._closing is not None:
                pipe.close(*self._closing)
            self._metrics.connections.labels(_KINDS[protocol]).inc()
            self._sockets.add(pipe)
            with contextlib.suppress(ConnectionError):
                await converse(socket, pipe)
        finally:
            await pipe.ended()
            self._sockets.discard(pipe)
            if limited:
                self.limits.release(source)
            if socket.close_code == 1009:
                self._metrics.limited.labels("large").inc()
            pipe.closed = True
        return socket

    def _address(self, request: web.Request) -> str:
        """Whom a request is from, behind the proxies that are trusted."""
        return self._addresses.behind(request.remote or "", request.headers.getall("X-Forwarded-For", ()))


_KINDS = {SUBPROTOCOL: "websocket", TRUNK_SUBPROTOCOL: "trunk", RELAY_SUBPROTOCOL: "relay"}


def _connection(request: web.Request) -> CountedConnection | None:
    return request.protocol if isinstance(request.protocol, CountedConnection) else None


def _plain(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={"Cache-Control": "no-store"})


def _later(response: web.Response) -> web.Response:
    """Say when to try again, and leave no connection open for it."""
    response.headers["Retry-After"] = str(RETRY_AFTER_S)
    response.force_close()
    return response
