"""A start after an earlier run, whose registrations the service may still have: the application says them again first.

Until it has, the digest would only look like a difference, and notices are for objects that are not registered yet.
Then the digests are compared; if the service sends none, all registrations are sent.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidings_thialfi.protocol.messages import Notice

NEVER = float("inf")


class Resuming:
    """Registrations count as complete `settle` seconds after the last; a digest is awaited for `patience` after that.

    >>> resuming = Resuming(settle=1, patience=30, most=1024)
    >>> resuming.begin(now=0)
    >>> resuming.reissued(now=2)
    >>> resuming.registered(now=2.5)
    >>> resuming.settled(now=3.4), resuming.settled(now=3.5), resuming.settling
    (False, True, False)
    """

    def __init__(self, settle: float, patience: float, most: int) -> None:
        self._pause, self._patience, self._most = settle, patience, most
        self._settle = self._latest = self._give_up = NEVER
        self._held: dict[tuple[str, bool], Notice] = {}

    @property
    def settling(self) -> bool:
        """Whether the application is still to register for some of what it wants."""
        return self._settle != NEVER

    @property
    def wake(self) -> float:
        """When `settled` or `gave_up` may come true."""
        return min(self._settle, self._give_up)

    def begin(self, now: float) -> None:
        """The client has started, and the application will be asked for its registrations."""
        self._settle = now + self._patience

    def reissued(self, now: float) -> None:
        """The application was asked."""
        if self.settling:
            self._settle, self._latest = now + self._pause, now + self._patience

    def registered(self, now: float) -> None:
        """The application has registered for something."""
        if self.settling:
            self._settle = min(max(self._settle, now + self._pause), self._latest)

    def settled(self, now: float) -> bool:
        """Whether the registrations are complete; true once."""
        if now < self._settle:
            return False
        self._settle, self._give_up = NEVER, now + self._patience
        return True

    def gave_up(self, now: float) -> bool:
        """Whether the service has had time enough to send a digest; true once."""
        if now < self._give_up:
            return False
        self._give_up = NEVER
        return True

    def end(self) -> None:
        """What the service has is known, or will be sent to it."""
        self._settle = self._give_up = NEVER
        self._held.clear()

    def hold(self, notice: Notice) -> None:
        """Keep a notice for an object that may be registered for in a moment: the service will not repeat it soon."""
        key = notice.name, notice.unknown
        if key in self._held or len(self._held) < self._most:
            self._held[key] = max(notice, self._held.get(key, notice), key=lambda one: one.version)

    def release(self, name: str) -> Iterator[Notice]:
        """What was kept of an object."""
        for unknown in (False, True):
            if notice := self._held.pop((name, unknown), None):
                yield notice
