"""How a flow gets on, as its publisher knows it without asking anybody: its state, its lag, and whether it is stuck.

A flow has *work* while its log holds more than its subscriber has processed, or while the subscriber has not
acknowledged what it was asked to. It makes *progress* when more is processed, left out by the filter, or acknowledged.
To be sent again what was sent before is none: a flow that breaks off and begins again for ever gets nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

from tidings.flows import FlowState
from tidings.positions import Bounds
from tidings.publisher.flow_session import PARKED, FlowSession


class FlowProgress(NamedTuple):
    """How a flow gets on. What is not known is None, and never 0."""

    state: FlowState
    lag: int | None
    """How many updates the log holds after the datamarker; only our own logs tell that."""
    lag_seconds: float | None
    """The age of the oldest of these; of those that nobody has read yet it is not known, and they count from the moment
    when they were first seen."""
    stalled_seconds: float
    """How long the flow has had work and a subscriber, and made no progress; 0 if it does not."""


def flow_progress(
    session: FlowSession, held: Bounds | None, *, dense: bool, gathers: bool = False, now: float, wall: float
) -> FlowProgress:
    """How a flow gets on whose log holds this. To be asked every now and then, by clocks that tell `now` and `wall`.

    `dense` says whether the log counts updates, and `gathers` whether a snapshot is read for the flow: how long that
    takes is not for the flow to say. Nor is it while a Spark job sends for it, which has a patience of its own.
    """
    session.seen_behind(None if held is None else held.head)
    state = _state(session)
    waits = [since for since in (session.behind_since, session.asked_since) if since is not None]
    busy = gathers or (session.caravan is not None and session.caravan.bulk)
    excused = busy or not waits or state not in ("running", "restarting")
    stalled = 0.0 if excused else now - max(session.progressed, min(waits))
    return FlowProgress(state, *_lag(session, held, dense, now, wall), max(0.0, stalled))


def _state(session: FlowSession) -> FlowState:
    """The state as `tidings flows list` has it; but for logs that cannot be read."""
    if session.held and session.problem:
        return "failed" if session.state is PARKED else "restarting"
    if session.control.paused:
        return "paused"
    return "running" if session.held else "waiting"


def _lag(
    session: FlowSession, held: Bounds | None, dense: bool, now: float, wall: float
) -> tuple[int | None, float | None]:
    if held is None:
        return None, None
    marker = session.marker
    if marker >= held.head:
        return 0, 0.0
    # Position(7, -1) stands before the update 7.
    lag = held.head.seq - max(held.floor.seq, marker.seq - (marker.index < 0)) if dense else None
    if session.oldest_sent is not None:
        return lag, max(0.0, wall - session.oldest_sent)
    return lag, 0.0 if session.behind_since is None else now - session.behind_since
