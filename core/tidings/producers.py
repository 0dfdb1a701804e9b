"""Producers: updates from many calls, written to the log in few commits.

One thread a producer commits. It takes what has gathered since its last commit, waits `linger` seconds for more if that
is little, and appends it all at once; the futures are resolved when the log has made the updates durable. While a
commit is under way the next one gathers, so a busy producer commits back to back, and an idle one costs nothing.

The buffer is bounded: a caller waits when it is full, and an asyncio caller is suspended.

Callbacks of futures are called in that thread, and whatever they do, it goes on. They cannot wait for it: there
`publish` raises `BufferFull` at once when the buffer is full, and so does `flush`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from tidings.collection import gc_events
from tidings.errors import ENDING, BufferFull, InvalidOption, ProducerClosed
from tidings.logs import WritableLog
from tidings.positions import Position, Positions
from tidings.producer_items import ROW_OVERHEAD_BYTES, Item, Many, Single, as_table, joined
from tidings.stream_definition import StreamDefinition
from tidings.tracing import publishing
from tidings.updates import (
    MAX_DELIVERABLE_BYTES,
    MAX_PAYLOAD_BYTES,
    check_row,
    checked,
    from_rows,
    portions,
    row_sizes,
    timed,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer gathers updates.

    | option | default | meaning |
    | --- | --- | --- |
    | `linger` | 0.005 | seconds to wait for more updates before a commit that is small |
    | `max_rows` | 50,000 | updates in one commit |
    | `max_bytes` | 32 MiB | bytes in one commit |
    | `buffer_bytes` | 128 MiB | bytes that may wait; beyond them callers wait |
    | `max_payload_bytes` | 1 MiB | the largest payload that is accepted |
    """

    linger: float = 0.005
    max_rows: int = 50_000
    max_bytes: int = 32 * 2**20
    buffer_bytes: int = 128 * 2**20
    max_payload_bytes: int = MAX_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_bytes", "buffer_bytes", "max_payload_bytes"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"a producer's {name} is at least 1, not {getattr(self, name)!r}")
        if self.max_payload_bytes > MAX_DELIVERABLE_BYTES:
            raise InvalidOption(
                f"a producer's max_payload_bytes is at most {MAX_DELIVERABLE_BYTES:,}, which a message to a subscriber "
                f"can carry, not {self.max_payload_bytes:,}"
            )
        if self.linger < 0:
            raise InvalidOption(f"a producer's linger is not negative, as {self.linger!r} is")


class ProducerKeywords(TypedDict, total=False):
    """The fields of `ProducerOptions`, for those who pass them on."""

    linger: float
    max_rows: int
    max_bytes: int
    buffer_bytes: int
    max_payload_bytes: int


