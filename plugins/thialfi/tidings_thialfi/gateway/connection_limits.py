"""Who may connect to a gateway, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class ConnectionLimits:
    """Who may connect: so many in all, so many from an address, and from these pages.

    >>> limits = ConnectionLimits(most=2, most_per_address=1, origins=["https://app.example"])
    >>> limits.accept("10.0.0.1", None), limits.accept("10.0.0.1", None)
    (None, 'address')
    >>> limits.accept("10.0.0.2", "https://evil.example"), limits.accept("10.0.0.2", "https://app.example")
    ('origin', None)
    >>> limits.accept("10.0.0.3", None)
    'connections'
    """

    def __init__(self, *, most: int, most_per_address: int, origins: Iterable[str]) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._origins = frozenset(origins)
        self._by_address: Counter[str] = Counter()
        self.open = 0
        """How many connections there are."""
        self.closed = 0
        """How many there have been that are gone."""

    def allows(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect; what is no browser names none, and may."""
        return origin is None or "*" in self._origins or origin.rstrip("/") in self._origins

    def accept(self, address: str, origin: str | None) -> str | None:
        """Count one more connection, which must be released; or the limit that keeps it out."""
        if not self.allows(origin):
            return "origin"
        if self.open >= self._most:
            return "connections"
        if self._by_address[address] >= self._most_per_address:
            return "address"
        self._by_address[address] += 1
        self.open += 1
        return None

    def release(self, address: str) -> None:
        """A connection that was accepted is gone."""
        self.open -= 1
        self.closed += 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
