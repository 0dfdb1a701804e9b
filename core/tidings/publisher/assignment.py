"""Assignment: which subscriber gets a flow, and what is said between the two: opening, tokens, rebalancing, closing.

To rebalance is to move flows between subscribers. A flow moves at a token only, and a subscriber that may have been
sent something keeps the flow until it has closed it, or its session is over: so that two subscribers never process one
shard at once. The one exception is a subscriber that lives and cannot be reached for as long as `patience_s`: it closes
its flows by itself, because its exchange broke.
"""

from __future__ import annotations

import logging
import operator
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tidings.applications import Application
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.subscriber_record import SubscriberRecord
from tidings.flows import Flow
from tidings.outages import Outage
from tidings.protocol_versions import own_versions
from tidings.publisher.balancing import strategy
from tidings.publisher.flow_session import OPEN, FlowSession, SessionOptions
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Finish, Ownership, WriteBatch
from tidings.publisher.pump import Pump
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.protocol import Message, reason_of

MAX_AWAY = 1000  # subscribers that are away and may come again
SCAN_INTERVAL_S = 1.0
TICK_INTERVAL_S = 0.2
TELL_INTERVAL_S = 10.0  # between two lines in the log about what a subscriber says of one flow

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
        self._outages: dict[tuple[str, str], Outage] = {}
        self.broken_exchanges: Counter[str] = Counter()
        """Exchanges that ended though nobody wanted it, by application."""
        self._said: dict[Flow, tuple[str, float]] = {}
        # Thousands of flows have nothing to do most of the time. Those that may have are looked after at each step, and
        # now and then it is looked which those are.
        self._applications: set[str] = set()  # those that have flows here, or had
        self._restless: set[FlowSession] = set()
        self._fresh: set[FlowSession] = set()  # those of them to which something has happened this moment
        self._touched: queue.SimpleQueue[FlowSession] = queue.SimpleQueue()
        self._scan_interval_s = min(SCAN_INTERVAL_S, options.token_interval_s / 5)
        self._scanned = self._ticked = -SCAN_INTERVAL_S

    def sessions(self) -> Iterator[FlowSession]:
        """The flows that this publisher owns."""
        for pump in list(self._pumps.values()):
            yield from pump.sessions()

    def _owned(self, flows: Iterable[Flow]) -> Iterator[tuple[Flow, FlowSession]]:
        """Those of flows that this publisher owns."""
        for flow in flows:
            pump = self._pumps.get(flow.stream)
            session = pump.flows.get(flow) if pump is not None else None
            if session is not None and not session.ended:
                yield flow, session

    def look_around(self) -> set[str]:
        """Find the flows that there may be something to do for; returns the applications of those without subscriber.

        What happens to a flow is noted when it happens, or is found after a while.
        """
        now = time.monotonic()
        self._fresh = set()
        while not self._touched.empty():
            self._fresh.add(self._touched.get())
        self._restless |= self._fresh
        if now - self._scanned >= self._scan_interval_s:
            self._scanned = now
            living = self._living()
            for session in self.sessions():
                lives = session.holder in living.get(session.flow.application, ())
                if not session.calm or session.held is not lives:
                    self._restless.add(session)
        return {session.flow.application for session in self._restless if session.wants_subscriber()}

    # Where flows go

    def place(self, application: Application, flows: list[Flow], *, rebalance: bool) -> None:
        """Find a subscriber for each flow that has none; with `rebalance`, move those that should be elsewhere."""
        mine = dict(self._owned(flows))
        if not mine:
            self._applications.discard(application.name)
            return
        self._applications.add(application.name)
        current = {flow: session.holder for flow, session in mine.items() if session.holder}
        if application.balance != "random":
            self._nodes.fill([(*flow.place, "subscriber") for flow in flows if flow not in mine])
            for flow in flows:
                holder = self._nodes.value(*flow.place, "subscriber") if flow not in mine else None
                if holder is not None and isinstance(holder.get("id"), str):
                    current[flow] = holder["id"]
        considered = list(mine) if application.balance == "random" else flows
        peers = self._peers(application.name)
        target = strategy(application.balance)(considered, self._shares(application.name, peers), current)
        idle = []
        for flow, session in mine.items():
            wanted = target.get(flow)
            if session.wants_subscriber():
                idle.append((session, session.holder if session.keeps_holder(session.holder in peers) else wanted))
            elif rebalance and session.holder != wanted and (wanted or self._is_leaving(session)):
                self._touched.put(session)
                with session.lock:
                    self._outbox.carry_out(session, session.move())
        batch = self._outbox.batch()
        begun = [(one, peer, self._begin_assigning(one, peer, batch)) for one, peer in idle if peer is not None]
        batch.commit()
        begun.sort(key=operator.itemgetter(1))  # what is said to one subscriber then travels together
        while begun:
            session, subscriber, finish = begun.pop()
            try:
                self._assign(session, subscriber, finish)
            except BaseException:
                for other, _, _ in begun:  # of which nobody hears any more
                    with other.lock:
                        other.unassign()
                raise

    def _peers(self, application: str) -> dict[str, SubscriberRecord | None]:
        """The subscribers of an application that live; None for one whose record makes no sense."""
        place = ("applications", application, "subscribers")
        names = self._nodes.children(*place)
        self._nodes.fill([(*place, name) for name in names])
        return {name: self._peer(application, name) for name in names}

    def _living(self) -> dict[str, set[str]]:
        """The ids of the subscribers that live, of each application with flows here."""
        return {name: set(self._nodes.children("applications", name, "subscribers")) for name in self._applications}

    def _shares(self, application: str, peers: Mapping[str, SubscriberRecord | None]) -> dict[str, float]:
        """The subscribers that take flows, and their weights.

        Those that do not answer, or speak no version of ours, only if there are no others: they say why, then.
        """
        known = {name: peer for name, peer in peers.items() if peer is not None}
        staying = {name: peer.weight for name, peer in known.items() if not peer.leaving}
        recent = time.monotonic() - self._patience
        broken = {name: self._unreachable.get((application, name), -1e9) for name in staying}
        fit = {name for name in staying if known[name].spoken.common(own_versions()) is not None}
        return {name: weight for name, weight in staying.items() if broken[name] < recent and name in fit} or staying

    def _peer(self, application: str, subscriber: str | None) -> SubscriberRecord | None:
        if subscriber is None:
            return None
        value = self._nodes.value("applications", application, "subscribers", subscriber)
        return SubscriberRecord.from_json(value) if value is not None else None

    def _is_leaving(self, session: FlowSession) -> bool:
        peer = self._peer(session.flow.application, session.holder)
        return peer is not None and peer.leaving

    def _begin_assigning(self, session: FlowSession, subscriber: str, batch: WriteBatch) -> Finish:
        with session.lock:
            effect = session.assign(subscriber)
            return self._outbox.begin(session, effect, batch) if effect is not None else lambda: True

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
        self._touched.put(session)
        with session.lock:
            self._outbox.carry_out(session, session.open(connection))
            if connection.broken:  # it may have told so before this flow was on it
                self._outbox.carry_out(session, session.disconnected(connection, connection.fault))

    # As time passes

    def advance(self) -> None:
        """Tokens that are due, patience that has run out, and what operators should know by now."""
        for connection in self._server.connections():
            peer = self._peer(*connection.key) if connection.waits else None
            said = peer.said_of(self._publisher, self._server.address) if peer is not None else None
            if said is not None:
                connection.break_off(reason_of({"reason": said}))
            if not connection.waits and not connection.broken and connection.key in self._outages:
                self._outages.pop(connection.key).end()
        now = time.monotonic()
        due = self._fresh
        if now - self._ticked >= TICK_INTERVAL_S:
            self._ticked, due = now, set(self._restless)
        living = self._living() if due else {}
        releasable = []
        for session in due:
            lives = session.holder in living.get(session.flow.application, ())
            with session.lock:
                self._outbox.carry_out(session, session.tick(holder_lives=lives, allowed=self._may_send()))
                if session.ended or session.calm:
                    self._restless.discard(session)
            if session.locked_out:
                logger.warning("flow %s is refused in epoch %d, and taken again", session.flow, session.epoch)
            if session.releasable or session.locked_out:
                releasable.append(session)
        self._release(releasable)

    def leave(self, session: FlowSession) -> None:
        """Give a flow to another publisher, once its subscriber has acknowledged what was sent."""
        self._touched.put(session)
        with session.lock:
            self._outbox.carry_out(session, session.leave())

    def _release(self, sessions: Sequence[FlowSession]) -> None:
        # Ended only then: if ZooKeeper does not answer, it is tried again.
        self._ownership.release_many([(session.flow, session.epoch) for session in sessions])
        for session in sessions:
            self._outbox.end(session)
            logger.info("publisher %s has released %s", self._publisher, session.flow)

    # What subscribers say

    def on_broken(self, connection: Connection, reason: str) -> None:
        """A connection has ended."""
        if reason != "closed":
            self.broken_exchanges[connection.key[0]] += 1
            self._unreachable[connection.key] = time.monotonic()
            outage = Outage(f"subscriber {connection.subscriber}", logger.warning)
            self._outages.setdefault(connection.key, outage).begin(reason)
            for known in (self._unreachable, self._outages):  # most ids are made up, and never come again
                while len(known) > MAX_AWAY:
                    known.pop(next(iter(known)), None)
        # Who opens a flow on it this moment finds it broken.
        for session in [session for session in self.sessions() if session.connection is connection]:
            self._touched.put(session)
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
            if changed and session.state is not OPEN:
                self._touched.put(session)
                self._on_change()

    def _tell(self, session: FlowSession, message: Message) -> None:
        """Log what has become of a flow, if it is not what was said of it last; of one flow no more than so often."""
        said = f"{message['t']}: {reason_of(message)}"
        known, at = self._said.get(session.flow, ("", -TELL_INTERVAL_S))
        now = time.monotonic()
        if known != said and now - at >= TELL_INTERVAL_S:
            self._said[session.flow] = said, now
            level = logging.WARNING if message["t"] == "parked" else logging.INFO
            logger.log(level, "flow %s is %s", session.flow, said)