class Producer:
    """Writes updates into a stream. Made by `Stream.producer`; a context manager; may be used from any thread.

    Updates of one object that are published one after the other are in that order in the log.
    """

    def __init__(
        self, log: WritableLog, stream: StreamDefinition | None = None, **options: Unpack[ProducerKeywords]
    ) -> None:
        try:
            self.options = ProducerOptions(**options)
        except TypeError as error:
            raise InvalidOption(f"a producer does not know that option: {error}") from None
        self._stream = stream
        self._name = None if stream is None else stream.name
        self._log = log
        self._waiting: deque[Item] = deque()
        self._buffered = 0
        self._accepted_rows = self._finished_rows = self._flushed_rows = 0
        self._room_callbacks: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._committer = threading.Thread(target=self._commit_all, name="tidings-producer", daemon=True)
        self._committer.start()

    def publish(
        self,
        object: str,
        version: int | None = None,
        source: str | None = None,
        payload: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        time: dt.datetime | None = None,
        *,
        timeout: float | None = None,
    ) -> Future[Position]:
        """Publish one update; the future resolves to its position once it is durable.

        Waits while the buffer is full, for `timeout` seconds at the most (`BufferFull` then).
        """
        item = self._single(object, version, source, payload, attributes, time)
        try:
            self._put(item, timeout)
        except Exception as error:
            item.refuse(error)
            raise
        return item.future

    def publish_many(
        self, updates: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> Future[Positions]:
        """Publish rows, as Arrow or as mappings; the future resolves to the last position in each shard that got one.

        All rows are checked before the first is accepted. More rows than fit into one commit go into several.
        """
        items = [Many(portion) for portion in self._portions(self._table(updates))]
        for item in items:
            self._put(item, timeout)
        return joined([item.future for item in items])

    def collect(self, predicate: str, *, timeout: float | None = None) -> Future[Positions]:
        """Publish gc events, one into each shard: what lies before them and matches the predicate may be collected.

        The stream takes them if `events` is among its policies. What the predicate may say is in docs/collection.md.
        """
        return self.publish_many(self._gc_events(predicate), timeout=timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was published before is durable or has failed; what is published meanwhile may wait."""
        self._flush(self._accepted_rows, timeout)

    def close(self) -> None:
        """Make durable what was published, then end. Later calls of `publish` raise `ProducerClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._committer.join()
        self._log.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _single(
        self,
        object: str,
        version: int | None,
        source: str | None,
        payload: bytes | None,
        attributes: Mapping[str, str] | None,
        time: dt.datetime | None,
    ) -> Single:
        limit = self.options.max_payload_bytes
        check_row(object, version, "data", 1, source, attributes, payload, time, max_payload_bytes=limit)
        # Copies, since the caller may use its buffer and its mapping again before they are committed.
        pairs = list(attributes.items()) if attributes else None
        payload = None if payload is None else bytes(payload)
        span = publishing(self._name)
        if span is not None:
            pairs = span.named_in(pairs)
        size = ROW_OVERHEAD_BYTES + len(object) + len(payload or b"") + sum(len(k) + len(v) for k, v in pairs or ())
        now = time or dt.datetime.now(dt.UTC)
        return Single((object, version, "data", 1, source, pairs, payload, now), size, span)

    def _table(self, updates: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]) -> pa.Table:
        limit = self.options.max_payload_bytes
        if isinstance(updates, pa.Table | pa.RecordBatch):
            return timed(checked(updates, max_payload_bytes=limit))
        return timed(from_rows(updates, max_payload_bytes=limit))

    def _gc_events(self, predicate: str) -> pa.Table:
        if self._stream is None:
            raise InvalidOption("this producer knows its log only, and not how the stream is collected")
        return gc_events(self._stream, self._log, predicate)

    def _portions(self, table: pa.Table) -> list[pa.Table]:
        most_bytes = min(self.options.max_bytes, self.options.buffer_bytes // 2)
        runs = portions(row_sizes(table), self.options.max_rows, most_bytes)
        return [table.slice(run.start, run.stop - run.start) for run in runs]

    def _put(self, item: Item, timeout: float | None = None) -> None:
        with self._changed:
            timeout = self._patience(timeout)
            if not self._changed.wait_for(lambda: self._ended() or self._has_room(item), timeout):
                raise BufferFull(
                    f"the producer's buffer of {self.options.buffer_bytes:,} bytes stayed full for {timeout:g} s"
                )
            self._accept(item)

    def _flush(self, upto: int, timeout: float | None = None) -> None:
        """Wait for the first so many of all rows that were ever accepted; they are finished in that order."""
        with self._changed:
            self._flushed_rows = max(self._flushed_rows, upto)
            self._changed.notify_all()
            timeout = self._patience(timeout)
            done = self._changed.wait_for(lambda: self._finished_rows >= upto or self._failure is not None, timeout)
            self._check_alive()
            if not done:
                left = upto - self._finished_rows
                raise BufferFull(f"{left} updates were still not durable after {timeout:g} s")

    def _patience(self, timeout: float | None) -> float | None:
        """How long the caller may wait: not at all in the thread that it would wait for."""
        return 0.0 if threading.current_thread() is self._committer else timeout

    def _ended(self) -> bool:
        return self._closed or self._failure is not None

    def _has_room(self, item: Item) -> bool:
        # An item that is larger than the whole buffer is let in alone, or it would wait for ever.
        return self._buffered == 0 or self._buffered + item.bytes <= self.options.buffer_bytes

    def _accept(self, item: Item) -> None:
        self._check_alive()
        if self._closed:
            raise ProducerClosed("the producer is closed")
        self._waiting.append(item)
        self._buffered += item.bytes
        self._accepted_rows += item.rows
        self._changed.notify_all()

    def _put_or_call(self, item: Item, on_room: Callable[[], None]) -> bool:
        """Accept the item if there is room; otherwise call back once there may be."""
        with self._changed:
            if self._ended() or self._has_room(item):
                self._accept(item)
                return True
            self._room_callbacks.append(on_room)
            return False

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise _ended_early(self._failure)

    def _commit_all(self) -> None:
        batch: list[Item] = []
        try:
            while batch := self._gather():
                self._commit(batch)
                self._finish(batch)
        except BaseException as error:
            logger.exception("a producer's thread ends before its time")
            self._give_up(batch, error)

    def _commit(self, batch: list[Item]) -> None:
        try:
            appended = self._log.append(as_table(batch))
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the callers that wait must hear of it
            _fail(batch, error)
            return
        assert appended is not None  # only transactions can be there already
        assert len(appended.seqs) == sum(item.rows for item in batch)
        at = 0
        for item in batch:
            with _shielding():
                item.resolve(appended, at)
            at += item.rows

    def _gather(self) -> list[Item]:
        """The items of the next commit; empty when the producer is closed and all is done."""
        options = self.options
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if options.linger and not self._is_enough():
                deadline = clock.monotonic() + options.linger
                self._changed.wait_for(
                    lambda: self._is_enough() or clock.monotonic() >= deadline, max(0.0, deadline - clock.monotonic())
                )
            batch: list[Item] = []
            rows = size = 0
            while self._waiting:
                item = self._waiting[0]
                if batch and (rows + item.rows > options.max_rows or size + item.bytes > options.max_bytes):
                    break
                batch.append(self._waiting.popleft())
                rows += item.rows
                size += item.bytes
            return batch

    def _is_enough(self) -> bool:
        rows = self._accepted_rows - self._finished_rows
        few = rows < self.options.max_rows and self._buffered < self.options.max_bytes
        return self._closed or self._flushed_rows > self._finished_rows or not few

    def _finish(self, batch: list[Item]) -> None:
        with self._changed:
            self._buffered -= sum(item.bytes for item in batch)
            self._finished_rows += sum(item.rows for item in batch)
            callbacks = self._take_room_callbacks()
            self._changed.notify_all()
        _call(callbacks)

    def _give_up(self, batch: list[Item], error: BaseException) -> None:
        """Nobody commits any more: fail what waits. What was under way may be durable or not."""
        with self._changed:
            self._failure = error
            left = [*batch, *self._waiting]
            self._waiting.clear()
            callbacks = self._take_room_callbacks()
            self._changed.notify_all()
        _fail([item for item in left if not item.future.done()], _ended_early(error))
        _call(callbacks)

    def _take_room_callbacks(self) -> list[Callable[[], None]]:
        callbacks, self._room_callbacks = self._room_callbacks, []
        return callbacks


def _ended_early(failure: BaseException) -> ProducerClosed:
    return ProducerClosed(f"the producer has ended before its time, by {failure!r}: make another one")


def _fail(items: list[Item], error: BaseException) -> None:
    for item in items:
        with _shielding():
            item.future.set_exception(error)


def _call(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        with _shielding():
            callback()


@contextlib.contextmanager
def _shielding() -> Iterator[None]:
    """What a caller's callback or future does is the caller's own affair, and ends nothing here."""
    try:
        yield
    except BaseException:
        logger.exception("a caller of a producer failed when it was told what became of its updates")


class AsyncProducer:
    """The twin of `Producer` for asyncio: `await producer.publish(…)` gives the position.

    All calls share the producer's one thread; a call that waits for room suspends its task only.
    """

    def __init__(
        self, log: WritableLog, stream: StreamDefinition | None = None, **options: Unpack[ProducerKeywords]
    ) -> None:
        self._producer = Producer(log, stream, **options)

    async def publish(
        self,
        object: str,
        version: int | None = None,
        source: str | None = None,
        payload: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        time: dt.datetime | None = None,
    ) -> Position:
        """Publish one update and wait until it is durable."""
        item = self._producer._single(object, version, source, payload, attributes, time)
        try:
            await self._accepted(item)
        except (Exception, asyncio.CancelledError) as error:
            item.refuse(error)
            raise
        return await asyncio.wrap_future(item.future)

    async def publish_many(self, updates: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]) -> Positions:
        """Publish rows and wait until they are durable."""
        items = [Many(portion) for portion in self._producer._portions(self._producer._table(updates))]
        for item in items:
            await self._accepted(item)
        return await asyncio.wrap_future(joined([item.future for item in items]))

    async def collect(self, predicate: str) -> Positions:
        """Publish gc events, one into each shard, and wait until they are durable."""
        return await self.publish_many(await asyncio.to_thread(self._producer._gc_events, predicate))

    async def close(self) -> None:
        """Make durable what was published, then end."""
        await asyncio.to_thread(self._producer.close)

    async def flush(self) -> None:
        """Wait until all that was published before is durable or has failed; what is published meanwhile may wait."""
        await asyncio.to_thread(self._producer._flush, self._producer._accepted_rows)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _accepted(self, item: Item) -> None:
        loop = asyncio.get_running_loop()
        room = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(room.set)

        while not self._producer._put_or_call(item, wake):
            await room.wait()
            room.clear()
