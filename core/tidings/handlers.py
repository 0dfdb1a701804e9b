"""What an application does with its updates, and how it is called: again if it raises, awaited if it is async.

Async methods run in the event loop in which the subscriber was made, or is used by `async with`. Where there is none,
they run in a loop of the subscriber's own, in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidings.datamarkers import Datamarker
from tidings.errors import InvalidOption
from tidings.flows import Flow
from tidings.payloads import PayloadReader
from tidings.positions import Position
from tidings.texts import printable
from tidings.tracing import ProcessSpans
from tidings.updates import Update

logger = logging.getLogger(__name__)


class Handler:
    """What an application does with its updates. Override what you need; each method may also be `async`.

    A method that raises is called again, with pauses that grow; if that does not help the flow is parked, where
    operators see it, and nothing at or after the failing update is acknowledged.
    """

    def on_shard_notice(self, flow: Flow) -> Any:
        """A flow begins here. It may begin with updates that were seen before."""

    def on_batch(self, rows: pa.RecordBatch, *args: Any, **kwargs: Any) -> Any:
        """The next updates of one flow, in order; the schema's metadata names `stream`, `shard` and `epoch`.

        Write `on_batch(self, rows)`; or, with `payload_as`, `on_batch(self, rows, values)`, where `values` lists what
        payloads were made into.
        """

    def on_update(self, update: Any) -> Any:
        """The next update of a flow. Not called if `on_batch` is overridden."""

    def on_token(self, flow: Flow, datamarker: Datamarker) -> Any:
        """All up to here was processed. Returning acknowledges it: make durable what must be, first."""

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> Any:
        """The log does not hold these positions any more; what they were is lost to this flow."""

    def on_tombstone(self, flow: Flow, first: Position, last: Position, count: int) -> Any:
        """These updates were collected: what they said is said again by later ones, or is of no use any more."""

    def on_skipped(self, flow: Flow, count: int) -> Any:
        """So many updates were too old for a realtime application, or were skipped by an operator."""

    def on_flow_closed(self, flow: Flow) -> Any:
        """The flow has left this subscriber."""


METHODS = [name for name in vars(Handler) if name.startswith("on_")]


class HandlerCaller:
    """Calls a handler, of any class that has some of the methods. `loop` is where its async methods run.

    `spans` are those in which it is called, where somebody records them. `on_call` is told of each call: of which
    method, how many seconds it took, and whether it failed. `payloads` makes values of payloads, if they are wanted.
    """

    def __init__(
        self,
        handler: Any,
        retries: int,
        backoff: float,
        stopped: threading.Event,
        spans: ProcessSpans,
        on_call: Callable[[str, float, bool], object] = lambda *_: None,
        payloads: PayloadReader | None = None,
    ) -> None:
        self.loop = running_loop()
        self._own: threading.Thread | None = None  # which runs the loop, where nobody else does
        self._starting = threading.Lock()
        self._handler = handler
        self._retries = retries
        self._backoff = backoff
        self._stopped = stopped
        self._spans = spans
        self._on_call = on_call
        self._payloads = payloads
        self.takes_batches = _overrides(handler, "on_batch")
        self.takes_tombstones = _overrides(handler, "on_tombstone")
        self.is_async = any(inspect.iscoroutinefunction(getattr(handler, name, None)) for name in METHODS)

        if self.takes_batches:
            self._check_on_batch()

    def valued(self, update: Update) -> Update:
        """The update with the value of its payload, if that is wanted; raises if it has none."""
        if self._payloads is None:
            return update
        return replace(update, value=self._payloads.read(update.stream or "", update.payload))

    def batch_arguments(self, flow: Flow, rows: pa.RecordBatch) -> tuple[Any, ...]:
        """What `on_batch` is called with; raises if a payload has no value."""
        if self._payloads is None:
            return (rows,)
        return rows, [self._payloads.read(flow.stream, payload) for payload in rows["payload"].to_pylist()]

    def _check_on_batch(self) -> None:
        """Raise unless `on_batch` can be called with what there is."""
        given = 1 if self._payloads is None else 2
        try:
            inspect.signature(self._handler.on_batch).bind(*[None] * given)
        except TypeError:
            form = (
                "on_batch(self, rows, values), which gets the values beside the rows"
                if given == 2
                else ("on_batch(self, rows); values are for those who subscribe with payload_as")
            )
            raise InvalidOption(f"on_batch of this handler cannot be called: write {form}") from None

    def call(self, flow: Flow, name: str, *arguments: Any, before: Callable[[], None]) -> str | None:
        """Call a method, again if it raises, and `before` ahead of each time; why it failed in the end, if it did."""
        reason = None
        for attempt in range(self._retries + 1):
            before()
            begun = time.perf_counter()
            try:
                if (span := self._spans.around(flow, name, arguments)) is None:
                    self._call(name, *arguments)
                else:
                    with span:
                        self._call(name, *arguments)
                self._on_call(name, time.perf_counter() - begun, False)
                return None
            except Exception as error:  # noqa: BLE001 - the handler's, whatever it is
                self._on_call(name, time.perf_counter() - begun, True)
                reason = printable(f"{name}: {type(error).__name__}: {error}")
                logger.warning("flow %s: %s (attempt %d)", flow, reason, attempt + 1)
                self._stopped.wait(self._backoff * 2**attempt * random.uniform(0.5, 1.0))
        return reason

    def notify(self, flow: Flow, name: str, *arguments: Any) -> None:
        """Call a method once; nothing depends on whether it raises."""
        try:
            self._call(name, *arguments)
        except Exception:
            logger.exception("%s of flow %s", name, flow)

    def _call(self, name: str, *arguments: Any) -> None:
        method = getattr(self._handler, name, None)
        result = method(*arguments) if method is not None else None
        if inspect.isawaitable(result):
            self._await(result)

    def close(self) -> None:
        """End, once the last call has returned."""
        if self._own is not None and self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._own.join()
            self.loop.close()

    def _await(self, result: Any) -> None:
        async def finish() -> None:
            await result

        # The loop runs it in a copy of this thread's context: a span that is current here is so there.
        asyncio.run_coroutine_threadsafe(finish(), self.loop or self._own_loop()).result()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self._own = threading.Thread(target=self.loop.run_forever, name="tidings-handler-loop", daemon=True)
                self._own.start()
            return self.loop


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that this thread runs, if it runs one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _overrides(handler: Any, name: str) -> bool:
    default = getattr(Handler, name)
    return getattr(type(handler), name, default) is not default
