"""Which subscriber gets which flow: strategies, as pure functions.

A strategy is given the flows to place, the live subscribers with their capacities, and where flows are now; it says
where they should be. One more is added by an entry point in the group `tidings.balancers`, and named as an
application's `balance`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from tidings.errors import PluginMissing
from tidings.flows import Flow
from tidings.plugins import load

Strategy = Callable[[Collection[Flow], Mapping[str, float], Mapping[Flow, str]], dict[Flow, str]]


def weighted_random(
    flows: Collection[Flow], capacities: Mapping[str, float], current: Mapping[Flow, str]
) -> dict[Flow, str]:
    """Leave flows where they are while their subscriber lives; place the others by chance, weighted by capacity.

    Light: it needs no word between publishers. The price is that some subscribers get more than their share.
    """
    if not capacities:
        return {}
    ids, weights = list(capacities), list(capacities.values())
    staying = {flow: current[flow] for flow in flows if current.get(flow) in capacities}
    return {flow: staying.get(flow) or random.choices(ids, weights)[0] for flow in flows}


def even(flows: Collection[Flow], capacities: Mapping[str, float], current: Mapping[Flow, str]) -> dict[Flow, str]:
    """Give every subscriber its share, as exactly as whole flows allow, and move as few flows as that takes.

    All publishers see the same in ZooKeeper, and so decide alike.

    >>> flows = [Flow("cache", "contacts", shard) for shard in range(4)]
    >>> sorted(even(flows, {"a": 1, "b": 1}, dict.fromkeys(flows, "a")).values())
    ['a', 'a', 'b', 'b']
    """
    if not capacities:
        return {}
    total = sum(capacities.values())
    held = Counter(current[flow] for flow in flows if current.get(flow) in capacities)
    exact = {one: len(flows) * capacity / total for one, capacity in capacities.items()}
    quota = {one: int(share) for one, share in exact.items()}
    # What is left over goes to those who lose most by rounding, and among equals to those who need not give it back.
    by_loss = sorted(capacities, key=lambda one: (quota[one] - exact[one], held[one] <= quota[one], one))
    for one in by_loss[: len(flows) - sum(quota.values())]:
        quota[one] += 1
    target: dict[Flow, str] = {}
    homeless = []
    for flow in sorted(flows):
        holder = current.get(flow)
        if holder is not None and quota.get(holder, 0) > 0:
            target[flow] = holder
            quota[holder] -= 1
        else:
            homeless.append(flow)
    free = [one for one in sorted(quota) for _ in range(quota[one])]
    target.update(zip(homeless, free, strict=True))
    return target


def strategy(name: str) -> Strategy:
    """The strategy of that name."""
    built_in: dict[str, Strategy] = {"random": weighted_random, "zookeeper": even}
    if name in built_in:
        return built_in[name]
    try:
        found: Strategy = load("tidings.balancers", name)
    except PluginMissing as error:
        raise PluginMissing(f"{error}; {' and '.join(built_in)} are always there") from None
    return found
