"""What the flows of a stream have passed, for policies that protect them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tidings.cluster import Cluster
from tidings.flow_status import FlowStatus, status
from tidings.positions import START, Position, Positions


def passed_by_flows(cluster: Cluster, stream: str) -> Callable[[], Positions]:
    """Tells up to where all flows of a stream have acknowledged it; a shard without a flow is left out."""

    def passed() -> Positions:
        found: dict[int, Position] = {}
        for one in status(cluster, stream=stream):
            at = _at(one)
            found[one.flow.shard] = min(at, found.get(one.flow.shard, at))
        return Positions(found)

    return passed


def kept_for(cluster: Cluster, stream: str) -> dict[str, int]:
    """For each application that is behind, how many positions of a stream it has not acknowledged."""
    found: Counter[str] = Counter()
    for one in status(cluster, stream=stream):
        if one.head is not None:
            found[one.flow.application] += one.head.seq - _at(one).seq
    return {name: count for name, count in sorted(found.items()) if count > 0}


def _at(flow: FlowStatus) -> Position:
    return flow.datamarker.position if flow.datamarker else START
