"""How kazoo waits for its sockets: it makes and closes an epoll object for each wait, several times a request.

With hundreds of sessions in a process, and thousands of requests, that is most of what they cost. There are never more
than two sockets to wait for, which `poll` does in one call.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class PollingHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no hints
    """Runs kazoo's callbacks in threads, and waits by `poll`."""

    def select(self, readers: Sequence[Any], writers: Sequence[Any], _: Any, timeout: float | None = None) -> Any:
        """Those that can be read, and those that can be written to; ValueError if one is closed."""
        poll, known = select.poll(), {}
        for sockets, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for one in sockets:
                poll.register(one.fileno(), event)  # ValueError for one that is closed
                known[one.fileno()] = one
        ready = poll.poll(None if timeout is None else timeout * 1000)
        found = {known[descriptor] for descriptor, _ in ready}
        return [one for one in readers if one in found], [one for one in writers if one in found], []
