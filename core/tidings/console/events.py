"""What happens, as it happens: the overview and the changes of the map, for every page that is open.

One message of each kind is made for all who look, however many they are. A page that is slow misses none: it gets the
changes since what it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable

from aiohttp import web

from tidings.console import queries
from tidings.console.cluster_view import EMPTY, ClusterView
from tidings.console.flow_map import NO_MAP, FlowMap, next_map
from tidings.console.guard import json_text
from tidings.console.reader import ClusterReader, overview_point
from tidings.console.workers import Overloaded, WorkerPool

MIN_INTERVAL_S = 1.0  # between two messages of a kind
WRITE_S = 30.0  # that a page may take to take something
LOOK_S = 1.0  # between two looks whether a page is signed in
KEPT_CHANGES = 16


class LiveFeed:
    """The newest of everything, on the event loop. `refresh` may be called from any thread."""

    def __init__(self, reader: ClusterReader, pool: WorkerPool, read_only: Callable[[], bool]) -> None:
        self.map: FlowMap = NO_MAP
        self.open = 0
        self._reader = reader
        self._pool = pool
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._view: ClusterView = EMPTY
        self._overview = ""
        self._changes: dict[tuple[int, int], str] = {}
        self._news = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self.closed = False

    def refresh(self) -> None:
        """There is another view."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Let all streams of events end."""
        self.closed = True
        self._news.set()

    def _begin(self) -> None:
        if self._making is None and not self.closed:
            self._making = self._loop.create_task(self._make())

    async def _make(self) -> None:
        try:
            while (view := self._reader.view).version != self._view.version and not self.closed:
                try:
                    self.map, self._overview = await self._pool.run(functools.partial(_made, view, self.map))
                except Overloaded:
                    await asyncio.sleep(MIN_INTERVAL_S)
                    continue
                self._view = view
                self._changes = dict(list(self._changes.items())[-KEPT_CHANGES:])
                self._news.set()
                self._news = asyncio.Event()
        finally:
            self._making = None

    async def serve(self, response: web.StreamResponse, left_s: Callable[[], float], heartbeat_s: float) -> None:
        """Write what happens until the page goes, or is not signed in any more: nothing is left of its time."""
        seen, away, version, rights = self.map, self._view.away, -1, ""
        await self._write(response, "map", json_text(seen.changes(seen)))
        if away:
            await self._write(response, "away", json_text({"reason": away}))
        spoken = time.monotonic()
        while not self.closed:
            if (left := left_s()) <= 0:
                await self._write(response, "expired", "{}")
                return
            self._reader.look()
            news = self._news
            if version != self._view.version:
                version = self._view.version
                if away != self._view.away:
                    away = self._view.away
                    await self._write(response, "away" if away else "back", json_text({"reason": away}))
                if self._overview:
                    await self._write(response, "overview", self._overview)
                now = self.map
                if now.layout != seen.layout or (now.publishers, now.states, now.owners, now.letters) != (
                    seen.publishers,
                    seen.states,
                    seen.owners,
                    seen.letters,
                ):
                    await self._write(response, "map", self._changed(seen, now))
                    seen = now
                # Also to a page that has just come: it may have asked before this was known.
                if rights != (told := json_text({"read_only": self._read_only()})):
                    rights = told
                    await self._write(response, "rights", rights)
                spoken = time.monotonic()
                await asyncio.sleep(min(MIN_INTERVAL_S, left))
                continue
            try:
                await asyncio.wait_for(news.wait(), min(heartbeat_s, LOOK_S, left))
            except TimeoutError:
                if time.monotonic() - spoken >= heartbeat_s:
                    await self._put(response, b": still here\n\n")
                    spoken = time.monotonic()

    def _changed(self, since: FlowMap, now: FlowMap) -> str:
        key = (since.version, now.version)
        if key not in self._changes:
            self._changes[key] = json_text(now.changes(since))
        return self._changes[key]

    async def _write(self, response: web.StreamResponse, kind: str, data: str) -> None:
        await self._put(response, f"event: {kind}\ndata: {data}\n\n".encode())

    async def _put(self, response: web.StreamResponse, raw: bytes) -> None:
        await asyncio.wait_for(response.write(raw), WRITE_S)


def _made(view: ClusterView, before: FlowMap) -> tuple[FlowMap, str]:
    return next_map(view, before), json_text(queries.overview(view, overview_point(view)))
