"""Where the rows for each client arrive: here, at another gateway, or nowhere for the moment.

A client is marked online each time that its route is there, and after that the stage tells it all that is pending: so
whatever was said while there was no route is said again.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Mapping

from tidings.updates import shard_of
from tidings_thialfi.gateway.channels import Pipe
from tidings_thialfi.gateway.effects import (
    NOTHING,
    CloseLink,
    Effect,
    Effects,
    MarkOffline,
    MarkOnline,
    OpenLink,
    SessionDisplaced,
)
from tidings_thialfi.gateway.relay import Link, RelayAnswer, Watchers, frames
from tidings_thialfi.gateway.sessions import Session, Sessions

ANNOUNCEMENT_INTERVAL_S = 86_400.0  # a client that stays is marked online so often, lest the stage forget it

logger = logging.getLogger(__name__)


class Routes:
    """The routes of a gateway's clients. It opens and closes no links itself, but returns that as effects.

    `secret` is what gateways show each other; without one, clients whose flow is with another gateway have no route.
    """

    def __init__(
        self,
        me: str,
        shards: int,
        sessions: Sessions,
        watchers: Watchers,
        *,
        secret: str | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watchers = watchers
        self.here: set[int] = set()
        self._me = me
        self._shards = shards
        self._sessions = sessions
        self._secret = secret
        self._tls = tls
        self._clock = clock
        self._holders: dict[int, str] = {}
        self._urls: dict[str, str] = {}
        self._links: dict[str, Link] = {}

    @property
    def unrouted(self) -> int:
        """How many clients get no notifications at the moment."""
        return sum(not session.routed for session in self._sessions)

    @property
    def elsewhere(self) -> bool:
        """Whether other gateways hold flows."""
        return any(holder != self._me and holder in self._urls for holder in self._holders.values())

    def shard(self, client: int) -> int:
        """The shard of a client."""
        return shard_of(str(client), self._shards)

    # Clients

    def session_began(self, session: Session) -> Effects:
        """A client has come. If it has an older channel still, the holder is asked anew, and so the stage."""
        self.forget(session)
        return self._find(session)

    def session_ended(self, session: Session) -> Effects:
        """A client is gone from here."""
        session.routed = False
        self.forget(session)
        return (MarkOffline(session),)

    def forget(self, session: Session) -> None:
        """Want nothing more for a session."""
        for link in self._links.values():
            link.drop([session.client])

    def announce(self, session: Session) -> Effects:
        """Have the stage tell a client once more what is pending; if it has no route, that is done when it has one."""
        return self._found(session) if session.routed else NOTHING

    def announce_again(self, now: float) -> Effects:
        """Announce the clients that were last announced long ago."""
        effects: list[Effect] = []
        for session in self._sessions:
            if session.routed and now - session.announced >= ANNOUNCEMENT_INTERVAL_S:
                effects += self._found(session)
        return effects

    # Flows

    def flow_opened(self, shard: int) -> Effects:
        """The flow of a shard is here now."""
        self.here.add(shard)
        effects: list[Effect] = []
        for session in self._of(shard):
            self.forget(session)
            effects += self._find(session)
        return effects

    def flow_closed(self, shard: int) -> None:
        """The flow of a shard is not here any more."""
        self.here.discard(shard)
        self.watchers.moved(lambda client: self.shard(client) == shard)
        for session in self._of(shard):
            session.routed = False

    def flows_placed(self, holders: Mapping[int, str], urls: Mapping[str, str]) -> Effects:
        """ZooKeeper says which gateway holds which flow, and where the gateways are."""
        moved = {shard for shard in range(self._shards) if holders.get(shard) != self._holders.get(shard)}
        self._holders, self._urls = dict(holders), dict(urls)
        for session in self._sessions:
            if self.shard(session.client) in moved - self.here:
                session.routed = False
                self.forget(session)
        return self.retry()

    def retry(self) -> Effects:
        """Look for routes where there are none, and close links that nobody needs."""
        effects: list[Effect] = []
        for name in [name for name, link in self._links.items() if self._urls.get(name) != link.url]:
            effects += self._close_link(name)
        for session in self._sessions:
            if not session.routed:
                effects += self._find(session)
        for name in [name for name, link in self._links.items() if not link.wanted]:
            effects += self._close_link(name)
        return effects

    # Other gateways

    def relay_frame(self, pipe: Pipe, kind: str, clients: list[int]) -> Effects:
        """Another gateway says whose rows it wants, or wants no more."""
        if kind == "drop":
            self.watchers.drop(pipe, clients)
        if kind not in ("want", "again"):
            return NOTHING
        have = [client for client in clients if self.shard(client) in self.here]
        if kind == "again":
            lost = {one for one in have if self._sessions.get(one) is not None or self.watchers.taken(pipe, one)}
            for frame in frames("lost", lost):
                pipe.send(frame)
            clients, have = ([one for one in some if one not in lost] for some in (clients, have))
        effects = [self._displaced(older) for client in have if (older := self._sessions.get(client)) is not None]
        self.watchers.want(pipe, have)
        for frame in frames("have", have) + frames("not", set(clients) - set(have)):
            pipe.send(frame)
        return effects

    def relay_answered(self, link: Link, answer: RelayAnswer) -> Effects:
        """A holder says how it stands with clients that it was asked for."""
        effects: list[Effect] = []
        for client in answer.clients:
            session = self._sessions.get(client)
            if answer.kind != "have":
                link.wanted.discard(client)
            if session is None or self.shard(client) in self.here:
                continue
            if answer.kind == "have":
                # Else it was dropped since, or a late `not` has taken it out: then the holder is asked again.
                effects += self._found(session) if client in link.wanted else NOTHING
            elif answer.kind == "lost":
                effects.append(self._displaced(session))
            else:
                session.routed = False
        return effects

    def _find(self, session: Session) -> Effects:
        """Look for the route of a session that has none."""
        shard = self.shard(session.client)
        if shard in self.here:
            self.watchers.displace(session.client)
            return self._found(session)
        session.routed = False
        link, effects = self._link(shard)
        if link is not None:
            link.want([session.client], again=session.claimed)
        return effects

    def _found(self, session: Session) -> Effects:
        session.routed = session.claimed = True
        session.announced = self._clock()
        return (MarkOnline(session),)

    def _displaced(self, session: Session) -> Effect:
        self.forget(session)
        return SessionDisplaced(session)

    def _of(self, shard: int) -> list[Session]:
        return [session for session in self._sessions if self.shard(session.client) == shard]

    def _link(self, shard: int) -> tuple[Link | None, Effects]:
        """The link to the gateway that holds a flow, if there is one that can be reached."""
        name = self._holders.get(shard)
        url = self._urls.get(name) if name is not None else None
        if name is None or name == self._me or url is None or self._secret is None:
            return None, NOTHING
        known = self._links.get(name)
        if known is not None and known.url == url:
            return known, NOTHING
        closed = self._close_link(name) if known is not None else NOTHING
        logger.info("flows of clients here are with gateway %s at %s", name, url)
        link = self._links[name] = Link(url, self._secret, self._me, tls=self._tls)
        return link, (*closed, OpenLink(link))

    def _close_link(self, name: str) -> Effects:
        """Leave a gateway; clients whose rows came from there have no route any more."""
        link = self._links.pop(name)
        for client in link.wanted:
            session = self._sessions.get(client)
            if session is not None and self.shard(client) not in self.here:
                session.routed = False
        return (CloseLink(link),)
