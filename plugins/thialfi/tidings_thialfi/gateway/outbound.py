"""Telling clients what the stage says: at once, and again until they acknowledge it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position
from tidings_thialfi.gateway.hooks import Guard
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.notification_rows import Said, message_of, said
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.routes import Routes
from tidings_thialfi.gateway.sessions import Session, Sessions
from tidings_thialfi.protocol.messages import FromService

_NOTHING = FromService()


class Pusher:
    """Sends to the clients that are online here, and passes on what other gateways want."""

    def __init__(
        self,
        sessions: Sessions,
        routes: Callable[[], Routes],
        *,
        guard: Guard,
        options: GatewayOptions,
        metrics: GatewayMetrics,
    ) -> None:
        self._sessions = sessions
        self._routes = routes
        self._guard = guard
        self._options = options
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def deliver(self, those: list[Said]) -> None:
        """Rows of flows that are here: to clients here, and to the gateways that want them."""
        watchers = self._routes().watchers
        self.tell([one for one in those if self._sessions.get(one.client) is not None])
        passed = watchers.tell(one for one in those if one.client in watchers)
        if passed:
            self._metrics.relayed.labels("out").inc(passed)

    def wants(self, client: int) -> bool:
        """Whether anyone here, or beyond, wants to hear of a client."""
        return self._sessions.get(client) is not None or client in self._routes().watchers

    def tell(self, those: list[Said]) -> None:
        """Tell clients that are online here."""
        grouped: dict[int, list[Said]] = {}
        for one in those:
            grouped.setdefault(one.client, []).append(one)
        now = time.monotonic()
        for client, some in grouped.items():
            session = self._sessions.get(client)
            if session is None:
                continue
            message = message_of(session, some, now, self._options.max_pending)
            self._sessions.note(session, now)
            if message.invalid is not None:
                self._invalid(session, message)
            else:
                self._push(session, message, "pushed")

    def resend(self, now: float) -> None:
        """Send again what was not acknowledged for too long."""
        for session, notices in self._sessions.due(now, self._options.resend):
            if not session.channel.busy:  # else it is not lost: the client has not read yet what it was sent
                self._push(session, FromService(notify=tuple(notices)), "resent")

    def _invalid(self, session: Session, message: FromService) -> None:
        """The stage does not know the client any more: whatever it says next, it says as another one."""
        session.channel.send(message)
        session.channel.session = None
        self._sessions.end(session)
        self._routes().forget(session)

    def _push(self, session: Session, message: FromService, outcome: str) -> None:
        if message.notify and self._guard.checks_notifications:
            task = asyncio.create_task(self._ask_and_send(session, message, outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif message != _NOTHING:
            self._send(session, message, outcome)

    async def _ask_and_send(self, session: Session, message: FromService, outcome: str) -> None:
        """Send what the application allows; it is asked again about the rest when it would be sent again."""
        allowed = await self._guard.hearable(session.user, {one.name for one in message.notify})
        some = tuple(one for one in message.notify if one.name in allowed)
        self._metrics.notices.labels("denied").inc(len(message.notify) - len(some))
        rest = FromService(digest=message.digest, seen=message.seen, notify=some, status=message.status)
        if rest != _NOTHING:
            self._send(session, rest, outcome)

    def _send(self, session: Session, message: FromService, outcome: str) -> None:
        sent = session.channel.send(message)
        self._metrics.notices.labels(outcome if sent else "dropped").inc(len(message.notify))


class Intake(Handler):
    """The subscriber's handler: hands everything to the gateway's event loop, and waits until it was taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pusher: Pusher, routes: Routes) -> None:
        self._loop = loop
        self._pusher = pusher
        self._routes = routes

    def on_shard_notice(self, flow: Flow) -> None:
        """The flow is here: so are the routes of its clients."""
        self._in_loop(self._routes.opened, flow.shard)

    def on_flow_closed(self, flow: Flow) -> None:
        """The flow is elsewhere, or will be."""
        self._in_loop(self._routes.closed, flow.shard)

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        """Some rows are lost: mark the clients online once more, so that the stage says it all again."""
        self._in_loop(self._routes.opened, flow.shard)

    def on_batch(self, rows: pa.RecordBatch) -> None:
        """Rows for clients, most of whom are here."""
        if found := list(said(rows, self._pusher.wants)):
            self._in_loop(self._pusher.deliver, found)

    def _in_loop(self, work: Callable[[Any], None], argument: Any) -> None:
        done = threading.Event()

        def do() -> None:
            try:
                work(argument)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()
