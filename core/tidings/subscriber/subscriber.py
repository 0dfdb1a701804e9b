"""The subscriber: one running instance of an application, which receives flows and calls a handler.

A subscriber processes a flow in order, one callback at a time, and a flow is never with two subscribers at once: it
takes a flow only when ZooKeeper names it for the owner's epoch, lets go of it when ZooKeeper names another, and calls
nothing while it cannot be sure that its own session is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypedDict

import pyarrow as pa
from kazoo.protocol.states import KazooState

from tidings.coordination.lease import Lease
from tidings.coordination.membership import Membership, sweep
from tidings.coordination.node_cache import NodeCache, NodeValue
from tidings.coordination.publisher_record import PublisherRecord
from tidings.coordination.subscriber_record import SubscriberRecord
from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.errors import CoordinationUnavailable, ForeignValue, InvalidOption, SubscriberExists, TidingsError
from tidings.flows import Flow
from tidings.handlers import HandlerCaller, running_loop
from tidings.log_opening import payload_form
from tidings.logs import PayloadForm
from tidings.names import check_name
from tidings.outages import Outage
from tidings.payloads import PayloadReader
from tidings.protocol_versions import own_record
from tidings.stream_definition import StreamDefinition
from tidings.subscriber.counters import SubscriberCounters
from tidings.subscriber.dialer import Dialer, PublisherTrouble, Reply
from tidings.subscriber.load import MAX_FELLOWS, Weighing
from tidings.subscriber.part_rows import PartRows
from tidings.subscriber.standing import StandingQuestions, flows_of
from tidings.subscriber.workers import HeldFlow, Workers
from tidings.tracing import ProcessSpans
from tidings.wire.channel import is_address
from tidings.wire.protocol import NO_ERA, Era, Message, era_of, flow_message, flow_of
from tidings.wire.security import OPEN, Security

ALONE_S = 10.0  # without a publisher until that is told
GATHERING_S = 0.1  # for what comes at once, such as the opening of many flows, to be looked at together

logger = logging.getLogger(__name__)


class SubscriberKeywords(TypedDict, total=False):
    """The options of a `Subscriber`, for those who pass them on."""

    id: str | None
    capacity: float
    workers: int
    retries: int
    backoff: float
    load_interval: float
    payload_as: Any
    security: Security


class Subscriber:
    """Made by `Cluster.subscribe`. A context manager; `run` blocks until `close`, from a signal handler say.

    In a coroutine, use it by `async with`, and `await` its `wait_closed` instead of `run`.

    | option | default | meaning |
    | --- | --- | --- |
    | `id` | made up | names this instance; no two may have one id at a time |
    | `capacity` | 1 | its share of the flows, beside other subscribers' |
    | `workers` | 1 | how many flows are processed at once |
    | `load_interval` | 10 | seconds between looks at the load, by which flows are shared with `balance="zookeeper"` |
    | `retries` | 5 | how often a callback that raises is called again before its flow is parked |
    | `payload_as` | none | what payloads are made into, as `update.value`: `dict`, a dataclass, a pydantic model, a \
