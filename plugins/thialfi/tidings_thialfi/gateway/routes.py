"""Where the rows for each client arrive: here, at another gateway, or nowhere for the moment.

A client is marked online each time that its route is there, and after that the stage tells it all that is pending: so
whatever was said while there was no route is said again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping

from tidings.updates import shard_of
from tidings_thialfi.gateway.channels import Pipe
from tidings_thialfi.gateway.metrics import GatewayMetrics
from tidings_thialfi.gateway.notification_rows import Said
from tidings_thialfi.gateway.presence import Presence
from tidings_thialfi.gateway.relay import Link, Watchers, frames
from tidings_thialfi.gateway.sessions import Session, Sessions

logger = logging.getLogger(__name__)


class Routes:
    """The routes of a gateway's clients. `displaced` is called with a session whose client has come elsewhere.

    `secret` is what gateways show each other; without one, clients whose flow is with another gateway have no route.
    """

    def __init__(
        self,
        me: str,
        shards: int,
        sessions: Sessions,
        presence: Presence,
        *,
        said: Callable[[list[Said]], None],
        displaced: Callable[[Session], None],
        metrics: GatewayMetrics,
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.watchers = Watchers()
        self.here: set[int] = set()
        self._me = me
        self._shards = shards
        self._sessions = sessions
        self._presence = presence
        self._said = said
        self._displaced = displaced
        self._metrics = metrics
        self._secret = secret
        self._tls = tls
        self._holders: dict[int, str] = {}
        self._urls: dict[str, str] = {}
        self._links: dict[str, Link] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def unrouted(self) -> int:
        """How many clients hear nothing at the moment."""
        return sum(not session.routed for session in self._sessions)

    @property
    def elsewhere(self) -> bool:
        """Whether other gateways hold flows."""
        return any(holder != self._me and holder in self._urls for holder in self._holders.values())

    def shard(self, client: int) -> int:
        """The shard of a client."""
        return shard_of(str(client), self._shards)

    def come(self, session: Session) -> None:
        """A client has come, or must be told again what is pending."""
        shard = self.shard(session.client)
        if shard in self.here:
            self.watchers.lose(session.client)
            self._routed(session)
            return
        link = self._link(shard)
        if link is None:
            session.routed = False
        elif session.client not in link.wanted:
            session.routed = False
            link.want([session.client])
        elif session.routed:
            self._routed(session)

    def gone(self, session: Session) -> None:
        """A client is gone from here."""
        session.routed = False
        self.forget(session)
        self._presence.offline(session)

    def forget(self, session: Session) -> None:
        """Want nothing more for a session."""
        for link in self._links.values():
            link.drop([session.client])

    def opened(self, shard: int) -> None:
        """The flow of a shard is here now."""
        self.here.add(shard)
        for session in self._of(shard):
            self.forget(session)
            self.come(session)

    def closed(self, shard: int) -> None:
        """The flow of a shard is not here any more."""
        self.here.discard(shard)
        self.watchers.moved(lambda client: self.shard(client) == shard)
        for session in self._of(shard):
            session.routed = False

    def placed(self, holders: Mapping[int, str], urls: Mapping[str, str]) -> None:
        """ZooKeeper says which gateway holds which flow, and where the gateways are."""
        moved = {shard for shard in range(self._shards) if holders.get(shard) != self._holders.get(shard)}
        self._holders, self._urls = dict(holders), dict(urls)
        for session in self._sessions:
            if self.shard(session.client) in moved - self.here:
                session.routed = False
                self.forget(session)
        self.retry()

    def retry(self) -> None:
        """Look for routes where there are none, and let go of links that nobody needs."""
        for session in self._sessions:
            if not session.routed:
                self.come(session)
        for name, link in list(self._links.items()):
            if not link.wanted or self._urls.get(name) != link.url:
                self._end(self._links.pop(name))

    async def close(self) -> None:
        """End all links."""
        for link in self._links.values():
            await link.close()

    def take(self, pipe: Pipe, kind: str, clients: list[int]) -> None:
        """Another gateway says whose rows it wants, or wants no more."""
        if kind == "drop":
            self.watchers.drop(pipe, clients)
            return
        have = [client for client in clients if self.shard(client) in self.here]
        for client in have:
            older = self._sessions.get(client)
            if older is not None:
                self._displaced(older)
        self.watchers.want(pipe, have)
        for frame in frames("have", have) + frames("not", set(clients) - set(have)):
            pipe.send(frame)

    def _heard(self, kind: str, clients: list[int], link: Link | None) -> None:
        """A holder says something of clients that it was asked for."""
        for client in clients:
            session = self._sessions.get(client)
            if link is not None and kind != "have":
                link.wanted.discard(client)
            if session is None or self.shard(client) in self.here:
                continue
            if kind == "have":
                self._routed(session)
            elif kind == "lost":
                self._displaced(session)
            else:
                session.routed = False

    def _routed(self, session: Session) -> None:
        session.routed = True
        session.noted = time.monotonic()
        self._presence.online(session)

    def _of(self, shard: int) -> list[Session]:
        return [session for session in self._sessions if self.shard(session.client) == shard]

    def _link(self, shard: int) -> Link | None:
        name = self._holders.get(shard)
        url = self._urls.get(name) if name is not None else None
        if name is None or name == self._me or url is None or self._secret is None:
            return None
        link = self._links.get(name)
        if link is not None and link.url != url:
            self._end(link)
            link = None
        if link is None:
            logger.info("flows of clients here are with gateway %s at %s", name, url)
            link = Link(
                url,
                self._secret,
                heard=lambda kind, clients: self._heard(kind, clients, self._links.get(name)),
                said=self._relayed,
                tls=self._tls,
            )
            self._links[name] = link
        return link

    def _relayed(self, those: list[Said]) -> None:
        self._metrics.relayed.labels("in").inc(len(those))
        self._said(those)

    def _end(self, link: Link) -> None:
        task = asyncio.create_task(link.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
