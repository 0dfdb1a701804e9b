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
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState

from tidings.applications import sweep
from tidings.coordination import Coordination, check_name, decode
from tidings.datamarkers import Datamarker
from tidings.delivery import OPEN, Message, Security
from tidings.errors import SubscriberExists, TidingsError
from tidings.flows import Flow
from tidings.handlers import Caller
from tidings.leases import Lease
from tidings.loads import Meter, Peer, adjusted
from tidings.positions import Position
from tidings.receiving import Reply, Server
from tidings.updates import to_updates
from tidings.views import View

TURN = 0.05  # seconds that a flow may keep a worker while other flows wait
LOAD_STEP = 0.05  # a load that has changed by less is not worth a write

logger = logging.getLogger(__name__)


Era = tuple[int, int]
"""The owner's epoch, and how often it has opened the flow: what is said of another era is out of date."""

NO_ERA: Era = (-1, 0)


@dataclass
class _Held:
    """A flow that is here: what is to be done for it, in order."""

    flow: Flow
    era: Era = NO_ERA
    reply: Reply = lambda message: False
    todo: deque[tuple[Era, Message, pa.RecordBatch | None, Reply]] = field(default_factory=deque)
    running: bool = False
    open: bool = False
    parked: bool = False
    attended: bool = False
    """Whether the exchange on which the flow was opened is still there."""


