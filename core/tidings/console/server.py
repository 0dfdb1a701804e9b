"""The console's HTTP: its addresses, who may ask for what, and the pages.

| address | what |
| --- | --- |
| `/`, `/<file>` | the pages, which are files beside this module |
| `/api/sign-in`, `/api/sign-out`, `/api/me` | who is there |
| `/api/overview`, `/api/map`, `/api/flows`, … | the cluster, as it was read last |
| `/api/streams/<name>/records` | the updates of a stream |
| `/api/actions/preview`, `/api/actions/execute` | what operators do |
| `/api/events` | what happens, as server-sent events |
| `/metrics`, `/health/live`, `/health/ready` | for Prometheus and load balancers |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from tidings.console import queries
from tidings.console.actions import Actions
from tidings.console.cluster_answers import ClusterAnswers
from tidings.console.events import LiveFeed
from tidings.console.guard import (
    BoundedConnection,
    BoundedLog,
    HostNames,
    add_headers,
    expecting_nothing_else,
    json_answer,
    refusal,
)
from tidings.console.metrics import console_registry
from tidings.console.options import ConsoleOptions
from tidings.console.page_files import content_type, page_file
from tidings.console.reader import ClusterReader
from tidings.console.sign_in import FailureLimit, SignedIn, SignIns, same_token
from tidings.console.users import Users
from tidings.console.workers import Overloaded, WorkerPool
from tidings.errors import CoordinationUnavailable, FlowOwned, InvalidOption, PlanOutdated, TidingsError, UnknownStream
from tidings.metrics import encoder_for

if TYPE_CHECKING:
    from tidings.cluster import Cluster

THREADS = 8
FAILURES_PER_ADDRESS, FAILURES_PER_USER, FAILURES_WITHIN_S = 10, 30, 300.0
CSRF_HEADER = "X-Tidings-CSRF"
OPEN_PATHS = ("/metrics", "/health/live", "/health/ready")
MAX_NAME_CHARACTERS = 128

SESSION = web.RequestKey("session", SignedIn)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class Console:
    """A console of one cluster. `run` serves it until it is told to stop."""

    def __init__(self, cluster: Cluster, options: ConsoleOptions) -> None:
        self._cluster = cluster
        self.options = options
        self.users = Users(options.users)
        self.sign_ins = SignIns(
            self.users,
            idle_s=options.idle_s,
            absolute_s=options.absolute_s,
            most=options.max_sessions,
            most_per_user=options.max_sessions_per_user,
        )
        self.address = ""
        self._names = HostNames(options)
        self._pool = WorkerPool("work", THREADS)
        self._hashing = WorkerPool("sign-in", 1, ahead=20)  # it takes memory on purpose
        self._by_address = FailureLimit(FAILURES_PER_ADDRESS, FAILURES_WITHIN_S)
        self._by_user = FailureLimit(FAILURES_PER_USER, FAILURES_WITHIN_S)
        self._by_strangers = BoundedLog()
        self._connections: set[BoundedConnection] = set()
        self._requests = 0
        self._live: dict[str, int] = {}
        self._cookie = "tidings-console"
        self._reader = ClusterReader(cluster, options)
        self._feed: LiveFeed
        self._actions: Actions
        self._answers: ClusterAnswers
        self._metrics: CollectorRegistry

    @property
    def read_only(self) -> bool:
        """Whether nobody may act here, operators neither."""
        return self._read_only_reason is not None

    @property
    def _read_only_reason(self) -> str | None:
        if self.options.read_only:
            return "it runs with --read-only"
        return "it has a viewer's credentials" if self._reader.looks_only else None

    async def run(self, stop: asyncio.Event, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set; `started` is called once it listens."""
        self._feed = LiveFeed(self._reader, self._pool, lambda: self.read_only)
        self._reader.start(self._feed.refresh)
        self._answers = ClusterAnswers(self._cluster, self._reader, self._feed, self._pool, self.options.budget_s)
        self._actions = Actions(self._cluster, self._reader, self.options.plan_s)
        self._metrics = console_registry(
            self._cluster.coordination, self._reader, self.sign_ins, lambda: self._feed.open
        )
        runner = web.AppRunner(self._app(), handle_signals=False, shutdown_timeout=2.0, access_log=None)
        await runner.setup()
        try:
            server = await self._listen(runner)
            started()
            await stop.wait()
            self._feed.close()
            server.close()
        finally:
            self._feed.close()
            await runner.cleanup()
            await asyncio.to_thread(self._reader.close)
            self._pool.close()
            self._hashing.close()

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None
        runner.server.request_handler = expecting_nothing_else(runner.server.request_handler)
        options, loop = self.options, asyncio.get_running_loop()
        make = functools.partial(
            BoundedConnection,
            runner.server,
            self._connections,
            options.request_s,
            options.max_connections,
            self._by_strangers,
            loop=loop,
            keepalive_timeout=options.request_s,
            access_log=None,
            max_line_size=8190,
            max_field_size=8190,
        )
        try:
            server = await loop.create_server(
                make,
                options.host,
                options.port,
                ssl=options.tls,
                ssl_handshake_timeout=options.request_s if options.tls else None,
            )
        except OSError as error:
            raise InvalidOption(
                f"nothing can be served at {options.host}:{options.port}: {error.strerror or error}"
            ) from None
        host, port = server.sockets[0].getsockname()[:2]
        self._cookie = f"tidings-console-{port}"  # browsers do not tell ports apart
        scheme = "https" if options.tls else "http"
        self.address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        return server

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guarded], client_max_size=self.options.max_body_bytes)
        app.on_response_prepare.append(add_headers)
        get, post = app.router.add_get, app.router.add_post
        post("/api/sign-in", self._sign_in)
        post("/api/sign-out", self._sign_out)
        get("/api/me", self._me)
        self._answers.add_routes(app.router)
        post("/api/actions/preview", self._preview)
        post("/api/actions/execute", self._execute)
        get("/api/events", self._events, allow_head=False)
        get("/api/{plugin:[a-z0-9-]+}", self._answers.plugin)  # after all others
        get("/metrics", self._scrape)
        get("/health/live", self._is_live)
        get("/health/ready", self._is_ready)
        get("/{path:.*}", self._page)
        return app

    # What every request passes

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.protocol, BoundedConnection):
            request.protocol.arrived()
        if not self._names.knows(request.headers.get("Host", "")):
            return refusal(421, "the console is not known by that name: name it by --allow-host")
        if self._requests >= self.options.max_requests:
            return refusal(503, "too many requests at once: try again in a moment", **{"Retry-After": "1"})
        self._requests += 1
        try:
            return await self._checked(request, handler)
        except web.HTTPRequestEntityTooLarge:
            return refusal(413, f"a request has {self.options.max_body_bytes:,} bytes at most")
        except web.HTTPException as error:
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return refusal(error.status, error.reason.lower(), **allow)
        except (PlanOutdated, FlowOwned) as error:
            return refusal(409, str(error))
        except UnknownStream as error:
            return refusal(404, str(error))
        except (Overloaded, CoordinationUnavailable) as error:
            return refusal(503, str(error), **{"Retry-After": "1"})
        except TidingsError as error:
            return refusal(400, str(error))
        except TimeoutError:
            return refusal(504, "that took too long")
        finally:
            self._requests -= 1

    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            if not self.options.open_metrics and not self._names.is_local(request):
                return refusal(403, "metrics and health are for this machine alone: see --open-metrics")
            return await handler(request)
        if not request.path.startswith("/api/"):
            return await handler(request)
        if request.method not in ("GET", "HEAD"):
            if not self._names.own_origin(request):
                return refusal(403, "that does not come from a page of this console")
            if request.content_type != "application/json":
                return refusal(403, "send application/json")
        if request.path == "/api/sign-in":
            return await handler(request)
        cookie = request.cookies.get(self._cookie)
        session = self.sign_ins.find(cookie)
        if session is None:
            if cookie:
                return json_answer({"error": "your sign-in has ended: sign in again", "ended": True}, 401)
            return refusal(401, "sign in first")
        if request.method not in ("GET", "HEAD") and not same_token(session, request.headers.get(CSRF_HEADER)):
            return refusal(403, f"that needs the token of this sign-in, in {CSRF_HEADER}")
        request[SESSION] = session
        self._reader.look()
        return await handler(request)

    # Signing in and out

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        name, password = body.get("user"), body.get("password")
        if not isinstance(name, str) or not isinstance(password, str) or len(name) > MAX_NAME_CHARACTERS:
            raise InvalidOption("send a user and a password")
        address = request.remote or ""
        wait = max(self._by_address.wait_s(address), self._by_user.wait_s(name))
        if wait:
            return refusal(429, f"too many failed: try again in {wait:.0f} s", **{"Retry-After": str(math.ceil(wait))})
        # Counted before it is known: many that come at once would all be let try.
        self._by_address.failed(address)
        self._by_user.failed(name)
        try:
            user = await self._hashing.run(lambda: self.users.check(name, password))
        except Overloaded:
            self._by_address.not_tried(address)
            self._by_user.not_tried(name)
            raise
        if user is None:
            self._by_strangers.log(logging.WARNING, "somebody at %s could not sign in as %r", address, name)
            return refusal(401, "unknown user or wrong password")
        self._by_address.succeeded(address)
        self._by_user.succeeded(name)
        session = self.sign_ins.begin(user)
        logger.info("%s signed in from %s as %s", user.name, address, user.role)
        response = json_answer({"user": user.name, "role": user.role})
        secure = self.options.tls is not None or request.headers.get("Origin", "").startswith("https://")
        response.set_cookie(
            self._cookie,
            session.key,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=secure,
            max_age=int(self.options.absolute_s),
        )
        return response

    async def _sign_out(self, request: web.Request) -> web.StreamResponse:
        self.sign_ins.end(_session(request))
        response = web.Response(status=204)
        response.del_cookie(self._cookie, path="/")
        return response

    async def _me(self, request: web.Request) -> web.StreamResponse:
        session = _session(request)
        return json_answer(
            {
                "user": session.user.name,
                "role": "viewer" if self.read_only else session.user.role,
                "read_only": self.read_only,
                "read_only_reason": self._read_only_reason if session.user.role == "operator" else None,
                "csrf": session.csrf,
                "cluster": self._cluster.address,
                "version": version("tidings"),
                "expires": queries.time_text(time.time() + self.sign_ins.left_s(session)),
            }
        )

    # What operators do

    async def _preview(self, request: web.Request) -> web.StreamResponse:
        session = self._operator(request)
        body = await self._body(request)
        await self._answers.known()
        return json_answer(await self._pool.run(lambda: self._actions.preview(session, body)))

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        session = self._operator(request)
        body = await self._body(request)
        found = await self._pool.run(lambda: self._actions.execute(session, body.get("plan"), request.remote or ""))
        self._reader.refresh_soon()
        return json_answer(found)

    def _operator(self, request: web.Request) -> SignedIn:
        session = _session(request)
        if self.read_only:
            raise web.HTTPForbidden(reason="this console is read-only")
        if session.user.role != "operator":
            raise web.HTTPForbidden(reason="that is for operators; you are a viewer")
        return session

    # What happens

    async def _events(self, request: web.Request) -> web.StreamResponse:
        session = _session(request)
        name = session.user.name
        mine = self._live.get(name, 0)
        if mine >= self.options.max_live_per_user or self._feed.open >= self.options.max_live:
            return refusal(429, "too many pages are open: close one", **{"Retry-After": "10"})
        self._live[name] = mine + 1
        self._feed.open += 1
        self._requests -= 1  # it stays, and is counted by itself
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )

        def left_s() -> float:
            return self.sign_ins.left_open_s(session) if self.sign_ins.find(session.key) else 0.0

        try:
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._feed.serve(response, left_s, self.options.heartbeat_s)
            response.force_close()  # the connection ends with the sign-in, and is not kept for another request
        finally:
            self._requests += 1
            self._feed.open -= 1
            self._live[name] -= 1
            if not self._live[name]:
                del self._live[name]
        return response

    # For machines

    async def _scrape(self, request: web.Request) -> web.StreamResponse:
        encode, kind = encoder_for(request.headers.get("Accept", ""))
        body = await self._pool.run(lambda: encode(self._metrics))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _is_live(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="alive\n")

    async def _is_ready(self, request: web.Request) -> web.StreamResponse:
        reasons = self._reader.unready()
        return web.Response(text="\n".join([*(reasons or ["ready"]), ""]), status=503 if reasons else 200)

    # Pages

    async def _page(self, request: web.Request) -> web.StreamResponse:
        file = await self._pool.run(lambda: page_file(request.match_info["path"] or "index.html"))
        if file is None:
            return refusal(404, "there is no such page")
        return web.FileResponse(file, headers={"Content-Type": content_type(file), "Cache-Control": "no-cache"})

    # Helpers

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.options.request_s):
                value = json.loads((await request.read()).decode())  # whatever charset is named: JSON is UTF-8
        except TimeoutError:
            raise web.HTTPRequestTimeout(reason="the request did not come in time") from None
        except (ValueError, RecursionError):
            raise InvalidOption("the request is no JSON") from None
        if not isinstance(value, dict):
            raise InvalidOption("the request is no JSON object")
        return value


def _session(request: web.Request) -> SignedIn:
    return request[SESSION]
