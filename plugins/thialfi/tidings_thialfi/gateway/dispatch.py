"""The dispatcher: hands what comes in to the part that it concerns, and carries out the effects that this returns.

| what comes in | from | goes to |
| --- | --- | --- |
| messages of clients, and the ends of their channels | WebSockets, trunks, long polls | `Inbound` |
| rows of notifications | flows that are here, links to other gateways | `Outbound` |
| flows, who holds them, and what other gateways want | the subscriber, ZooKeeper, relays, links | `Routes` |

Everything here is called in the gateway's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

from tidings_thialfi.gateway.channels import DISPLACED, ClientChannel, Pipe
from tidings_thialfi.gateway.effects import (
    CloseLink,
    Effects,
    MarkOffline,
    MarkOnline,
    OpenLink,
    PendingWanted,
    RoomToSend,
    SessionBegan,
    SessionDisplaced,
    SessionEnded,
    SessionInvalidated,
)
from tidings_thialfi.gateway.inbound import Inbound
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.notification_rows import NotificationRow
from tidings_thialfi.gateway.outbound import Outbound
from tidings_thialfi.gateway.presence import Presence
from tidings_thialfi.gateway.relay import Link, RelayAnswer, RelayedRows
from tidings_thialfi.gateway.routes import Routes
from tidings_thialfi.revocations import Revocations

logger = logging.getLogger(__name__)


class Dispatcher:
    """The dispatcher of one gateway."""

    def __init__(
        self, inbound: Inbound, outbound: Outbound, routes: Routes, presence: Presence, metrics: GatewayMetrics
    ) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._routes = routes
        self._presence = presence
        self._metrics = metrics
        self._following: dict[Link, asyncio.Task[None]] = {}

    # Clients

    async def receive(self, channel: ClientChannel, text: str | bytes) -> None:
        """Take one message of a channel; the next one of the channel only when this has returned."""
        effects, request = await self._inbound.admit(channel, text)
        self._carry_out(effects)
        if request is not None:
            self._carry_out(await self._inbound.act(request))

    def client_of(self, text: str) -> int:
        """Whose message this is, by its token; -1 if that is not sure, or if it says anew who it is."""
        return self._inbound.client_of(text)

    def leave(self, channel: ClientChannel) -> None:
        """The channel is gone."""
        self._carry_out(self._inbound.leave(channel))

    def revoke(self, revoked: Revocations) -> None:
        """These tokens are not good any more."""
        self._carry_out(self._inbound.revoke(revoked))

    def disconnect(self, disconnected: Revocations) -> None:
        """These clients are to be disconnected, if they came before that was said."""
        self._carry_out(self._inbound.disconnect(disconnected))

    # Flows

    def deliver(self, rows: list[NotificationRow]) -> None:
        """Rows of flows that are here."""
        self._carry_out(self._outbound.deliver(rows))

    def flow_opened(self, shard: int) -> None:
        """The flow of a shard is here now."""
        self._carry_out(self._routes.flow_opened(shard))

    def flow_closed(self, shard: int) -> None:
        """The flow of a shard is not here any more."""
        self._routes.flow_closed(shard)

    def flows_placed(self, holders: Mapping[int, str], urls: Mapping[str, str]) -> None:
        """ZooKeeper says which gateway holds which flow, and where the gateways are."""
        self._carry_out(self._routes.flows_placed(holders, urls))

    # Other gateways

    def relay_frame(self, pipe: Pipe, kind: str, clients: list[int]) -> None:
        """Another gateway says whose rows it wants, or wants no more."""
        self._carry_out(self._routes.relay_frame(pipe, kind, clients))

    def relay_closed(self, pipe: Pipe) -> None:
        """Another gateway is gone."""
        self._routes.watchers.leave(pipe)

    # Time

    def resend(self, now: float) -> None:
        """Send again what was not acknowledged for too long."""
        self._carry_out(self._outbound.resend(now))

    def find_routes(self) -> None:
        """Look for routes where there are none."""
        self._carry_out(self._routes.retry())

    def expire(self, now: float) -> None:
        """End the sessions of silent clients, and tell the stage of those that have been here for long."""
        self._carry_out(self._inbound.expire(now))
        self._carry_out(self._routes.announce_again(now))

    # The end

    async def end_sessions(self) -> None:
        """Take no more messages, end all sessions, and wait until all clients are marked offline, or cannot be."""
        self._carry_out(self._inbound.close())
        await self._presence.flush()

    async def close(self) -> None:
        """End all links."""
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case MarkOnline(session):
                    self._presence.online(session)
                case MarkOffline(session):
                    self._presence.offline(session)
                case SessionBegan(session):
                    self._carry_out(self._routes.session_began(session))
                case SessionEnded(session):
                    self._carry_out(self._routes.session_ended(session))
                case SessionInvalidated(session):
                    self._routes.forget(session)
                case SessionDisplaced(session):
                    self._metrics.displaced.inc()
                    self._inbound.dismiss(session, DISPLACED, "the client came on another channel")
                case PendingWanted(session):
                    self._carry_out(self._routes.announce(session))
                case RoomToSend(session):
                    self._outbound.pump(session)
                case OpenLink(link):
                    self._following[link] = task = asyncio.create_task(self._follow(link))
                    task.add_done_callback(partial(self._followed, link))
                case CloseLink(link):
                    if following := self._following.get(link):
                        following.cancel()

    async def _follow(self, link: Link) -> None:
        """Take in what the holder of flows says, until the link is closed."""
        async with aclosing(link.events()) as events:
            async for event in events:
                try:
                    self._take_in(link, event)
                except Exception:
                    logger.exception("what gateway %s says cannot be taken in", link.url)

    def _take_in(self, link: Link, event: RelayAnswer | RelayedRows) -> None:
        if isinstance(event, RelayedRows):
            self._metrics.relayed.labels("in").inc(len(event.rows))
            self._carry_out(self._outbound.push(event.rows))
        else:
            self._carry_out(self._routes.relay_answered(link, event))

    def _followed(self, link: Link, task: asyncio.Task[None]) -> None:
        del self._following[link]
