"""How busy a subscriber is, and what share of the flows it asks for.

A subscriber's *capacity* is what its owner says it can do, beside the others. Its *load* is the part of the time that
its workers were busy lately, and its *weight* is what balancers go by: it begins at the capacity, and shrinks while the
subscriber is busier than its fellows. Each subscriber changes its own weight only, a step at a time, and not at all
while the loads are about the same: so flows settle. It looks at a few of its fellows, chosen by chance, and only when
it is busy or has less than its share: among hundreds of idle subscribers nobody asks for anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tidings.coordination.subscriber_record import SubscriberRecord

DEAD_BAND_RATIO = 0.15  # loads that differ by less are the same
BUSY_RATIO = 0.5  # with a load below this there is no need for others
LESS_RATIO, MORE_RATIO = 0.8, 1.15
LEAST_RATIO = 1 / 16  # of the capacity
MAX_FELLOWS = 16  # whose loads are looked at
LOAD_STEP_RATIO = 0.05  # a load that has changed by less is not worth a write


def adjusted(weight: float, capacity: float, load: float, others: Sequence[float]) -> float:
    """The weight that a subscriber should have next, given its load and those of its fellows.

    >>> adjusted(1.0, 1.0, 0.95, [0.2, 0.3])
    0.8
    >>> round(adjusted(0.8, 1.0, 0.1, [0.6, 0.7]), 2)
    0.92
    >>> adjusted(0.8, 1.0, 0.5, [0.6, 0.5])
    0.8
    """
    if not others:
        return capacity
    mean = sum(others) / len(others)
    if load > BUSY_RATIO and load > mean + DEAD_BAND_RATIO:
        return max(capacity * LEAST_RATIO, weight * LESS_RATIO)
    if load < mean - DEAD_BAND_RATIO:
        return min(capacity, weight * MORE_RATIO)
    return weight


class LoadMeter:
    """Measures the load of so many workers, by a clock that does not go back."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: dict[int, float] = {}
        self._busy = 0.0
        self._since = clock()

    def begin(self) -> None:
        """This thread is at work from now on."""
        with self._lock:
            self._begun[threading.get_ident()] = self._clock()

    def end(self) -> None:
        """This thread has done its work."""
        with self._lock:
            self._busy += self._clock() - self._begun.pop(threading.get_ident())

    def read(self) -> float:
        """The load since it was last read: 0 to 1."""
        with self._lock:
            now = self._clock()
            for thread, begun in self._begun.items():  # work that goes on counts up to now
                self._busy += now - begun
                self._begun[thread] = now
            load = self._busy / max(1e-6, (now - self._since) * self._workers)
            self._busy, self._since = 0.0, now
        return min(1.0, load)


class Weighing:
    """A subscriber's looks at its load, every `interval` seconds, and the weight that comes of them."""

    def __init__(self, meter: LoadMeter, capacity: float, interval: float) -> None:
        self.interval = interval
        self._meter = meter
        self._capacity = self._weight = capacity
        self._load = 0.0
        self._looked = time.monotonic()

    @property
    def record(self) -> dict[str, float]:
        """What the others are told."""
        return {"capacity": self._capacity, "weight": self._weight, "load": self._load}

    def due(self) -> bool:
        """Whether it is time for a look."""
        return time.monotonic() - self._looked >= self.interval

    def look(self, fellows: Callable[[], Sequence[SubscriberRecord | None]]) -> None:
        """Measure the load, and ask for more or for less than before, beside those fellows who stay.

        They are only asked for if anything can come of it: whoever has its full share, and is not busy, keeps it.
        """
        self._looked = time.monotonic()
        load = round(self._meter.read(), 2)
        if load > BUSY_RATIO or self._weight < self._capacity:
            loads = [peer.load for peer in fellows() if peer is not None and not peer.leaving]
            self._weight = adjusted(self._weight, self._capacity, load, loads)
        if abs(load - self._load) >= LOAD_STEP_RATIO:
            self._load = load
