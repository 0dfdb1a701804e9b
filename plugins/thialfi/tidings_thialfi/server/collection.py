"""The streams of a service do not grow for ever: what later rows say again is collected now and then.

A notification is made obsolete by a later one of the same kind to the same client about the same object, and an
operation by a later one of the same kind by the same client on the same object. A client that was away loses nothing by
it: when it comes back it is told the latest version of all that it has not acknowledged, whatever the stream holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from tidings.collection import collect
from tidings.streams import Stream

INTERVAL_S = 60.0
POLICIES: dict[str, dict[str, Any]] = {
    "operations": {"latest_per_key": {"key": ["object", "attributes.op", "attributes.object?"]}},
    "notifications": {"latest_per_key": {"key": ["object", "attributes.say", "attributes.object?"]}},
}
"""By which the two streams of a service are made."""

logger = logging.getLogger(__name__)


class StreamCollection:
    """Collects some streams in a thread of its own, if it is time to."""

    def __init__(self, streams: Sequence[Stream], interval_s: float = INTERVAL_S) -> None:
        self._streams = [stream for stream in streams if stream.definition.collect]
        self._interval_s = interval_s
        self._due = time.monotonic() + interval_s
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Collect, if it is long since the last time."""
        if time.monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = time.monotonic() + self._interval_s
        self._thread = threading.Thread(target=self._collect, name="tidings-thialfi-collection", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join()

    def _collect(self) -> None:
        for stream in self._streams:
            try:
                collect(stream.definition, stream.log)
            except Exception as error:  # noqa: BLE001 - somebody else collects it, say; there will be another time
                logger.warning("stream %r was not collected, and will be later: %s", stream.name, error)
