"""The plan: which flows there are, which publisher should own each, and where a flow starts.

Every publisher reads the same in ZooKeeper and plans alike, so that none has to ask another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidings.applications import Application
from tidings.coordination.node_cache import NodeCache
from tidings.errors import InvalidOption
from tidings.flows import DRAINS, Flow, FlowControl
from tidings.log_reading import positions_at
from tidings.logs import Log, TailedLog
from tidings.positions import Bounds, Position
from tidings.publisher.ownership import Member, plan_ownership
from tidings.snapshot_requests import SNAPSHOTS, SnapshotRequest
from tidings.stream_definition import StreamDefinition, streams_by_name

D = TypeVar("D", StreamDefinition, Application)


@dataclass(frozen=True)
class Plan:
    """What is to be sent, and by whom."""

    streams: Mapping[str, StreamDefinition] = field(default_factory=dict)
    applications: Mapping[str, Application] = field(default_factory=dict)
    flows: Mapping[Application, list[Flow]] = field(default_factory=dict)
    owners: Mapping[Flow, str] = field(default_factory=dict)
    """The publisher that should own each flow; one that nobody can read, that is stopped, or held until a snapshot has
    its place, is left out."""
    controls: Mapping[Flow, FlowControl] = field(default_factory=dict)
    """What operators have said of each flow."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """The publishers that run, by name."""
    snapshots: Mapping[str, SnapshotRequest] = field(default_factory=dict)
    """The snapshots on demand that have not ended, by stream."""
    takers: Mapping[str, str] = field(default_factory=dict)
    """The publisher that should see to each of these."""


def read_plan(nodes: NodeCache) -> Plan:
    """The plan as it follows from what ZooKeeper says now."""
    streams = _streams(nodes)
    applications = _applications(nodes)
    by_name = streams_by_name(streams.values())
    flows = {
        application: [
            Flow(application.name, stream, shard)
            for stream in application.reads(by_name)
            for shard in range(streams[stream].shards)
        ]
        for application in applications.values()
    }
    controls = _controls(nodes, [flow for those in flows.values() for flow in those])
    snapshots = _snapshots(nodes, streams)
    held = {(one, stream) for stream, request in snapshots.items() for one in applications if request.holds(one)}
    sent = [
        flow
        for flow, control in controls.items()
        if not control.stopped and (flow.application, flow.stream) not in held
    ]
    pins = {flow: control.pin for flow, control in controls.items() if control.pin}
    members = {member.id: member for member in _members(nodes, streams, by_name)}
    owners = plan_ownership(members.values(), sent, pins)
    takers = plan_ownership(members.values(), [Flow("", stream, 0) for stream in snapshots])
    by_stream = {flow.stream: taker for flow, taker in takers.items()}
    return Plan(streams, applications, flows, owners, controls, members, snapshots, by_stream)


def reason_to_take(plan: Plan, flow: Flow, member: str, before: str | None) -> str:
    """Why a publisher takes a flow that this one owned before: for operators to see.

    >>> reason_to_take(Plan(), Flow("cache", "contacts", 3), "east-1", "east-2")
    "publisher 'east-2' is gone"
    """
    control = plan.controls.get(flow)
    if before is None:
        return "it had no owner before"
    if control is not None and control.pin == member:
        return "it is pinned here"
    if before == member:
        return "it was given up here, and is taken again"
    if before not in plan.members:
        return f"publisher {before!r} is gone"
    if plan.members[before].draining:
        return f"publisher {before!r} drains"
    if flow.stream not in plan.members[before].streams:
        return f"publisher {before!r} cannot read the stream"
    return f"publisher {before!r} owned it, and flows are shared out anew"


def _snapshots(nodes: NodeCache, streams: Container[str]) -> dict[str, SnapshotRequest]:
    """The requests that have not ended."""
    names = [name for name in nodes.children(SNAPSHOTS) if name in streams]
    read = {name: nodes.parsed(SnapshotRequest.from_json, SNAPSHOTS, name) for name in names}
    return {name: request for name, request in read.items() if request is not None and request.ended is None}


def _streams(nodes: NodeCache) -> dict[str, StreamDefinition]:
    names = nodes.children("streams")
    nodes.fill([("streams", name) for name in names])
    read = {name: nodes.parsed(_named(name, StreamDefinition.from_json), "streams", name) for name in names}
    return {name: stream for name, stream in read.items() if stream is not None}


def _applications(nodes: NodeCache) -> dict[str, Application]:
    names = nodes.children("applications")
    nodes.fill([("applications", name) for name in names])
    read = {name: nodes.parsed(_named(name, Application.from_json), "applications", name) for name in names}
    return {name: application for name, application in read.items() if application is not None}


def _named(name: str, parse: Callable[[dict[str, Any]], D]) -> Callable[[dict[str, Any]], D]:
    """The same, for a definition that must be of this name: under another it would be served twice."""

    def parse_named(value: dict[str, Any]) -> D:
        found = parse(value)
        if found.name != name:
            raise InvalidOption(f"it is the definition of {found.name!r}")
        return found

    return parse_named


def _members(
    nodes: NodeCache, streams: Mapping[str, StreamDefinition], by_name: Mapping[str, Sequence[str]]
) -> list[Member]:
    names = nodes.children("publishers")
    drained = frozenset(nodes.children(DRAINS))
    parse = functools.partial(_member, streams=streams, by_name=by_name, drained=drained)
    read = [nodes.parsed(functools.partial(parse, name), "publishers", name) for name in names]
    return [member for member in read if member is not None]


def _member(
    name: str,
    record: Mapping[str, Any],
    streams: Mapping[str, StreamDefinition],
    by_name: Mapping[str, Sequence[str]],
    drained: Set[str],
) -> Member:
    """A publisher as it tells of itself, with the streams that it can read."""
    chosen = by_name if record["streams"] is None else record["streams"]
    readable = {stream for one in chosen for stream in by_name.get(one, ())}
    replica, ranks = record.get("replica"), {}
    if replica is not None:
        ranks = {
            stream: 1 + list(definition.replicas).index(replica)
            for stream, definition in streams.items()
            if replica in definition.replicas
        }
        readable &= ranks.keys()
    readable -= set(record.get("unreadable", ()))
    return Member(name, frozenset(readable), bool(record["draining"]) or name in drained, ranks)


def _controls(nodes: NodeCache, flows: Sequence[Flow]) -> dict[Flow, FlowControl]:
    """What operators have said of each flow: one node for all of an application and stream."""
    places = list(dict.fromkeys(flow.controls_place for flow in flows))
    nodes.fill(places)
    said = {place: nodes.value(*place) for place in places}
    return {flow: FlowControl.of(said[flow.controls_place], flow.shard) for flow in flows}


def starting_position(
    application: Application, flow: Flow, log: Log, tailed: TailedLog | None, bounds: Bounds, before: Position | None
) -> Position:
    """Where a flow goes on that stood at `before`, or begins if that is None.

    `tailed` is the log, if it is a datastore's own: to ask that of it for thousands of flows would take its time.
    """
    if before is not None and (application.mode == "reliable" or application.max_age is not None):
        return before  # what is too old by now is skipped, and counted, as it is read
    named = application.starting_positions(flow.stream)
    if application.mode == "realtime" or application.start == "latest":
        return bounds.head
    if application.start == "earliest":
        return tailed.earliest() if tailed is not None else bounds.floor
    if named is not None:
        return named[flow.shard].before if flow.shard in named else bounds.floor
    time_wanted = application.starting_time()
    assert time_wanted is not None
    return positions_at(log, flow.shard, time_wanted)
