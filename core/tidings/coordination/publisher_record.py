"""What a running publisher tells of itself in ZooKeeper, as subscribers read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidings.protocol_versions import SpokenVersions


class PublisherRecord(NamedTuple):
    """A live publisher: where it is reached, and of which applications it has flows."""

    address: str
    applications: frozenset[str]
    spoken: SpokenVersions

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PublisherRecord | None:
        """The publisher that has put this there; None if it makes no sense."""
        address, applications = value.get("address"), value.get("applications")
        if not isinstance(address, str) or not isinstance(applications, list):
            return None
        named = frozenset(name for name in applications if isinstance(name, str))
        return cls(address, named, SpokenVersions.from_json(value))
