"""A lease: how long this process may believe that its ZooKeeper session is alive, by its own clock.

ZooKeeper's leader ends a session when it has heard nothing for the session's time-out. A request that the leader has
answered was heard after it was sent; so the session lives at least for the time-out from that moment on. A process that
was stopped, or cut off, sees its lease run out before others may have taken its place. A plain read would not do: a
server that is cut off from its leader still answers those.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tidings.coordination.zookeeper import Coordination
from tidings.errors import TidingsError

RENEWALS = 3  # in a session's time-out
VALID_RATIO = 0.9  # of a session's time-out; the rest is for clocks that do not run alike


class Lease:
    """Renewed in the background, three times in a session's time-out, which is as often as kazoo tells that the session
    lives if nothing else is said. Close it to end that."""

    def __init__(self, coordination: Coordination, clock: Callable[[], float] = time.monotonic) -> None:
        self._coordination = coordination
        self._clock = clock
        self._expires = 0.0
        self._stopped = threading.Event()
        self._renew()
        self._thread = threading.Thread(target=self._run, name="tidings-lease", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """The thread that renews it."""
        return self._thread

    def valid(self) -> bool:
        """Whether the session is alive for certain."""
        return self._clock() < self._expires

    def void(self) -> None:
        """The session is over: nothing is certain until ZooKeeper has answered again."""
        self._expires = 0.0

    def close(self) -> None:
        """End the renewal, and the lease."""
        self._stopped.set()
        self.void()

    def _run(self) -> None:
        while not self._stopped.wait(self._coordination.session_timeout / RENEWALS):
            try:
                self._renew()
            except TidingsError:
                continue  # the lease runs out by itself

    def _renew(self) -> None:
        sent = self._clock()
        self._coordination.ping()
        if not self._stopped.is_set():
            self._expires = sent + VALID_RATIO * self._coordination.session_timeout
