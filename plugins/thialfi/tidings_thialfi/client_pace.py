"""How fast a client goes: pauses that grow, and so many messages a second."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double from `first` to `most` seconds, each shortened by chance so that clients do not act as one.

    >>> pauses = Backoff(1, 300, random.Random(7))
    >>> [round(pauses.next(), 1) for _ in range(5)]
    [0.7, 1.2, 3.3, 4.3, 12.3]
    """

    def __init__(self, first: float, most: float, rng: random.Random) -> None:
        self._first, self._most, self._rng = first, most, rng
        self.attempts = 0

    def next(self) -> float:
        """The next pause, longer than the one before."""
        longest = min(self._most, self._first * 2.0 ** min(self.attempts, 40))
        self.attempts += 1
        return longest * self._rng.uniform(0.5, 1)

    def reset(self) -> None:
        """Begin again with the shortest."""
        self.attempts = 0


class Bucket:
    """Lets `burst` messages pass at once, and `rate` a second in the long run.

    >>> bucket = Bucket(rate=2, burst=3)
    >>> [bucket.take(now=10.0) for _ in range(4)], bucket.ready(now=10.0)
    ([True, True, True, False], 10.5)
    """

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
