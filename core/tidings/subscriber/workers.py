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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.datamarkers import Datamarker
from tidings.flows import Flow
from tidings.handlers import HandlerCaller
from tidings.positions import Position
from tidings.subscriber.dialer import Reply
from tidings.subscriber.load import LoadMeter
from tidings.updates import TOMBSTONE, to_updates
from tidings.wire.protocol import NO_ERA, Era, Message, flow_message

WORKER_SLICE_S = 0.05  # that a flow may keep a worker while other flows wait

logger = logging.getLogger(__name__)


@dataclass
class HeldFlow:
    """A flow that is here: what is to be done for it, in order."""

    flow: Flow
    incarnation: int = -1
    """ZooKeeper's transaction that made the flow's node: of an application that was made again it is a later one."""
    era: Era = NO_ERA
    reply: Reply = field(default_factory=Reply)
    todo: deque[tuple[Era, Message, pa.RecordBatch | None, Reply]] = field(default_factory=deque)
    running: bool = False
    open: bool = False
    parked: bool = False
    at: int | None = None
    """The seq up to which nothing was left out, if that is known."""
    connected: bool = False
    """Whether the exchange on which the flow was opened is still there."""


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

    def add(self, held: HeldFlow, era: Era, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        """Have one more message worked off. With the lock held."""
        held.todo.append((era, message, rows, reply))
        if not held.running and not self._closed.is_set():
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
                    if not held.todo or held.parked or self._closed.is_set():
                        held.running = False
                        return
                    if time.monotonic() > slice_over:
                        self._pool.submit(self._work, held)
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
            self.meter.end()

    def _handle(self, held: HeldFlow, era: Era, message: Message, rows: pa.RecordBatch | None, reply: Reply) -> None:
        flow, kind = held.flow, message["t"]
        position = Position(*message["position"]) if "position" in message else None
        if kind == "batch":
            assert rows is not None
            assert position is not None
            if gap := _gap(rows, held.at, message["after"], position.seq):
                self.drop(held, f"the publisher left something out: {gap}")
                return
            if not self._deliver(held, era, rows):
                return
            held.at = None if message["after"] is None else position.seq
            # On the exchange on which it came: a large step has exchanges of its own.
            reply(flow_message("done", flow, era, position=message["position"]))
        elif kind == "token":
            assert position is not None
            if self._call(held, era, "on_token", flow, Datamarker.now(position, era.epoch)):
                held.reply(flow_message("ack", flow, era, position=message["position"]))
        elif kind == "open":
            held.at = None
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

    def _deliver(self, held: HeldFlow, era: Era, rows: pa.RecordBatch) -> bool:
        """Hand rows to the handler, whole if it takes batches; False once it has failed at one of them too often."""
        tombstones = pc.equal(rows["kind"], TOMBSTONE)
        places = np.flatnonzero(tombstones.to_numpy(zero_copy_only=False))
        if not self._caller.takes_tombstones:
            return self._deliver_updates(held, era, rows.filter(pc.invert(tombstones)) if len(places) else rows)
        start = 0
        for place in places.tolist():
            if not self._deliver_updates(held, era, rows.slice(start, place - start)):
                return False
            last, count = rows["seq"][place].as_py(), rows["range"][place].as_py()
            if not self._call(held, era, "on_tombstone", held.flow, Position(last - count + 1), Position(last), count):
                return False
            start = place + 1
        return self._deliver_updates(held, era, rows.slice(start))

    def _deliver_updates(self, held: HeldFlow, era: Era, rows: pa.RecordBatch) -> bool:
        if rows.num_rows and self._caller.takes_batches:
            named = {"stream": held.flow.stream, "shard": str(held.flow.shard), "epoch": str(era.epoch)}
            return self._call(held, era, "on_batch", rows.replace_schema_metadata(named))
        return all(self._call(held, era, "on_update", update) for update in to_updates(rows, held.flow.stream))

    def _call(self, held: HeldFlow, era: Era, name: str, *arguments: Any) -> bool:
        """Call the handler, again if it raises; False once it has been called often enough."""
        reason = self._caller.call(held.flow, name, *arguments, before=lambda: self._await_lease(held, era))
        if reason is not None:
            self._park(held, era, reason)
        return reason is None

    def _await_lease(self, held: HeldFlow, era: Era) -> None:
        """Wait while our session may be over; give up once the flow is not ours any more."""
        while True:
            if held.era != era or not held.open or self._closed.is_set():
                raise _Stale
            if self._lease_valid():
                return
            self._closed.wait(0.02)

    def _park(self, held: HeldFlow, era: Era, reason: str) -> None:
        with self.lock:
            if held.era != era:
                return
            held.parked = True
            held.todo.clear()
        logger.error("flow %s is parked, and nothing more of it is processed here: %s", held.flow, reason)
        held.reply(flow_message("parked", held.flow, era, reason=reason[:500]))

    def _shut(self, held: HeldFlow, era: Era | None = None) -> Era | None:
        """Do no more for a flow; the era that is over then, or None if the flow, or that era of it, is over already."""
        with self.lock:
            if not held.open or era not in (None, held.era):
                return None
            held.open = False
            held.todo.clear()
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


def _gap(rows: pa.RecordBatch, at: int | None, after: int | None, upto: int) -> str | None:
    """What is missing between these rows, which are said to be all from one position to another.

    A tombstone stands for each update of its run, and only the first may begin before the rows do.
    """
    if after is None:
        return None
    seqs = rows["seq"].to_numpy()
    before = seqs - rows["range"].to_numpy()
    expected = np.append(after, seqs[:-1])
    before[0] = max(before[0], after)
    broken = np.flatnonzero(before != expected)
    if at is not None and at != after:
        return f"it goes on after {after}, and {at} was the last"
    if len(broken):
        return f"{before[broken[0]] + 1} comes after {expected[broken[0]]}"
    return f"it ends at {seqs[-1]}, not {upto}" if seqs[-1] != upto else None


class _Stale(Exception):
    """The flow has gone on without what was to be done."""
