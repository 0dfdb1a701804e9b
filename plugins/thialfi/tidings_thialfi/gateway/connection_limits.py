"""Who may connect to a gateway, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Doors:
    """Who may connect: so many in all, so many from an address, and from these pages.

    >>> doors = Doors(most=2, most_per_address=1, origins=["https://app.example"])
    >>> doors.enter("10.0.0.1", None), doors.enter("10.0.0.1", None)
    (None, 'address')
    >>> doors.enter("10.0.0.2", "https://evil.example"), doors.enter("10.0.0.2", "https://app.example")
    ('origin', None)
    >>> doors.enter("10.0.0.3", None)
    'connections'
    """

    def __init__(self, *, most: int, most_per_address: int, origins: Iterable[str]) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._origins = frozenset(origins)
        self._inside: Counter[str] = Counter()
        self.inside = 0
        self.left = 0
        """How many have been inside and are gone."""

    def admits(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect; what is no browser names none, and may."""
        return origin is None or "*" in self._origins or origin.rstrip("/") in self._origins

    def enter(self, address: str, origin: str | None) -> str | None:
        """Let one in, who must `leave`; or the limit that keeps it out."""
        if not self.admits(origin):
            return "origin"
        if self.inside >= self._most:
            return "connections"
        if self._inside[address] >= self._most_per_address:
            return "address"
        self._inside[address] += 1
        self.inside += 1
        return None

    def leave(self, address: str) -> None:
        """One that was let in has gone."""
        self.inside -= 1
        self.left += 1
        self._inside[address] -= 1
        if not self._inside[address]:
            del self._inside[address]
