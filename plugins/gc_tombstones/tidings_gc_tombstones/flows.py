"""What the flows of a stream have passed, for policies that protect them."""

from __future__ import annotations

from collections.abc import Callable

from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.positions import START, Position, Positions


def passed_by_flows(cluster: Cluster, stream: str) -> Callable[[], Positions]:
    """Tells up to where all flows of a stream have acknowledged it; a shard without a flow is left out."""

    def passed() -> Positions:
        found: dict[int, Position] = {}
        for one in status(cluster):
            if one.flow.stream == stream:
                at = one.datamarker.position if one.datamarker else START
                found[one.flow.shard] = min(at, found.get(one.flow.shard, at))
        return Positions(found)

    return passed
