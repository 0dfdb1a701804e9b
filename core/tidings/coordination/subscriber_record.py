"""What a running subscriber tells of itself in ZooKeeper, for publishers and for its fellows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_WEIGHT = 1e9  # a capacity is at most 1e6


class SubscriberRecord(NamedTuple):
    """A live subscriber, as it describes itself."""

    weight: float
    load: float
    leaving: bool
    unreachable: Mapping[str, str]
    """Why it has no exchange with publishers that have flows for it."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SubscriberRecord | None:
        """The subscriber that has put this there; None if it makes no sense."""
        try:
            capacity, load = float(value["capacity"]), float(value.get("load", 0))
            weight = float(value.get("weight", capacity))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        sane = 0 < weight <= MAX_WEIGHT and 0 <= load <= 1
        unreachable = value.get("unreachable")
        troubles = unreachable if isinstance(unreachable, dict) else {}
        return cls(weight, load, bool(value.get("leaving")), troubles) if sane else None
