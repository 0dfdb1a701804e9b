"""What a publisher counts, by application and stream: never by flow, of which there may be ten thousand.

Each number is changed under the lock of its stream, and read without it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from tidings.flows import Flow


@dataclass(slots=True)
class FlowCounters:
    """What has happened to the flows of one application in one stream since the publisher started."""

    taken: int = 0
    """Flows that became ours, each in an epoch of its own."""
    fenced: int = 0
    """Flows that another publisher had taken when something was to be written."""
    restarts: int = 0
    """Turns that broke off, to begin again at the datamarker."""
    failures: int = 0
    """Flows that were parked."""
    put_aside: int = 0
    """Updates at which a handler failed, and after which their flows went on."""
    losses: int = 0
    """Ranges of updates that subscribers were told to be lost."""
    updates_sent: int = 0
    bytes_sent: int = 0
    updates_skipped: int = 0
    datamarkers: int = 0


class PublisherCounters:
    """The counters of one publisher."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], FlowCounters] = {}

    def of(self, flow: Flow) -> FlowCounters:
        """The counters that a flow shares with the others of its application and stream."""
        return self._flows.setdefault((flow.application, flow.stream), FlowCounters())

    def keep(self, applications: Container[str]) -> None:
        """Forget all other applications, which are no more."""
        for key in [key for key in self._flows if key[0] not in applications]:
            del self._flows[key]

    def all(self) -> dict[tuple[str, str], FlowCounters]:
        """All of them, by application and stream."""
        return dict(self._flows)
