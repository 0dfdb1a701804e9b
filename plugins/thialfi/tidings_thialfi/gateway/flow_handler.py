"""What the gateway's subscriber calls: flows of notifications, and their rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position
from tidings_thialfi.gateway.delays import Delays
from tidings_thialfi.gateway.dispatch import Dispatcher
from tidings_thialfi.gateway.notification_rows import rows_of
from tidings_thialfi.gateway.outbound import Outbound


class FlowHandler(Handler):
    """Hands everything to the gateway's event loop, and waits until it was taken."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher, outbound: Outbound, delays: Delays
    ) -> None:
        self._loop = loop
        self._dispatcher = dispatcher
        self._outbound = outbound
        self._delays = delays

    def on_shard_notice(self, flow: Flow) -> None:
        """The flow is here: so are the routes of its clients."""
        self._in_loop(self._dispatcher.flow_opened, flow.shard)

    def on_flow_closed(self, flow: Flow) -> None:
        """The flow is elsewhere, or will be."""
        self._in_loop(self._dispatcher.flow_closed, flow.shard)

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        """Some rows are lost: mark the clients online once more, so that the stage says it all again."""
        self._in_loop(self._dispatcher.flow_opened, flow.shard)

    def on_batch(self, rows: pa.RecordBatch) -> None:
        """Rows for clients, most of whom are here."""
        if found := list(rows_of(rows, self._outbound.wants)):
            self._in_loop(self._dispatcher.deliver, found)
            self._delays.note(rows)

    def _in_loop(self, work: Callable[[Any], None], argument: Any) -> None:
        done = threading.Event()

        def do() -> None:
            try:
                work(argument)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()
