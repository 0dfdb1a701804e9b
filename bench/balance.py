"""How evenly flows are spread over subscribers, by both balancers, beside Wormhole's figure for as many."""

from __future__ import annotations

from collections import Counter

from bench.report import Row, less_is_better
from tidings.flows import Flow
from tidings.publisher.balancing import Strategy, even, weighted_random

SUBSCRIBERS, FLOWS = 32, 32 * 124  # as many flows a subscriber as in the paper


def spread(strategy: Strategy) -> tuple[int, int]:
    """The fewest and the most flows that a subscriber gets."""
    flows = [Flow("cache", "bench", shard) for shard in range(FLOWS)]
    capacities = {f"subscriber-{number}": 1.0 for number in range(SUBSCRIBERS)}
    counts = Counter(strategy(flows, capacities, {}).values())
    return min(counts.values()), max(counts.values())


def run(quick: bool) -> list[Row]:
    rows = []
    for name, strategy, paper in (("random", weighted_random, (88, 135)), ("zookeeper", even, (122, 126))):
        least, most = spread(strategy)
        metric = f"{name}: most flows on one subscriber (fewest: {least})"
        rows.append(less_is_better(metric, most, "flows", f"Wormhole (fewest: {paper[0]})", paper[1]))
    return rows
