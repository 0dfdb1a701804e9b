"""What a subscriber counts: by stream, and by callback, never by flow."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""As OpenTelemetry has them for `messaging.process.duration`."""


class StreamCounters:
    """What has happened to the flows of one stream since the subscriber started."""

    def __init__(self) -> None:
        self.updates = self.failures = 0
        self._lock = threading.Lock()

    def processed(self, updates: int) -> None:
        """So many updates were processed."""
        with self._lock:
            self.updates += updates

    def fail(self) -> None:
        """A flow was parked."""
        with self._lock:
            self.failures += 1


class CallbackTimes:
    """How long the calls of one callback took, in buckets, and how many of them failed.

    >>> times = CallbackTimes()
    >>> for seconds in (0.004, 0.3, 60.0):
    ...     times.observe(seconds)
    >>> times.buckets[:2], times.buckets[-2:], times.sum
    ([('0.005', 1), ('0.01', 1)], [('10.0', 2), ('+Inf', 3)], 60.304)
    """

    def __init__(self) -> None:
        self.sum = 0.0
        self.failures = 0
        self._counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self._lock = threading.Lock()

    def observe(self, seconds: float, *, failed: bool = False) -> None:
        """A call took so long."""
        place = bisect_left(DURATION_BUCKETS_S, seconds)
        with self._lock:
            self._counts[place] += 1
            self.sum += seconds
            self.failures += failed

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """How many calls took so long at most, as Prometheus has it."""
        with self._lock:
            counts = list(self._counts)
        bounds = [*map(str, DURATION_BUCKETS_S), "+Inf"]
        return [(bound, sum(counts[: place + 1])) for place, bound in enumerate(bounds)]


class SubscriberCounters:
    """The counters of one subscriber."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamCounters] = defaultdict(StreamCounters)
        self.callbacks: dict[str, CallbackTimes] = defaultdict(CallbackTimes)

    def called(self, callback: str, seconds: float, failed: bool) -> None:
        """The handler was called."""
        self.callbacks[callback].observe(seconds, failed=failed)
