"""What a running subscriber tells of itself in ZooKeeper, for publishers and for its fellows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidings.protocol_versions import SpokenVersions
from tidings.texts import short_texts

MAX_WEIGHT = 1e9  # a capacity is at most 1e6


class SubscriberRecord(NamedTuple):
    """A live subscriber, as it describes itself."""

    weight: float
    load: float
    leaving: bool
    unreachable: Mapping[str, str]
    """Why it has no exchange with publishers that have flows for it."""
    tried: Mapping[str, str]
    """At which addresses it has found that; former releases do not say it."""
    spoken: SpokenVersions

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SubscriberRecord | None:
        """The subscriber that has put this there; None if it makes no sense."""
        try:
            capacity, load = float(value["capacity"]), float(value.get("load", 0))
            weight = float(value.get("weight", capacity))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        sane = 0 < weight <= MAX_WEIGHT and 0 <= load <= 1
        troubles, tried = (_mapping(value.get(key)) for key in ("unreachable", "tried"))
        spoken = SpokenVersions.from_json(value)
        return cls(weight, load, bool(value.get("leaving")), troubles, tried, spoken) if sane else None

    def said_of(self, publisher: str, address: str) -> str | None:
        """What it says of a publisher that it cannot reach, as others tell it; None if that is of another address.

        In its own words "it" is the publisher, and "we" are the subscriber. What it has found at another address is of
        a publisher of the same name that ran there before.

        >>> said = {"unreachable": {"east": "it does not know our key"}, "tried": {"east": "10.0.0.7:7400"}}
        >>> record = SubscriberRecord.from_json({"capacity": 1, **said})
        >>> record.said_of("east", "10.0.0.7:7400")
        "the subscriber says of publisher 'east' at 10.0.0.7:7400: it does not know our key"
        >>> record.said_of("east", "10.0.0.8:7400")
        """
        if publisher not in self.unreachable or not _is_of(self.tried, publisher, address):
            return None
        where = f" at {address}" if publisher in self.tried else ""
        return f"the subscriber says of publisher {publisher!r}{where}: {self.unreachable[publisher]}"


def present_troubles(record: Mapping[str, Any], addresses: Mapping[str, Any]) -> dict[str, str]:
    """Why a subscriber cannot reach publishers, by its record, but for those that have another address by now.

    >>> said = {"unreachable": {"east": "it hung up", "west": "it hung up"}, "tried": {"east": "a:1", "west": "b:1"}}
    >>> present_troubles(said, {"east": "a:2", "west": "b:1"})
    {'west': 'it hung up'}
    """
    tried = _mapping(record.get("tried"))
    told = short_texts(record.get("unreachable"))
    return {name: why for name, why in told.items() if name not in addresses or _is_of(tried, name, addresses[name])}


def _is_of(tried: Mapping[str, Any], publisher: str, address: Any) -> bool:
    """Whether what was found may be of the publisher at this address: who does not say where may mean this one."""
    return publisher not in tried or tried[publisher] == address


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
