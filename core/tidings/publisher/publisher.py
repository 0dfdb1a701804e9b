"""The publisher: owns flows, and has each sent to the subscriber that holds it.

One thread compares the plan with what this publisher does, and takes and releases flows. A `Pump` for each stream does
the sending; `Assignment` finds the subscribers and speaks with them. A `FlowSession` knows how each flow stands, and
the `Outbox` does what sessions ask for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from kazoo.protocol.states import KazooState

from tidings.applications import Application
from tidings.coordination.lease import Lease
from tidings.coordination.membership import Membership
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.errors import ENDING, CoordinationUnavailable, PublisherExists, TidingsError
from tidings.flows import Flow
from tidings.log_opening import containing_errors, open_log
from tidings.logs import Log
from tidings.names import check_name
from tidings.positions import Positions
from tidings.protocol_versions import own_record
from tidings.publisher.assignment import Assignment
from tidings.publisher.bulk import BULK_ROWS, BulkSender
from tidings.publisher.counters import PublisherCounters
from tidings.publisher.dead_letters import DeadLetters
from tidings.publisher.flow_session import (
    PATIENCE_S,
    TOKEN_INTERVAL_S,
    WINDOW_BYTES,
    FlowSession,
    SessionOptions,
)
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Ownership
from tidings.publisher.plan import Plan, read_plan
from tidings.publisher.pump import Pump
from tidings.publisher.pump_set import PumpSet
from tidings.publisher.reports import Reporter
from tidings.publisher.snapshot_taker import SnapshotTaker
from tidings.publisher.standings import Standings
from tidings.publisher.taking import FlowTaker
from tidings.stream_definition import StreamDefinition
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.security import OPEN, Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_PAUSE_S = 0.5  # between two steps
PLAN_INTERVAL_S = 5.0  # between two looks at everything, though nothing seems to have changed

logger = logging.getLogger(__name__)


class PublisherKeywords(TypedDict, total=False):
    """The options of a `Publisher`, for those who pass them on."""

    bulk_rows: int
    name: str | None
    replica: str | None
    token_interval: float
    window_bytes: int
    patience: float
    listen: str
    advertise: str | None
    security: Security


class Publisher:
    """Made by `Cluster.publisher`. A context manager; `run` blocks until `close`.

    | option | default | meaning |
    | --- | --- | --- |
    | `streams` | all | the streams it can read |
    | `name` | made up | names this instance; no two may have one name at a time |
    | `replica` | none | the replica that it reads, of streams that have one of this name; it reads no others |
    | `token_interval` | 5 | seconds between datamarkers of a flow |
    | `spark` | none | a session, or what makes one, for backlogs of more than `bulk_rows` (1,000,000) |
    | `window_bytes` | 8 MiB | bytes that may be on their way for one flow |
    | `patience` | 10 | seconds to wait for a subscriber that does not answer |
    | `listen` | `127.0.0.1:0` | where subscribers come to; port 0 takes a free one |
    | `advertise` | as `listen` | the address that subscribers are told, if it is another |
    | `security` | none | the secret of the cluster, and TLS |
    """

    def __init__(
        self,
        coordination: Coordination,
        streams: Sequence[str] | None = None,
        *,
        spark: SparkSession | Callable[[], SparkSession] | None = None,
        bulk_rows: int = BULK_ROWS,
        name: str | None = None,
        replica: str | None = None,
        token_interval: float = TOKEN_INTERVAL_S,
        window_bytes: int = WINDOW_BYTES,
        patience: float = PATIENCE_S,
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
        security: Security = OPEN,
    ) -> None:
        self.name = check_name("a publisher", name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._chosen = None if streams is None else frozenset(streams)
        self._replica = None if replica is None else check_name("a replica", replica)
        self._spark = spark
        self._starting_spark = threading.Lock()
        self._bulk_rows = bulk_rows
        self._options = SessionOptions(window_bytes, patience, token_interval)
        security.check_place(listen)
        self._ownership = Ownership(coordination, self.name)
        self._changed = threading.Event()
        self._stale = True
        self._closed = threading.Event()
        self._draining = False
        self._suspended = False
        self._lost = False
        self._pumps = PumpSet(self._pump, self._give_up, patience)
        self._misplaced: dict[str, str] = {}
        self._plan = self._heeded = Plan()
        self.counters = PublisherCounters()
        self._mine: set[Flow] = set()  # the flows that should be ours
        self._planned_at = -1
        self._rebalance = True
        # Apart, because a change of one kind does not make us look at what is of another.
        self._nodes = NodeCache(coordination, self._on_change)
        self._owners = NodeCache(coordination, self._on_change)
        self._subscribers = NodeCache(coordination, self._on_subscribers)
        self._taker = FlowTaker(
            self.name,
            self._ownership,
            self._pumps,
            self._options,
            self.counters,
            nodes=self._nodes,
            owners=self._owners,
        )
        taken = PublisherExists(f"a publisher {self.name!r} is running already; give this one another name")
        self._membership = Membership(self._nodes, coordination, ("publishers", self.name), taken)
        self._server = ExchangeServer(
            self.name, listen, security, security.keys, advertise=advertise, patience_s=patience
        )
        self._bulk = BulkSender(self._server, security)
        try:
            self._membership.join(self._record)
        except BaseException:
            self._server.close()
            raise
        self._lease = Lease(coordination)
        self._outbox = Outbox(
            self._ownership,
            lambda session, effect: self._dead_letters.put(session, effect),
            lambda session, effect: self._standings.put(session, effect),
        )
        self._standings = Standings(self._pumps.running, self._outbox.carry_out)
        self._dead_letters = DeadLetters(self._pumps.running, lambda: self._plan.streams, self._outbox.carry_out)
        self._assignment = Assignment(
            self.name,
            self._subscribers,
            self._ownership,
            self._outbox,
            self._pumps.running,
            self.may_send,
            self._changed.set,
            server=self._server,
            options=self._options,
        )
        self._server.start(self._assignment.on_message, self._assignment.on_broken, self._bulk.on_offer)
        self._snapshots = SnapshotTaker(
            coordination, self.name, self._ownership, self._pumps.running, lambda: self._plan, self.may_send
        )
        self._reporter = Reporter(
            coordination,
            self.name,
            self._pumps.running,
            lambda: [flow for flows in self._plan.flows.values() for flow in flows],
            self.may_send,
            self._snapshots.reports,
        )
        coordination.client.add_listener(self._on_state)
        self._thread = threading.Thread(target=self._control, name="tidings-control", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where subscribers come to."""
        return self._server.address

    @property
    def flows(self) -> list[Flow]:
        """The flows that this publisher owns now."""
        return sorted(session.flow for session in self._assignment.sessions())

    # What those see who watch over it

    @property
    def coordination(self) -> Coordination:
        """The session with ZooKeeper."""
        return self._coordination

    @property
    def membership(self) -> Membership:
        """The record of this process there."""
        return self._membership

    @property
    def closing(self) -> bool:
        """Whether it gives its flows away, to end."""
        return self._draining

    @property
    def pumps(self) -> Mapping[str, Pump]:
        """The streams that it reads."""
        return dict(self._pumps.running)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Why logs cannot be read, by stream."""
        met = {name: trouble for name, pump in self.pumps.items() if (trouble := pump.trouble)}
        return {**met, **self._pumps.unreadable}

    @property
    def exchanges(self) -> Counter[str]:
        """How many subscribers are connected, by application."""
        return Counter(one.key[0] for one in self._server.connections() if not one.waits and not one.broken)

    @property
    def broken_exchanges(self) -> Counter[str]:
        """How many exchanges have broken so far, by application."""
        return self._assignment.broken_exchanges.copy()

    @property
    def refused_peers(self) -> int:
        """How many peers that wanted to connect were sent away so far."""
        return self._server.refused_peers

    @property
    def dead_threads(self) -> list[str]:
        """The threads without which it can do nothing, and which have ended all the same."""
        threads = (self._thread, self._outbox.thread, self._lease.thread)
        return [] if self._closed.is_set() else [one.name for one in threads if not one.is_alive()]

    def run(self) -> None:
        """Wait until the publisher is closed."""
        while not self._closed.wait(1.0):  # a signal may reach another thread; Python heeds it when this one wakes
            self._coordination.check_known()

    def close(self, timeout: float = 15.0) -> None:
        """Give all flows away at a token each, and leave."""
        if self._closed.is_set():
            return
        self._draining = True
        self._on_change()
        deadline = time.monotonic() + timeout
        while self.flows and time.monotonic() < deadline and self.may_send():
            time.sleep(0.02)
        self._closed.set()
        self._changed.set()
        self._thread.join()
        self._coordination.client.remove_listener(self._on_state)
        self._snapshots.close()
        self._reporter.close()
        self._dead_letters.close()
        self._standings.close()
        self._pumps.close()
        self._outbox.close()
        self._server.close()
        if self._coordination.client.connected:  # else what is left goes with the session
            with contextlib.suppress(TidingsError):
                self._taker.release()
                left = [(session.flow, session.epoch) for session in self._assignment.sessions()]
                self._ownership.release_many(left)
        self._membership.leave()
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

    def _on_change(self) -> None:
        self._stale = True
        self._changed.set()

    def _on_subscribers(self) -> None:
        self._rebalance = True
        self._changed.set()

    def _on_state(self, state: str) -> None:
        self._suspended = state == KazooState.SUSPENDED
        if state == KazooState.LOST:
            self._lost = True
            self._lease.void()
        self._on_change()

    def _control(self) -> None:
        planned = 0.0
        while not self._closed.is_set():
            self._changed.wait(0.2)
            self._changed.clear()
            try:
                if self._lost and self._coordination.client.connected:
                    self._rejoin()
                if self._suspended or self._lost:
                    continue
                begun = time.monotonic()
                self._stale |= self._pumps.broken
                replan = self._stale or begun - planned > PLAN_INTERVAL_S
                rebalance, self._rebalance = replan or self._rebalance, False
                if replan:
                    self._stale, planned = False, begun
                    if not self._reconcile():
                        self._stale = True
                waiting = self._assignment.look_around()
                for application, flows in self._plan.flows.items():
                    if rebalance or application.name in waiting:
                        self._place(application, flows, rebalance)
                self._assignment.advance()
                # With very many flows, leave half of the time to sending.
                self._closed.wait(min(LONGEST_PAUSE_S, time.monotonic() - begun))
            except TidingsError as error:
                self._stale = True
                logger.info("publisher %s: %s", self.name, error)
            except ENDING:
                raise
            except BaseException:
                self._stale = True
                logger.exception("publisher %s: a step of its control failed", self.name)
                self._closed.wait(1.0)

    def _place(self, application: Application, flows: list[Flow], rebalance: bool) -> None:
        try:
            self._assignment.place(application, flows, rebalance=rebalance)
        except (CoordinationUnavailable, *ENDING):
            raise
        except BaseException as error:  # a balancer may be anybody's: the other applications go on
            if self._misplaced.get(application.name) != repr(error):
                logger.exception("the flows of application %r cannot be placed", application.name)
            self._misplaced[application.name] = repr(error)
        else:
            self._misplaced.pop(application.name, None)

    def _rejoin(self) -> None:
        """The session was lost, and with it all that we owned."""
        for session in list(self._assignment.sessions()):
            self._outbox.end(session)
        self._taker.lost()
        self._server.disconnect()
        self._membership.lost()
        for nodes in (self._nodes, self._owners, self._subscribers):
            nodes.forget()
        self._coordination.ping()
        self._lost = False

    def _reconcile(self) -> bool:
        """Take the flows that should be ours, and leave the others; False if it must be tried again soon."""
        self._taker.release()
        self._membership.keep(self._record)
        plan, mine = self._read_plan(), self._mine
        self.counters.keep(plan.applications)
        readable = {name: one.at(self._replica) for name, one in plan.streams.items() if self._reads(one)}
        taken = {stream for stream, taker in plan.takers.items() if taker == self.name}
        self._pumps.open({flow.stream for flow in mine} | taken, readable)
        self._snapshots.wake()
        self._taker.release()
        self._membership.keep(self._record)  # so that others learn at once what cannot be read here
        owned = {session.flow: session for session in self._assignment.sessions()}
        for flow, session in owned.items():
            if flow.application not in plan.applications:
                self._outbox.end(session)
            elif flow not in mine:
                self._assignment.leave(session)
            elif plan is not self._heeded:
                with session.lock:
                    self._outbox.carry_out(session, session.redefine(plan.applications[flow.application]))
                    self._outbox.carry_out(session, session.heed(plan.controls[flow]))
        self._heeded = plan
        wanted = [flow for flow in mine if flow not in owned and flow.stream in self._pumps.running]

        def on_taken(name: str) -> None:
            application = plan.applications[name]
            self._place(application, plan.flows[application], rebalance=True)

        return self._taker.take(wanted, plan, on_taken) and not self._pumps.unreadable

    def _read_plan(self) -> Plan:
        """The plan of now; the one of before, if nothing that it was made from can have changed."""
        generation = self._nodes.generation
        if generation != self._planned_at or self._nodes.uncertain:
            self._plan = read_plan(self._nodes)
            self._mine = {flow for flow, owner in self._plan.owners.items() if owner == self.name}
            self._planned_at = generation
        return self._plan

    def _reads(self, stream: StreamDefinition) -> bool:
        return self._replica is None or self._replica in stream.replicas

    @property
    def _record(self) -> dict[str, object]:
        return {
            "streams": sorted(self._chosen) if self._chosen is not None else None,
            "draining": self._draining,
            "address": self._server.address,
            "applications": self._applications(),
            "replica": self._replica,
            "unreadable": self._pumps.unreadable,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **own_record(),
        }

    def _applications(self) -> list[str]:
        """Whose subscribers should be connected: those with flows that are here, or are meant to be."""
        planned = {flow.application for flow in self._mine}
        here = {flow.application for pump in list(self._pumps.running.values()) for flow in list(pump.flows)}
        return sorted(planned | here)

    def _give_up(self, session: FlowSession) -> None:
        self._outbox.end(session)
        self._taker.give_up(session.flow, session.epoch)

    def _pump(self, stream: StreamDefinition) -> Pump:
        with containing_errors(stream.name):
            log = open_log(stream)
        pump = Pump(
            stream,
            log,
            self.may_send,
            self._outbox,
            bulk=self._send_in_bulk if self._spark else None,
            bulk_rows=self._bulk_rows,
        )
        self._reporter.apply_settings(pump)  # before it reads
        return pump

    def _send_in_bulk(self, log: Log, after: Positions, upto: Positions, group: list[FlowSession]) -> int:
        with self._starting_spark:  # by one caravan only
            spark = self._spark() if callable(self._spark) else self._spark
        assert spark is not None
        return self._bulk.send(spark, log, after, upto, group)