class Subscriber:
    """Made by `Cluster.subscribe`. A context manager; `run` blocks until `close`, from a signal handler say.

    | option | default | meaning |
    | --- | --- | --- |
    | `address` | `127.0.0.1:0` | where to listen; port 0 takes a free one |
    | `id` | made up | names this instance; no two may have one id at a time |
    | `capacity` | 1 | its share of the flows, beside other subscribers' |
    | `workers` | 1 | how many flows are processed at once |
    | `load_interval` | 10 | seconds between looks at the load, by which flows are shared with `balance="zookeeper"` |
    | `retries` | 5 | how often a callback that raises is called again before its flow is parked |
    | `security` | none | a shared token, and TLS |
    """

    def __init__(
        self,
        coordination: Coordination,
        application: str,
        handler: Any,
        *,
        address: str = "127.0.0.1:0",
        id: str | None = None,
        capacity: float = 1.0,
        workers: int = 1,
        retries: int = 5,
        backoff: float = 0.1,
        load_interval: float = 10.0,
        security: Security = OPEN,
    ) -> None:
        self.application = application
        self.id = check_name("a subscriber", id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._held: dict[tuple[str, int], _Held] = {}
        self._lock = threading.Lock()
        self._leaving = False
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._caller = Caller(handler, retries, backoff, self._closed)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tidings-handler")
        self._meter = Meter(workers)
        self._load_interval = load_interval
        self._load_read = time.monotonic()
        self._capacity = self._weight = capacity
        self._load = 0.0
        self._view = View(coordination, self._changed.set)
        self._lease = Lease(coordination)
        self._server = Server(self, address, security)
        self.address = f"{address.rpartition(':')[0]}:{self._server.port}"
        try:
            if not coordination.claim(self._record, *self._place, patience=coordination.afterlife):
                raise SubscriberExists(
                    f"application {application!r} has a subscriber {self.id!r} already; give this one another id"
                )
        except BaseException:
            self._server.leave()
            raise
        self._registered = self._record
        coordination.client.add_listener(self._on_state)
        self._watcher = threading.Thread(target=self._watch, name="tidings-subscriber", daemon=True)
        self._watcher.start()

    @property
    def flows(self) -> list[Flow]:
        """The flows that are here now."""
        with self._lock:
            return sorted(held.flow for held in self._held.values() if held.open)

    def run(self) -> None:
        """Wait until the subscriber is closed."""
        self._closed.wait()

    def close(self, timeout: float = 10.0) -> None:
        """Leave: have the flows moved, each at a token, so that nothing is repeated elsewhere; then end.

        After `timeout` seconds what is left is let go as it is, once the callback that runs has returned.
        """
        if self._closed.is_set():
            return
        self._leaving = True
        self._changed.set()
        deadline = time.monotonic() + timeout
        while self._lease.valid() and self._attended() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closed.set()
        self._changed.set()
        self._coordination.client.remove_listener(self._on_state)
        self._watcher.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._coordination.client.connected:  # else it goes with the session
            with contextlib.suppress(TidingsError):
                # Not before the last callback has returned: others get our flows when this is gone.
                self._coordination.delete(*self._place)
                sweep(self._coordination, self.application)
        for held in self._open_flows():
            self._drop(held, "the subscriber leaves")
        self._lease.close()
        self._server.leave()

    def __enter__(self) -> Subscriber:
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
    def _place(self) -> tuple[str, ...]:
        return ("applications", self.application, "subscribers", self.id)

    @property
    def _record(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "capacity": self._capacity,
            "weight": self._weight,
            "load": self._load,
            "leaving": self._leaving,
            "pid": os.getpid(),
        }

    def _register(self) -> None:
        """Be among the subscribers: a session that was lost took us out, and our load and leaving must be known."""
        known, record = self._view.value(*self._place), self._record
        if known is None or not self._registered:
            if not self._coordination.claim(record, *self._place, again=True):
                raise SubscriberExists(f"application {self.application!r} has another subscriber {self.id!r} by now")
        elif record != self._registered:
            changes = {key: value for key, value in record.items() if value != self._registered[key]}
            if not self._coordination.replace(known | changes, known, *self._place):
                return  # the view lags behind
        self._registered = record

    def _weigh(self) -> None:
        """Look at the load now and then, and ask for more or for less than before."""
        if time.monotonic() - self._load_read < self._load_interval:
            return
        self._load_read = time.monotonic()
        load = round(self._meter.read(), 2)
        place = self._place[:-1]
        others = [self._view.value(*place, name) for name in self._view.children(*place) if name != self.id]
        peers = [Peer.from_json(value) for value in others if value is not None]
        loads = [peer.load for peer in peers if peer is not None and not peer.leaving]
        self._weight = adjusted(self._weight, self._capacity, load, loads)
        if abs(load - self._load) >= LOAD_STEP:
            self._load = load

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._lease.void()
            self._registered = {}
            self._drop_all("the session with ZooKeeper is over")
        self._changed.set()

    def _watch(self) -> None:
        """Keep the registration, and let go of flows that ZooKeeper gives to another."""
        while not self._closed.is_set():
            self._changed.wait(min(1.0, self._load_interval))
            self._changed.clear()
            try:
                self._weigh()
                self._register()
                with self._lock:
                    known = list(self._held.values())
                for held in known:
                    self._review(held)
            except TidingsError as error:
                logger.debug("subscriber %s: %s", self.id, error)

    def _review(self, held: _Held) -> None:
        """Let go of a flow that is not ours any more."""
        holder = self._view.value(*held.flow.place, "subscriber")
        if holder is not None and (holder["id"] == self.id or not held.open):
            return
        holder = self._coordination.read(*held.flow.place, "subscriber")  # the view may lag behind an opening
        if holder is None or holder["id"] != self.id:
            self._drop(held, "ZooKeeper names another subscriber")
        with self._lock:
            if holder is None and not held.running:
                # The application was dropped; if it is made again, its epochs begin anew.
                self._held.pop((held.flow.stream, held.flow.shard), None)

    def _attended(self) -> bool:
        """Whether a publisher has a flow open here, and could close it."""
        with self._lock:
            return any(held.open and not held.parked and held.attended for held in self._held.values())

    def hung_up(self, reply: Reply) -> None:
        """A publisher's exchange has ended: let go of what it had open, since the flow may go elsewhere now."""
        for held in self._open_flows():
            if held.reply is reply:
                held.attended = False
                self._soon(self._drop, held, "the publisher is gone")

    def _open_flows(self) -> list[_Held]:
        with self._lock:
            return [held for held in self._held.values() if held.open]

    # What publishers say

    def receive(self, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Take in one message; ValueError, KeyError or TypeError if it makes no sense."""
        stream = str(message["stream"])
        if message["t"] == "open":
            self._ask_who_holds(stream, message, reply)
        elif message["t"] == "batch":
            start = 0
            for shard, epoch, turn, count, seq, index in message["parts"]:
                part = {**message, "shard": shard, "epoch": epoch, "turn": turn, "position": [seq, index]}
                if rows is None or not 0 < count <= rows.num_rows - start:
                    raise ValueError("a batch whose parts do not fit its rows")
                self._enqueue(stream, part, rows.slice(start, count), reply)
                start += count
        elif message["t"] in ("token", "loss", "skipped", "close"):
            self._enqueue(stream, message, None, reply)
        else:
            raise ValueError(f"a message of unknown type {message['t']!r}")

    def _ask_who_holds(self, stream: str, message: Message, reply: Reply) -> None:
        """Open a flow once ZooKeeper has said who holds it; others may be asked for meanwhile."""
        flow, era = Flow(self.application, stream, int(message["shard"])), _era(message)
        path = self._coordination.path(*flow.place, "subscriber")

        def answered(asked: Any) -> None:
            holder = None
            try:
                with self._coordination.speaking(), contextlib.suppress(NoNodeError):
                    holder = decode(path, asked.get()[0])
            except TidingsError as error:
                reply({"t": "refused", **_about(flow, era), "reason": str(error)})
            else:
                self._open(flow, era, message, reply, holder)

        self._coordination.client.get_async(path).rawlink(answered)

    def _open(self, flow: Flow, era: Era, message: Message, reply: Reply, holder: dict[str, Any] | None) -> None:
        with self._lock:
            held = self._held.setdefault((flow.stream, flow.shard), _Held(flow))
            if era <= held.era:
                problem = f"the flow's epoch is {held.era[0]} already"
            elif holder is None or holder["id"] != self.id or holder["epoch"] != era[0]:
                problem = "ZooKeeper does not name this subscriber for that epoch"
            elif self._closed.is_set():
                problem = "the subscriber is closing"
            else:
                problem = None
                held.era, held.reply, held.open, held.parked, held.attended = era, reply, True, False, True
                held.todo.clear()
        if problem is not None:
            reply({"t": "refused", **_about(flow, era), "reason": problem})
            return
        self._enqueue(flow.stream, message, None, reply)
        if not reply({"t": "opened", **_about(flow, era)}):
            self.hung_up(reply)  # which was not known yet to have this flow
        self._changed.set()

    def _enqueue(self, stream: str, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        shard, era = int(message["shard"]), _era(message)
        with self._lock:
            held = self._held.get((stream, shard))
            if message["t"] == "close":
                held = held or self._held.setdefault((stream, shard), _Held(Flow(self.application, stream, shard)))
                if era > held.era:
                    held.era = era  # an opening on which ZooKeeper has not answered yet comes too late now
            if held is not None and held.open and held.era == era:
                held.todo.append((era, message, rows, reply))
                if not held.running and not held.parked and not self._closed.is_set():
                    held.running = True
                    self._pool.submit(self._process, held)
                return
        reason = "that epoch is over" if held is not None else "the flow is not open"
        reply({"t": "refused", **_about(Flow(self.application, stream, shard), era), "reason": reason})

    # What the handler does

    def _process(self, held: _Held) -> None:
        """Work off what is to be done for one flow; after a while, let the other flows have their turn."""
        self._meter.begin()
        turn_over = time.monotonic() + TURN
        try:
            while True:
                with self._lock:
                    if not held.todo or held.parked or self._closed.is_set():
                        held.running = False
                        return
                    if time.monotonic() > turn_over:
                        self._pool.submit(self._process, held)
                        return
                    era, message, rows, reply = held.todo.popleft()
                try:
                    self._handle(held, era, message, rows, reply)
                except _Stale:
                    continue
                except Exception:
                    logger.exception("flow %s", held.flow)
                    self._park(held, era, "an internal error")
        finally:
            self._meter.end()

    def _handle(
        self,
        held: _Held,
        era: Era,
        message: Message,
        rows: pa.RecordBatch | None,
        reply: Reply,
    ) -> None:
        flow, answer = held.flow, _about(held.flow, era)
        kind = message["t"]
        position = Position(*message["position"]) if "position" in message else None
        if kind == "batch":
            assert rows is not None
            assert position is not None
            if not self._deliver(held, era, rows):
                return
            reply({"t": "done", **answer, "position": message["position"]})  # a large step has exchanges of its own
        elif kind == "token":
            assert position is not None
            if self._call(held, era, "on_token", flow, Datamarker.now(position, era[0])):
                held.reply({"t": "ack", **answer, "position": message["position"]})
        elif kind == "open":
            self._call(held, era, "on_shard_notice", flow)
        elif kind == "loss":
            first, last = Position(*message["first"]), Position(*message["last"])
            self._call(held, era, "on_data_loss", flow, first, last)
        elif kind == "skipped":
            self._call(held, era, "on_skipped", flow, message["count"])
        elif kind == "close":
            if self._shut(held, era):
                self._tell_closed(held, "the publisher closed it")
            held.reply({"t": "closed", **answer})

    def _deliver(self, held: _Held, era: Era, rows: pa.RecordBatch) -> bool:
        """Hand rows to the handler, whole if it takes batches; False once it has failed at one of them too often."""
        if self._caller.takes_batches:
            about = {"stream": held.flow.stream, "shard": str(held.flow.shard), "epoch": str(era[0])}
            return self._call(held, era, "on_batch", rows.replace_schema_metadata(about))
        return all(self._call(held, era, "on_update", update) for update in to_updates(rows))

    def _call(self, held: _Held, era: Era, name: str, *arguments: Any) -> bool:
        """Call the handler, again if it raises; False once it has been called often enough."""
        reason = self._caller.call(held.flow, name, *arguments, before=lambda: self._await_certainty(held, era))
        if reason is not None:
            self._park(held, era, reason)
        return reason is None

    def _await_certainty(self, held: _Held, era: Era) -> None:
        """Wait while our session may be over; give up once the flow is not ours any more."""
        while True:
            if held.era != era or not held.open or self._closed.is_set():
                raise _Stale
            if self._lease.valid():
                return
            self._closed.wait(0.02)

    def _park(self, held: _Held, era: Era, reason: str) -> None:
        with self._lock:
            if held.era != era:
                return
            held.parked = True
            held.todo.clear()
        logger.error("flow %s is parked, and nothing more of it is processed here: %s", held.flow, reason)
        held.reply({"t": "parked", **_about(held.flow, era), "reason": reason[:500]})

    def _drop(self, held: _Held, reason: str) -> None:
        """Let go of a flow that its publisher has not closed, and tell it: it may be waiting for an answer."""
        if era := self._shut(held):
            self._tell_closed(held, reason)
            self._tell_dropped(held, era, reason)

    def _drop_all(self, reason: str) -> None:
        for held in self._open_flows():
            if era := self._shut(held):
                # Not here: this is the thread that hears from ZooKeeper, and the handler may take its time.
                self._soon(self._tell_closed, held, reason)
                self._soon(self._tell_dropped, held, era, reason)

    def _soon(self, work: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # closing, which does the same by itself
            self._pool.submit(work, *arguments)

    def _shut(self, held: _Held, era: Era | None = None) -> Era | None:
        """Do no more for a flow; the era that is over then, or None if the flow, or that era of it, is over already."""
        with self._lock:
            if not held.open or era not in (None, held.era):
                return None
            held.open = False
            held.todo.clear()
            return held.era

    def _tell_closed(self, held: _Held, reason: str) -> None:
        logger.info("flow %s leaves subscriber %s: %s", held.flow, self.id, reason)
        self._caller.tell(held.flow, "on_flow_closed", held.flow)

    def _tell_dropped(self, held: _Held, era: Era, reason: str) -> None:
        with self._lock:
            if held.era != era:
                return  # opened again meanwhile: nobody waits for answers of that era
            reply = held.reply
        reply({"t": "refused", **_about(held.flow, era), "reason": reason})


def _about(flow: Flow, era: Era) -> Message:
    """What an answer says first: which flow, and which era of it."""
    return {"stream": flow.stream, "shard": flow.shard, "epoch": era[0], "turn": era[1]}


def _era(message: Message) -> Era:
    return int(message["epoch"]), int(message["turn"])


class _Stale(Exception):
    """The flow has gone on without what was to be done."""
