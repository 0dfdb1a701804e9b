"""How long a client waits before it tries again."""

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
