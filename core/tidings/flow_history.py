"""The history of a flow: its last owners and why each took it, its last subscribers and what they met with.

It costs no write of its own: owners are noted in the node of the epoch, which every take writes, and the rest in the
node of the subscriber, which an owner writes when there is something to tell. Each keeps the last ten.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.errors import ForeignValue
from tidings.flow_state import parse_time
from tidings.flows import Flow

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """Something that has become of a flow.

    | kind | meaning |
    | --- | --- |
    | `owned` | a publisher took it, for this `reason` |
    | `assigned` | a subscriber got it |
    | `failed` | its handler failed again and again, for this `reason` |
    | `put aside` | its handler failed at an update, for this `reason`, and the flow went on without it |
    | `trouble` | it could not be opened, or broke off, again and again |
    | `lost` | the log did not hold what came next |
    | `left` | its subscriber has gone, and nobody else got it |
    """

    time: dt.datetime
    kind: str
    epoch: int | None = None
    publisher: str | None = None
    host: str | None = None
    pid: int | None = None
    subscriber: str | None = None
    reason: str | None = None


def flow_history(cluster: Catalogue, flow: Flow) -> list[FlowEvent]:
    """What has become of a flow, the newest first."""
    found = [*_entries(cluster, flow, "epoch", "owners"), *_entries(cluster, flow, "subscriber", "history")]
    # By epoch first: those who note it have clocks of their own.
    return sorted(found, key=lambda event: (event.epoch or 0, event.time, event.kind != "owned"), reverse=True)


def _entries(cluster: Catalogue, flow: Flow, node: str, key: str) -> Iterator[FlowEvent]:
    try:
        told = (cluster.coordination.read(*flow.place, node) or {}).get(key)
    except ForeignValue:
        return  # `tidings flows list` says so
    for entry in told if isinstance(told, list) else ():
        if isinstance(entry, Mapping) and (time := parse_time(entry.get("time"))) is not None:
            kind = "owned" if key == "owners" else _text(entry.get("kind")) or "-"
            yield FlowEvent(
                time,
                kind,
                _number(entry.get("epoch")),
                _text(entry.get("publisher")),
                _text(entry.get("host")),
                _number(entry.get("pid")),
                _text(entry.get("subscriber")),
                _text(entry.get("reason")),
            )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> int | None:
    return value if type(value) is int else None
