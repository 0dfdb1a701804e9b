"""How far a pipeline is and how fast it goes, as Spark and its logs tell it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidings.errors import TidingsError
from tidings.logs import WritableLog
from tidings.offsets import Offset
from tidings.positions import Positions

if TYPE_CHECKING:
    from tidings.streams import Stream

RATE_WINDOW_S = 10.0  # over which a rate is taken


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment. What is not known is None.

    `batch` is the last batch that was finished; `lag`, for each input, how many updates are still to be read; `at` when
    the run last showed that it goes on, be it only that it found nothing to do; `behind_since`, when it was first seen
    to have something to read, if it has finished no batch since. Times are seconds since 1970.
    """

    batch: int | None = None
    batches: int = 0
    batch_seconds: float = 0.0
    updates_in: int = 0
    updates_out: int = 0
    rate: float = 0.0
    lag: Mapping[str, int | None] = field(default_factory=dict)
    at: float | None = None
    behind_since: float | None = None

    @property
    def total_lag(self) -> int | None:
        """Over all inputs; None if any is not known."""
        known = [lag for lag in self.lag.values() if lag is not None]
        return sum(known) if known and len(known) == len(self.lag) else None


class ProgressMeter:
    """Gathers the progress of one run. May be used from any thread."""

    def __init__(self, inputs: Sequence[Stream]) -> None:
        self._inputs = inputs
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._batch: int | None = None
        self._batches = 0
        self._seconds = 0.0
        self._in = self._out = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._seen: tuple[int, str] = (-1, "")
        self._at: float | None = None
        self._behind_since: float | None = None
        self._positions: list[Positions | None] = [None] * len(inputs)

    def batch_finished(self, batch: int, seconds: float, updates_out: int) -> None:
        """A batch is done; so many updates were written."""
        with self._lock:
            self._batch = batch
            self._batches += 1
            self._seconds += seconds
            self._out += updates_out
            self._at = time.time()
            self._behind_since = None

    def add_reports(self, events: Sequence[Any]) -> None:
        """Spark's reports on the run, oldest first; those that were added before are passed over."""
        with self._lock:
            for event in events:
                if (event.batchId, event.timestamp) <= self._seen:
                    continue
                self._seen = (event.batchId, event.timestamp)
                self._at = time.time()
                rows = sum(map(self._note, range(len(self._inputs)), event.sources))
                self._in += rows
                self._recent.append((time.monotonic(), rows))

    def progress(self) -> Progress:
        """Where the run is now; the logs are asked how far it lags."""
        lag = {stream.name: self._lag(stream, at) for stream, at in zip(self._inputs, self._positions, strict=True)}
        return self.counted(lag)

    def counted(self, lag: Mapping[str, int | None] | None = None) -> Progress:
        """The same without a look at the logs, unless this is what they say."""
        with self._lock:
            now = time.monotonic()
            while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
                self._recent.popleft()
            rate = sum(rows for _, rows in self._recent) / max(0.001, min(RATE_WINDOW_S, now - self._started))
            if lag is not None:
                # Spark says that it goes on when it finds nothing to read, even if there is something.
                self._behind_since = (self._behind_since or time.time()) if any(lag.values()) else None
            counted = self._batch, self._batches, self._seconds, self._in, self._out
            return Progress(*counted, rate, lag or {}, self._at, self._behind_since)

    def _note(self, number: int, source: Any) -> int:
        """Take over where an input stands; how many of its updates were read."""
        before, after = _positions(source.startOffset), _positions(source.endOffset)
        self._positions[number] = after or self._positions[number]
        if before is None or after is None or not isinstance(self._inputs[number].log, WritableLog):
            return int(source.numInputRows)
        # Spark counts the rows of a batch as often as the stage reads it; positions in logs of our own are dense.
        return sum(after[shard].seq - before[shard].seq for shard in after)

    def _lag(self, stream: Stream, at: Positions | None) -> int | None:
        if at is None:
            return None
        try:
            if not isinstance(stream.log, WritableLog):  # which is opened here, perhaps
                return None
            bounds = stream.log.bounds()
        except Exception:  # noqa: BLE001 - the query reads the same log, and says what is wrong; here it is not known
            return None
        return sum(max(0, held.head.seq - at[shard].seq) for shard, held in bounds.items())


def _positions(offset: Any) -> Positions | None:
    """An offset as Spark reports it, in whichever of its forms."""
    try:
        return (Offset.parse(offset) if isinstance(offset, str) else Offset.from_json(offset)).positions
    except TidingsError:
        return None
