"""The answers of the console over HTTP: what is asked for in a request, and the time that it may take."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tidings.console import queries
from tidings.console.audit_page import audit_page
from tidings.console.events import LiveFeed
from tidings.console.guard import json_answer, refusal
from tidings.console.plugin_answers import PluginAnswers
from tidings.console.reader import ClusterReader, overview_point
from tidings.console.records import RecordQuery, newest_times, read_page
from tidings.console.workers import WorkerPool
from tidings.errors import CoordinationUnavailable, InvalidOption, TidingsError
from tidings.flow_history import flow_history
from tidings.flows import Flow

if TYPE_CHECKING:
    from tidings.cluster import Cluster

PAGES_OF_PLUGINS = ("thialfi", "gc")  # which are there, whether the plugins are or not
DATED_SHARDS = 64  # of which it is told when the newest update came


class ClusterAnswers:
    """Answers of what the reader knows; what takes long is made in a thread, for so many seconds."""

    def __init__(
        self, cluster: Cluster, reader: ClusterReader, feed: LiveFeed, pool: WorkerPool, budget_s: float
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._feed = feed
        self._pool = pool
        self._budget_s = budget_s
        self._plugins = PluginAnswers(cluster, pool, budget_s)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Say what is answered where."""
        get = router.add_get
        get("/api/overview", self._overview)
        get("/api/map", self._map)
        get("/api/flows", self._flows)
        get("/api/flows/{application}/{stream}/{shard}", self._flow)
        get("/api/streams", self._answering(lambda request: queries.streams(self._reader.view)))
        get("/api/streams/{name}", self._stream)
        get("/api/streams/{name}/records", self._records)
        get("/api/applications", self._answering(lambda request: queries.applications(self._reader.view)))
        get("/api/publishers", self._answering(lambda request: queries.publishers(self._reader.view)))
        get(
            "/api/subscribers",
            self._answering(lambda request: queries.subscribers(self._reader.view, _text(request, "application"))),
        )
        get("/api/caravans", self._answering(lambda request: queries.caravans(self._reader.view)))
        get("/api/pipelines", self._answering(lambda request: queries.pipelines(self._reader.view)))
        get("/api/audit", self._audit)

    async def known(self) -> None:
        """Wait until the cluster was read once, and not longer than an answer may take."""
        if not self._reader.ready():
            await self._pool.run(lambda: self._reader.ready(self._budget_s))

    def _answering(
        self, answer: Callable[[web.Request], dict[str, Any]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """What answers with a function of the view, made in a thread."""

        async def handle(request: web.Request) -> web.StreamResponse:
            await self.known()
            return json_answer(await self._pool.run(lambda: answer(request), self._budget_s))

        return handle

    async def _overview(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        view, history = self._reader.view, self._reader.history.points()
        return json_answer(
            await self._pool.run(lambda: queries.overview(view, overview_point(view), history), self._budget_s)
        )

    async def _map(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        found, view = self._feed.map, self._reader.view
        application, stream = _text(request, "application"), _text(request, "stream")
        return json_answer({**found.to_json(application, stream), **queries.completeness(view)})

    async def _flows(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        query = queries.FlowQuery(
            _text(request, "application"),
            _text(request, "stream"),
            frozenset(one for one in request.query.get("state", "").split(",") if one),
            _text(request, "publisher"),
            _text(request, "subscriber"),
            request.query.get("q", "").strip().lower(),
            request.query.get("sort") or "name",
        )
        page, size, view = _number(request, "page", 0), _number(request, "size", 100), self._reader.view
        return json_answer(await self._pool.run(lambda: queries.flows(view, query, page, size), self._budget_s))

    async def _flow(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        parts = request.match_info
        if not (parts["shard"].isascii() and parts["shard"].isdecimal() and len(parts["shard"]) < 6):
            return refusal(404, f"there is no shard {parts['shard']!r}")
        which = Flow(parts["application"], parts["stream"], int(parts["shard"]))
        found = queries.flow(self._reader.view, which)
        if found is None:
            return refusal(404, f"there is no flow {str(which)!r}")
        self._reader.history.look_at(which)
        history = await self._history(which)
        return json_answer({**found, "history": history, "lag_history": self._reader.history.flow(which)})

    async def _history(self, flow: Flow) -> list[dict[str, Any]]:
        """What has become of a flow; nothing, if ZooKeeper does not tell it in time."""
        try:
            events = await self._pool.run(lambda: flow_history(self._cluster, flow), self._budget_s)
        except (CoordinationUnavailable, TimeoutError):
            return []
        return [{**dataclasses.asdict(one), "time": queries.moment_text(one.time)} for one in events]

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        name = request.match_info["name"]
        found = queries.stream(self._reader.view, name)
        if found is None:
            return refusal(404, f"there is no stream {name!r}")
        definition, times = self._reader.view.nodes.streams[name], dict[int, str]()
        with contextlib.suppress(TidingsError, TimeoutError):  # else they are not known
            times = await self._pool.run(lambda: newest_times(definition, DATED_SHARDS), self._budget_s)
        for shard in found["shards"]:
            shard["last_time"] = times.get(shard["shard"])
        return json_answer({**found, "rate_history": self._reader.history.stream(name)})

    async def _records(self, request: web.Request) -> web.StreamResponse:
        await self.known()
        definition = self._reader.view.nodes.streams.get(request.match_info["name"])
        if definition is None:
            return refusal(404, f"there is no stream {request.match_info['name']!r}")
        query = RecordQuery.parse(definition, request.query)
        return json_answer(
            await self._pool.run(lambda: read_page(definition, query, self._budget_s), 5 * self._budget_s)
        )

    async def _audit(self, request: web.Request) -> web.StreamResponse:
        page, size = _number(request, "page", 0), _number(request, "size", 100)
        text = request.query.get("q", "").strip().lower()
        found = await self._pool.run(lambda: audit_page(self._cluster, page, size, text), self._budget_s)
        return json_answer(found)

    async def plugin(self, request: web.Request) -> web.StreamResponse:
        """What a plugin tells of itself."""
        name = request.match_info["plugin"]
        found = await self._plugins.answer(name)
        if found is None and name not in PAGES_OF_PLUGINS:
            return refusal(404, "there is no such answer")
        return json_answer(found or {"items": [], "partial": False, "problems": [], "installed": False})


def _text(request: web.Request, name: str) -> str | None:
    return request.query.get(name) or None


def _number(request: web.Request, name: str, otherwise: int) -> int:
    text = request.query.get(name, str(otherwise))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidOption(f"{name} is a number, not {text[:40]!r}")
    return int(text)
