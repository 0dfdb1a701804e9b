"""Allocation policies: which flows of a stream should share a reader of its log.

A policy is a pure function of where the flows are. `single` is built in; others are found by their names among the
entry points of the group `tidings.allocation`. The plugin for log tailing has `gaps`, which is used where no policy is
named, if the plugin is there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidOption, PluginBroken, PluginMissing
from tidings.plugins import load

GROUP = "tidings.allocation"
PREFERRED = "gaps"
MAX_CARAVANS = 8  # unless the limits say otherwise
MAX_RATE = 1e15  # updates a second, which is more than there are
CATCH_UP_RATIO = 1.25  # how much faster than the lead the others may always read, whatever the limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the caravans of a stream may do, in one publisher.

    `caravans` is how many there may be; `rate` how many updates a second one may read, `total_rate` all together.
    """

    caravans: int = MAX_CARAVANS
    rate: float | None = None
    total_rate: float | None = None

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.rate, self.total_rate) if rate is not None]
        sane = type(self.caravans) is int and all(type(rate) in (int, float) and 0 < rate < MAX_RATE for rate in rates)
        if not sane or self.caravans < 1:
            raise InvalidOption(f"{self} cannot be: at least one caravan, and rates above 0")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits that an operator has set, or a stream's definition."""
        return cls(value.get("caravans") or MAX_CARAVANS, value.get("rate"), value.get("total_rate"))

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
        cap = min(one / CATCH_UP_RATIO, together / (1 + CATCH_UP_RATIO * trailing))
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


def single(riders: Sequence[Rider], limits: Limits) -> Sequence[Sequence[Rider]]:
    """All flows on one caravan: nothing is read twice, and those in front wait for those behind."""
    return [riders] if riders else []


BUILT_IN: Mapping[str, AllocationPolicy] = {"single": single}


def policy(name: str) -> AllocationPolicy:
    """The policy of that name."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        found: AllocationPolicy = load(GROUP, name)
    except PluginMissing as error:
        raise PluginMissing(f"{error}; {', '.join(BUILT_IN)} is always there") from None
    return found


def default_policy() -> str:
    """The name of the policy for those who name none."""
    try:
        load(GROUP, PREFERRED)
    except PluginMissing:
        return "single"
    except PluginBroken as error:
        logger.warning("all flows of a stream share one reader: %s", error)
        return "single"
    return PREFERRED
