"""What a running subscriber tells of itself in ZooKeeper, for publishers and for its fellows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class SubscriberRecord(NamedTuple):
    """A live subscriber, as it describes itself."""

    address: str
    weight: float
    load: float
    leaving: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SubscriberRecord | None:
        """The subscriber that has put this there; None if it makes no sense."""
        try:
            address, capacity, load = str(value["address"]), float(value["capacity"]), float(value.get("load", 0))
            weight = float(value.get("weight", capacity))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        sane = 0 < weight < float("inf") and 0 <= load <= 1
        return cls(address, weight, load, bool(value.get("leaving"))) if sane else None
