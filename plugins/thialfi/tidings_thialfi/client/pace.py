"""How fast a client goes, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How fast a client goes, in seconds. The service may ask for another heartbeat."""

    first_retry: float = 1.0
    most_retry: float = 300.0
    answer: float = 5.0
    """So long are operations left to the service, which works in batches, before they are sent again."""
    heartbeat: float = 1200.0
    rate: float = 5.0
    burst: int = 20
    settle: float = 1.0
    """After a start, registrations count as complete when none has come for so long."""
    resume: float = 30.0
    """So long is a digest of the service awaited after that, before all registrations are sent."""
    gather: float = 0.2
    """So long are acknowledgements gathered while the listener has more to be told."""
    held: int = 1024
    """So many notices for objects that are not registered for yet are kept after a start."""
