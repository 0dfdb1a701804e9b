"""Requests for a snapshot on demand, as ZooKeeper holds them: the newest of each stream.

```
/<root>/snapshots/<stream>   who is to get rows of which tables, where these stand in the log, and how it ended
```

A request goes through these states, and publishers do what is needed for the next:

| state | what holds |
| --- | --- |
| `holding` | nobody owns the flows of its applications: so none is beyond the place that the rows will have |
| `placed` | it is known where the rows stand; each flow goes there, gets them, and goes on |
| `complete`, `cancelled`, `failed` | it has ended |

Who takes a flow looks at the request after the flow's epoch. So when the epoch of a flow that nobody owns has been
raised after the request was made, the flow is *fenced*: whoever takes it goes by the request.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.errors import ForeignValue, InvalidOption, InvalidPosition
from tidings.logs import SnapshotPlace
from tidings.positions import Position

SNAPSHOTS = "snapshots"
COMPLETE, CANCELLED, FAILED = "complete", "cancelled", "failed"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Rows of some tables, or of all, are to come to the flows of some applications."""

    id: str
    applications: tuple[str, ...]
    tables: tuple[str, ...] = ()
    """None of them: all."""
    time: dt.datetime | None = None
    place: SnapshotPlace | None = None
    attempt: int = 1
    """How often it was begun: one that is interrupted begins anew, with another place."""
    cancelled: bool = False
    """Whether an operator wants no more of it."""
    ended: str | None = None
    """How it ended: `complete`, `cancelled` or `failed`."""
    reason: str | None = None
    """Why it has failed."""

    @classmethod
    def now(cls, applications: Sequence[str], tables: Sequence[str]) -> SnapshotRequest:
        """A request of this moment."""
        return cls(uuid.uuid4().hex[:12], tuple(applications), tuple(tables), dt.datetime.now(dt.UTC))

    @property
    def state(self) -> str:
        """In which state it is."""
        return self.ended or ("holding" if self.place is None else "placed")

    def holds(self, application: str) -> bool:
        """Whether nobody is to own the flows of an application."""
        return self.state == "holding" and not self.cancelled and application in self.applications

    def detour(self, application: str) -> Position | None:
        """Where flows of an application leave the log for these rows, if they do."""
        if self.place is None or self.ended or application not in self.applications:
            return None
        return self.place.before

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper."""
        return {
            "id": self.id,
            "applications": list(self.applications),
            "tables": list(self.tables),
            "time": None if self.time is None else self.time.isoformat(),
            "place": None if self.place is None else [position.to_json() for position in self.place],
            "attempt": self.attempt,
            "cancelled": self.cancelled,
            "ended": self.ended,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SnapshotRequest:
        """The request that `to_json` wrote."""
        try:
            place = value.get("place")
            return cls(
                str(value["id"]),
                tuple(map(str, value["applications"])),
                tuple(map(str, value.get("tables", ()))),
                dt.datetime.fromisoformat(value["time"]) if value.get("time") else None,
                None if place is None else SnapshotPlace(*map(Position.from_json, place)),
                int(value.get("attempt", 1)),
                bool(value.get("cancelled")),
                value.get("ended"),
                value.get("reason"),
            )
        except (KeyError, TypeError, ValueError, InvalidPosition):
            raise InvalidOption(f"{str(value)[:200]} is no request for a snapshot") from None


def read_request(tree: Coordination, stream: str) -> SnapshotRequest | None:
    """The newest request of a stream, if there is one."""
    value = tree.read(SNAPSHOTS, stream)
    return None if value is None else SnapshotRequest.from_json(value)


def read_requests(tree: Coordination, streams: Sequence[str]) -> dict[str, SnapshotRequest]:
    """The newest requests of streams that have one, asked for all at once. What makes no sense is none."""
    found = {}
    for stream, node in zip(streams, tree.read_many([(SNAPSHOTS, stream) for stream in streams]), strict=True):
        with contextlib.suppress(ForeignValue, InvalidOption):
            value = decode(tree.path(SNAPSHOTS, stream), node.raw) if isinstance(node, Node) else None
            if value is not None:
                found[stream] = SnapshotRequest.from_json(value)
    return found


def change_request(tree: Coordination, stream: str, before: SnapshotRequest, **changes: Any) -> bool:
    """Have a request be another; False, and nothing changed, if it is not any more as it was `before`."""
    return tree.replace(replace(before, **changes).to_json(), before.to_json(), SNAPSHOTS, stream)
