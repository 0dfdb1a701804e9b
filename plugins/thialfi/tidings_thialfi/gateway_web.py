"""The addresses of a gateway: WebSockets, long polls, trunks, relays, publishing, metrics and health, over aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import WSMsgType, web
from prometheus_client.exposition import choose_encoder

from tidings.errors import InvalidUpdate, TidingsError
from tidings_thialfi.gateway_channels import MALFORMED, SLOW, Pipe, PollChannel, SocketChannel, TagChannel
from tidings_thialfi.gateway_desk import Desk
from tidings_thialfi.gateway_limits import Bucket, Doors
from tidings_thialfi.gateway_metrics import GatewayMetrics
from tidings_thialfi.gateway_options import GatewayOptions
from tidings_thialfi.gateway_publish import MAX_BYTES, Bearers, updates_of
from tidings_thialfi.gateway_relay import SUBPROTOCOL as RELAY
from tidings_thialfi.gateway_routes import Routes
from tidings_thialfi.message_fields import BadMessage

CLIENT = "tidings.thialfi.v1"
TRUNK = "tidings.thialfi.trunk.v1"
TRUNK_QUEUE = 64 * 2**20  # bytes that wait for a slow proxy, or for another gateway
TRUNK_WORK = 4096  # messages of a trunk that are worked on at once
TRUNK_CLIENTS = 200_000
POLL_MESSAGES = 64

_FRAME = re.compile(r'\s*\[\s*(-?\d{1,19}|"(?:[^"\\]|\\.){1,256}")\s*,\s*')

logger = logging.getLogger(__name__)
Publish = Callable[[Sequence[dict[str, Any]]], Awaitable[None]]


class Web:
    """Turns requests into calls of the desk and of the routes; holds every channel that is open."""

    def __init__(
        self,
        desk: Desk,
        routes: Routes,
        *,
        options: GatewayOptions,
        metrics: GatewayMetrics,
        unready: Callable[[], list[str]],
        publish: Publish | None,
        publishers: Bearers,
        trunks: Bearers,
        peers: Bearers,
        serve_metrics: bool = True,
    ) -> None:
        self._desk = desk
        self._routes = routes
        self._options = options
        self._metrics = metrics
        self._unready = unready
        self._publish = publish
        self._publishers = publishers
        self._trunks = trunks
        self._peers = peers
        self.doors = Doors(
            most=options.max_connections, most_per_address=options.max_per_address, origins=options.origins
        )
        self._sockets: set[Pipe] = set()
        self._polls: dict[int, PollChannel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: tuple[int, str] | None = None
        self.app = web.Application(client_max_size=MAX_BYTES, middlewares=[self._guarded])
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
        for poll in list(self._polls.values()):
            poll.close(code, reason)
            self._forget(poll)

    async def closed(self) -> None:
        """Wait until every WebSocket is closed."""
        while self._sockets:
            await asyncio.sleep(0.02)

    def sweep(self) -> None:
        """Let go of clients that have stopped polling."""
        now = time.monotonic()
        for poll in list(self._polls.values()):
            if (not poll.polling and now - poll.polled >= self._options.poll_gap) or poll.closed is not None:
                if poll.closed is not None and poll.closed[0] == SLOW:
                    self._metrics.limited.labels("slow").inc()
                self._forget(poll)

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse browsers of other pages; and say in one sentence what went wrong, never in a trace."""
        origin = request.headers.get("Origin")
        if not self.doors.admits(origin):
            self._metrics.limited.labels("origin").inc()
            return _say(403, "pages of that origin may not connect here")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return _say(error.status, error.reason.lower())
        if origin is not None and not response.prepared:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"
        return response

    # One client a WebSocket

    async def _client(self, request: web.Request) -> web.StreamResponse:
        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            authorization = request.headers.get("Authorization")
            channel = SocketChannel(pipe, request.remote or "", authorization, self._bucket())
            try:
                async for message in socket:
                    if message.type is not WSMsgType.TEXT:
                        self._metrics.refused.labels("malformed").inc()
                        pipe.close(MALFORMED, "messages are text")
                        break
                    await self._desk.receive(channel, message.data)
                    if pipe.closed:
                        break
            finally:
                self._desk.leave(channel)

        return await self._socket(request, CLIENT, converse, self._options.max_queue, counted=True)

    # Many clients a WebSocket

    async def _trunk(self, request: web.Request) -> web.StreamResponse:
        if not self._trunks.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _say(403, "a trunk needs a bearer token of this gateway's")

        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            channels: dict[str, TagChannel] = {}
            work = asyncio.Semaphore(TRUNK_WORK)
            try:
                async for message in socket:
                    found = _FRAME.match(message.data) if message.type is WSMsgType.TEXT else None
                    if found is None or not message.data.rstrip().endswith("]"):
                        self._metrics.refused.labels("malformed").inc()
                        pipe.close(MALFORMED, "a trunk's frames are [tag, message]")
                        break
                    tag, text = found[1], message.data.rstrip()[found.end() : -1].strip()
                    channel = channels.get(tag)
                    if text == "null":
                        if channel is not None:
                            channel.open = False
                            self._desk.leave(channels.pop(tag))
                        continue
                    if channel is None or not channel.open:
                        if len(channels) >= TRUNK_CLIENTS:
                            self._metrics.limited.labels("connections").inc()
                            pipe.send(f"[{tag},null]")
                            continue
                        channel = TagChannel(pipe, json.loads(tag), request.remote or "", None, self._bucket())
                        channels[tag] = channel
                    await work.acquire()
                    channel.inbox.append(text)
                    if not channel.working:
                        channel.working = True
                        self._spawn(self._work(channel, work))
            finally:
                for channel in channels.values():
                    channel.open = False
                    self._desk.leave(channel)

        return await self._socket(request, TRUNK, converse, TRUNK_QUEUE, counted=False)

    async def _work(self, channel: TagChannel, work: asyncio.Semaphore) -> None:
        """Take the messages of one client on a trunk, one after the other."""
        try:
            while channel.inbox:
                text = channel.inbox.popleft()
                try:
                    if channel.open:
                        await self._desk.receive(channel, text)
                finally:
                    work.release()
        finally:
            channel.working = False

    # Other gateways

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        if not self._peers.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _say(403, "a relay needs the secret that gateways share")

        async def converse(socket: web.WebSocketResponse, pipe: Pipe) -> None:
            try:
                async for message in socket:
                    try:
                        kind, clients = json.loads(message.data)
                        self._routes.take(pipe, str(kind), [int(client) for client in clients])
                    except (ValueError, TypeError):
                        pipe.close(MALFORMED, "a relay's frames are [word, clients]")
                        break
            finally:
                self._routes.watchers.leave(pipe)

        return await self._socket(request, RELAY, converse, TRUNK_QUEUE, counted=False)

    # Long polls

    async def _poll(self, request: web.Request) -> web.StreamResponse:
        if self._closing is not None:
            return _say(503, "the gateway is shutting down")
        address = request.remote or ""
        if limit := self.doors.enter(address, None):
            self._metrics.limited.labels(limit).inc()
            return _say(429, "too many connections")
        try:
            try:
                messages, wait = _poll_body(await request.read(), self._options)
            except BadMessage as error:
                self._metrics.refused.labels("malformed").inc()
                return _answer([{"v": "1.0", "error": {"code": "malformed", "message": str(error)}}], 400)
            return await self._answer_poll(request, address, messages, wait)
        finally:
            self.doors.leave(address)

    async def _answer_poll(
        self, request: web.Request, address: str, messages: list[str], wait: float
    ) -> web.StreamResponse:
        now = time.monotonic()
        authorization = request.headers.get("Authorization")
        fresh = PollChannel(self._options.max_queue, address, authorization, self._bucket(), now)
        poll = self._polls.get(self._desk.client_of(messages[0]), fresh)
        poll.authorization = authorization
        poll.polling += 1
        try:
            for text in messages:
                await self._desk.receive(poll, text)
            if poll.session is not None:
                self._polls[poll.session.client] = poll
                if poll.closed is not None:
                    self._desk.leave(poll)
            received = await poll.receive(wait if poll.session is not None else 0.0)
        finally:
            poll.polling -= 1
            poll.polled = time.monotonic()
        if poll.closed is not None:
            self._forget(poll)
        return _answer(received)

    def _forget(self, poll: PollChannel) -> None:
        for client, one in list(self._polls.items()):
            if one is poll:
                del self._polls[client]
        self._desk.leave(poll)

    async def _preflight(self, request: web.Request) -> web.StreamResponse:
        headers = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "authorization, content-type",
            "Access-Control-Max-Age": "3600",
        }
        return web.Response(status=204, headers=headers)

    # Publishing

    async def _published(self, request: web.Request) -> web.StreamResponse:
        if self._publish is None:
            return _say(404, "this gateway takes no updates: it was given no stream to publish to")
        if not self._publishers.admit(request.headers.get("Authorization")):
            self._metrics.refused.labels("denied").inc()
            return _say(401, "publishing needs a bearer token of this gateway's")
        try:
            updates = updates_of(await request.read())
            if updates:
                await self._publish(updates)
        except InvalidUpdate as error:
            self._metrics.refused.labels("malformed").inc()
            return _say(400, str(error))
        except TidingsError as error:
            logger.warning("updates could not be published: %s", error)
            self._metrics.refused.labels("unavailable").inc()
            return _say(503, "the updates could not be made durable; publish them again")
        self._metrics.published.inc(len(updates))
        return web.json_response({"published": len(updates)})

    # Operators

    async def _live(self, request: web.Request) -> web.StreamResponse:
        return _say(200, "alive")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        reasons = self._unready()
        return _say(503 if reasons else 200, "\n".join(reasons) or "ready")

    async def _scrape(self, request: web.Request) -> web.StreamResponse:
        encode, kind = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._metrics.everything), headers={"Content-Type": kind})

    # What all WebSockets share

    async def _socket(
        self,
        request: web.Request,
        protocol: str,
        converse: Callable[[web.WebSocketResponse, Pipe], Awaitable[None]],
        queue: int,
        *,
        counted: bool,
    ) -> web.StreamResponse:
        offered = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if protocol not in offered:
            return _say(400, f"this is a WebSocket of the subprotocol {protocol}")
        address = request.remote or ""
        if counted and (limit := self.doors.enter(address, request.headers.get("Origin"))):
            self._metrics.limited.labels(limit).inc()
            return _say(503 if limit == "connections" else 429, "too many connections")
        socket = web.WebSocketResponse(
            protocols=(protocol,),
            compress=False,  # it would cost tens of kilobytes a connection
            heartbeat=self._options.ping or None,
            # One that is too large by little is told so; one that is much too large is cut off.
            max_msg_size=2 * self._options.max_message if protocol == CLIENT else 64 * 2**20,
            timeout=5.0,
        )
        pipe = Pipe(request, socket, queue)
        try:
            await socket.prepare(request)
            if self._closing is not None:
                pipe.close(*self._closing)
            self._metrics.connections.labels(_KINDS[protocol]).inc()
            self._sockets.add(pipe)
            with contextlib.suppress(ConnectionError):
                await converse(socket, pipe)
        finally:
            await pipe.ended()
            self._sockets.discard(pipe)
            if counted:
                self.doors.leave(address)
            if socket.close_code == 1009:
                self._metrics.limited.labels("large").inc()
            if pipe.slow:
                self._metrics.limited.labels("slow").inc()
            pipe.closed = True
        return socket

    def _bucket(self) -> Bucket:
        return Bucket(rate=self._options.rate, burst=self._options.burst, now=time.monotonic())

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_KINDS = {CLIENT: "websocket", TRUNK: "trunk", RELAY: "relay"}


def _poll_body(body: bytes, options: GatewayOptions) -> tuple[list[str], float]:
    """The messages of a poll, and how long it is to be held."""
    try:
        value = json.loads(body)
        messages, wait = value["send"], value.get("wait", options.poll_wait)
        texts = [json.dumps(one, ensure_ascii=False) for one in messages]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadMessage("malformed", "a poll is an object with `send`, an array of messages, and `wait`") from None
    if not isinstance(messages, list) or not 1 <= len(texts) <= POLL_MESSAGES:
        raise BadMessage("malformed", f"a poll sends 1 to {POLL_MESSAGES} messages: the first says whose it is")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 3600:
        raise BadMessage("malformed", "`wait` is a number of seconds")
    return texts, min(float(wait), options.poll_wait)


def _answer(received: list[Any], status: int = 200) -> web.Response:
    return web.json_response({"receive": received}, status=status)


def _say(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers={"Cache-Control": "no-store"})
