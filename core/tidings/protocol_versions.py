"""Which versions of the protocol members speak, so that old and new ones run beside each other while they are upgraded.

A publisher and a subscriber say it in their records in ZooKeeper: `protocol` is the newest version that they speak, and
`oldest` the oldest. Two of them speak the newest that both know. Who says nothing is from before members said it, and
speaks the version of then. A release that changes what is said raises `PROTOCOL`, and speaks the version before it,
too: members can then be replaced one after the other, in any order. A later one raises `OLDEST`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

PROTOCOL = 3
OLDEST = 2
UNSAID = 2  # what those speak that do not say it


class SpokenVersions(NamedTuple):
    """What a member speaks.

    >>> SpokenVersions(4, 2).common(SpokenVersions(3, 3)), SpokenVersions(4, 4).common(SpokenVersions(3, 2))
    (3, None)
    """

    protocol: int
    oldest: int

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SpokenVersions:
        """What the member says that has put this record there.

        >>> SpokenVersions.from_json({})
        SpokenVersions(protocol=2, oldest=2)
        """
        protocol, oldest = record.get("protocol", UNSAID), record.get("oldest")
        if type(protocol) is not int:
            protocol = UNSAID
        return cls(protocol, min(oldest, protocol) if type(oldest) is int else protocol)

    def common(self, other: SpokenVersions) -> int | None:
        """The version that both speak."""
        both = min(self.protocol, other.protocol)
        return both if both >= max(self.oldest, other.oldest) else None

    def misfit(self, who: str, other: SpokenVersions, whom: str) -> str:
        """Why the two cannot speak with each other, and which of them is to be upgraded.

        >>> SpokenVersions(2, 2).misfit("this subscriber", SpokenVersions(4, 3), "the publisher")
        'the publisher speaks protocol 3 to 4, and this subscriber protocol 2: upgrade this subscriber'
        """
        older = who if self.protocol < other.protocol else whom
        return f"{whom} speaks {other}, and {who} {self}: upgrade {older}"

    def __str__(self) -> str:
        return f"protocol {self.protocol if self.oldest == self.protocol else f'{self.oldest} to {self.protocol}'}"


def own_versions() -> SpokenVersions:
    """What this process speaks."""
    return SpokenVersions(PROTOCOL, OLDEST)


def own_record() -> dict[str, Any]:
    """What a member says of it, and of which release of tidings it is."""
    return {"tidings": _release(), **own_versions()._asdict()}


@functools.cache
def _release() -> str:
    return version("tidings")
