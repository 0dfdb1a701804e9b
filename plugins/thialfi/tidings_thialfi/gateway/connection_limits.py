"""Who may connect to a gateway, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class AddressQuota:
    """So many of something in all, and so many of one address.

    >>> quota = AddressQuota(most=2, most_per_address=1)
    >>> quota.accept("10.0.0.1"), quota.accept("10.0.0.1"), quota.accept("10.0.0.2"), quota.accept("10.0.0.3")
    (None, 'address', None, 'connections')
    """

    def __init__(self, *, most: int, most_per_address: int) -> None:
        self.most = most
        self._most_per_address = most_per_address
        self._by_address: Counter[str] = Counter()
        self.open = 0
        """How many there are."""
        self.closed = 0
        """How many there have been that are gone."""

    def accept(self, address: str, *, shared: bool = False) -> str | None:
        """Count one more, which must be released; or the limit that keeps it out.

        An address that is `shared`, as a proxy's is, has no limit of its own.
        """
        if self.open >= self.most:
            return "connections"
        if not shared and self._by_address[address] >= self._most_per_address:
            return "address"
        self._by_address[address] += 1
        self.open += 1
        return None

    def release(self, address: str) -> None:
        """One that was accepted is gone."""
        self.open -= 1
        self.closed += 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class Origins:
    """The pages that may connect.

    >>> origins = Origins(["https://app.example"])
    >>> origins.allow(None), origins.allow("https://app.example/"), origins.allow("https://evil.example")
    (True, True, False)
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def allow(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect; what is no browser names none, and may."""
        if origin is None:
            return True
        return origin.isascii() and ("*" in self._origins or origin.rstrip("/") in self._origins)
