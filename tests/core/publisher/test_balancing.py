from __future__ import annotations

from collections import Counter
from math import ceil, floor
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidings.flows import Flow
from tidings.publisher.balancing import even, weighted_random

FLOWS = [Flow("cache", "contacts", shard) for shard in range(40)]
IDS = [f"r{n}" for n in range(7)]

flows = st.lists(st.sampled_from(FLOWS), unique=True)
capacities = st.dictionaries(st.sampled_from(IDS), st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1)
equal = st.lists(st.sampled_from(IDS), min_size=1, unique=True).map(lambda ids: dict.fromkeys(ids, 1.0))
current = st.dictionaries(st.sampled_from(FLOWS), st.sampled_from([*IDS, "gone"]))


@given(flows, capacities, current)
def test_even_gives_everyone_its_share_but_for_rounding(
    flows: list[Flow], capacities: dict[str, float], current: dict[Flow, str]
) -> None:
    target = even(flows, capacities, current)
    assert target.keys() == set(flows)
    held = Counter(target.values())
    for one, capacity in capacities.items():
        share = len(flows) * capacity / sum(capacities.values())
        assert floor(share) <= held[one] <= ceil(share)


@given(flows, equal, current)
def test_even_moves_as_few_flows_as_an_even_spread_takes(
    flows: list[Flow], capacities: dict[str, float], current: dict[Flow, str]
) -> None:
    target = even(flows, capacities, current)
    stays = sum(target[flow] == current.get(flow) for flow in flows)
    # At best everyone keeps what it has, up to its share; the shares that are one larger go to those who have most.
    share, larger = divmod(len(flows), len(capacities))
    has = sorted((Counter(current.get(flow) for flow in flows)[one] for one in capacities), reverse=True)
    assert stays == sum(min(count, share + (rank < larger)) for rank, count in enumerate(has))


@given(flows, capacities, current)
def test_even_changes_nothing_of_what_it_has_decided(
    flows: list[Flow], capacities: dict[str, float], current: dict[Flow, str]
) -> None:
    target = even(flows, capacities, current)
    assert even(flows, capacities, target) == target


@given(flows, capacities, current, st.randoms())
def test_even_decides_alike_whatever_the_order_in_which_things_are_seen(
    flows: list[Flow], capacities: dict[str, float], current: dict[Flow, str], rng: Random
) -> None:
    shuffled: list[list[Any]] = [list(flows), list(capacities.items()), list(current.items())]
    for things in shuffled:
        rng.shuffle(things)
    assert even(shuffled[0], dict(shuffled[1]), dict(shuffled[2])) == even(flows, capacities, current)


@given(flows, capacities, current)
def test_weighted_random_leaves_flows_with_subscribers_that_live_and_places_all_others(
    flows: list[Flow], capacities: dict[str, float], current: dict[Flow, str]
) -> None:
    target = weighted_random(flows, capacities, current)
    assert target.keys() == set(flows)
    assert set(target.values()) <= capacities.keys()
    assert all(target[flow] == current[flow] for flow in flows if current.get(flow) in capacities)


def test_weighted_random_follows_the_capacities() -> None:
    many = [Flow("cache", "contacts", shard) for shard in range(4000)]
    held = Counter(weighted_random(many, {"large": 3.0, "small": 1.0}, {}).values())
    assert 2700 < held["large"] < 3300


def test_nobody_gets_a_flow_when_there_is_nobody() -> None:
    assert even(FLOWS, {}, {}) == {}
    assert weighted_random(FLOWS, {}, {}) == {}
