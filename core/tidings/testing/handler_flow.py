"""A flow in memory, to test a handler with: it is called as by a subscriber, without ZooKeeper, a log or Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from tidings.errors import TidingsError
from tidings.flows import Flow
from tidings.handlers import HandlerCaller
from tidings.payloads import PayloadReader
from tidings.positions import Position
from tidings.subscriber.dialer import Reply
from tidings.subscriber.part_rows import PartRows
from tidings.subscriber.workers import HeldFlow, Workers
from tidings.tracing import ProcessSpans
from tidings.updates import PUBLISHED, SCHEMA, TOMBSTONE, Update, from_rows, timed
from tidings.wire.protocol import Era, Message, flow_message, pair

LOOK_S = 0.0005  # between two looks whether a handler has returned


class HandlerFailed(TidingsError):
    """A handler has failed at what it was given, and its flow would be parked; `position` is that of the update."""

    def __init__(self, reason: str, position: Position | None) -> None:
        super().__init__(reason)
        self.position = position


class HandlerFlow:
    """A flow of one shard that begins with its handler. A context manager, which closes it.

    >>> class Cache:
    ...     def __init__(self):
    ...         self.contacts = {}
    ...     def on_update(self, update):
    ...         self.contacts[update.object] = update.value["name"]
    >>> cache = Cache()
    >>> with HandlerFlow(cache, payload_as=dict) as flow:
    ...     flow.deliver({"object": "alice", "version": 1, "payload": b'{"name": "Alice"}'})
    ...     flow.redeliver()
    >>> cache.contacts
    {'alice': 'Alice'}
    """

    def __init__(
        self, handler: Any, *, stream: str = "test", shard: int = 0, payload_as: Any = None, retries: int = 0
    ) -> None:
        self.flow = Flow("test", stream, shard)
        payloads = None if payload_as is None else PayloadReader(payload_as, lambda _: None)
        closed = threading.Event()
        self._caller = HandlerCaller(handler, retries, 0.0, closed, ProcessSpans("test"), payloads=payloads)
        self._workers = Workers(self._caller, 1, lambda: True, closed)
        self._held = HeldFlow(self.flow, era=Era(1, 0))
        self._unacknowledged: list[dict[str, Any]] = []
        self._next = 0
        self._acknowledged = -1
        self._open()

    @property
    def position(self) -> Position:
        """Where the flow stands: the last update that was delivered."""
        return Position(self._next - 1)

    def deliver(self, *updates: Mapping[str, Any] | Update) -> None:
        """The next updates, in one batch. `HandlerFailed` if the handler fails; `redeliver` tries again from there."""
        given = [_published(one) for one in updates]
        rows = timed(from_rows(given)).to_pylist()
        self._deliver([{**row, "seq": self._next + at, "range": 1} for at, row in enumerate(rows)])

    def collect(self, count: int) -> None:
        """So many updates were collected: `on_tombstone`, if the handler has it."""
        self._deliver([{"object": "", "kind": TOMBSTONE, "seq": self._next + count - 1, "range": count}])

    def acknowledge(self) -> None:
        """`on_token`: what was delivered is acknowledged, and is not delivered again."""
        self._say("token", position=pair(self.position))
        self._acknowledged, self._unacknowledged = self._next - 1, []

    def redeliver(self) -> None:
        """Begin again after the last acknowledgement, as after a fault: what came since then comes once more."""
        self._open()
        again, self._unacknowledged, self._next = self._unacknowledged, [], self._acknowledged + 1
        self._deliver(again)

    def lose(self, count: int) -> None:
        """The log does not hold the next updates any more, so many of them: `on_data_loss`."""
        first, last = Position(self._next), Position(self._next + count - 1)
        self._say("loss", first=pair(first), last=pair(last))
        self._next += count

    def skip(self, count: int) -> None:
        """So many updates were too old, or an operator has skipped them: `on_skipped`."""
        self._say("skipped", count=count)

    def close(self) -> None:
        """The flow leaves: `on_flow_closed`."""
        if self._held.open:
            self._say("close")
            self._workers.close()
            self._caller.close()

    def __enter__(self) -> HandlerFlow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        with self._workers.lock:
            held = self._held
            held.era, held.reply, held.open, held.parked = Era(1, held.era.turn + 1), Reply(), True, False
            held.clear()
        self._say("open")

    def _deliver(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        after = self._next - 1
        self._unacknowledged += rows
        self._next = rows[-1]["seq"] + 1
        stamped = [{"shard": self.flow.shard, "index": 0, **row} for row in rows]
        (batch,) = pa.Table.from_pylist(stamped, SCHEMA).combine_chunks().to_batches()
        place = {"position": [self._next - 1, 0], "after": after if self._held.at is not None else None}
        self._say("batch", PartRows.of(batch, self.flow.stream), **place, bytes=batch.nbytes)

    def _say(self, kind: str, rows: PartRows | None = None, **more: Any) -> None:
        """Say something as a publisher does, and wait until it is worked off."""
        held = self._held
        with self._workers.lock:
            self._workers.add(held, held.era, flow_message(kind, self.flow, held.era, **more), rows, held.reply)
        while held.running or held.todo:  # until the thread that handlers are called by has done it
            time.sleep(LOOK_S)
        while not held.reply.outgoing.empty():
            said = held.reply.outgoing.get()
            if said is not None and said[0]["t"] in ("parked", "refused"):
                raise _failure(said[0])


def _failure(message: Message) -> HandlerFailed:
    return HandlerFailed(message["reason"], Position(*message["at"]) if "at" in message else None)


def _published(update: Mapping[str, Any] | Update) -> dict[str, Any]:
    """What a producer would have said."""
    if isinstance(update, Update):
        return {name: getattr(update, name) for name in PUBLISHED.names}
    return dict(update)
