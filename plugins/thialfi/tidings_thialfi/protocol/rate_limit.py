"""A rate: so many messages a second, for what a client sends and for what a gateway takes from it."""

from __future__ import annotations


class Bucket:
    """Lets `burst` messages pass at once, and `rate` a second in the long run. The clock is passed in.

    >>> bucket = Bucket(rate=2, burst=3)
    >>> [bucket.take(now=10.0) for _ in range(4)], bucket.ready(now=10.0)
    ([True, True, True, False], 10.5)
    """

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), float("-inf")

    def take(self, now: float) -> bool:
        """Whether one more may pass now; if so, it has."""
        self._fill(now)
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def ready(self, now: float) -> float:
        """When the next may pass."""
        self._fill(now)
        return now if self._left >= 1 else now + (1 - self._left) / self._rate

    def _fill(self, now: float) -> None:
        if now > self._at:
            # A shade more than due: rounding must not make a caller wake up just before its time, again and again.
            self._left = min(self._burst, self._left + (now - self._at) * self._rate + 1e-9)
        self._at = now
