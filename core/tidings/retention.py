"""What datastores keep of their logs for our sake: how many bytes, and which flow they are kept for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidings.flows import Flow
from tidings.logs import Log, RetainingLog
from tidings.positions import Position

MUCH_BYTES = 2**30  # of a log that a datastore keeps without a limit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetainedBy:
    """So many bytes are kept, for the flow that stands behind all others."""

    bytes: int
    room: int | None
    """How many more would be kept; None if there is no limit."""
    status: str | None
    flow: Flow

    @property
    def much(self) -> bool:
        """Whether operators should know of it: it is half of what would be kept, or 1 GiB if there is no limit.

        >>> RetainedBy(700, 300, None, Flow("cache", "shop", 0)).much
        True
        """
        return self.bytes >= (MUCH_BYTES if self.room is None else (self.bytes + self.room) / 2)

    def __str__(self) -> str:
        more = "" if self.room is None else f", and would keep {size_text(max(0, self.room))} more"
        return f"the datastore keeps {size_text(self.bytes)} of its log for {self.flow}{more}"

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper, and for programs."""
        return {**asdict(self), "flow": list(self.flow), "application": self.flow.application}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RetainedBy | None:
        """What `to_json` wrote; None if it makes no sense."""
        match value:
            case {
                "bytes": int(size),
                "room": int() | None as room,
                "flow": [str(application), str(stream), int(shard)],
            }:
                return cls(size, room, value.get("status"), Flow(application, stream, shard))
        return None


def retained_by(log: Log, stands: Mapping[Flow, Position]) -> RetainedBy | None:
    """What is kept for flows that stand at these places; None if that cannot be told, or there are none."""
    if not stands or not isinstance(log, RetainingLog):
        return None
    slowest = min(stands, key=lambda flow: (stands[flow], flow))
    found = log.retained(stands[slowest])
    return None if found is None else RetainedBy(*found, slowest)


class LogRetention:
    """Logs once when a datastore keeps much, and once when it does not any more."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def watch(self, stream: str, retained: RetainedBy | None) -> None:
        """So much is kept for a stream now."""
        if retained is not None and retained.much and stream not in self._told:
            self._told.add(stream)
            logger.warning("stream %r: %s; see `tidings flows list --stream %s`", stream, retained, stream)
        # Half as much, so that it is not told again and again where it is about that much.
        elif stream in self._told and (retained is None or not _twice(retained).much):
            self._told.discard(stream)
            kept = "nothing" if retained is None else size_text(retained.bytes)
            logger.warning("stream %r: the datastore keeps %s of its log by now", stream, kept)


def _twice(retained: RetainedBy) -> RetainedBy:
    room = None if retained.room is None else retained.room - retained.bytes
    return RetainedBy(2 * retained.bytes, room, retained.status, retained.flow)


def size_text(size: int) -> str:
    """Bytes as a person reads them.

    >>> size_text(700), size_text(3 * 2**29)
    ('700 B', '1.5 GiB')
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
