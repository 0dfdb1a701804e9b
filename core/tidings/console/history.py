"""What was, for a while: rates and lags over time, in rings of bounded size."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from tidings.flows import Flow

POINTS = 900  # half an hour, every two seconds
RATE_WINDOW_S = 10.0
MISSED = 3  # readings without a flow, after which its line breaks off
MAX_STREAMS = 1000
MAX_FLOWS = 400
WORST_FLOWS = 200

K = TypeVar("K")


class OverviewPoint(NamedTuple):
    """The cluster at one moment."""

    time: float
    updates_per_second: float | None
    worst_lag_seconds: float | None
    lag: int | None


class LagPoint(NamedTuple):
    """A flow at one moment."""

    time: float
    lag: int | None
    lag_seconds: float | None


class Counters(Generic[K]):
    """Numbers that grow, of many things, and how fast they did of late.

    >>> counters = Counters[str]()
    >>> for time, count in ((0.0, 100), (5.0, 150), (10.0, 200)):
    ...     counters.note("contacts", time, count)
    >>> counters.rate("contacts", 10.0)
    10.0
    """

    def __init__(self) -> None:
        self._seen: dict[K, deque[tuple[float, int]]] = {}

    def note(self, key: K, time: float, count: int) -> None:
        """It was so much at this time. One that is smaller than before has begun anew."""
        seen = self._seen.setdefault(key, deque())
        if seen and count < seen[-1][1]:
            seen.clear()
        if not seen or time > seen[-1][0]:
            seen.append((time, count))
        while len(seen) > 2 and seen[1][0] <= time - RATE_WINDOW_S:
            seen.popleft()

    def keep(self, keys: Iterable[K]) -> None:
        """Forget the others."""
        wanted = set(keys)
        self._seen = {key: seen for key, seen in self._seen.items() if key in wanted}

    def rate(self, key: K, now: float) -> float | None:
        """How much more it is a second, of late; None if that is not known."""
        seen = self._seen.get(key) or deque[tuple[float, int]]()
        if len(seen) < 2 or seen[-1][0] < now - 3 * RATE_WINDOW_S:
            return None
        (first, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - first)


@dataclass
class History:
    """The rings. One thread adds, any reads.

    Where nothing was measured for a while there is a point of which nothing is known, so that no line is drawn over it.
    """

    overview: deque[OverviewPoint] = field(default_factory=lambda: deque(maxlen=POINTS))
    _streams: dict[str, deque[tuple[float, float | None]]] = field(default_factory=dict)
    _flows: OrderedDict[Flow, deque[LagPoint]] = field(default_factory=OrderedDict)
    _looked_at: OrderedDict[Flow, None] = field(default_factory=OrderedDict)
    _failed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        point: OverviewPoint,
        rates: Mapping[str, float | None],
        lags: Mapping[Flow, tuple[int | None, float | None]],
    ) -> None:
        """How things stand now; `lags` are those of the flows that are to be kept in mind."""
        with self._lock:
            recent = [one.time for one in list(self.overview)[-MISSED:]]
            failed, self._failed = self._failed, False
            if failed and recent:
                self.overview.append(OverviewPoint(_between(recent[-1], point.time), None, None, None))
            self.overview.append(point)
            for gone in self._streams.keys() - rates.keys():
                del self._streams[gone]
            for stream, rate in rates.items():
                if stream in self._streams or len(self._streams) < MAX_STREAMS:
                    ring = self._streams.setdefault(stream, deque(maxlen=POINTS))
                    if failed and ring:
                        ring.append((_between(ring[-1][0], point.time), None))
                    ring.append((point.time, rate))
            for flow, lag in lags.items():
                points = self._flows.setdefault(flow, deque(maxlen=POINTS))
                if points and (failed or points[-1].time < min(recent, default=0.0)):
                    points.append(LagPoint(_between(points[-1].time, point.time), None, None))
                points.append(LagPoint(point.time, *lag))
                self._flows.move_to_end(flow)
            while len(self._flows) > MAX_FLOWS:
                self._flows.popitem(last=False)

    def fail(self) -> None:
        """Nothing could be measured now."""
        with self._lock:
            self._failed = True

    def look_at(self, flow: Flow) -> None:
        """Somebody looks at a flow: keep it in mind."""
        with self._lock:
            self._looked_at[flow] = None
            self._looked_at.move_to_end(flow)
            while len(self._looked_at) > MAX_FLOWS - WORST_FLOWS:
                self._looked_at.popitem(last=False)

    def looked_at(self) -> list[Flow]:
        """Whom somebody looked at."""
        with self._lock:
            return list(self._looked_at)

    def points(self) -> list[OverviewPoint]:
        """The overview over time, oldest first."""
        with self._lock:
            return list(self.overview)

    def stream(self, name: str) -> dict[str, Any]:
        """A stream's rate over time."""
        with self._lock:
            points = list(self._streams.get(name, ()))
        return {"times": [time for time, _ in points], "updates_per_second": [rate for _, rate in points]}

    def flow(self, flow: Flow) -> dict[str, Any]:
        """A flow's lag over time, as far as it was kept in mind."""
        with self._lock:
            points = list(self._flows.get(flow, ()))
        return {
            "times": [one.time for one in points],
            "lag": [one.lag for one in points],
            "lag_seconds": [one.lag_seconds for one in points],
        }


def _between(one: float, other: float) -> float:
    return round((one + other) / 2, 3)
