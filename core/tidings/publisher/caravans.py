"""Caravans: who reads a log for whom.

A caravan is one reader of a log, with the flows that ride on it. The one that is nearest to the head of the log leads.
Flows that fall behind, or have to start from the past, ride on others, until those are so near to one in front that the
two become one. Which flows should ride together is for an allocation policy to say. How flows come there is for this
module.

A flow can only change to a caravan that has not passed it: it rides along until its own place is reached. So when two
caravans become one, it is the one behind that goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tidings.logs import Reader
from tidings.positions import Position

BURST_S = 0.25  # whose share of a rate may be made up for


class Riding(Protocol):
    """A flow that rides: what is asked of it here."""

    @property
    def shard(self) -> int:
        """Its shard."""

    @property
    def sent(self) -> Position:
        """Where it stands."""

    @property
    def caravan(self) -> Caravan | None:
        """On which it rides."""


R = TypeVar("R", bound=Riding)


@dataclass(eq=False)
class Caravan:
    """One reader of a log."""

    number: int
    reader: Reader
    ordered: bool
    """Whether positions of all shards are of one order, as in a datastore's log."""
    at: dict[int, Position] = field(default_factory=dict)
    """Up to where it has read, in each shard that it read for its flows."""
    closed: bool = False
    idle_at: object = None
    """The bounds of the log at which it found nothing to read."""
    meter: ReadMeter = field(default_factory=lambda: ReadMeter())
    bulk: bool = False
    """Whether a Spark job sends for it: until that ends its flows stay."""
    ready: float = field(default_factory=time.monotonic)
    """When it may read again, if it is held back."""

    def passed(self, flow: Riding) -> bool:
        """Whether the flow stands behind it, so that it cannot ride."""
        here = self.at.get(flow.shard)
        if here is not None:
            return flow.sent < here
        return self.ordered and bool(self.at) and flow.sent < max(self.at.values())

    def throttle(self, rows: int, rate: float) -> None:
        """It has read so many rows: hold it back until that took as long as it takes at this rate."""
        if rate != math.inf:
            self.ready = max(self.ready, time.monotonic() - BURST_S) + rows / rate


class ReadMeter:
    """How many updates and bytes were read, and how fast.

    >>> meter = ReadMeter(clock=iter([0.0, 4.0, 4.0]).__next__)
    >>> meter.count(rows=100, size=5_000)
    >>> meter.rate, meter.rows, meter.bytes
    (25.0, 100, 5000)
    """

    SPAN_S = 4.0  # over which the rate is taken

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = self.bytes = 0
        self._clock = clock
        self._since = self._looked = clock()
        self._recent = 0.0

    def count(self, rows: int, size: int) -> None:
        """So much more was read."""
        self.rows += rows
        self.bytes += size
        self._decay()
        self._recent += rows

    @property
    def rate(self) -> float:
        """Updates a second, of late."""
        self._decay()
        return self._recent / max(1.0, min(self.SPAN_S, self._looked - self._since))

    def _decay(self) -> None:
        now = self._clock()
        self._recent *= math.exp(-(now - self._looked) / self.SPAN_S)
        self._looked = now


def assign(groups: Sequence[Sequence[R]], caravans: Sequence[Caravan]) -> list[tuple[Caravan | None, Sequence[R]]]:
    """The caravan that each group gets: one that has passed none of it, and has most of it already; None for a new one.

    A caravan has one group at most.
    """
    found: list[tuple[Caravan | None, Sequence[R]]] = []
    left = list(caravans)
    for group in sorted(groups, key=len, reverse=True):
        fit = [one for one in left if not any(one.passed(flow) for flow in group)]
        best = max(fit, key=lambda one: sum(flow.caravan is one for flow in group), default=None)
        if best is not None and best.at and not any(flow.caravan is best for flow in group):
            best = None  # it would have to read what nobody on it wants
        if best is not None:
            left.remove(best)
        found.append((best, group))
    return found
