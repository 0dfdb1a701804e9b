"""How long notifications take: from the moment at which they are durable until a gateway has handed them to clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pyarrow as pa

KEPT_S = 60.0  # for which a delay counts
MAX_KEPT = 1_000


class Delays:
    """The delays of lately: one of each batch, the longest. Noted by the thread that delivers, read by any."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._noted: deque[tuple[float, float]] = deque(maxlen=MAX_KEPT)

    def note(self, rows: pa.RecordBatch) -> None:
        """These rows have been handed to clients; the first of them has waited the longest."""
        written = rows["time"].cast(pa.int64())[0].as_py() if rows.num_rows else None
        if written is not None:
            self._noted.append((self._clock(), max(0.0, self._wall_clock() - written / 1e6)))

    def quantiles(self) -> dict[str, float] | None:
        """How long half of them took at most, and 99 of 100, in seconds; None if there were none.

        >>> import datetime as dt
        >>> delays = Delays(lambda: 0.0, lambda: 10.0)
        >>> for second in (9, 9, 7):
        ...     written = dt.datetime.fromtimestamp(second, dt.UTC)
        ...     delays.note(pa.record_batch({"time": pa.array([written], pa.timestamp("us", "UTC"))}))
        >>> delays.quantiles()
        {'p50': 1.0, 'p99': 3.0}
        """
        oldest = self._clock() - KEPT_S
        lately = sorted(delay for noted, delay in list(self._noted) if noted >= oldest)
        if not lately:
            return None
        return {name: round(lately[int(len(lately) * part)], 3) for name, part in (("p50", 0.5), ("p99", 0.99))}
