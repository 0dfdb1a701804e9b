"""Assignment: which subscriber gets a flow, and what is said between the two: opening, tokens, rebalancing, closing.

To rebalance is to move flows between subscribers. A flow moves at a token only, and a subscriber that may have been
sent something keeps the flow until it has closed it, or its session is over: so that two subscribers never process one
shard at once. The one exception is a subscriber that lives and cannot be reached for as long as `patience_s`: it closes
its flows by itself, because its exchange broke.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from tidings.applications import Application
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.subscriber_record import SubscriberRecord
from tidings.flows import Flow
from tidings.publisher.balancing import strategy
from tidings.publisher.flow_session import OPEN, FlowSession, SessionOptions
from tidings.publisher.outbox import Finish, Outbox
from tidings.publisher.ownership import Ownership
from tidings.publisher.pump import Pump
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.protocol import Message, reason_of

logger = logging.getLogger(__name__)


class Assignment:
    """Keeps the flows of one publisher with subscribers. `on_change` is called when there is something to decide."""

    def __init__(
        self,
        publisher: str,
        nodes: NodeCache,
        ownership: Ownership,
        outbox: Outbox,
        pumps: Mapping[str, Pump],
        may_send: Callable[[], bool],
        on_change: Callable[[], None],
        *,
        server: ExchangeServer,
        options: SessionOptions,
    ) -> None:
        self._publisher = publisher
        self._nodes = nodes
        self._ownership = ownership
        self._outbox = outbox
        self._pumps = pumps
        self._may_send = may_send
        self._on_change = on_change
        self._server = server
        self._patience = options.patience_s
        self._unreachable: dict[tuple[str, str], float] = {}
        self._said: dict[Flow, str] = {}

    def sessions(self) -> Iterator[FlowSession]:
        """The flows that this publisher owns."""
        for pump in list(self._pumps.values()):
            yield from pump.sessions()

    # Where flows go

    def place(self, application: Application, flows: list[Flow], *, rebalance: bool) -> None:
        """Find a subscriber for each flow that has none; with `rebalance`, move those that should be elsewhere."""
        mine = {session.flow: session for session in self.sessions() if session.flow.application == application.name}
        if not mine or not (rebalance or any(session.wants_subscriber() for session in mine.values())):
            return
        current = {flow: session.holder for flow, session in mine.items() if session.holder}
        if application.balance != "random":
            self._nodes.fill([(*flow.place, "subscriber") for flow in flows if flow not in mine])
            for flow in flows:
                holder = self._nodes.value(*flow.place, "subscriber") if flow not in mine else None
                if holder is not None and isinstance(holder.get("id"), str):
                    current[flow] = holder["id"]
        considered = list(mine) if application.balance == "random" else flows
        target = strategy(application.balance)(considered, self._shares(application.name), current)
        idle = []
        for flow, session in mine.items():
            wanted = target.get(flow)
            if session.wants_subscriber():
                idle.append((session, session.holder if session.keeps_holder(self._is_alive(session)) else wanted))
            elif session.holder != wanted and (wanted or self._is_leaving(session)):
                with session.lock:
                    self._outbox.carry_out(session, session.move())
        begun = [(session, peer, self._begin_assigning(session, peer)) for session, peer in idle if peer is not None]
        for session, subscriber, finish in begun:
            self._assign(session, subscriber, finish)

    def _shares(self, application: str) -> dict[str, float]:
        """The subscribers that take flows, and their weights; those that do not answer only if there are no others."""
        names = self._nodes.children("applications", application, "subscribers")
        peers = {name: peer for name in names if (peer := self._peer(application, name))}
        staying = {name: peer.weight for name, peer in peers.items() if not peer.leaving}
        recent = time.monotonic() - self._patience
        broken = {name: self._unreachable.get((application, name), -1e9) for name in staying}
        return {name: weight for name, weight in staying.items() if broken[name] < recent} or staying

    def _peer(self, application: str, subscriber: str | None) -> SubscriberRecord | None:
        if subscriber is None:
            return None
        value = self._nodes.value("applications", application, "subscribers", subscriber)
        return SubscriberRecord.from_json(value) if value is not None else None

    def _is_alive(self, session: FlowSession) -> bool:
        return session.holder in self._nodes.children("applications", session.flow.application, "subscribers")

    def _is_leaving(self, session: FlowSession) -> bool:
        peer = self._peer(session.flow.application, session.holder)
        return peer is not None and peer.leaving

    def _begin_assigning(self, session: FlowSession, subscriber: str) -> Finish:
        with session.lock:
            effect = session.assign(subscriber)
            return self._outbox.begin(session, effect) if effect is not None else lambda: True

    def _assign(self, session: FlowSession, subscriber: str, finish: Finish) -> None:
        try:
            owned = finish()
        except BaseException:
            with session.lock:
                session.unassign()
            raise
        if not owned:
            self._outbox.replaced(session)
            return
        peer = self._peer(session.flow.application, subscriber)
        if peer is None:
            return  # gone meanwhile
        connection = self._server.connection((session.flow.application, subscriber))
        with session.lock:
            self._outbox.carry_out(session, session.open(connection))
            if connection.broken:  # it may have told so before this flow was on it
                self._outbox.carry_out(session, session.disconnected(connection, connection.fault))

    # As time passes

    def advance(self) -> None:
        """Tokens that are due, patience that has run out, and what operators should know by now."""
        for connection in self._server.connections():
            peer = self._peer(*connection.key) if connection.waits else None
            if peer is not None and self._publisher in peer.unreachable:
                connection.break_off(reason_of({"reason": peer.unreachable[self._publisher]}))
            connection.heartbeat(self._patience)
        for session in list(self.sessions()):
            lives = self._is_alive(session)
            with session.lock:
                self._outbox.carry_out(session, session.tick(holder_lives=lives, allowed=self._may_send()))
            if session.locked_out:
                logger.warning("flow %s is refused in epoch %d, and taken again", session.flow, session.epoch)
            if session.releasable or session.locked_out:
                self._release(session)

    def leave(self, session: FlowSession) -> None:
        """Give a flow to another publisher, once its subscriber has acknowledged what was sent."""
        with session.lock:
            self._outbox.carry_out(session, session.leave())
        if session.releasable:
            self._release(session)

    def _release(self, session: FlowSession) -> None:
        # Ended only then: if ZooKeeper does not answer, it is tried again.
        self._ownership.release(session.flow, session.epoch)
        self._outbox.end(session)
        logger.info("publisher %s has released %s", self._publisher, session.flow)

    # What subscribers say

    def on_broken(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        if reason != "closed":
            if connection.key not in self._unreachable:
                logger.warning("subscriber %s: %s", connection.subscriber, reason)
            self._unreachable[connection.key] = time.monotonic()
        for session in list(self.sessions()):
            with session.lock:
                self._outbox.carry_out(session, session.disconnected(connection, reason))
        self._on_change()

    def on_message(self, connection: Connection, message: Message) -> None:
        """Take in what a subscriber says; ValueError if it cannot be true, which ends the connection."""
        self._unreachable.pop(connection.key, None)
        pump = self._pumps.get(message["stream"])
        session = pump.flows.get(Flow(connection.key[0], message["stream"], message["shard"])) if pump else None
        if session is not None and pump is not None:
            with session.lock:
                before = session.state
                self._outbox.carry_out(session, session.answered(connection, message))
                changed, waits = session.state is not before, session.state is OPEN and session.ride is None
            if waits:
                pump.allocation.wake()
            if changed and message["t"] in ("refused", "parked"):  # else it was an answer to an earlier opening
                self._tell(session, message)
        if message["t"] != "done":
            self._on_change()

    def _tell(self, session: FlowSession, message: Message) -> None:
        """Log what has become of a flow, if it is not what was said of it last."""
        said = f"{message['t']}: {reason_of(message)}"
        if self._said.get(session.flow) != said:
            level = logging.WARNING if message["t"] == "parked" else logging.INFO
            logger.log(level, "flow %s is %s", session.flow, said)
        self._said[session.flow] = said
