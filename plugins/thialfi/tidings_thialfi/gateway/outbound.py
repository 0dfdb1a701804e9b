"""Pushing to clients what the stage says: at once, and again until they acknowledge it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial

from tidings_thialfi.gateway.client_outbox import Parcel
from tidings_thialfi.gateway.effects import Effect, Effects, PendingWanted, SessionInvalidated
from tidings_thialfi.gateway.hooks import Guard
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.notification_rows import NotificationRow, take_in
from tidings_thialfi.gateway.options import GatewayOptions
from tidings_thialfi.gateway.relay import Watchers
from tidings_thialfi.gateway.sessions import Session, Sessions
from tidings_thialfi.protocol import stream_schema
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
        self._metrics.limited.labels("registrations").inc(sum(row.say == stream_schema.REFUSED for row in rows))
        effects: list[Effect] = []
        now = time.monotonic()
        for client, some in by_client.items():
            session = self._sessions.get(client)
            if session is None:
                continue
            invalid = take_in(session, some)
            if invalid is not None:
                self._invalidate(session, FromService(invalid=invalid, token=session.token))
                effects.append(SessionInvalidated(session))
            else:
                self._sessions.track(session, now)
                self.pump(session)
        return effects

    def pump(self, session: Session) -> None:
        """Send what waits for a client, as much as its channel and its window have room for."""
        outbox, channel = session.outbox, session.channel
        while channel.room:
            piece = outbox.next(time.monotonic())
            if piece is None:
                return
            if not self._send(session, piece):
                return
        if not outbox.pumped_later:
            outbox.pumped_later = True
            channel.when_room(partial(self._pump_again, session))

    def resend(self, now: float) -> Effects:
        """Send again what was not acknowledged for too long, and have the stage asked for what was not kept."""
        effects: list[Effect] = []
        for session in self._sessions.due(now, self._options.resend):
            if session.channel.busy:  # it is not lost: the client has not read yet what it was sent
                continue
            self._sessions.repeat(session, now, self._options.resend)
            if session.outbox.exhausted():
                effects.append(PendingWanted(session))
            self.pump(session)
        return effects

    def _pump_again(self, session: Session) -> None:
        session.outbox.pumped_later = False
        self.pump(session)

    def _invalidate(self, session: Session, message: FromService) -> None:
        """The stage does not know the client any more: whatever it says next, it says as another one."""
        session.channel.send(message)
        session.channel.session = None
        self._sessions.end(session)

    def _send(self, session: Session, piece: Parcel) -> bool:
        """Send this, or ask first whether it may be; False if the client is gone."""
        if not piece.message.notify or not self._guard.checks_notifications:
            return self._send_allowed(session, piece)
        task = asyncio.create_task(self._ask_and_send(session, piece))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _ask_and_send(self, session: Session, piece: Parcel) -> None:
        """Send what the application allows; it is asked again about the rest when it would be sent again."""
        message = piece.message
        allowed = await self._guard.notifiable(session.user, {one.name for one in message.notify})
        some = tuple(one for one in message.notify if one.name in allowed)
        denied = [one for one in message.notify if one.name not in allowed]
        self._metrics.notices.labels("denied").inc(len(denied))
        rest = replace(message, notify=some)
        if rest != _EMPTY:
            self._send_allowed(session, Parcel(rest, min(piece.again, len(some))))
        if denied:
            for one in denied:
                session.outbox.withhold(one)
            self.pump(session)

    def _send_allowed(self, session: Session, piece: Parcel) -> bool:
        sent: bool = session.channel.send(piece.message)
        count = len(piece.message.notify)
        if sent:
            self._metrics.notices.labels("pushed").inc(count - piece.again)
            self._metrics.notices.labels("resent").inc(piece.again)
        else:
            self._metrics.notices.labels("dropped").inc(count)
        return sent
