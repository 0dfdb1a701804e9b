from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.caravan_simulation import Flow, World, spread
from tidings.allocation_policies import AllocationPolicy, Limits, Rider, single
from tidings.positions import Position
from tidings_log_tailing.policies import gaps, one_per_flow

POLICIES = [single, one_per_flow, gaps]
places = st.integers(0, 50) | st.integers(0, 10**7)
riders = st.lists(places, max_size=60).map(lambda found: [Rider(number, one) for number, one in enumerate(found)])
limits = st.integers(1, 10).map(lambda most: Limits(caravans=most))


@pytest.mark.parametrize("policy", POLICIES)
@given(riders, limits)
def test_a_policy_puts_each_flow_on_one_caravan_and_makes_no_more_than_it_may(
    policy: AllocationPolicy, found: list[Rider], most: Limits
) -> None:
    groups = policy(found, most)
    assert Counter(rider for group in groups for rider in group) == Counter(found)
    assert len(groups) <= most.caravans
    assert all(groups), "a caravan without a flow would read for nobody"


@pytest.mark.parametrize("policy", POLICIES)
@given(riders, limits)
def test_groups_do_not_overlap(policy: AllocationPolicy, found: list[Rider], most: Limits) -> None:
    spans = sorted(
        (min(one.behind for one in group), max(one.behind for one in group)) for group in policy(found, most)
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def cost(groups: Sequence[Sequence[Rider]]) -> float:
    """As the module says: a caravan, what it reads, and what its flows wait for the rearmost."""
    whole = 0.0
    for group in groups:
        rear = max(rider.behind for rider in group)
        whole += 50_000 + rear + sum(rear - rider.behind for rider in group)
    return whole


@given(st.lists(places, min_size=1, max_size=30, unique=True), st.integers(1, 6))
def test_gaps_cost_no_more_than_any_two_groups_or_one(found: list[int], most: int) -> None:
    ordered = sorted((Rider(one, one) for one in found), key=lambda rider: -rider.behind)
    ours = cost(gaps(ordered, Limits(caravans=most)))
    others = [[ordered]]
    if most > 1:
        others += [[ordered[:cut], ordered[cut:]] for cut in range(1, len(ordered))]
    # Flows that are all within a few seconds of each other are left together without a calculation.
    assert ours <= min(map(cost, others)) or ours <= cost([ordered]) <= 50_000 + max(found) + 50_000


movements = st.one_of(
    st.tuples(st.just("time"), st.floats(0.05, 2.0)),
    st.tuples(st.just("back"), st.tuples(st.integers(0, 9), st.integers(0, 10**6))),
    st.tuples(st.just("come"), st.integers(0, 10**6)),
    st.tuples(st.just("go"), st.integers(0, 9)),
    st.tuples(st.just("limit"), st.integers(1, 5)),
)


@pytest.mark.parametrize("policy", POLICIES)
@given(st.lists(movements, max_size=30))
def test_no_movement_of_flows_lets_a_caravan_pass_a_flow_or_a_flow_ride_on_two(
    policy: AllocationPolicy, moved: list[tuple[str, Any]]
) -> None:
    world = World(policy, Limits(caravans=3), spread(3, 300_000), 300_000, growth=5_000)
    for number, (what, how) in enumerate(moved):
        flows = world.flows
        match what:
            case "time":
                world.step(how)
            case "back" if flows:
                flow = flows[how[0] % len(flows)]
                flow.sent = Position(max(0, flow.sent.seq - how[1]))  # to its datamarker, after a fault
                flow.caravan = None
            case "come":
                flows.append(Flow(f"new-{number}", Position(max(0, world.head - how))))
            case "go" if flows:
                flows.pop(how % len(flows))
            case "limit":
                world.limits = Limits(caravans=how)
        world.allocate()
        assert len(world.caravans) <= world.limits.caravans
        for flow in world.flows:
            assert flow.caravan in world.caravans
            assert flow.caravan.at[0] <= flow.sent
    served = {flow.name: flow.sent for flow in world.flows}
    world.growth = 0
    world.settle(600)
    assert all(flow.sent.seq == world.head for flow in world.flows), (served, world.head)


def test_two_caravans_become_one_when_the_one_behind_has_caught_up() -> None:
    flows = [Flow("fast", Position(1_000_000)), Flow("slow", Position(0))]
    world = World(gaps, Limits(), flows, head=1_000_000, growth=10_000, speed=100_000)
    world.allocate()
    assert len(world.caravans) == 2
    rear = flows[1].caravan
    for _ in range(60):
        world.step(0.25)
        world.allocate()
    assert world.caravans == [rear]


def test_more_caravans_save_time_and_cost_reading() -> None:
    found = []
    for most in (1, 2, 3):
        world = World(gaps, Limits(caravans=most), spread(10, 2_000_000), 2_000_000)
        world.settle(1_000)
        found.append((world.read, world.latency))
    assert [read for read, _ in found] == sorted(read for read, _ in found)
    assert [late for _, late in found] == sorted((late for _, late in found), reverse=True)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(0, 1e6), st.integers(1, 9))
def test_limits_hold_and_let_those_behind_gain(rate: float, total: float, lead: float, trailing: int) -> None:
    front, behind = Limits(rate=rate, total_rate=total).allowances(lead, trailing)
    used = min(lead, front)
    assert behind >= 1.2 * used
    assert max(front, behind) <= rate
    assert used + trailing * behind <= total * 1.001
