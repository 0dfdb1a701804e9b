"""In which state a flow is, and why: that follows from what ZooKeeper holds of it. Pure, so that it can be tried."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidOption, InvalidPosition
from tidings.flows import FlowControl, FlowState
from tidings.positions import Position

STUCK_S = 60.0  # without an acknowledgement, though updates wait for as long


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """What the owner of a flow says of the subscriber that holds it: since when, and what is wrong.

    `failed` and `trouble` are why it cannot go on, and why it could not for a while; `failed_at` is the update at which
    its handler failed, if that is known.
    """

    id: str
    epoch: int | None
    since: dt.datetime | None = None
    left: dt.datetime | None = None
    failed: str | None = None
    failed_at: Position | None = None
    trouble: str | None = None
    lost: str | None = None
    history: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HolderRecord:
        """The record that a publisher wrote; InvalidOption if it names nobody. Whatever else is odd is left out."""
        if not isinstance(value.get("id"), str):
            raise InvalidOption("it names no subscriber: mend it, or empty it")
        epoch, at = value.get("epoch"), None
        with contextlib.suppress(InvalidPosition):
            at = Position.from_json(value.get("at"))
        told = value.get("history")
        return cls(
            value["id"],
            epoch if type(epoch) is int else None,
            parse_time(value.get("since")),
            parse_time(value.get("left")),
            _text(value.get("parked")),
            at,
            _text(value.get("trouble")),
            _text(value.get("lost")),
            tuple(one for one in told if isinstance(one, Mapping)) if isinstance(told, list) else (),
        )


def state_of(
    control: FlowControl,
    owned: bool,
    holder: HolderRecord | None,
    unreadable: str | None,
    *,
    present: bool,
    runs: bool = False,
    stuck: str | None = None,
    beginning: str | None = None,
    idle: bool = False,
) -> tuple[FlowState, str | None]:
    """The state, and the reason of it. `runs` says whether the holder runs, `present` that the owner has named it, too.

    `idle` says that no publisher runs at all.

    >>> state_of(FlowControl(stopped=True), False, None, None, present=False)
    ('stopped', None)
    """
    if not owned:
        nobody = "no publisher runs" if idle else None
        return ("stopped", None) if control.stopped else ("unassigned", unreadable or _before(holder) or nobody)
    if present and holder and holder.failed:
        return "failed", holder.failed
    if unreadable:
        return "failed", unreadable
    if present and holder and holder.trouble:
        return "restarting", holder.trouble
    told = None if runs else _gone(holder)
    if present and holder:
        told = holder.lost or beginning
    if control.paused:
        return "paused", told
    return ("running", stuck or told) if present else ("waiting", told)


def stuck_reason(
    marked: dt.datetime | None, held_since: dt.datetime | None, lag_seconds: float | None, now: dt.datetime
) -> str | None:
    """What tells a flow that makes no progress from one that has nothing to do.

    Nothing was acknowledged for a minute, though an update has waited for as long, and the subscriber has had the flow
    for as long. A flow of which all is acknowledged has no lag, however quiet it is.
    """
    if marked is None or lag_seconds is None or lag_seconds <= STUCK_S:
        return None
    silent = (now - max(marked, held_since or marked)).total_seconds()
    if silent <= STUCK_S:
        return None
    return (
        f"it is stuck: nothing was acknowledged for {silent:,.0f} s, and an update has waited for {lag_seconds:,.0f} s"
    )


def parse_time(value: Any) -> dt.datetime | None:
    """A time as ZooKeeper has it; None if it is none, or has no zone."""
    try:
        time = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None else None


def time_text(time: dt.datetime) -> str:
    """A time as people and programs are told it.

    >>> time_text(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    '2026-01-01T00:00:00Z'
    """
    return time.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def _gone(holder: HolderRecord | None) -> str | None:
    """Which subscriber has left a flow that waits, and what was wrong with it before."""
    if holder is None:
        return None
    since = f", which had it since {time_text(holder.since)}," if holder.since else ""
    gone = f"left at {time_text(holder.left)}" if holder.left else "does not run any more"
    was = _before(holder)
    return f"subscriber {holder.id!r}{since} {gone}{f'; {was}' if was else ''}"


def _before(holder: HolderRecord | None) -> str | None:
    """What was wrong when the flow was last with a subscriber."""
    why = (holder.failed or holder.trouble) if holder else None
    return f"it failed before: {why}" if why else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
