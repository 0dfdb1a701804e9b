"""The events that a listener is to be called with, and those at which it failed, which are delivered again later.

Of two events about the same thing only the newer is kept, so that a listener which never comes costs no more memory
than there are things that events are about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidings_thialfi.client.backoff import Backoff
from tidings_thialfi.client.listener import Event

NEVER = float("inf")


@dataclass(slots=True)
class _Failing:
    """At what the listener failed, if that still matters; when it is delivered again, and how the pauses grow."""

    pauses: Backoff
    at: float
    event: Event | None


class Events:
    """`stands` says whether an event still matters; `pauses` makes the pauses for one at which the listener fails."""

    def __init__(self, stands: Callable[[Event], bool], pauses: Callable[[], Backoff]) -> None:
        self._stands, self._pauses = stands, pauses
        self._waiting: dict[tuple[str, str], Event] = {}
        self._failing: dict[tuple[str, str], _Failing] = {}

    @property
    def waiting(self) -> bool:
        """Whether the listener has something to be told."""
        return bool(self._waiting)

    def emit(self, event: Event) -> None:
        """Deliver this, and nothing older about the same thing."""
        self._waiting.pop(event.key, None)
        self._waiting[event.key] = event
        if failing := self._failing.get(event.key):
            failing.at, failing.event = NEVER, None

    def next(self) -> Event | None:
        """The next event that still matters."""
        while self._waiting:
            event = self._waiting.pop(next(iter(self._waiting)))
            if self._stands(event):
                return event
        return None

    def fail(self, event: Event, now: float) -> None:
        """The listener has failed at this: deliver it again after a pause, longer than the one before."""
        failing = self._failing.setdefault(event.key, _Failing(self._pauses(), NEVER, None))
        failing.at, failing.event = now + failing.pauses.next(), event

    def settle(self, key: tuple[str, str]) -> None:
        """This was delivered. A later one about the same thing may be waiting to be delivered again, and stays."""
        failing = self._failing.get(key)
        if failing is not None and (
            failing.event is None or failing.event.handle is None or not self._stands(failing.event)
        ):
            del self._failing[key]

    def drop(self, key: tuple[str, str]) -> None:
        """This matters no more."""
        self._waiting.pop(key, None)
        self._failing.pop(key, None)

    def wake(self) -> float:
        """When something is to be delivered again."""
        return min((one.at for one in self._failing.values()), default=NEVER)

    def act(self, now: float) -> None:
        """Queue what is to be delivered again by now."""
        for key, failing in self._failing.items():
            if failing.event is not None and now >= failing.at:
                self._waiting.setdefault(key, failing.event)
                failing.at, failing.event = NEVER, None
