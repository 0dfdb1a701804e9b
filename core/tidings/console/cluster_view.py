"""What the console knows of a cluster at one moment: what ZooKeeper held, what logs said, and what follows of both."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidings.console.cluster_nodes import ClusterNodes
from tidings.console.log_watch import LogState, Stands
from tidings.flow_status import FlowStatus, LogReading, status_of
from tidings.flows import Flow, FlowState
from tidings.texts import whole

STATES: tuple[FlowState, ...] = ("running", "paused", "stopped", "failed", "restarting", "waiting", "unassigned")
LETTERS = dict(zip(STATES, "rpsftwu", strict=True))
STALE_S = 15.0  # a log that said nothing for so long is told of


@dataclass(frozen=True)
class ClusterView:
    """All that answers are made of. `version` grows with each; `away` says since when ZooKeeper does not answer."""

    version: int
    nodes: ClusterNodes
    logs: Mapping[str, LogState]
    flows: tuple[FlowStatus, ...]
    rates: Mapping[str, float | None]
    """Updates a second, by stream."""
    bytes_per_second: float | None
    problems: tuple[str, ...] = ()
    away: str | None = None

    @property
    def time(self) -> float:
        """When ZooKeeper was read, in seconds since 1970."""
        return self.nodes.time

    @functools.cached_property
    def by_flow(self) -> Mapping[Flow, FlowStatus]:
        """The same flows, to be looked up."""
        return {one.flow: one for one in self.flows}

    @functools.cached_property
    def states(self) -> Counter[str]:
        """How many flows are in which state."""
        return Counter(one.state for one in self.flows)

    @functools.cached_property
    def states_by_application(self) -> Counter[tuple[str, str]]:
        """How many flows of which application are in which state."""
        return Counter((one.flow.application, one.state) for one in self.flows)

    @functools.cached_property
    def owned(self) -> Counter[str]:
        """How many flows each publisher owns."""
        return Counter(one.owner for one in self.flows if one.owner is not None)

    @functools.cached_property
    def held(self) -> Counter[tuple[str, str]]:
        """How many flows each subscriber of each application holds."""
        return Counter((one.flow.application, one.subscriber) for one in self.flows if one.subscriber is not None)


EMPTY = ClusterView(0, ClusterNodes(0.0), {}, (), {}, None)


def stands_of(nodes: ClusterNodes) -> dict[str, Stands]:
    """Where flows stand in each log."""
    found: dict[str, Stands] = {name: set() for name in nodes.streams}
    for flow, record in nodes.records.items():
        if record.datamarker is not None:
            found[flow.stream].add((flow.shard, record.datamarker))
    return found


def statuses(nodes: ClusterNodes, logs: Mapping[str, LogState]) -> tuple[FlowStatus, ...]:
    """How all flows stand, by name."""
    troubles = {name: nodes.troubles(name) for name in nodes.streams}
    nothing = LogReading()
    readings = {name: logs[name].reading if name in logs else nothing for name in nodes.streams}
    return tuple(
        status_of(
            flow,
            record,
            nodes.subscribers.get(flow.application, {}),
            readings[flow.stream],
            troubles[flow.stream],
            idle=not nodes.publishers,
        )
        for flow, record in nodes.records.items()
    )


def problems_of(nodes: ClusterNodes, logs: Mapping[str, LogState], now: float) -> list[str]:
    """What could not be had, each once."""
    found = list(nodes.problems)
    for name, state in logs.items():
        if state.problem:
            since = "" if state.time is None else f" (as of {now - state.time:.0f} s ago)"
            found.append(f"stream {name}: {state.problem}{since if state.reading.bounds else ''}")
        elif state.time is None:
            found.append(f"stream {name}: its log has not answered yet")
        elif now - state.time > STALE_S:
            found.append(f"stream {name}: what its log said is {now - state.time:.0f} s old")
    return list(dict.fromkeys(found))


def totals(logs: Mapping[str, LogState]) -> dict[str, tuple[float, int]]:
    """How many updates each log of ours has ever got, and when that was."""
    return {
        name: (state.time, sum(bounds.head.seq + 1 for bounds in state.reading.bounds.values()))
        for name, state in logs.items()
        if state.time is not None and state.reading.dense and state.reading.bounds
    }


def sent_bytes(report: Mapping[str, Any]) -> int | None:
    """How many bytes a publisher has sent of a stream, by its report."""
    return whole(report.get("bytes_sent"))
