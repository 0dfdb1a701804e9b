"""The subscriber: one running instance of an application, which receives flows and calls a handler.

A subscriber processes a flow in order, one callback at a time, and a flow is never with two subscribers at once: it
takes a flow only when ZooKeeper names it for the owner's epoch, lets go of it when ZooKeeper names another, and calls
nothing while it cannot be sure that its own session is alive.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa
from kazoo.protocol.states import KazooState
from pyarrow import flight

from tidings.coordination import Coordination, check_name
from tidings.datamarkers import Datamarker
from tidings.delivery import MAX_MESSAGE_BYTES, OPEN, PROTOCOL, Message, Security, decode, encode
from tidings.errors import InvalidOption, SubscriberExists, TidingsError
from tidings.flows import Flow
from tidings.leases import Lease
from tidings.positions import Position
from tidings.updates import SCHEMA, to_updates
from tidings.views import View

logger = logging.getLogger(__name__)


class Handler:
    """What an application does with its updates. Override what you need; each method may also be `async`.

    A method that raises is called again, with pauses that grow; if that does not help the flow is parked, where
    operators see it, and nothing at or after the failing update is acknowledged.
    """

    def on_shard_notice(self, flow: Flow) -> Any:
        """A flow begins here. It may begin with updates that were seen before."""

    def on_batch(self, rows: pa.RecordBatch) -> Any:
        """The next updates of one flow, in order; the schema's metadata names `stream`, `shard` and `epoch`."""

    def on_update(self, update: Any) -> Any:
        """The next update of a flow. Not called if `on_batch` is overridden."""

    def on_token(self, flow: Flow, datamarker: Datamarker) -> Any:
        """All up to here was processed. Returning acknowledges it: make durable what must be, first."""

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> Any:
        """The log does not hold these positions any more; what they were is lost to this flow."""

    def on_skipped(self, flow: Flow, count: int) -> Any:
        """So many updates were too old for a realtime application."""

    def on_flow_closed(self, flow: Flow) -> Any:
        """The flow has left this subscriber."""


Era = tuple[int, int]
"""The owner's epoch, and how often it has opened the flow: what is said of another era is out of date."""

NO_ERA: Era = (-1, 0)


@dataclass
class _Held:
    """A flow that is here: what is to be done for it, in order."""

    flow: Flow
    era: Era = NO_ERA
    reply: Callable[[Message], None] = lambda message: None
    todo: deque[tuple[Era, Message, pa.RecordBatch | None, Callable[[Message], None]]] = field(default_factory=deque)
    running: bool = False
    open: bool = False
    parked: bool = False


