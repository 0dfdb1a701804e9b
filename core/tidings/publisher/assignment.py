"""Which subscriber gets a flow, and what is said between the two: opening, tokens, moving, closing.

A flow moves at a token only, and a subscriber that may have been sent something keeps the flow until it has let go, or
its session is over: so that two subscribers never process one shard at once. The one exception is a subscriber that
lives and cannot be reached for as long as `patience`: it has been told to let go by then, because its exchange broke.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from tidings.applications import Application
from tidings.coordination.node_cache import View
from tidings.flows import Flow
from tidings.positions import START, Position
from tidings.publisher.balancing import strategy
from tidings.publisher.flow_session import Sending, State
from tidings.publisher.marker_writer import Records
from tidings.publisher.ownership import Ownership
from tidings.publisher.pump import Pump
from tidings.subscriber.load import Peer
from tidings.wire.connection import Connection
from tidings.wire.protocol import PROTOCOL, Message
from tidings.wire.security import Security

logger = logging.getLogger(__name__)


class Placement:
    """Keeps the flows of one publisher with subscribers. `on_change` is called when there is something to decide."""

    def __init__(
        self,
        publisher: str,
        view: View,
        ownership: Ownership,
        pumps: Mapping[str, Pump],
        may_send: Callable[[], bool],
        on_change: Callable[[], None],
        *,
        security: Security,
        patience: float,
        token_interval: float,
    ) -> None:
        self._publisher = publisher
        self._view = view
        self._ownership = ownership
        self._pumps = pumps
        self._may_send = may_send
        self._on_change = on_change
        self._security = security
        self._patience = patience
        self._token_interval = token_interval
        self._connections: dict[tuple[str, str], Connection] = {}
        self._connecting = threading.Lock()
        self._unreachable: dict[tuple[str, str], float] = {}
        self._records = Records(ownership, self._on_marker, self._on_replaced)

    def sendings(self) -> Iterator[Sending]:
        """The flows that this publisher owns."""
        for pump in list(self._pumps.values()):
            with pump.lock:
                owned = list(pump.flows.values())
            yield from owned

    def close(self) -> None:
        """End all connections, and write what is left to be written."""
        self._records.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End all connections: what is said on one that ends is not heard."""
        with self._connecting:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # Where flows go

    def place(self, application: Application, flows: list[Flow], *, replan: bool) -> None:
        """Find a subscriber for each flow that has none; with `replan`, move those that should be elsewhere too."""
        mine = {sending.flow: sending for sending in self.sendings() if sending.flow.application == application.name}
        if not mine or not (replan or any(one.state is State.IDLE and not one.leaving for one in mine.values())):
            return
        current = {flow: sending.subscriber for flow, sending in mine.items() if sending.subscriber}
        if application.balance != "random":
            self._view.fill([(*flow.place, "subscriber") for flow in flows if flow not in mine])
            for flow in flows:
                if flow not in mine and (holder := self._view.value(*flow.place, "subscriber")):
                    current[flow] = holder["id"]
        considered = list(mine) if application.balance == "random" else flows
        target = strategy(application.balance)(considered, self._shares(application.name), current)
        idle = []
        for flow, sending in mine.items():
            wanted = target.get(flow)
            if sending.leaving:
                continue
            if sending.state is State.IDLE and sending.rested(self._patience / 2):
                idle.append((sending, sending.subscriber if self._keeps(sending) else wanted))
            elif sending.state is State.OPEN and sending.subscriber != wanted and (wanted or self._leaves(sending)):
                self._close_at_a_token(sending)
        begun = [(sending, peer, self._begin_assigning(sending, peer)) for sending, peer in idle if peer is not None]
        for sending, subscriber, finish in begun:
            self._assign(sending, subscriber, finish)

    def _shares(self, application: str) -> dict[str, float]:
        """The subscribers that take flows, and their weights; those that do not answer only if there are no others."""
        names = self._view.children("applications", application, "subscribers")
        peers = {name: peer for name in names if (peer := self._peer(application, name))}
        staying = {name: peer.weight for name, peer in peers.items() if not peer.leaving}
        recent = time.monotonic() - self._patience
        broken = {name: self._unreachable.get((application, name), -1e9) for name in staying}
        return {name: weight for name, weight in staying.items() if broken[name] < recent} or staying

    def _peer(self, application: str, subscriber: str | None) -> Peer | None:
        if subscriber is None:
            return None
        value = self._view.value("applications", application, "subscribers", subscriber)
        return Peer.from_json(value) if value is not None else None

    def _lives(self, sending: Sending) -> bool:
        return sending.subscriber in self._view.children("applications", sending.flow.application, "subscribers")

    def _leaves(self, sending: Sending) -> bool:
        peer = self._peer(sending.flow.application, sending.subscriber)
        return peer is not None and peer.leaving

    def _keeps(self, sending: Sending) -> bool:
        """Whether the holder must have the flow again, whoever should have it next."""
        given_up = sending.failures > 0 and time.monotonic() - sending.failing_since > self._patience
        return sending.bound and self._lives(sending) and not given_up

    def _begin_assigning(self, sending: Sending, subscriber: str) -> Callable[[], bool]:
        if sending.assigned == subscriber:
            return lambda: True  # that is written already
        holder = {"id": subscriber, "epoch": sending.epoch}
        return self._ownership.begin_write(sending.flow, sending.epoch, "subscriber", holder)

    def _assign(self, sending: Sending, subscriber: str, finish: Callable[[], bool]) -> None:
        if not finish():
            self._on_replaced(sending)
            return
        sending.assigned = sending.subscriber = subscriber
        peer = self._peer(sending.flow.application, subscriber)
        if peer is None:
            return  # gone meanwhile
        connection = self._connection(sending.flow.application, subscriber, peer.address)
        with sending.lock:
            sending.connection = connection
            sending.turn += 1
            sending.enter(State.OPENING)
            connection.send(sending.message("open", after=[sending.marker.seq, sending.marker.index]))
            if connection.broken:  # it may have told so before this flow was on it
                sending.fail(connection.fault or sending.reason or "the connection broke")

    def _connection(self, application: str, subscriber: str, address: str) -> Connection:
        with self._connecting:
            key = (application, subscriber)  # two applications may each have a subscriber of that name
            connection = self._connections.get(key)
            if connection is None or connection.address != address:
                hello = {"t": "hello", "protocol": PROTOCOL, "publisher": self._publisher, "application": application}
                connection = Connection(key, address, hello, self._security, self._on_message, self._on_broken)
                self._connections[key] = connection
            return connection

    # As time passes

    def advance(self) -> None:
        """Tokens that are due, patience that has run out, and what operators should know by now."""
        for connection in list(self._connections.values()):
            connection.beat(self._patience)
        for sending in list(self.sendings()):
            self._advance(sending)

    def _advance(self, sending: Sending) -> None:
        now = time.monotonic()
        # A flow that moves waits for a holder that lives, however slow it is: nobody else may process the shard.
        waits = sending.state is State.CLOSING and not sending.leaving and self._lives(sending)
        with sending.lock:
            unasked = not sending.tokens and now - sending.token_time >= self._token_interval
            if sending.state is State.OPEN and sending.sent > sending.marker:
                if unasked and self._may_send():
                    sending.send_token()
            elif sending.state in (State.OPENING, State.CLOSING, State.CLOSED_OFF):
                gone = sending.connection is None
                if gone or (now - sending.since > self._patience and not waits):
                    sending.fail(f"no answer while {sending.state.value}")
                elif sending.state is State.CLOSING and unasked and self._may_send():
                    sending.send_token()  # ZooKeeper did not take the datamarker of the one before
            if sending.state is State.OPEN and now - sending.since > self._patience:
                sending.failures = 0  # it has held for a while, though there was nothing to send
            finished = sending.leaving and sending.state is State.IDLE
            if sending.trouble != sending.told:
                self._records.tell(sending)
        if finished:
            self._release(sending)

    def leave(self, sending: Sending) -> None:
        """Give a flow to another publisher, once its subscriber has acknowledged what was sent."""
        with sending.lock:
            sending.leaving = True
            if sending.state is State.OPEN:
                self._close_at_a_token(sending)
                return
            if sending.state in (State.CLOSING, State.CLOSED_OFF, State.OPENING):
                return
        self._release(sending)

    def _release(self, sending: Sending) -> None:
        # Forgotten only then: if ZooKeeper does not answer, it is tried again.
        self._ownership.release(sending.flow, sending.epoch)
        self.forget(sending)
        logger.info("publisher %s has released %s", self._publisher, sending.flow)

    def forget(self, sending: Sending) -> None:
        """Stop sending a flow, from one moment to the next."""
        pump = self._pumps.get(sending.flow.stream)
        with sending.lock:
            if pump is not None and pump.flows.get(sending.flow) is sending:
                del pump.flows[sending.flow]
            if sending.connection is not None and sending.state is not State.IDLE:
                sending.connection.send(sending.message("close"))
            sending.enter(State.IDLE)

    def unpark(self, sending: Sending) -> None:
        """Try a parked flow again, because its application has changed."""
        with sending.lock:
            if sending.state is State.PARKED:
                self._close_off(sending)

    def _close_at_a_token(self, sending: Sending) -> None:
        with sending.lock:
            sending.send_token()
            sending.enter(State.CLOSING)

    def _close_off(self, sending: Sending) -> None:
        if sending.connection is not None:
            sending.connection.send(sending.message("close"))
        sending.enter(State.CLOSED_OFF)

    # What subscribers say, and ZooKeeper

    def _on_broken(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
        if reason != "closed":
            self._unreachable[connection.key] = time.monotonic()
            logger.info("subscriber %s: %s", connection.subscriber, reason)
        for sending in list(self.sendings()):
            if sending.connection is connection:
                with sending.lock:
                    sending.fail(reason)
        self._on_change()

    def _on_message(self, connection: Connection, message: Message) -> None:
        """Take in what a subscriber says; ValueError if it cannot be true, which ends the connection."""
        self._unreachable.pop(connection.key, None)
        pump = self._pumps.get(message["stream"])
        sending = pump.flows.get(Flow(connection.key[0], message["stream"], message["shard"])) if pump else None
        if sending is not None:
            with sending.lock:
                if sending.connection is connection and (sending.epoch, sending.turn) == (
                    message["epoch"],
                    message["turn"],
                ):
                    self._hear(sending, message)
                    if sending.state is State.OPEN and sending.caravan is None and pump is not None:
                        pump.allocation.wake()
        if message["t"] != "done":
            self._on_change()

    def _hear(self, sending: Sending, message: Message) -> None:
        position = Position(*message["position"]) if "position" in message else START
        match message["t"]:
            case "opened" if sending.state is State.OPENING:
                sending.enter(State.OPEN)
                sending.bound = True
                sending.token_time = time.monotonic()
                if sending.passed_over and sending.connection is not None:
                    sending.connection.send(sending.message("skipped", count=sending.passed_over))
                    sending.passed_over = 0
            case "refused":
                sending.fail(str(message.get("reason", "")))
                logger.info("flow %s is refused: %s", sending.flow, sending.reason)
            case "done":
                if not sending.done(position):
                    raise ValueError(f"flow {sending.flow}: it says that it did what it was not sent")
                sending.failures = 0
            case "ack":
                if not sending.tokens or position != sending.tokens[0]:
                    raise ValueError(f"flow {sending.flow}: it acknowledges what it was not asked")
                # Our own position, and not the one that came: equal is not the same, as in 7 and 7.0.
                self._records.acknowledge(sending, sending.tokens.popleft())
            case "parked":
                sending.reason = str(message.get("reason", ""))[:500]
                sending.enter(State.PARKED)
                sending.caravan = None
                logger.warning("flow %s is parked: %s", sending.flow, sending.reason)
            case "closed" if sending.state is State.CLOSED_OFF:
                sending.reset()
                sending.subscriber, sending.bound = None, False  # it has let go: the flow may go elsewhere

    def tell(self, sending: Sending) -> None:
        """Let operators see the trouble with a flow."""
        self._records.tell(sending)

    def _on_marker(self, sending: Sending, turn: int, position: Position) -> None:
        with sending.lock:
            sending.marker = max(sending.marker, position)
            if sending.turn != turn:
                return
            sending.done(position)
            if sending.state is State.CLOSING and not sending.tokens:
                self._close_off(sending)

    def _on_replaced(self, sending: Sending) -> None:
        logger.warning("publisher %s no longer owns %s", self._publisher, sending.flow)
        self.forget(sending)
