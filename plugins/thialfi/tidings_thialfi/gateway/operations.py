"""Writing rows into the stream of operations, which the stage reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidings.producers import AsyncProducer
from tidings_thialfi.gateway.metrics import GatewayMetrics

Row = dict[str, Any]
"""An operation, as a producer takes it."""


class OperationWriter:
    """Makes rows durable."""

    def __init__(self, producer: AsyncProducer, metrics: GatewayMetrics) -> None:
        self._producer = producer
        self._metrics = metrics

    async def write(self, rows: Sequence[Row]) -> None:
        """Return once all of them are durable; `TidingsError` if they may not be."""
        began = time.perf_counter()
        if len(rows) == 1:  # most are alone, and a table for one row costs ten times as much
            await self._producer.publish(**rows[0])
        else:
            await self._producer.publish_many(rows)
        self._metrics.durable.observe(time.perf_counter() - began)
        for row in rows:
            self._metrics.rows.labels(row["attributes"]["op"]).inc()

    async def close(self) -> None:
        """Write what is left, and end."""
        await self._producer.close()