class Subscriber:
    """Made by `Cluster.subscribe`. A context manager; `run` blocks until `close`, from a signal handler say.

    | option | default | meaning |
    | --- | --- | --- |
    | `address` | `127.0.0.1:0` | where to listen; port 0 takes a free one |
    | `id` | made up | names this instance; no two may have one id at a time |
    | `capacity` | 1 | its share of the flows, beside other subscribers' |
    | `workers` | 1 | how many flows are processed at once |
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
        security: Security = OPEN,
    ) -> None:
        self.application = application
        self.id = check_name("a subscriber", id or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
        self._coordination = coordination
        self._handler = handler
        self._capacity = capacity
        self._retries = retries
        self._backoff = backoff
        self._held: dict[tuple[str, int], _Held] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tidings-handler")
        self._view = View(coordination, self._changed.set)
        self._lease = Lease(coordination)
        self._server = _Server(self, address, security)
        self.address = f"{address.rpartition(':')[0]}:{self._server.port}"
        try:
            self._register()
        except BaseException:
            self._server.leave()
            raise
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

    def close(self) -> None:
        """Leave: finish the callback that runs, let go of the flows, and end."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._changed.set()
        self._coordination.client.remove_listener(self._on_state)
        self._watcher.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        try:
            # Not before the last callback has returned: others get our flows when this is gone.
            self._coordination.delete(*self._place)
        except TidingsError:
            logger.debug("the subscriber's node goes with its session")
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
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # The place in ZooKeeper

    @property
    def _place(self) -> tuple[str, ...]:
        return ("applications", self.application, "subscribers", self.id)

    def _register(self) -> None:
        value = {"address": self.address, "capacity": self._capacity, "pid": os.getpid()}
        if not self._coordination.create(value, *self._place, ephemeral=True):
            raise SubscriberExists(f"application {self.application!r} has a subscriber {self.id!r} already")

    def _on_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self._lease.void()
            self._drop_all("the session with ZooKeeper is over")
        self._changed.set()

    def _watch(self) -> None:
        """Keep the registration, and let go of flows that ZooKeeper gives to another."""
        while not self._closed.is_set():
            self._changed.wait(1.0)
            self._changed.clear()
            try:
                if not self._view.exists(*self._place) and not self._closed.is_set():
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

    def _open_flows(self) -> list[_Held]:
        with self._lock:
            return [held for held in self._held.values() if held.open]

    # What publishers say

    def receive(self, message: Message, rows: pa.RecordBatch | None, reply: Callable[[Message], None]) -> None:
        """Take in one message; ValueError, KeyError or TypeError if it makes no sense."""
        stream = str(message["stream"])
        if message["t"] == "open":
            self._open(stream, message, reply)
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

    def _open(self, stream: str, message: Message, reply: Callable[[Message], None]) -> None:
        shard, era = int(message["shard"]), _era(message)
        flow = Flow(self.application, stream, shard)
        answer = {"stream": stream, "shard": shard, "epoch": era[0], "turn": era[1]}
        try:
            holder = self._coordination.read(*flow.place, "subscriber")
        except TidingsError as error:
            reply({"t": "refused", **answer, "reason": str(error)})
            return
        with self._lock:
            held = self._held.setdefault((stream, shard), _Held(flow))
            if era <= held.era:
                reason = f"the flow's epoch is {held.era[0]} already"
            elif holder is None or holder["id"] != self.id or holder["epoch"] != era[0]:
                reason = "ZooKeeper does not name this subscriber for that epoch"
            elif self._closed.is_set():
                reason = "the subscriber is closing"
            else:
                reason = None
                held.era, held.reply, held.open, held.parked = era, reply, True, False
                held.todo.clear()
        if reason:
            reply({"t": "refused", **answer, "reason": reason})
            return
        self._enqueue(stream, message, None, reply)
        reply({"t": "opened", **answer})
        self._changed.set()

    def _enqueue(
        self, stream: str, message: Message, rows: pa.RecordBatch | None, reply: Callable[[Message], None]
    ) -> None:
        shard, era = int(message["shard"]), _era(message)
        with self._lock:
            held = self._held.get((stream, shard))
            if held is not None and held.open and held.era == era:
                held.todo.append((era, message, rows, reply))
                if not held.running and not held.parked and not self._closed.is_set():
                    held.running = True
                    self._pool.submit(self._process, held)
                return
        reason = "that epoch is over" if held is not None else "the flow is not open"
        answer = {"stream": stream, "shard": shard, "epoch": era[0], "turn": era[1]}
        reply({"t": "refused", **answer, "reason": reason})

    # What the handler does

    def _process(self, held: _Held) -> None:
        """Work off what is to be done for one flow."""
        while True:
            with self._lock:
                if not held.todo or held.parked or self._closed.is_set():
                    held.running = False
                    return
                era, message, rows, reply = held.todo.popleft()
            try:
                self._handle(held, era, message, rows, reply)
            except _Stale:
                continue
            except Exception:
                logger.exception("flow %s", held.flow)
                self._park(held, era, "an internal error")

    def _handle(
        self,
        held: _Held,
        era: Era,
        message: Message,
        rows: pa.RecordBatch | None,
        reply: Callable[[Message], None],
    ) -> None:
        flow, (epoch, turn) = held.flow, era
        answer = {"stream": flow.stream, "shard": flow.shard, "epoch": epoch, "turn": turn}
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
            if self._call(held, era, "on_token", flow, Datamarker.now(position, epoch)):
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
        if getattr(type(self._handler), "on_batch", Handler.on_batch) is not Handler.on_batch:
            about = {"stream": held.flow.stream, "shard": str(held.flow.shard), "epoch": str(era[0])}
            return self._call(held, era, "on_batch", rows.replace_schema_metadata(about))
        return all(self._call(held, era, "on_update", update) for update in to_updates(rows))

    def _call(self, held: _Held, era: Era, name: str, *arguments: Any) -> bool:
        """Call the handler, again if it raises; False once it has been called often enough."""
        method = getattr(self._handler, name, None)
        if method is None:
            return True
        for attempt in range(self._retries + 1):
            self._await_certainty(held, era)
            try:
                result = method(*arguments)
                if inspect.isawaitable(result):
                    self._await(result)
                return True
            except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                reason = f"{name}: {type(error).__name__}: {error}"
                logger.warning("flow %s: %s (attempt %d)", held.flow, reason, attempt + 1)
                self._closed.wait(self._backoff * 2**attempt * random.uniform(0.5, 1.0))
        self._park(held, era, reason)
        return False

    def _await_certainty(self, held: _Held, era: Era) -> None:
        """Wait while our session may be over; give up once the flow is not ours any more."""
        while True:
            if held.era != era or not held.open or self._closed.is_set():
                raise _Stale
            if self._lease.valid():
                return
            self._closed.wait(0.02)

    def _await(self, result: Any) -> None:
        if self._loop is None:
            raise InvalidOption("the handler has async methods: use the subscriber with `async with`")

        async def finish() -> None:
            await result

        asyncio.run_coroutine_threadsafe(finish(), self._loop).result()

    def _park(self, held: _Held, era: Era, reason: str) -> None:
        with self._lock:
            if held.era != era:
                return
            held.parked = True
            held.todo.clear()
        answer = {"stream": held.flow.stream, "shard": held.flow.shard, "epoch": era[0], "turn": era[1]}
        held.reply({"t": "parked", **answer, "reason": reason[:500]})

    def _drop(self, held: _Held, reason: str) -> None:
        """Let go of a flow that its publisher has not closed, and tell it: it may be waiting for an answer."""
        if era := self._shut(held):
            self._tell_closed(held, reason)
            self._tell_dropped(held, era, reason)

    def _drop_all(self, reason: str) -> None:
        for held in self._open_flows():
            if era := self._shut(held):
                # Not here: this is the thread that hears from ZooKeeper, and the handler may take its time.
                self._pool.submit(self._tell_closed, held, reason)
                self._pool.submit(self._tell_dropped, held, era, reason)

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
        method = getattr(self._handler, "on_flow_closed", None)
        if method is not None:
            try:
                result = method(held.flow)
                if inspect.isawaitable(result):
                    self._await(result)
            except Exception:
                logger.exception("on_flow_closed of flow %s", held.flow)

    def _tell_dropped(self, held: _Held, era: Era, reason: str) -> None:
        with self._lock:
            if held.era != era:
                return  # opened again meanwhile: nobody waits for answers of that era
            reply = held.reply
        answer = {"stream": held.flow.stream, "shard": held.flow.shard, "epoch": era[0], "turn": era[1]}
        reply({"t": "refused", **answer, "reason": reason})


