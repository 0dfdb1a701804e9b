"""The publisher: owns flows, and has each sent to the subscriber that holds it.

One thread compares what ZooKeeper says with what this publisher does, and takes and releases flows. A `Pump` for each
stream does the sending; `Placement` finds the subscribers and speaks with them.
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
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from kazoo.protocol.states import KazooState

from tidings.applications import Application
from tidings.bulk import Target, send_in_bulk
from tidings.coordination import Coordination, check_name
from tidings.delivery import OPEN, Security
from tidings.errors import CoordinationUnavailable, PublisherExists, TidingsError
from tidings.flows import Flow
from tidings.leases import Lease
from tidings.logs import Log, open_log, positions_at
from tidings.membership import Membership
from tidings.oversight import Oversight
from tidings.ownership import Member, Ownership, Taken, Wanted, plan_ownership
from tidings.placement import Placement
from tidings.positions import Bounds, Position, Positions
from tidings.pump import BULK_ROWS, RETRY, Pump
from tidings.sending import Sending
from tidings.streams import StreamDefinition
from tidings.views import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_ONCE = 500  # flows that are taken together
PLAN_AT_LEAST = 5.0  # seconds between two looks at everything, though nothing seems to have changed

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
        replica: str | None = None,
        token_interval: float = 5.0,
        window_bytes: int = 8 * 2**20,
        patience: float = 10.0,
        security: Security = OPEN,
    ) -> None:
        self.name = check_name("a publisher", name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._chosen = None if streams is None else frozenset(streams)
        self._replica = None if replica is None else check_name("a replica", replica)
        self._spark = spark
        self._bulk_rows = bulk_rows
        self._window = window_bytes
        self._patience = patience
        self._security = security
        self._ownership = Ownership(coordination, self.name)
        self._changed = threading.Event()
        self._stale = True
        self._closed = threading.Event()
        self._draining = False
        self._suspended = False
        self._lost = False
        self._unreadable: dict[str, str] = {}
        self._retry = 0.0
        self._view = View(coordination, self._on_change)
        taken = PublisherExists(f"a publisher {self.name!r} is running already; give this one another name")
        self._membership = Membership(self._view, coordination, ("publishers", self.name), taken)
        self._membership.join(self._record)
        self._pumps: dict[str, Pump] = {}
        self._plan: dict[Application, list[Flow]] = {}
        self._lease = Lease(coordination)
        self._placement = Placement(
            self.name,
            self._view,
            self._ownership,
            self._pumps,
            self.may_send,
            self._changed.set,
            security=security,
            patience=patience,
            token_interval=token_interval,
        )
        self._oversight = Oversight(
            coordination,
            self.name,
            self._pumps,
            lambda: [flow for flows in self._plan.values() for flow in flows],
            self.may_send,
        )
        coordination.client.add_listener(self._on_state)
        self._thread = threading.Thread(target=self._control, name="tidings-control", daemon=True)
        self._thread.start()

    @property
    def flows(self) -> list[Flow]:
        """The flows that this publisher owns now."""
        return sorted(sending.flow for sending in self._placement.sendings())

    def run(self) -> None:
        """Wait until the publisher is closed."""
        self._closed.wait()

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
        self._oversight.close()
        for pump in self._pumps.values():
            pump.close()
        self._placement.close()
        if self._coordination.client.connected:  # else what is left goes with the session
            with contextlib.suppress(TidingsError):
                for sending in self._placement.sendings():
                    self._ownership.release(sending.flow, sending.epoch)
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
                    self._start_afresh()
                if self._suspended or self._lost:
                    continue
                begun = time.monotonic()
                self._stale |= any(pump.broken(self._patience) is not None for pump in self._pumps.values())
                replan = self._stale or begun - planned > PLAN_AT_LEAST
                if replan:
                    self._stale, planned = False, begun
                    if not self._reconcile():
                        self._stale = True
                for application, flows in self._plan.items():
                    self._place(application, flows, replan)
                self._placement.advance()
                self._closed.wait(time.monotonic() - begun)  # with very many flows, leave half of the time to sending
            except TidingsError as error:
                self._stale = True
                logger.info("publisher %s: %s", self.name, error)
            except Exception:
                self._stale = True
                logger.exception("publisher %s: a step of its control failed", self.name)
                self._closed.wait(1.0)

    def _place(self, application: Application, flows: list[Flow], replan: bool) -> None:
        try:
            self._placement.place(application, flows, replan=replan)
        except CoordinationUnavailable:
            raise
        except Exception:  # a balancer may be anybody's: the other applications go on
            logger.exception("the flows of application %r cannot be placed", application.name)

    def _start_afresh(self) -> None:
        """The session was lost, and with it all that we owned."""
        for sending in list(self._placement.sendings()):
            self._placement.forget(sending)
        self._placement.hang_up()
        self._membership.lost()
        self._view.forget()
        self._coordination.ping()
        self._lost = False

    def _reconcile(self) -> bool:
        """Take the flows that should be ours, and leave the others; False if it must be tried again soon."""
        self._membership.keep(self._record)
        names = self._view.children("streams")
        self._view.fill([("streams", name) for name in names])
        streams = {name: value for name in names if (value := self._view.value("streams", name))}
        definitions = {name: StreamDefinition.from_json(value) for name, value in streams.items()}
        applications = self._applications()
        self._plan = {
            application: [
                Flow(application.name, stream, shard)
                for stream in application.streams
                if stream in definitions
                for shard in range(definitions[stream].shards)
            ]
            for application in applications.values()
        }
        flows = [flow for those in self._plan.values() for flow in those]
        target = plan_ownership(self._members(definitions), flows, self._pins(flows))
        mine = {flow for flow, owner in target.items() if owner == self.name}
        definitions = {name: one.at(self._replica) for name, one in definitions.items() if self._reads(one)}
        self._open_logs({name: definitions[name] for name in {flow.stream for flow in mine}}, definitions)
        owned = {sending.flow: sending for sending in self._placement.sendings()}
        for flow, sending in owned.items():
            if flow.application not in applications:
                self._placement.forget(sending)
            elif flow not in mine:
                self._placement.leave(sending)
            else:
                self._update(sending, applications[flow.application])
        wanted = [flow for flow in mine if flow not in owned and flow.stream in self._pumps]
        self._view.fill([(*flow.place, "owner") for flow in wanted])
        # One that has an owner is looked at again when that is gone, which the view tells.
        free = [flow for flow in wanted if self._view.value(*flow.place, "owner") is None]
        whole = [self._take(free[at : at + AT_ONCE], applications) for at in range(0, len(free), AT_ONCE)]
        return all(whole) and not self._unreadable

    def _open_logs(self, wanted: dict[str, StreamDefinition], defined: dict[str, StreamDefinition]) -> None:
        """Have a pump for each stream that is wanted, and none for one that was dropped or made anew."""
        for name, pump in list(self._pumps.items()):
            if pump.stream != defined.get(name):
                self._give_up(name, "it was changed")
                del self._unreadable[name]
        for name, pump in list(self._pumps.items()):
            if (reason := pump.broken(self._patience)) is not None:
                self._give_up(name, reason)
        self._unreadable = {name: reason for name, reason in self._unreadable.items() if name in defined}
        if self._unreadable and time.monotonic() >= self._retry:
            # Others may read them meanwhile, if they are at a replica.
            self._retry = time.monotonic() + RETRY
            wanted = wanted | {name: defined[name] for name in self._unreadable}
        for name in wanted.keys() - self._pumps.keys():
            try:
                self._pumps[name] = Pump(
                    wanted[name],
                    open_log(wanted[name]),
                    self.may_send,
                    self._placement.tell,
                    window_bytes=self._window,
                    bulk=self._send_in_bulk if self._spark else None,
                    bulk_rows=self._bulk_rows,
                )
                self._unreadable.pop(name, None)
            except TidingsError as error:
                self._note_unreadable(name, str(error))
        self._membership.keep(self._record)

    def _give_up(self, stream: str, reason: str) -> None:
        """Leave a stream whose log cannot be read to others, who may be at a replica of it."""
        pump = self._pumps.pop(stream)
        for sending in list(pump.flows.values()):
            self._placement.forget(sending)
            self._ownership.release(sending.flow, sending.epoch)
        pump.close()
        self._note_unreadable(stream, reason)

    def _note_unreadable(self, stream: str, reason: str) -> None:
        if self._unreadable.get(stream) != reason:  # said once, and the other streams go on
            logger.warning("stream %r cannot be read: %s", stream, reason)
        self._unreadable[stream] = reason

    def _reads(self, stream: StreamDefinition) -> bool:
        return self._replica is None or self._replica in stream.replicas

    @property
    def _record(self) -> dict[str, object]:
        return {
            "streams": sorted(self._chosen) if self._chosen is not None else None,
            "draining": self._draining,
            "replica": self._replica,
            "unreadable": sorted(self._unreadable),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    def _applications(self) -> dict[str, Application]:
        found = {}
        names = self._view.children("applications")
        self._view.fill([("applications", name) for name in names])
        for name in names:
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
                readable = set(definitions if value["streams"] is None else value["streams"])
                replica, ranks = value.get("replica"), {}
                if replica is not None:
                    ranks = {
                        stream: 1 + list(definition.replicas).index(replica)
                        for stream, definition in definitions.items()
                        if replica in definition.replicas
                    }
                    readable &= ranks.keys()
                readable -= set(value.get("unreadable", ()))
                members.append(Member(name, frozenset(readable), value["draining"], ranks))
        return members

    def _pins(self, flows: Sequence[Flow]) -> dict[Flow, str]:
        self._view.fill([(*flow.place, "control") for flow in flows])
        controls = {flow: self._view.value(*flow.place, "control") for flow in flows}
        return {flow: control["pin"] for flow, control in controls.items() if control and control.get("pin")}

    def _take(self, flows: list[Flow], applications: dict[str, Application]) -> bool:
        """Become the owner of flows; False if one should be tried again, though nothing in ZooKeeper changes."""
        bounds = {}
        for stream in {flow.stream for flow in flows}:
            try:
                bounds[stream] = self._pumps[stream].log.bounds()
            except TidingsError as error:
                self._give_up(stream, str(error))
        flows = [flow for flow in flows if flow.stream in bounds]

        def start(flow: Flow, before: Position | None) -> Position:
            log = self._pumps[flow.stream].log
            return _start(applications[flow.application], flow, log, bounds[flow.stream][flow.shard], before)

        wanted = [
            Wanted(flow, functools.partial(start, flow), self._view.version("applications", flow.application))
            for flow in flows
        ]
        taken = self._ownership.take(wanted, {"host": socket.gethostname(), "pid": os.getpid()})
        for flow, one in zip(flows, taken, strict=True):
            if one is not None:
                self._own(flow, one, applications[flow.application])
        return None not in taken

    def _own(self, flow: Flow, taken: Taken, application: Application) -> None:
        pump = self._pumps[flow.stream]
        sending = Sending(pump.lock, flow, taken.epoch, application, application.parsed_filter(), taken.position)
        sending.subscriber = taken.holder
        sending.bound = taken.holder is not None
        if application.mode == "realtime" and taken.before is not None:
            sending.passed_over = max(0, taken.position.seq - taken.before.seq)
        with pump.lock:
            pump.flows[flow] = sending
        logger.info("publisher %s owns %s, epoch %d, from %s", self.name, flow, taken.epoch, taken.position)

    def _update(self, sending: Sending, application: Application) -> None:
        if sending.application != application:
            with sending.lock:
                sending.application = application
                sending.filter = application.parsed_filter()
            self._placement.unpark(sending)

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


def _start(application: Application, flow: Flow, log: Log, bounds: Bounds, before: Position | None) -> Position:
    """Where a flow goes on that stood at `before`, or begins if that is None."""
    if before is not None and (application.mode == "reliable" or application.max_age is not None):
        return before  # what is too old by now is skipped, and counted, as it is read
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
