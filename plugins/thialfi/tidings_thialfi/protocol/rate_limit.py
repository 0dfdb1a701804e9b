"""A rate: so many messages, entries or bytes a second, for what a client sends and for what a gateway takes from it."""

from __future__ import annotations


class Bucket:
    """Lets `burst` messages pass at once, and `rate` a second in the long run. The clock is passed in.

    More than `burst` at once pass when it is full, and those that follow wait the longer.

    >>> bucket = Bucket(rate=2, burst=3)
    >>> [bucket.take(now=10.0) for _ in range(4)], bucket.ready(now=10.0)
    ([True, True, True, False], 10.5)
    """

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), float("-inf")

    def take(self, now: float, count: int = 1) -> bool:
        """Whether so many more may pass now; if so, they have."""
        if self.ready(now, count) > now:
            return False
        self.spend(count)
        return True

    def spend(self, count: int) -> None:
        """So many have passed."""
        self._left -= count

    def ready(self, now: float, count: int = 1) -> float:
        """When so many more may pass."""
        self._fill(now)
        lacking = min(count, self._burst) - self._left
        return now if lacking <= 0 else now + lacking / self._rate

    def resize(self, now: float, rate: float, burst: int) -> None:
        """From now on another rate; what is left stays, as far as it has room."""
        self._fill(now)
        self._rate, self._burst = rate, burst

    def full(self, now: float) -> bool:
        """Whether it is as a new one."""
        self._fill(now)
        return self._left >= self._burst

    def _fill(self, now: float) -> None:
        if now > self._at:
            # A shade more than due: rounding must not make a caller wake up just before its time, again and again.
            self._left = min(self._burst, self._left + (now - self._at) * self._rate + 1e-9)
        self._at = now