def _era(message: Message) -> Era:
    return int(message["epoch"]), int(message["turn"])


class _Stale(Exception):
    """The flow has gone on without what was to be done."""


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no hints
    """Hears publishers."""

    def __init__(self, subscriber: Subscriber, address: str, security: Security) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidOption(f"{address!r} is no address to listen on: write host:port")
        scheme = "grpc+tls" if security.certificate else "grpc"
        options: dict[str, Any] = {}
        if security.certificate and security.key:
            options["tls_certificates"] = [(security.certificate.read_bytes(), security.key.read_bytes())]
        if security.token:
            options["middleware"] = {"token": _TokenFactory(security.token)}
        self._subscriber = subscriber
        self._replies: list[Callable[[Message], None]] = []
        try:
            super().__init__(f"{scheme}://{host}:{port}", **options)
        except (pa.ArrowException, OSError) as error:
            raise InvalidOption(f"cannot listen on {address}: {str(error).splitlines()[0]}") from None

    def leave(self) -> None:
        """Ask publishers to end their exchanges, and stop; one that does not hear it is not waited for."""
        for reply in list(self._replies):
            reply({"t": "bye"})
        ending = threading.Thread(target=self.shutdown, name="tidings-shutdown", daemon=True)
        ending.start()
        ending.join(timeout=2.0)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One publisher, until it goes."""
        hello = decode(pa.py_buffer(descriptor.command))
        if hello.get("protocol") != PROTOCOL or hello.get("application") != self._subscriber.application:
            raise flight.FlightServerError("this is another application's subscriber, or another protocol's")
        lock = threading.Lock()
        over = False
        writer.begin(pa.schema([]))

        def reply(message: Message) -> None:
            try:
                with lock:
                    if not over:
                        writer.write_metadata(encode(message))
            except (pa.ArrowException, OSError):
                logger.debug("the publisher is gone")

        self._replies.append(reply)
        try:
            self._hear(reader, reply)
        finally:
            # A writer must not be touched once its exchange has ended: that is memory which is free by then.
            with lock:
                over = True
            self._replies.remove(reply)

    def _hear(self, reader: Any, reply: Callable[[Message], None]) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if chunk.data is not None and chunk.data.nbytes > MAX_MESSAGE_BYTES:
                raise flight.FlightServerError("a message that is too large")
            try:
                rows = chunk.data.cast(SCHEMA) if chunk.data is not None else None
                self._subscriber.receive(decode(chunk.app_metadata), rows, reply)
            except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
                raise flight.FlightServerError(f"a message that makes no sense: {error}") from None


class _TokenFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no hints
    """Lets in only who knows the token."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}"

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Refuse a call that does not carry the token."""
        import hmac

        given = headers.get("authorization", [""])[0]
        if not hmac.compare_digest(given.encode(), self._wanted.encode()):
            raise flight.FlightUnauthenticatedError("a token is needed, and this is not it")
