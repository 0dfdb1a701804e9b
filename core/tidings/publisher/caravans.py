"""Caravans: who reads a log for whom.

A caravan is one reader of a log, with the flows that ride on it. The one that is nearest to the head of the log leads.
Flows that fall behind, or have to start from the past, ride on others, until those are so near to one in front that the
two become one. Which flows should ride together is for an allocation policy to say, a pure function that is found by
its name among the entry points of the group `tidings.allocation`. How flows come there is for this module.

A flow can only change to a caravan that has not passed it: it rides along until its own place is reached. So when two
caravans become one, it is the one behind that goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tidings.errors import InvalidOption
from tidings.logs import Reader
from tidings.positions import Position

CARAVANS = 8
BURST = 0.25  # seconds whose share of a rate may be made up for
FASTER = 1.25  # how much faster than the lead the others may always read, whatever the limits


@dataclass(frozen=True, slots=True)
class Limits:
    """What the caravans of a stream may do, in one publisher.

    `caravans` is how many there may be; `rate` how many updates a second one may read, `total_rate` all together.
    """

    caravans: int = CARAVANS
    rate: float | None = None
    total_rate: float | None = None

    def __post_init__(self) -> None:
        if self.caravans < 1 or any(rate is not None and rate <= 0 for rate in (self.rate, self.total_rate)):
            raise InvalidOption(f"{self} cannot be: at least one caravan, and rates above 0")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits that an operator has set, or a stream's definition."""
        return cls(value.get("caravans") or CARAVANS, value.get("rate"), value.get("total_rate"))

    def allowances(self, lead: float, trailing: int) -> tuple[float, float]:
        """How fast the lead may read, and each of the others, if the lead reads so many updates a second.

        The others can always gain on the lead.

        >>> Limits(total_rate=1000).allowances(lead=100, trailing=3)
        (210.52631578947367, 300.0)
        >>> Limits().allowances(lead=100, trailing=3)
        (inf, inf)
        """
        one, together = self.rate or math.inf, self.total_rate or math.inf
        if not trailing:
            return min(one, together), math.inf
        cap = min(one / FASTER, together / (1 + FASTER * trailing))
        return cap, min(one, (together - min(lead, cap)) / trailing if together != math.inf else math.inf)


@dataclass(frozen=True, slots=True)
class Rider:
    """A flow, as a policy sees it: `behind` is about how many updates lie between it and the head of the log.

    An application has a flow for each shard; each gets its own part of what is read.
    """

    flow: Hashable
    behind: int
    shard: int = 0


AllocationPolicy = Callable[[Sequence[Rider], Limits], Sequence[Sequence[Rider]]]
"""Which flows should ride together: each of them in one group, and no more groups than the limits allow."""


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
    meter: Meter = field(default_factory=lambda: Meter())
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

    def hold_back(self, rows: int, rate: float) -> None:
        """It has read so many rows: let it wait until that took as long as it takes at this rate."""
        if rate != math.inf:
            self.ready = max(self.ready, time.monotonic() - BURST) + rows / rate


class Meter:
    """How many updates and bytes were read, and how fast.

    >>> meter = Meter(clock=iter([0.0, 4.0, 4.0]).__next__)
    >>> meter.count(rows=100, size=5_000)
    >>> meter.rate, meter.rows, meter.bytes
    (25.0, 100, 5000)
    """

    SPAN = 4.0  # seconds over which the rate is taken

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
        return self._recent / max(1.0, min(self.SPAN, self._looked - self._since))

    def _decay(self) -> None:
        now = self._clock()
        self._recent *= math.exp(-(now - self._looked) / self.SPAN)
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
