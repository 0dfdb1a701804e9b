"""The publisher: owns flows, and has each sent to the subscriber that holds it.

One thread compares the plan with what this publisher does, and takes and releases flows. A `Pump` for each stream does
the sending; `Assignment` finds the subscribers and speaks with them. A `FlowSession` knows how each flow stands, and
the `Outbox` does what sessions ask for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from kazoo.protocol.states import KazooState

from tidings.applications import Application
from tidings.coordination.lease import Lease
from tidings.coordination.membership import Membership
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.errors import ENDING, CoordinationUnavailable, PublisherExists, TidingsError
from tidings.flows import Flow
from tidings.logs import Log, containing_errors, open_log
from tidings.names import check_name
from tidings.positions import Position, Positions
from tidings.publisher.assignment import Assignment
from tidings.publisher.bulk import BULK_ROWS, BulkSender
from tidings.publisher.flow_session import (
    PATIENCE_S,
    TOKEN_INTERVAL_S,
    WINDOW_BYTES,
    FlowSession,
    SessionOptions,
)
from tidings.publisher.outbox import Outbox
from tidings.publisher.ownership import Ownership, Taken, Wanted
from tidings.publisher.plan import Plan, read_plan, starting_position
from tidings.publisher.pump import Pump
from tidings.publisher.pump_set import PumpSet
from tidings.publisher.reports import Reporter
from tidings.stream_definition import StreamDefinition
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.security import OPEN, Security

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKE_BATCH_FLOWS = 500
PLAN_INTERVAL_S = 5.0  # between two looks at everything, though nothing seems to have changed

logger = logging.getLogger(__name__)


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
        self._given_up: dict[Flow, int] = {}
        self._misplaced: dict[str, str] = {}
        self._plan = Plan()
        self._nodes = NodeCache(coordination, self._on_change)
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
        self._outbox = Outbox(self._ownership)
        self._assignment = Assignment(
            self.name,
            self._nodes,
            self._ownership,
            self._outbox,
            self._pumps.running,
            self.may_send,
            self._changed.set,
            server=self._server,
            options=self._options,
        )
        self._server.start(self._assignment.on_message, self._assignment.on_broken, self._bulk.on_offer)
        self._reporter = Reporter(
            coordination,
            self.name,
            self._pumps.running,
            lambda: [flow for flows in self._plan.flows.values() for flow in flows],
            self.may_send,
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
        self._reporter.close()
        self._pumps.close()
        self._outbox.close()
        self._server.close()
        if self._coordination.client.connected:  # else what is left goes with the session
            with contextlib.suppress(TidingsError):
                self._release_given_up()
                for session in self._assignment.sessions():
                    self._ownership.release(session.flow, session.epoch)
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
                if replan:
                    self._stale, planned = False, begun
                    if not self._reconcile():
                        self._stale = True
                for application, flows in self._plan.flows.items():
                    self._place(application, flows, replan)
                self._assignment.advance()
                self._closed.wait(time.monotonic() - begun)  # with very many flows, leave half of the time to sending
            except TidingsError as error:
                self._stale = True
                logger.info("publisher %s: %s", self.name, error)
            except ENDING:
                raise
            except BaseException:
                self._stale = True
                logger.exception("publisher %s: a step of its control failed", self.name)
                self._closed.wait(1.0)

    def _place(self, application: Application, flows: list[Flow], replan: bool) -> None:
        try:
            self._assignment.place(application, flows, rebalance=replan)
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
        self._given_up.clear()
        self._server.disconnect()
        self._membership.lost()
        self._nodes.forget()
        self._coordination.ping()
        self._lost = False

    def _reconcile(self) -> bool:
        """Take the flows that should be ours, and leave the others; False if it must be tried again soon."""
        self._release_given_up()
        self._membership.keep(self._record)
        self._plan = plan = read_plan(self._nodes)
        mine = {flow for flow, owner in plan.owners.items() if owner == self.name}
        readable = {name: one.at(self._replica) for name, one in plan.streams.items() if self._reads(one)}
        self._pumps.open({flow.stream for flow in mine}, readable)
        self._release_given_up()
        self._membership.keep(self._record)  # so that others learn at once what cannot be read here
        owned = {session.flow: session for session in self._assignment.sessions()}
        for flow, session in owned.items():
            if flow.application not in plan.applications:
                self._outbox.end(session)
            elif flow not in mine:
                self._assignment.leave(session)
            else:
                with session.lock:
                    self._outbox.carry_out(session, session.redefine(plan.applications[flow.application]))
        wanted = [flow for flow in mine if flow not in owned and flow.stream in self._pumps.running]
        self._nodes.fill([(*flow.place, "owner") for flow in wanted])
        # One that has another owner is looked at again when that is gone, which the cache tells. One that is ours, and
        # that we do not send, was taken by a transaction whose answer was lost.
        owners = {flow: self._nodes.value(*flow.place, "owner") for flow in wanted}
        free = [flow for flow, owner in owners.items() if owner is None or owner.get("publisher") == self.name]
        whole = [
            self._take(free[at : at + TAKE_BATCH_FLOWS], plan.applications)
            for at in range(0, len(free), TAKE_BATCH_FLOWS)
        ]
        return all(whole) and not self._pumps.unreadable

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
        }

    def _applications(self) -> list[str]:
        """Whose subscribers should be connected: those with flows that are here, or are meant to be."""
        planned = {flow.application for flow, owner in self._plan.owners.items() if owner == self.name}
        here = {flow.application for pump in list(self._pumps.running.values()) for flow in list(pump.flows)}
        return sorted(planned | here)

    def _take(self, flows: list[Flow], applications: Mapping[str, Application]) -> bool:
        """Become the owner of flows; False if one should be tried again, though nothing in ZooKeeper changes."""
        bounds, identities = {}, {}
        for stream in {flow.stream for flow in flows} & self._pumps.running.keys():
            try:
                with containing_errors(stream):
                    bounds[stream] = self._pumps.running[stream].log.bounds()
                    identities[stream] = self._pumps.running[stream].log_identity
            except TidingsError as error:
                self._pumps.give_up(stream, str(error))
                self._release_given_up()
        flows = [flow for flow in flows if flow.stream in bounds]

        def start(flow: Flow, before: Position | None) -> Position:
            log, held = self._pumps.running[flow.stream].log, bounds[flow.stream][flow.shard]
            with containing_errors(flow.stream):
                return starting_position(applications[flow.application], flow, log, held, before)

        wanted = [
            Wanted(
                flow,
                functools.partial(start, flow),
                self._nodes.version("applications", flow.application),
                identities[flow.stream],
            )
            for flow in flows
        ]
        taken = self._ownership.take(wanted, {"host": socket.gethostname(), "pid": os.getpid()})
        for flow, one in zip(flows, taken, strict=True):
            if one is not None:
                self._own(flow, one, applications[flow.application])
        return None not in taken

    def _own(self, flow: Flow, taken: Taken, application: Application) -> None:
        pump = self._pumps.running[flow.stream]
        skipped = 0
        if application.mode == "realtime" and taken.before is not None:
            skipped = max(0, taken.position.seq - taken.before.seq)
        session = FlowSession(
            flow,
            taken.epoch,
            application,
            taken.position,
            pump.lock,
            self._options,
            holder=taken.holder,
            skipped=skipped,
            log_identity=taken.log,
        )
        pump.add(session)
        logger.info("publisher %s owns %s, epoch %d, from %s", self.name, flow, taken.epoch, taken.position)

    def _give_up(self, session: FlowSession) -> None:
        self._outbox.end(session)
        self._given_up[session.flow] = session.epoch

    def _release_given_up(self) -> None:
        """Let others have the flows that we do not send any more; what fails is tried again."""
        for flow, epoch in list(self._given_up.items()):
            self._ownership.release(flow, epoch)
            del self._given_up[flow]

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

    def _send_in_bulk(self, log: Log, after: Positions, upto: Positions, group: list[FlowSession]) -> None:
        with self._starting_spark:  # by one caravan only
            spark = self._spark() if callable(self._spark) else self._spark
        assert spark is not None
        self._bulk.send(spark, log, after, upto, group)
