"""What a client tells its application: events, and the listener whose methods are called with them.

An event that was not delivered yet is replaced by a newer one about the same thing, so that a listener which is slow
costs no more memory than the objects that the client is registered for.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Handle:
    """Stands for one notification, until it is acknowledged."""

    object: str
    version: int
    unknown: bool
    client: int


class Listener:
    """An application's side of a client: override what you need. Methods are called one at a time.

    A notification counts as acknowledged when the method returns. A method that has a parameter `handle` is given one,
    and the application acknowledges it when it likes: `client.acknowledge(handle)`. A method that raises is called
    again later, with pauses that grow, unless something newer has taken the place of what it was told. An asynchronous
    client also takes methods that are coroutines.

    >>> class Contacts(Listener):
    ...     def notify(self, object: str, version: int, payload: bytes | None = None) -> None:
    ...         print(f"fetch {object}, version {version}")
    """

    def ready(self) -> Any:
        """The client has a number of the service's: at its first grant, or at once if it was started with a state.

        Whatever is registered before that is sent then.
        """

    def notify(self, object: str, version: int, payload: bytes | None = None) -> Any:
        """An object has this version. The payload is there if the update had one that was small enough."""

    def notify_unknown(self, object: str) -> Any:
        """An object may have any version: fetch it."""

    def notify_all(self) -> Any:
        """Any object may have changed: look at all of them."""

    def registration_status_changed(self, object: str, registered: bool) -> Any:
        """The service has, or no longer has, a registration for this object."""

    def registration_failure(self, object: str, transient: bool, reason: str) -> Any:
        """The service refused a registration, and the client does not try again; if `transient`, you may later.

        You are told this of each object, too, when the client gives up because it is not let in.
        """

    def reissue_registrations(self) -> Any:
        """Register for everything you want: after each start, and when the service had forgotten this client.

        To register again for what the client knows already costs nothing. Whatever is not registered within a few
        seconds of a start is unregistered.
        """

    def write_state(self, state: bytes) -> Any:
        """Keep this, and pass it to `start` next time. It holds a secret: keep it from others."""

    def error(self, code: str, message: str, permanent: bool) -> Any:
        """Something is wrong; if `permanent`, the client has given up, and may be stopped and started again.

        `code` is one of the protocol's (`rate`, `denied`, `unavailable`, …), or `disconnected`: the client connects
        again by itself; `credentials`: the application's callable failed; `refused`: the gateway closed the channel for
        good; `internal`: a fault of the client.
        """


@dataclass(frozen=True, slots=True)
class Event:
    """One call of a listener's method."""

    method: str
    arguments: tuple[Any, ...] = field(default=(), repr=False)  # may be a state, with its token
    about: str = ""
    handle: Handle | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What it is about: of two events with the same key, only the newer matters."""
        return self.method, self.about


def call(listener: Listener, event: Event) -> tuple[bool, Any]:
    """Call a listener with an event; whether the application acknowledges by itself, and what the method returned."""
    method = getattr(listener, event.method)
    if event.handle is not None and "handle" in inspect.signature(method).parameters:
        return True, method(*event.arguments, handle=event.handle)
    return False, method(*event.arguments)
