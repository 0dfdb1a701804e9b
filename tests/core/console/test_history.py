"""Lines over time break off where nothing was measured."""

from __future__ import annotations

from tidings.console.history import MISSED, History, OverviewPoint
from tidings.flows import Flow

FLOW = Flow("cache", "contacts", 0)


def measure(history: History, time: float, *, flow: bool = True) -> None:
    history.add(OverviewPoint(time, 1.0, 0.0, 0), {"contacts": 1.0}, {FLOW: (5, 0.5)} if flow else {})


def test_what_is_measured_each_time_has_no_gap_however_far_apart() -> None:
    history = History()
    for time in (0.0, 2.0, 32.0, 62.0):
        measure(history, time)
    assert history.flow(FLOW)["lag"] == [5, 5, 5, 5]
    assert len(history.points()) == 4


def test_a_flow_that_was_not_kept_in_mind_for_a_while_has_a_gap() -> None:
    history = History()
    times = [2.0 * number for number in range(MISSED + 3)]
    for time in times:
        measure(history, time, flow=time in (times[0], times[-2], times[-1]))
    found = history.flow(FLOW)
    assert found["lag"] == [5, None, 5, 5]
    assert found["lag_seconds"] == [0.5, None, 0.5, 0.5]
    assert found["times"] == sorted(set(found["times"]))
    assert len(history.points()) == len(times)


def test_a_flow_that_was_missed_for_a_moment_has_none() -> None:
    history = History()
    for number in range(2 * MISSED):
        measure(history, 2.0 * number, flow=number % MISSED == 0)
    assert history.flow(FLOW)["lag"] == [5, 5]


def test_while_the_cluster_cannot_be_read_all_lines_have_a_gap() -> None:
    history = History()
    history.fail()
    measure(history, 0.0)
    for _ in range(3):
        history.fail()
    measure(history, 20.0)
    measure(history, 22.0)
    assert history.flow(FLOW)["lag"] == [5, None, 5, 5]
    assert history.stream("contacts")["updates_per_second"] == [1.0, None, 1.0, 1.0]
    assert [one.lag for one in history.points()] == [0, None, 0, 0]
    assert history.flow(FLOW)["times"] == [0.0, 10.0, 20.0, 22.0]
