"""What a subscriber does for the flows that it holds: their messages in order, one callback at a time, by workers.

Nothing is called while it is not certain that our session is alive, nor once the flow has gone on without it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidings.datamarkers import Datamarker
from tidings.errors import TidingsError
from tidings.flows import Flow
from tidings.handlers import HandlerCaller
from tidings.positions import Position
from tidings.subscriber.counters import StreamCounters
from tidings.subscriber.dialer import Reply
from tidings.subscriber.load import LoadMeter
from tidings.subscriber.part_rows import PartRows
from tidings.texts import printable
from tidings.wire.protocol import NO_ERA, Era, Message, flow_message, pair

PROGRESS_INTERVAL_S = 5.0  # between two signs that a long batch goes on
WORKER_SLICE_S = 0.05  # that a flow may keep a worker while other flows wait

logger = logging.getLogger(__name__)


class Todo(NamedTuple):
    """A message that is to be worked off, and where its answer goes."""

    era: Era
    message: Message
    rows: PartRows | None
    reply: Reply


class HandlerFailure(NamedTuple):
    """The handler has failed too often; `at` is the update at which it did, if it was one."""

    reason: str
    at: Position | None = None


class Rest(NamedTuple):
    """What is to be done after an update at which the handler has failed, once that is put aside."""

    failed: Position
    todo: Todo


@dataclass
class HeldFlow:
    """A flow that is here: what is to be done for it, in order."""

    flow: Flow
    incarnation: int = -1
    """ZooKeeper's transaction that made the flow's node: of an application that was made again it is a later one."""
    era: Era = NO_ERA
    reply: Reply = field(default_factory=Reply)
    todo: deque[Todo] = field(default_factory=deque)
    updates_queued: int = 0
    bytes_queued: int = 0
    current: PartRows | None = None
    """The rows that are being processed."""
    progressed: float = 0.0
    """When the last message was worked off; or the first came, if there was nothing to do before."""
    counters: StreamCounters = field(default_factory=StreamCounters)
    running: bool = False
    open: bool = False
    passes: bool = False
    """Whether its publisher lets it go on after an update at which the handler fails."""
    parked: bool = False
    rest: Rest | None = None
    """While the publisher puts an update aside: what comes after it."""
    at: int | None = None
    """The seq up to which nothing was left out, if that is known."""
    connected: bool = False
    """Whether the exchange on which the flow was opened is still there."""

    @property
    def busy(self) -> bool:
        """Whether there is something to do."""
        return self.open and not self.parked and (self.running or bool(self.todo))

    def push(self, todo: Todo) -> None:
        """There is one message more."""
        if not self.running and not self.todo:
            self.progressed = time.monotonic()
        self.todo.append(todo)
        if todo.rows is not None:
            self.updates_queued += todo.rows.num_rows
            self.bytes_queued += todo.message["bytes"]

    def pop(self) -> Todo:
        """The message that is next."""
        todo = self.todo.popleft()
        self.current = todo.rows
        if todo.rows is not None:
            self.updates_queued -= todo.rows.num_rows
            self.bytes_queued -= todo.message["bytes"]
        return todo

    def resume(self, passed: Position) -> None:
        """Go on after the update at which the handler failed, if it is this one."""
        if self.rest is None or self.rest.failed != passed:
            return
        todo, self.rest = self.rest.todo, None
        self.todo.appendleft(todo)
        if todo.rows is not None:
            self.updates_queued += todo.rows.num_rows
            self.bytes_queued += todo.message["bytes"]

    def clear(self) -> None:
        """Nothing is to be done any more."""
        self.rest = None
        self.todo.clear()
        self.updates_queued = self.bytes_queued = 0


class Workers:
    """Works off the messages of held flows, which `lock` guards.

    `lease_valid` tells whether our session is alive for certain.
    """

    def __init__(
        self, caller: HandlerCaller, workers: int, lease_valid: Callable[[], bool], closed: threading.Event
    ) -> None:
        self.lock = threading.Lock()
        self.meter = LoadMeter(workers)
        self._caller = caller
        self._lease_valid = lease_valid
        self._closed = closed
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="tidings-handler")

    def add(self, held: HeldFlow, era: Era, message: Message, rows: PartRows | None, reply: Reply) -> None:
        """Have one more message worked off. With the lock held."""
        if message["t"] == "pass":
            held.resume(Position(*message["position"]))
        else:
            if message["t"] == "close" and held.rest is not None:
                held.clear()  # the update that it waits for comes again, elsewhere or in another turn
            held.push(Todo(era, message, rows, reply))
        if not held.running and held.rest is None and not self._closed.is_set():
            held.running = True
            self._pool.submit(self._work, held)

    def drop(self, held: HeldFlow, reason: str) -> None:
        """Let go of a flow that its publisher has not closed, and tell it: it may be waiting for an answer."""
        if era := self._shut(held):
            self._notify_closed(held, reason)
            self._refuse_dropped(held, era, reason)

    def drop_soon(self, held: HeldFlow, reason: str) -> None:
        """The same at once for the flow, and later for the handler: whoever calls this must not wait for that."""
        if era := self._shut(held):
            with contextlib.suppress(RuntimeError):  # closing, which does the same by itself
                self._pool.submit(self._notify_closed, held, reason)
                self._pool.submit(self._refuse_dropped, held, era, reason)

    def close(self) -> None:
        """End, once the callbacks that run have returned."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, held: HeldFlow) -> None:
        """Work off what is to be done for one flow; after a while, let the other flows have their turn."""
        self.meter.begin()
        slice_over = time.monotonic() + WORKER_SLICE_S
        try:
            while True:
                with self.lock:
                    if not held.todo or held.rest is not None or self._closed.is_set():
                        held.running = False
                        return
                    if time.monotonic() > slice_over:
                        self._pool.submit(self._work, held)
                        return
                    todo = held.pop()
                    if held.parked and todo.message["t"] != "close":  # after which it may be opened again
                        held.current = None
                        continue
                try:
                    self._handle(held, *todo)
                except _Stale:
                    continue
                except Exception:
                    logger.exception("flow %s", held.flow)
                    self._park(held, todo.era, HandlerFailure("an internal error"))
                finally:
                    held.current, held.progressed = None, time.monotonic()
        finally:
            self.meter.end()

    def _handle(self, held: HeldFlow, era: Era, message: Message, rows: PartRows | None, reply: Reply) -> None:
        flow, kind = held.flow, message["t"]
        position = Position(*message["position"]) if "position" in message else None
        if kind == "batch":
            assert rows is not None
            assert position is not None
            if rows.num_rows and (gap := rows.gap(held.at, message["after"], position.seq)):
                self.drop(held, f"the publisher left something out: {gap}")
                return
            if rows.num_rows and (failure := self._deliver(held, era, rows, tell=reply is held.reply)):
                self._fail(held, Todo(era, message, rows, reply), failure)
                return
            held.at = None if message["after"] is None else position.seq
            # On the exchange on which it came: a large step has exchanges of its own.
            reply(flow_message("done", flow, era, position=message["position"]))
        elif kind == "token":
            assert position is not None
            if self._call(held, era, "on_token", flow, Datamarker.now(position, era.epoch)):
                held.reply(flow_message("ack", flow, era, position=message["position"]))
        elif kind == "open":
            held.at, held.passes = None, message.get("passes") is True
            self._call(held, era, "on_shard_notice", flow)
        elif kind == "loss":
            first, last = Position(*message["first"]), Position(*message["last"])
            held.at = None
            self._call(held, era, "on_data_loss", flow, first, last)
        elif kind == "skipped":
            self._call(held, era, "on_skipped", flow, message["count"])
        elif kind == "close":
            if self._shut(held, era):
                self._notify_closed(held, "the publisher closed it")
            held.reply(flow_message("closed", flow, era))

    def _deliver(self, held: HeldFlow, era: Era, rows: PartRows, *, tell: bool) -> HandlerFailure | None:
        """Hand rows to the handler, whole if it takes batches, until it has failed at one of them too often.

        With `tell` the publisher hears of it now and then, if it takes long.
        """
        places = rows.tombstones
        if not self._caller.takes_tombstones:
            return self._deliver_updates(held, era, rows.without_tombstones() if places else rows, tell)
        start = 0
        for place in places:
            if failure := self._deliver_updates(held, era, rows.part(start, place), tell):
                return failure
            tombstone = rows.updates[place]
            last, count = tombstone.seq, tombstone.range
            run = Position(last - count + 1), Position(last), count
            if failure := self._attempt(held, era, "on_tombstone", held.flow, *run):
                return failure
            start = place + 1
        return self._deliver_updates(held, era, rows.part(start, rows.num_rows), tell)

    def _deliver_updates(self, held: HeldFlow, era: Era, rows: PartRows, tell: bool) -> HandlerFailure | None:
        if self._caller.takes_batches:
            return self._deliver_batch(held, era, rows) if rows.num_rows else None
        said = time.monotonic()
        for update in rows.updates:
            try:
                valued = self._caller.valued(update)
            except Exception as error:  # noqa: BLE001 - whatever is in there, or in a decoder of the user's
                return _undecodable(update.position, error)
            if failure := self._attempt(held, era, "on_update", valued, at=update.position):
                return failure
            held.counters.processed(1)
            if tell and held.progressed - said > PROGRESS_INTERVAL_S:  # or the publisher would think that we are stuck
                said = held.progressed
                held.reply(flow_message("done", held.flow, era, position=pair(update.position)))
        return None

    def _deliver_batch(self, held: HeldFlow, era: Era, rows: PartRows) -> HandlerFailure | None:
        """Hand rows over together; if the handler fails at them, one by one, to find at which."""
        named = {"stream": held.flow.stream, "shard": str(held.flow.shard), "epoch": str(era.epoch)}
        batch = rows.batch
        at = Position(batch["seq"][0].as_py(), batch["index"][0].as_py()) if rows.num_rows == 1 else None
        try:
            arguments = self._caller.batch_arguments(held.flow, batch.replace_schema_metadata(named))
            failure = self._attempt(held, era, "on_batch", *arguments, at=at)
        except _Stale:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            failure = _undecodable(at, error)
        if failure is not None and rows.num_rows > 1:
            each = (rows.part(place, place + 1) for place in range(rows.num_rows))
            return next((found for row in each if (found := self._deliver_batch(held, era, row))), None)
        if failure is None:
            held.counters.processed(rows.num_rows)
        return failure

    def _attempt(
        self, held: HeldFlow, era: Era, name: str, *arguments: Any, at: Position | None = None
    ) -> HandlerFailure | None:
        """Call the handler, again if it raises; the failure, once it has been called often enough."""
        reason = self._caller.call(held.flow, name, *arguments, before=lambda: self._await_lease(held, era))
        held.progressed = time.monotonic()
        if reason is None:
            return None
        return HandlerFailure(reason if at is None else f"at {at}, {reason}", at)

    def _call(self, held: HeldFlow, era: Era, name: str, *arguments: Any) -> bool:
        """Call the handler with what is no update; False once it has failed often enough, and the flow is parked."""
        failure = self._attempt(held, era, name, *arguments)
        if failure is not None:
            self._park(held, era, failure)
        return failure is None

    def _await_lease(self, held: HeldFlow, era: Era) -> None:
        """Wait while our session may be over; give up once the flow is not ours any more."""
        while True:
            if held.era != era or not held.open or self._closed.is_set():
                raise _Stale
            if self._lease_valid():
                return
            self._closed.wait(0.02)

    def _fail(self, held: HeldFlow, todo: Todo, failure: HandlerFailure) -> None:
        """The handler has failed at an update: have it put aside and go on after it, if the publisher does that."""
        assert todo.rows is not None
        if failure.at is None or not held.passes:
            self._park(held, todo.era, failure)
            return
        after = failure.at.seq if todo.message["after"] is not None else None
        left = todo._replace(message={**todo.message, "after": after}, rows=todo.rows.after(failure.at))
        with self.lock:
            if held.era != todo.era or not held.open:
                return
            held.rest, held.at = Rest(failure.at, left), after
            held.counters.fail()
        logger.warning("flow %s goes on without an update at which the handler fails: %s", held.flow, failure.reason)
        self._tell_failure(held, todo.era, failure, waits=True)

    def _park(self, held: HeldFlow, era: Era, failure: HandlerFailure) -> None:
        with self.lock:
            if held.era != era:
                return
            held.parked = True
            held.clear()
            held.counters.fail()
        logger.error("flow %s is parked, and nothing more of it is processed here: %s", held.flow, failure.reason)
        self._tell_failure(held, era, failure)

    def _tell_failure(self, held: HeldFlow, era: Era, failure: HandlerFailure, **more: bool) -> None:
        place = {} if failure.at is None else {"at": pair(failure.at)}
        held.reply(flow_message("parked", held.flow, era, reason=failure.reason[:500], **place, **more))

    def _shut(self, held: HeldFlow, era: Era | None = None) -> Era | None:
        """Do no more for a flow; the era that is over then, or None if the flow, or that era of it, is over already."""
        with self.lock:
            if not held.open or era not in (None, held.era):
                return None
            held.open = False
            held.clear()
            return held.era

    def _notify_closed(self, held: HeldFlow, reason: str) -> None:
        logger.info("flow %s leaves: %s", held.flow, reason)
        self._caller.notify(held.flow, "on_flow_closed", held.flow)

    def _refuse_dropped(self, held: HeldFlow, era: Era, reason: str) -> None:
        with self.lock:
            if held.era != era:
                return  # opened again meanwhile: nobody waits for answers of that era
            reply = held.reply
        reply(flow_message("refused", held.flow, era, reason=reason))


def _undecodable(at: Position | None, error: Exception) -> HandlerFailure:
    """A payload has no value: that does not change by trying again."""
    told = str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}"
    return HandlerFailure(printable(f"at {at}, {told}" if at is not None else told), at)


class _Stale(Exception):
    """The flow has gone on without what was to be done."""
