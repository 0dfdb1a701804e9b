"""Pushing to clients what the stage says: at once, and again until they acknowledge it."""

from __future__ import annotations

import asyncio
import time

from tidings_thialfi.gateway.effects import Effect, Effects, SessionInvalidated
from tidings_thialfi.gateway.hooks import Guard
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.notification_rows import NotificationRow, message_of
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.relay import Watchers
from tidings_thialfi.gateway.sessions import Session, Sessions
from tidings_thialfi.protocol.messages import FromService

_EMPTY = FromService()


class Outbound:
    """Sends to the clients that are online here, and passes on what other gateways want."""

    def __init__(
        self,
        sessions: Sessions,
        watchers: Watchers,
        *,
        guard: Guard,
        options: GatewayOptions,
        metrics: GatewayMetrics,
    ) -> None:
        self._sessions = sessions
        self._watchers = watchers
        self._guard = guard
        self._options = options
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def wants(self, client: int) -> bool:
        """Whether rows for a client are wanted, here or by another gateway."""
        return self._sessions.get(client) is not None or client in self._watchers

    def deliver(self, rows: list[NotificationRow]) -> Effects:
        """Rows of flows that are here: to clients here, and to the gateways that want them."""
        effects = self.push([row for row in rows if self._sessions.get(row.client) is not None])
        relayed = self._watchers.relay(row for row in rows if row.client in self._watchers)
        if relayed:
            self._metrics.relayed.labels("out").inc(relayed)
        return effects

    def push(self, rows: list[NotificationRow]) -> Effects:
        """Send rows to the clients that are online here."""
        by_client: dict[int, list[NotificationRow]] = {}
        for row in rows:
            by_client.setdefault(row.client, []).append(row)
        effects: list[Effect] = []
        now = time.monotonic()
        for client, some in by_client.items():
            session = self._sessions.get(client)
            if session is None:
                continue
            message = message_of(session, some, now, self._options.max_pending)
            self._sessions.track(session, now)
            if message.invalid is not None:
                self._invalidate(session, message)
                effects.append(SessionInvalidated(session))
            else:
                self._push(session, message, "pushed")
        return effects

    def resend(self, now: float) -> None:
        """Send again what was not acknowledged for too long."""
        for session, notices in self._sessions.due(now, self._options.resend):
            if not session.channel.busy:  # else it is not lost: the client has not read yet what it was sent
                self._push(session, FromService(notify=tuple(notices)), "resent")

    def _invalidate(self, session: Session, message: FromService) -> None:
        """The stage does not know the client any more: whatever it says next, it says as another one."""
        session.channel.send(message)
        session.channel.session = None
        self._sessions.end(session)

    def _push(self, session: Session, message: FromService, outcome: str) -> None:
        if message.notify and self._guard.checks_notifications:
            task = asyncio.create_task(self._ask_and_send(session, message, outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif message != _EMPTY:
            self._send(session, message, outcome)

    async def _ask_and_send(self, session: Session, message: FromService, outcome: str) -> None:
        """Send what the application allows; it is asked again about the rest when it would be sent again."""
        allowed = await self._guard.notifiable(session.user, {one.name for one in message.notify})
        some = tuple(one for one in message.notify if one.name in allowed)
        self._metrics.notices.labels("denied").inc(len(message.notify) - len(some))
        rest = FromService(digest=message.digest, seen=message.seen, notify=some, status=message.status)
        if rest != _EMPTY:
            self._send(session, rest, outcome)

    def _send(self, session: Session, message: FromService, outcome: str) -> None:
        sent = session.channel.send(message)
        self._metrics.notices.labels(outcome if sent else "dropped").inc(len(message.notify))
