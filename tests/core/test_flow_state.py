"""In which state a flow is: each case of what ZooKeeper may hold of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tidings.flow_state import STUCK_S, HolderRecord, state_of, stuck_reason
from tidings.flows import FlowControl
from tidings.positions import Position

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HERE = HolderRecord("one", 3)
FAILED = HolderRecord("one", 3, failed="no good", failed_at=Position(7))
RUN, PAUSED, STOPPED = FlowControl(), FlowControl(paused=True), FlowControl(stopped=True)
GONE = "subscriber 'one' does not run any more"


@pytest.mark.parametrize(
    ("control", "owned", "holder", "unreadable", "here", "expected"),
    [
        (RUN, False, None, None, False, ("unassigned", None)),
        (RUN, False, None, "no log", False, ("unassigned", "no log")),
        (RUN, False, FAILED, None, False, ("unassigned", "it failed before: no good")),
        (PAUSED, False, None, None, False, ("unassigned", None)),
        (STOPPED, False, FAILED, "no log", False, ("stopped", None)),
        (RUN, True, None, None, False, ("waiting", None)),
        (RUN, True, HERE, None, False, ("waiting", GONE)),
        (RUN, True, FAILED, None, False, ("waiting", f"{GONE}; it failed before: no good")),
        (RUN, True, HERE, "no log", False, ("failed", "no log")),
        (RUN, True, HERE, None, True, ("running", None)),
        (STOPPED, True, HERE, None, True, ("running", None)),  # until it is given up at a token
        (RUN, True, HERE, "no log", True, ("failed", "no log")),
        (RUN, True, FAILED, "no log", True, ("failed", "no good")),
        (PAUSED, True, FAILED, None, True, ("failed", "no good")),
        (RUN, True, HolderRecord("one", 3, trouble="no key"), None, True, ("restarting", "no key")),
        (PAUSED, True, HolderRecord("one", 3, trouble="no key"), None, True, ("restarting", "no key")),
        (PAUSED, True, HERE, None, True, ("paused", None)),
        (PAUSED, True, HERE, None, False, ("paused", GONE)),
        (RUN, True, HolderRecord("one", 3, lost="0 to 4 were lost"), None, True, ("running", "0 to 4 were lost")),
    ],
)
def test_a_state_and_its_reason_follow_from_what_is_known(
    control: FlowControl, owned: bool, holder: HolderRecord | None, unreadable: str | None, here: bool, expected: Any
) -> None:
    assert state_of(control, owned, holder, unreadable, present=here, runs=here) == expected


def test_who_runs_and_is_not_named_yet_by_a_new_owner_has_not_left() -> None:
    assert state_of(RUN, True, HERE, None, present=False, runs=True) == ("waiting", None)


@pytest.mark.parametrize(
    ("acknowledged_s", "held_s", "lag_seconds", "stuck"),
    [
        pytest.param(STUCK_S + 1, STUCK_S + 1, STUCK_S + 1, True, id="an update waits, and nothing is acknowledged"),
        pytest.param(86_400, 86_400, 0.0, False, id="a quiet flow"),
        pytest.param(86_400, 86_400, 5.0, False, id="a quiet flow that gets an update"),
        pytest.param(2, 86_400, 86_400.0, False, id="a backlog that is worked off"),
        pytest.param(86_400, 2, 86_400.0, False, id="a subscriber that has just begun"),
        pytest.param(86_400, 86_400, None, False, id="a lag that is not known"),
    ],
)
def test_a_flow_that_is_stuck_is_told_from_one_that_has_nothing_to_do(
    acknowledged_s: float, held_s: float, lag_seconds: float | None, stuck: bool
) -> None:
    marked, held_since = (NOW - dt.timedelta(seconds=seconds) for seconds in (acknowledged_s, held_s))
    reason = stuck_reason(marked, held_since, lag_seconds, NOW)
    assert (reason is not None) == stuck
    assert state_of(RUN, True, HERE, None, present=True, runs=True, stuck=reason)[1] == reason


@pytest.mark.parametrize(
    "more",
    [
        {"epoch": "x", "since": 7, "parked": ["x"], "at": {}, "history": "x"},
        {"epoch": True, "since": "2026-01-01T00:00:00", "trouble": 7, "at": [1], "history": [1, "x", None]},
    ],
)
def test_what_makes_no_sense_in_the_record_of_a_holder_is_left_out(more: dict[str, Any]) -> None:
    assert HolderRecord.from_json({"id": "one", **more}) == HolderRecord("one", None)
