"""The publisher: owns flows, and sends each to the subscriber that holds it.

One thread compares what ZooKeeper says with what this publisher does, and takes, releases, places and moves flows. A
`Pump` for each stream does the sending. Another thread writes datamarkers.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from kazoo.protocol.states import KazooState

from tidings.applications import Application
from tidings.balancing import strategy
from tidings.bulk import Target, send_in_bulk
from tidings.coordination import Coordination, check_name
from tidings.datamarkers import Datamarker
from tidings.delivery import OPEN, PROTOCOL, Connection, Message, Security
from tidings.errors import TidingsError
from tidings.flows import Flow
from tidings.leases import Lease
from tidings.logs import Log, open_log, positions_at
from tidings.ownership import Member, Ownership, plan_ownership
from tidings.positions import START, Position, Positions
from tidings.pump import BULK_ROWS, Pump
from tidings.sending import Sending, State
from tidings.streams import StreamDefinition
from tidings.views import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class Publisher:
    """Made by `Cluster.publisher`. A context manager; `run` blocks until `close`.

    | option | default | meaning |
    | --- | --- | --- |
    | `streams` | all | the streams it can read |
    | `name` | made up | names this instance |
    | `token_interval` | 5 | seconds between datamarkers of a flow |
    | `spark` | none | a session, or what makes one, for backlogs of more than `bulk_rows` (1,000,000) |
    | `window_bytes` | 8 MiB | bytes that may be on their way for one flow |
    | `security` | none | a shared token, and TLS |
    """

    def __init__(
        self,
        coordination: Coordination,
        streams: Sequence[str] | None = None,
        *,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        bulk_rows: int = BULK_ROWS,
        name: str | None = None,
        token_interval: float = 5.0,
        window_bytes: int = 8 * 2**20,
        patience: float = 10.0,
        security: Security = OPEN,
    ) -> None:
        self.name = check_name("a publisher", name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._chosen = None if streams is None else frozenset(streams)
        self._token_interval = token_interval
        self._spark = spark
        self._bulk_rows = bulk_rows
        self._window = window_bytes
        self._patience = patience
        self._security = security
        self._ownership = Ownership(coordination, self.name)
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._draining = False
        self._suspended = False
        self._lost = False
        self._pumps: dict[str, Pump] = {}
        self._connections: dict[tuple[str, str], Connection] = {}
        self._connecting = threading.Lock()
        self._unreachable: dict[tuple[str, str], float] = {}
        self._markers: queue.SimpleQueue[tuple[Sending, int, Position] | None] = queue.SimpleQueue()
        self._hands = ThreadPoolExecutor(8, thread_name_prefix="tidings-flows")  # most of taking a flow is waiting
        self._view = View(coordination, self._changed.set)
        self._lease = Lease(coordination)
        coordination.client.add_listener(self._on_state)
        self._threads = [
            threading.Thread(target=work, name=f"tidings-{what}", daemon=True)
            for what, work in (("control", self._control), ("markers", self._write_markers))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def flows(self) -> list[Flow]:
        """The flows that this publisher owns now."""
        return sorted(flow for pump in list(self._pumps.values()) for flow in list(pump.flows))

    def run(self) -> None:
        """Wait until the publisher is closed."""
        self._closed.wait()

    def close(self, timeout: float = 15.0) -> None:
        """Give all flows away at a token each, and leave."""
        if self._closed.is_set():
            return
        self._draining = True
        self._changed.set()
        deadline = time.monotonic() + timeout
        while self.flows and time.monotonic() < deadline and self.may_send():
            time.sleep(0.02)
        self._closed.set()
        self._changed.set()
        self._markers.put(None)
        for thread in self._threads:
            thread.join()
        self._coordination.client.remove_listener(self._on_state)
        for pump in self._pumps.values():
            pump.close()
        for connection in list(self._connections.values()):
            connection.close()
        try:
            for sending in list(self._sendings()):
                self._ownership.release(sending.flow, sending.epoch)
            self._coordination.delete("publishers", self.name)
        except TidingsError:
            logger.debug("what is left goes with the session")
        self._hands.shutdown()
        self._lease.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def may_send(self) -> bool:
        """Whether this process may believe that it owns its flows."""
        return self._lease.valid() and not self._suspended and not self._lost

    # Control

    def _on_state(self, state: str) -> None:
        self._suspended = state == KazooState.SUSPENDED
        if state == KazooState.LOST:
            self._lost = True
            self._lease.void()
        self._changed.set()

    def _control(self) -> None:
        while not self._closed.is_set():
            self._changed.wait(0.2)
            self._changed.clear()
            try:
                if self._lost and self._coordination.client.connected:
                    self._start_afresh()
                if not self._suspended and not self._lost:
                    self._reconcile()
            except TidingsError as error:
                logger.info("publisher %s: %s", self.name, error)
            except Exception:
                logger.exception("publisher %s: a step of its control failed", self.name)
                self._closed.wait(1.0)

    def _start_afresh(self) -> None:
        """The session was lost, and with it all that we owned."""
        for sending in list(self._sendings()):
            self._forget(sending)
        with self._connecting:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()  # what is said on one that ends is not heard
        self._view.forget()
        self._coordination.ping()
        self._lost = False

    def _reconcile(self) -> None:
        self._join()
        streams = {
            name: value for name in self._view.children("streams") if (value := self._view.value("streams", name))
        }
        definitions = {name: StreamDefinition.from_json(value) for name, value in streams.items()}
        applications = self._applications()
        flows = [
            Flow(application.name, stream, shard)
            for application in applications.values()
            for stream in application.streams
            if stream in definitions
            for shard in range(definitions[stream].shards)
        ]
        target = plan_ownership(self._members(definitions), flows, self._pins(flows))
        owned = {sending.flow: sending for sending in self._sendings()}
        for flow, sending in owned.items():
            if flow.application not in applications:
                self._forget(sending)
            elif target.get(flow) != self.name:
                self._leave(sending)
            else:
                self._update(sending, applications[flow.application])
        for stream in {flow.stream for flow, owner in target.items() if owner == self.name} - self._pumps.keys():
            self._open(definitions[stream])
        mine = [flow for flow, owner in target.items() if owner == self.name and flow.stream in self._pumps]
        wanted = [flow for flow in mine if flow not in owned]
        list(self._hands.map(lambda flow: self._take(flow, applications[flow.application]), wanted))
        for application in applications.values():
            self._place(application, [flow for flow in flows if flow.application == application.name])
        for sending in list(self._sendings()):
            self._advance(sending)

    def _open(self, stream: StreamDefinition) -> None:
        try:
            self._pumps[stream.name] = Pump(
                open_log(stream),
                self.may_send,
                window_bytes=self._window,
                bulk=self._send_in_bulk if self._spark else None,
                bulk_rows=self._bulk_rows,
            )
        except TidingsError as error:
            logger.warning("stream %r cannot be read: %s", stream.name, error)  # the others go on

    def _join(self) -> None:
        record = {
            "streams": sorted(self._chosen) if self._chosen is not None else None,
            "draining": self._draining,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        if not self._view.exists("publishers", self.name):
            self._coordination.create(record, "publishers", self.name, ephemeral=True)
        elif (known := self._view.value("publishers", self.name)) is not None and known != record:
            self._coordination.replace(record, known, "publishers", self.name)

    def _applications(self) -> dict[str, Application]:
        found = {}
        for name in self._view.children("applications"):
            value = self._view.value("applications", name)
            try:
                if value is not None:
                    found[name] = Application.from_json(value)
            except TidingsError as error:
                logger.warning("application %r cannot be served: %s", name, error)
        return found

    def _members(self, definitions: dict[str, StreamDefinition]) -> list[Member]:
        members = []
        for name in self._view.children("publishers"):
            value = self._view.value("publishers", name)
            if value is not None:
                readable = frozenset(definitions if value["streams"] is None else value["streams"])
                members.append(Member(name, readable, value["draining"]))
        return members

    def _pins(self, flows: Sequence[Flow]) -> dict[Flow, str]:
        controls = {flow: self._view.value(*flow.place, "control") for flow in flows}
        return {flow: control["pin"] for flow, control in controls.items() if control and control.get("pin")}

    def _sendings(self) -> Iterator[Sending]:
        for pump in list(self._pumps.values()):
            with pump.lock:
                yield from list(pump.flows.values())

    # One flow

    def _take(self, flow: Flow, application: Application) -> None:
        if self._view.exists(*flow.place, "owner") and not self._ownership.disown(flow):
            return
        pump = self._pumps[flow.stream]
        epoch = self._ownership.take(flow, {"host": socket.gethostname(), "pid": os.getpid()})
        if epoch is None:
            return
        try:
            marker = self._marker(flow, epoch, application, pump.log)
            holder = self._coordination.read(*flow.place, "subscriber")
        except TidingsError as error:
            logger.warning("flow %s cannot be served: %s", flow, error)
            self._ownership.release(flow, epoch)  # another publisher may have more luck
            return
        sending = Sending(flow, epoch, application, application.parsed_filter(), marker, True)
        sending.subscriber = holder["id"] if holder else None
        with pump.lock:
            pump.flows[flow] = sending
        logger.info("publisher %s owns %s, epoch %d, from %s", self.name, flow, epoch, marker)

    def _marker(self, flow: Flow, epoch: int, application: Application, log: Log) -> Position:
        """Where the flow goes on, or begins."""
        known = self._coordination.read(*flow.place, "datamarker")
        if known is not None and application.mode == "reliable":
            return Datamarker.from_json(known).position
        marker = _start(application, flow, log)
        # Written at once: if we die before the first acknowledgement, the next owner must not start later.
        self._ownership.write(flow, epoch, "datamarker", Datamarker.now(marker, epoch).to_json())
        return marker

    def _update(self, sending: Sending, application: Application) -> None:
        if sending.application != application:
            with self._pumps[sending.flow.stream].lock:
                sending.application = application
                sending.filter = application.parsed_filter()
                if sending.state is State.PARKED:
                    self._close_off(sending)

    def _leave(self, sending: Sending) -> None:
        """Give a flow away, once its subscriber has acknowledged what was sent."""
        with self._pumps[sending.flow.stream].lock:
            sending.leaving = True
            if sending.state is State.OPEN:
                sending.send_token()
                sending.enter(State.CLOSING)
                return
            if sending.state in (State.CLOSING, State.CLOSED_OFF, State.OPENING):
                return
        self._release(sending)

    def _release(self, sending: Sending) -> None:
        # Forgotten only then: if ZooKeeper does not answer, it is tried again.
        self._ownership.release(sending.flow, sending.epoch)
        self._forget(sending)
        logger.info("publisher %s has released %s", self.name, sending.flow)

    def _forget(self, sending: Sending) -> None:
        pump = self._pumps[sending.flow.stream]
        with pump.lock:
            if pump.flows.get(sending.flow) is sending:
                del pump.flows[sending.flow]
            if sending.connection is not None and sending.state is not State.IDLE:
                sending.connection.send(sending.message("close"))
            sending.enter(State.IDLE)

    def _place(self, application: Application, flows: list[Flow]) -> None:
        """Find a subscriber for each flow that has none, and move those that should be elsewhere."""
        mine = {sending.flow: sending for sending in self._sendings() if sending.flow.application == application.name}
        if not mine:
            return
        capacities = self._subscribers(application.name)
        current = {flow: sending.subscriber for flow, sending in mine.items() if sending.subscriber}
        if application.balance != "random":
            for flow in flows:
                if flow not in mine and (holder := self._view.value(*flow.place, "subscriber")):
                    current[flow] = holder["id"]
        considered = list(mine) if application.balance == "random" else flows
        target = strategy(application.balance)(considered, capacities, current)
        idle = []
        for flow, sending in mine.items():
            wanted = target.get(flow)
            if wanted is None or sending.leaving:
                continue
            if sending.state is State.IDLE and time.monotonic() - sending.since > 0.1 * bool(sending.reason):
                # A holder that lives keeps the flow until it has closed it, whoever should have it next.
                idle.append((sending, sending.subscriber if sending.subscriber in capacities else wanted))
            elif sending.state is State.OPEN and sending.subscriber != wanted:
                with self._pumps[flow.stream].lock:
                    sending.send_token()
                    sending.enter(State.CLOSING)

        list(self._hands.map(lambda pair: self._assign(*pair), idle))

    def _subscribers(self, application: str) -> dict[str, float]:
        """The live subscribers and their capacities; those that do not answer only if there are no others."""
        found = {}
        for name in self._view.children("applications", application, "subscribers"):
            value = self._view.value("applications", application, "subscribers", name)
            if value is not None:
                found[name] = float(value["capacity"])
        recent = time.monotonic() - self._patience
        last_broken = {name: self._unreachable.get((application, name), -1e9) for name in found}
        answering = {name: share for name, share in found.items() if last_broken[name] < recent}
        return answering or found

    def _lives(self, sending: Sending) -> bool:
        subscribers = self._view.children("applications", sending.flow.application, "subscribers")
        return sending.subscriber in subscribers

    def _assign(self, sending: Sending, subscriber: str | None) -> None:
        if subscriber is None:
            return
        value = self._view.value("applications", sending.flow.application, "subscribers", subscriber)
        if value is None:
            return
        holder = {"id": subscriber, "epoch": sending.epoch}
        if not self._ownership.write(sending.flow, sending.epoch, "subscriber", holder):
            self._forget(sending)
            return
        connection = self._connection(sending.flow.application, subscriber, value["address"])
        with self._pumps[sending.flow.stream].lock:
            sending.subscriber, sending.connection, sending.reason = subscriber, connection, ""
            sending.turn += 1
            sending.enter(State.OPENING)
            after = [sending.marker.seq, sending.marker.index]
            connection.send(sending.message("open", after=after))
            if connection.broken:  # it may have told so before this flow was on it
                sending.reason = "the connection broke"
                sending.reset()

    def _connection(self, application: str, subscriber: str, address: str) -> Connection:
        with self._connecting:
            key = (application, subscriber)  # two applications may each have a subscriber of that name
            connection = self._connections.get(key)
            if connection is None or connection.address != address:
                hello = {"t": "hello", "protocol": PROTOCOL, "publisher": self.name, "application": application}
                connection = Connection(key, address, hello, self._security, self._on_message, self._on_broken)
                self._connections[key] = connection
            return connection

    def _advance(self, sending: Sending) -> None:
        """Tokens that are due, and patience that has run out."""
        now = time.monotonic()
        pump = self._pumps[sending.flow.stream]
        # A flow that moves waits for a holder that lives, however slow it is: nobody else may process the shard.
        bound = sending.state is State.CLOSING and not sending.leaving and self._lives(sending)
        with pump.lock:
            unasked = not sending.tokens and now - sending.token_time >= self._token_interval
            if sending.state is State.OPEN and sending.sent > sending.marker:
                if unasked and self.may_send():
                    sending.send_token()
            elif sending.state in (State.OPENING, State.CLOSING, State.CLOSED_OFF):
                gone = sending.connection is None
                if gone or (now - sending.since > self._patience and not bound):
                    sending.reason = f"no answer while {sending.state.value}"
                    sending.reset()
                elif sending.state is State.CLOSING and unasked and self.may_send():
                    sending.send_token()  # ZooKeeper did not take the datamarker of the one before
            finished = sending.leaving and sending.state is State.IDLE
        if finished and sending.flow in pump.flows:
            self._release(sending)

    def _close_off(self, sending: Sending) -> None:
        if sending.connection is not None:
            sending.connection.send(sending.message("close"))
        sending.enter(State.CLOSED_OFF)

    def _send_in_bulk(self, log: Log, after: Positions, upto: Positions, group: list[Sending]) -> None:
        """Let the executors send; each application's filter is a column of one pass."""
        spark = self._spark() if callable(self._spark) else self._spark
        assert spark is not None
        filters = list(dict.fromkeys(one.filter for one in group))
        targets = [
            Target(
                *one.flow,
                one.epoch,
                one.turn,
                one.sent,
                one.connection.address,
                one.connection.key,
                filters.index(one.filter),
            )
            for one in group
            if one.connection is not None
        ]
        send_in_bulk(spark, log, after, upto, targets, filters, self._security)

    # What subscribers say

    def _on_broken(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.key) is connection:
            del self._connections[connection.key]
        if reason != "closed":
            self._unreachable[connection.key] = time.monotonic()
            logger.info("subscriber %s: %s", connection.subscriber, reason)
        for sending in list(self._sendings()):
            if sending.connection is connection:
                with self._pumps[sending.flow.stream].lock:
                    sending.reason = reason
                    sending.reset()
        self._changed.set()

    def _on_message(self, connection: Connection, message: Message) -> None:
        """Take in what a subscriber says; ValueError if it cannot be true, which ends the connection."""
        self._unreachable.pop(connection.key, None)
        pump = self._pumps.get(message["stream"])
        if pump is None:
            return
        with pump.lock:
            for sending in pump.flows.values():
                here = sending.connection is connection and sending.flow.shard == message["shard"]
                if here and (sending.epoch, sending.turn) == (message["epoch"], message["turn"]):
                    self._hear(sending, message)
                    break
        if message["t"] != "done":
            self._changed.set()

    def _hear(self, sending: Sending, message: Message) -> None:
        position = Position(*message["position"]) if "position" in message else START
        match message["t"]:
            case "opened" if sending.state is State.OPENING:
                sending.enter(State.OPEN)
                sending.token_time = time.monotonic()
            case "refused":
                sending.reason = str(message.get("reason", ""))[:500]
                logger.info("flow %s is refused: %s", sending.flow, sending.reason)
                sending.reset()
            case "done":
                if not sending.done(position):
                    raise ValueError(f"flow {sending.flow}: it says that it did what it was not sent")
            case "ack":
                if not sending.tokens or position != sending.tokens[0]:
                    raise ValueError(f"flow {sending.flow}: it acknowledges what it was not asked")
                # Our own position, and not the one that came: equal is not the same, as in 7 and 7.0.
                self._markers.put((sending, sending.turn, sending.tokens.popleft()))
            case "parked":
                sending.reason = str(message.get("reason", ""))[:500]
                sending.enter(State.PARKED)
                sending.attached = False
                self._markers.put((sending, sending.turn, sending.marker))
            case "closed" if sending.state is State.CLOSED_OFF:
                sending.reset()
                sending.subscriber = None  # it has let go: the flow may go elsewhere

    # Datamarkers

    def _write_markers(self) -> None:
        while (item := self._markers.get()) is not None:
            try:
                self._write_marker(*item)
            except TidingsError as error:
                logger.info("flow %s: %s", item[0].flow, error)  # there will be another token

    def _write_marker(self, sending: Sending, turn: int, position: Position) -> None:
        if sending.state is State.PARKED:
            parked = {"id": sending.subscriber, "epoch": sending.epoch, "parked": sending.reason}
            self._ownership.write(sending.flow, sending.epoch, "subscriber", parked)
            return
        marker = Datamarker.now(position, sending.epoch)
        if position > sending.marker and not self._ownership.write(
            sending.flow, sending.epoch, "datamarker", marker.to_json()
        ):
            logger.warning("publisher %s no longer owns %s", self.name, sending.flow)
            self._forget(sending)
            return
        with self._pumps[sending.flow.stream].lock:
            sending.marker = max(sending.marker, position)
            if sending.turn != turn:
                return
            sending.done(position)
            if sending.state is State.CLOSING and not sending.tokens:
                self._close_off(sending)


def _start(application: Application, flow: Flow, log: Log) -> Position:
    """Where a flow begins that has no datamarker."""
    bounds = log.bounds()[flow.shard]
    named = application.starting_positions(flow.stream)
    if application.mode == "realtime" or application.start == "latest":
        return bounds.head
    if application.start == "earliest":
        return bounds.floor
    if named is not None:
        return named[flow.shard].before if flow.shard in named else bounds.floor
    time_wanted = application.starting_time()
    assert time_wanted is not None
    return positions_at(log, flow.shard, time_wanted)