function of the bytes; see `tidings.payloads` |
    | `security` | none | the application's key, and TLS |
    """

    def __init__(
        self,
        coordination: Coordination,
        application: str,
        handler: Any,
        *,
        id: str | None = None,
        capacity: float = 1.0,
        workers: int = 1,
        retries: int = 5,
        backoff: float = 0.1,
        load_interval: float = 10.0,
        payload_as: Any = None,
        security: Security = OPEN,
    ) -> None:
        self.application = application
        self.id = check_name("a subscriber", id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._held: dict[Flow, HeldFlow] = {}  # those that were opened here; anybody may speak of others
        self._opening: set[tuple[Flow, Era]] = set()  # on which ZooKeeper has not answered yet
        self._troubles: dict[str, str] = {}
        # What publishers are told, also of one that is gone: when one dies, all subscribers would take that back at
        # once, while the others have its flows to place. It goes with the next look at the load.
        self._unreachable: Mapping[str, PublisherTrouble] = {}
        self._alone = Outage(f"application {application}", logger.warning, away="is not served", back="is served")
        self._served = time.monotonic()
        self._standing = StandingQuestions(self._open_flows)
        self._leaving = False
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._changed.set()  # nobody has looked yet
        self.counters = SubscriberCounters()
        spans = ProcessSpans(self.id)
        payloads = None if payload_as is None else PayloadReader(payload_as, self._payload_form)
        self._caller = HandlerCaller(handler, retries, backoff, self._closed, spans, self.counters.called, payloads)
        self._lease = Lease(coordination)
        self._workers = Workers(self._caller, workers, self._lease.valid, self._closed)
        self._weighing = Weighing(self._workers.meter, capacity, load_interval)
        self._nodes = NodeCache(coordination, self._changed.set)
        security.check_dialling()
        self._dialer = Dialer(self, security)
        self._place = ("applications", application, "subscribers", self.id)
        taken = SubscriberExists(
            f"application {application!r} has a subscriber {self.id!r} already; give this one another id"
        )
        self._membership = Membership(self._nodes, coordination, self._place, taken)
        self._membership.join(self._record)
        coordination.client.add_listener(self._on_state)
        self._watcher = threading.Thread(target=self._watch, name="tidings-subscriber", daemon=True)
        self._watcher.start()

    @property
    def flows(self) -> list[Flow]:
        """The flows that are here now."""
        with self._workers.lock:
            return sorted(held.flow for held in self._held.values() if held.open)

    def lag(self, timeout: float = 5.0) -> int | None:
        """How many updates the logs of this subscriber's flows hold which were not processed yet.

        None if that is not known: a flow has no subscriber yet or has failed, a publisher does not answer within
        `timeout` seconds, or the log is a database's, which does not count them.
        """
        self._refuse_blocking("lag")
        stands = self._standing.ask(timeout)
        own = flows_of(self._coordination, self.application, self.id)
        lags = None if own is None else [stands[flow].lag if flow in stands else None for flow in own]
        return None if lags is None or None in lags else sum(one for one in lags if one is not None)

    def caught_up(self, timeout: float = 30.0) -> bool:
        """Wait until all is processed that the streams hold now, as far as it comes here; False if it is not in time.

        That is: every flow of the application has a subscriber, and those that are here have processed all that their
        logs held when this was called, what this process has published before among it.
        """
        self._refuse_blocking("caught_up")
        return self._standing.catch_up(lambda: flows_of(self._coordination, self.application, self.id), timeout)

    def _refuse_blocking(self, name: str) -> None:
        if running_loop() is not None:
            raise InvalidOption(
                f"{name}() would block the event loop: `await asyncio.to_thread(subscriber.{name})` instead"
            )

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
        """Whether it has its flows moved, to end."""
        return self._leaving

    @property
    def held(self) -> list[HeldFlow]:
        """The flows that are here, as they stand."""
        return self._open_flows()

    @property
    def load(self) -> float:
        """The part of the time that its workers were busy lately: 0 to 1."""
        return self._weighing.record["load"]

    @property
    def dialer(self) -> Dialer:
        """The exchanges with publishers."""
        return self._dialer

    @property
    def dead_threads(self) -> list[str]:
        """The threads without which it can do nothing, and which have ended all the same."""
        threads = (self._watcher, self._lease.thread)
        return [] if self._closed.is_set() else [one.name for one in threads if not one.is_alive()]

    def run(self) -> None:
        """Wait until the subscriber is closed."""
        if running_loop() is not None:
            raise InvalidOption("run() would block the event loop: `await subscriber.wait_closed()` instead")
        while not self._closed.wait(1.0):  # a signal may reach another thread; Python heeds it when this one wakes
            self._coordination.check_known()

    async def wait_closed(self) -> None:
        """The same for a coroutine, which may be cancelled."""
        while not self._closed.is_set():
            self._coordination.check_known()
            await asyncio.sleep(0.1)

    def close(self, timeout: float = 10.0) -> None:
        """Leave: have the flows moved, each at a token, so that nothing is repeated elsewhere; then end.

        After `timeout` seconds what is left is let go as it is, once the callback that runs has returned.
        """
        if self._closed.is_set():
            return
        self._leaving = True
        self._changed.set()
        deadline = time.monotonic() + timeout
        while self._lease.valid() and self._connected() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closed.set()
        self._changed.set()
        self._coordination.client.remove_listener(self._on_state)
        self._watcher.join()
        self._workers.close()
        self._membership.leave()  # not before the last callback has returned: others get our flows then
        if self._coordination.client.connected:
            with contextlib.suppress(TidingsError):
                sweep(self._coordination, self.application)
        for held in self._open_flows():
            self._workers.drop(held, "the subscriber leaves")
        self._caller.close()
        self._lease.close()
        self._dialer.leave()

    def __enter__(self) -> Subscriber:
        if self._caller.is_async and running_loop() is not None:
            # Elsewhere, since a callback that runs already waits for this very loop.
            threading.Thread(target=self.close, args=(0.0,), name="tidings-give-up", daemon=True).start()
            raise InvalidOption(
                "a handler with async methods cannot run while `with` blocks the event loop: write "
                "`async with cluster.subscribe(...)`"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Subscriber:
        self._caller.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The place in ZooKeeper

    @property
    def _record(self) -> dict[str, Any]:
        troubles = self._unreachable = {**self._dialer.gone(self._unreachable), **self._dialer.troubles}
        about = {
            "leaving": self._leaving,
            "unreachable": {name: one.reason for name, one in troubles.items()},
            "tried": {name: one.address for name, one in troubles.items()},
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return {**self._weighing.record, **about, **own_record()}

    def _payload_form(self, stream: str) -> PayloadForm | None:
        """How the payloads of a stream are written, as its definition says."""
        raw = self._coordination.read("streams", stream)
        return None if raw is None else payload_form(StreamDefinition.from_json(raw))

    def _weigh(self) -> None:
        """Look at the load now and then."""
        if self._weighing.due():
            self._weighing.look(self._fellows)
            self._unreachable = {}

    def _fellows(self) -> list[SubscriberRecord | None]:
        """Some of the other subscribers of the application."""
        tree, place = self._coordination, self._place[:-1]
        others = [name for name in tree.children(*place) if name != self.id]
        places = [(*place, name) for name in random.sample(others, min(len(others), MAX_FELLOWS))]
        found = []
        for where, node in zip(places, tree.read_many(places), strict=True):
            with contextlib.suppress(ForeignValue):
                value = decode(tree.path(*where), node.raw) if isinstance(node, Node) else None
                found.append(SubscriberRecord.from_json(value) if value is not None else None)
        return found

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._lease.void()
            self._membership.lost()
            for held in self._open_flows():  # soon: this is the thread that hears from ZooKeeper
                self._workers.drop_soon(held, "the session with ZooKeeper is over")
        self._changed.set()

    def _watch(self) -> None:
        """Keep the registration, and let go of flows that ZooKeeper gives to another."""
        while not self._closed.is_set():
            if self._changed.wait(min(1.0, self._weighing.interval)):
                self._closed.wait(GATHERING_S)
            self._changed.clear()
            with self._workers.lock:
                known = list(self._held.values())
            self._dialer.check()
            try:
                with self._surviving("its load"):
                    self._weigh()
                with self._surviving("its registration"):
                    self._membership.keep(self._record)
                with self._surviving("its publishers"):
                    publishers = self._publishers()
                    self._dialer.keep(publishers)
                    self._look_out(publishers)
                with self._surviving("its flows"):
                    self._nodes.fill([(*held.flow.place, "subscriber") for held in known])
                for held in known:
                    with self._surviving(f"flow {held.flow}"):
                        self._review(held)
            except CoordinationUnavailable as error:
                logger.debug("subscriber %s: %s", self.id, error)

    def _publishers(self) -> dict[str, PublisherRecord]:
        """The publishers that have flows of this application."""
        names = self._nodes.children("publishers")
        values = {name: self._nodes.value("publishers", name) for name in names}
        records = {name: PublisherRecord.from_json(value) for name, value in values.items() if value is not None}
        return {
            name: record
            for name, record in records.items()
            if record is not None and self.application in record.applications and is_address(record.address)
        }

    def _look_out(self, publishers: Collection[str]) -> None:
        """Tell once that nobody serves the application, and once that somebody does."""
        if publishers:
            self._alone.end()
            self._served = time.monotonic()
        elif time.monotonic() - self._served > ALONE_S and not self._leaving:
            self._alone.begin("there is no publisher that does; start one with `tidings publisher`")

    @contextlib.contextmanager
    def _surviving(self, what: str) -> Iterator[None]:
        """Whatever goes wrong with one thing is told once, and harms that one alone."""
        try:
            yield
            self._troubles.pop(what, None)
        except CoordinationUnavailable:
            raise
        except Exception as error:
            trouble = repr(error)
            if self._troubles.get(what) != trouble:
                logger.warning(
                    "subscriber %s: %s: %s", self.id, what, error, exc_info=not isinstance(error, TidingsError)
                )
            self._troubles[what] = trouble

    def _review(self, held: HeldFlow) -> None:
        """Let go of a flow that is not ours any more."""
        holder = self._nodes.value(*held.flow.place, "subscriber")
        if holder is not None and (holder.get("id") == self.id or not held.open):
            return
        holder = self._coordination.read(*held.flow.place, "subscriber")  # the cache may lag behind an opening
        if holder is None or holder.get("id") != self.id:
            self._workers.drop(held, "ZooKeeper names another subscriber")
        with self._workers.lock:
            if holder is None and not held.running:
                # The application was dropped; if it is made again, its epochs begin anew.
                self._held.pop(held.flow, None)
                self._troubles.pop(f"flow {held.flow}", None)

    def _connected(self) -> bool:
        """Whether a publisher has a flow open here, and could close it."""
        with self._workers.lock:
            return any(held.open and not held.parked and held.connected for held in self._held.values())

    def on_exchange_ended(self, reply: Reply) -> None:
        """A publisher's exchange has ended: let go of what it had open, since the flow may go elsewhere now."""
        for held in self._open_flows():
            if held.reply is reply:
                held.connected = False
                self._workers.drop_soon(held, "the publisher is gone")

    def _open_flows(self) -> list[HeldFlow]:
        with self._workers.lock:
            return [held for held in self._held.values() if held.open]

    # What publishers say

    def on_messages(self, messages: Sequence[Message], rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Take in messages that came together; ValueError, KeyError or TypeError if they make no sense."""
        openings: dict[tuple[Flow, Era], Message] = {}
        try:
            for message in messages:
                if reply.parent is not None and message["t"] != "batch":
                    raise ValueError("a task that says more than rows")  # of which its publisher has told
                if message["t"] == "open":
                    opening = flow_of(self.application, message), era_of(message)
                    openings[opening] = message
                    with self._workers.lock:
                        self._opening.add(opening)
                else:
                    self._take_in(message, rows, reply)
        finally:
            self._ask_who_holds(openings, reply)

    def _take_in(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        if message["t"] == "batch":
            self._take_in_rows(message, rows, reply)
        elif message["t"] in ("token", "loss", "skipped", "close", "pass"):
            self._enqueue(message, None, reply)
        elif message["t"] == "standing":
            self._note_standing(message, reply)
        elif message["t"] == "fetch":
            self._dialer.fetch(message, reply)
        else:
            raise ValueError(f"a message of unknown type {message['t']!r}")

    def _note_standing(self, message: Message, reply: Reply) -> None:
        flow, era = flow_of(self.application, message), era_of(message)
        with self._workers.lock:
            held = self._held.get(flow)
            known = held is not None and held.open and held.era == era and held.reply is reply
        if known:
            self._standing.note(flow, message)

    def _take_in_rows(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Rows of several flows, one after the other."""
        parts, left = message["parts"], rows.num_rows if rows is not None else 0
        for _, _, _, count, _, _, after in parts:
            if type(count) is not int or not 0 < count <= left:
                raise ValueError("a batch whose parts do not fit its rows")
            if after is not None and type(after) is not int:
                raise ValueError("a batch that begins after what is no position")
            left -= count
        if rows is None:
            return
        size, counts = rows.nbytes / max(1, rows.num_rows), [part[3] for part in parts]
        split = PartRows.split(rows, str(message["stream"]), counts)
        for (shard, epoch, turn, count, seq, index, after), part in zip(parts, split, strict=True):
            place = {"shard": shard, "epoch": epoch, "turn": turn, "position": [seq, index], "after": after}
            self._enqueue({**message, **place, "bytes": int(size * count)}, part, reply)

    def _ask_who_holds(self, openings: Mapping[tuple[Flow, Era], Message], reply: Reply) -> None:
        """Open flows once ZooKeeper has said who holds them; others may be asked for meanwhile.

        The same answers are kept for reviews, until ZooKeeper tells of a change.
        """
        asked = list(openings)

        def answered(number: int, holder: NodeValue | TidingsError) -> None:
            flow, era = asked[number]
            if isinstance(holder, NodeValue):
                self._open(flow, era, openings[flow, era], reply, holder.value, holder.made)
                return
            with self._workers.lock:
                self._opening.discard((flow, era))
            reply(flow_message("refused", flow, era, reason=str(holder)))

        self._nodes.ask([(*flow.place, "subscriber") for flow, _ in asked], answered)

    def _open(
        self,
        flow: Flow,
        era: Era,
        message: Message,
        reply: Reply,
        holder: dict[str, Any] | None,
        incarnation: int,
    ) -> None:
        with self._workers.lock:
            withdrawn = (flow, era) not in self._opening
            self._opening.discard((flow, era))
            held = self._held.get(flow) or HeldFlow(flow, counters=self.counters.streams[flow.stream])
            if incarnation > held.incarnation:  # the application was dropped and made again, and its epochs begin anew
                held.incarnation, held.era = incarnation, NO_ERA
            if withdrawn:
                problem = "it was closed before it was opened"
            elif era <= held.era:
                problem = f"the flow's epoch is {held.era.epoch} already"
            elif holder is None or holder.get("id") != self.id or holder.get("epoch") != era.epoch:
                problem = "ZooKeeper does not name this subscriber for that epoch"
            elif self._closed.is_set():
                problem = "the subscriber is closing"
            else:
                problem = None
                self._held[flow] = held
                held.era, held.reply, held.open, held.parked, held.connected = era, reply, True, False, True
                held.clear()
        if problem is not None:
            reply(flow_message("refused", flow, era, reason=problem))
            return
        self._enqueue(message, None, reply)
        if not reply(flow_message("opened", flow, era)):
            self.on_exchange_ended(reply)  # which was not known yet to have this flow

    def _enqueue(self, message: Message, rows: PartRows | None, reply: Reply) -> None:
        flow, era = flow_of(self.application, message), era_of(message)
        with self._workers.lock:
            if message["t"] == "close":
                self._opening.discard((flow, era))  # which comes too late now
            held = self._held.get(flow)
            if held is not None and held.open and held.era == era and held.reply in (reply, reply.parent):
                self._workers.add(held, era, message, rows, reply)
                return
        reason = "that epoch is over" if held is not None else "the flow is not open"
        reply(flow_message("refused", flow, era, reason=reason))
