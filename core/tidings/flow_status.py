"""How flows stand: what operators see of them, put together from ZooKeeper and the logs."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.datamarkers import Datamarker
from tidings.errors import CoordinationDenied, ForeignValue, InvalidOption, PositionsLost, TidingsError
from tidings.flow_state import HolderRecord, state_of, stuck_reason
from tidings.flows import NO_CONTROL, NODES, Flow, FlowControl, FlowState
from tidings.log_opening import identity_of
from tidings.logs import DEMANDED, Log, TailedLog, WritableLog
from tidings.positions import START, Bounds, Position, Positions
from tidings.publisher.reports import read_reports, read_unreadable, retained_in, troubles_in
from tidings.retention import RetainedBy
from tidings.snapshot_requests import SNAPSHOTS, SnapshotRequest
from tidings.stream_definition import StreamDefinition, streams_by_name
from tidings.texts import short

if TYPE_CHECKING:
    from tidings.applications import Application
    from tidings.catalogue import Catalogue
    from tidings.streams import Stream

READ_SHARDS = 256  # whose next updates are read at once
ROOM_ROWS = 16  # for updates that come in while they are read


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """How a flow stands, as ZooKeeper and its log told at one moment. What is not known is None, and never 0.

    | state | meaning |
    | --- | --- |
    | `unassigned` | no publisher owns the flow; a `reason` says why one could not read the log |
    | `waiting` | a publisher owns it, and no running subscriber holds it; a `reason` says which one has left |
    | `restarting` | a running subscriber should have it, and cannot be reached, or refuses it, for this `reason` |
    | `running` | a publisher sends it to a running subscriber; a `reason` says what was lost, or that it is stuck |
    | `paused` | an operator has said so; it keeps its owner and its subscriber, and nothing is sent |
    | `stopped` | an operator has said so; nobody owns it |
    | `failed` | it cannot go on, for this `reason`: its handler failed again and again, or its log cannot be read |
    """

    flow: Flow
    state: FlowState
    reason: str | None = None
    owner: str | None = None
    """The publisher that sends the flow."""
    host: str | None = None
    pid: int | None = None
    epoch: int | None = None
    """The newest epoch; None if nobody ever owned the flow."""
    datamarker: Datamarker | None = None
    head: Position | None = None
    """The newest position of the shard, `START` if there is none."""
    lag: int | None = None
    """How many updates the log holds after the datamarker, those that the filter leaves out among them."""
    lag_seconds: float | None = None
    """The age of the oldest of these; 0 if there is none."""
    subscriber: str | None = None
    """The running subscriber that holds the flow."""
    problem: str | None = None
    """Why the log could not be asked, or what ZooKeeper has of the flow cannot be read, if so."""
    control: FlowControl = NO_CONTROL
    """What operators have said of it."""
    failed_at: Position | None = None
    """The update at which its subscriber failed, if that is known."""
    retained: RetainedBy | None = None
    """What the datastore keeps of its log, if that is for the sake of this flow, which is behind all others."""


def status(
    cluster: Catalogue, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> list[FlowStatus]:
    """How the flows stand: all of them, or those of one application, stream (or family of streams) or shard.

    ZooKeeper is asked for all at once, and each log for its bounds, and for the next update where a flow lags: its time
    tells the lag in seconds.
    """
    records = read_records(cluster, application=application, stream=stream, shard=shard)
    flows = list(records)
    live = _live(cluster, flows)
    # The logs come last: then no datamarker is ahead of the head that it is compared with.
    stands: dict[str, set[tuple[int, Datamarker]]] = {flow.stream: set() for flow in flows}
    for flow, record in records.items():
        if record.datamarker is not None:
            stands[flow.stream].add((flow.shard, record.datamarker))
    unreadable = read_unreadable(cluster.coordination)
    reports = {name: read_reports(cluster.coordination, name) for name in stands}
    troubles = {name: {**unreadable.get(name, {}), **troubles_in(told)} for name, told in reports.items()}
    logs = {name: LogReading() for name in stands}
    for name, those in stands.items():
        logs[name].retained = retained_in(reports[name])
        logs[name].request = cluster.coordination.read(SNAPSHOTS, name)
        try:
            known = cluster.stream(name)
            with contextlib.closing(known.log) as log:
                logs[name].look(log, known.definition, those)
        except TidingsError as error:
            logs[name].problem = str(error)
    idle = not cluster.coordination.children("publishers")
    return [
        status_of(flow, records[flow], live[flow.application], logs[flow.stream], troubles[flow.stream], idle=idle)
        for flow in flows
    ]


class FlowRecord(NamedTuple):
    """What ZooKeeper holds of a flow."""

    epoch: int | None
    owner: dict[str, Any] | None
    datamarker: Datamarker | None
    holder: HolderRecord | None
    control: FlowControl
    problem: str | None
    marker_version: int | None = None
    """How often the datamarker was written, for who would write it only if nobody else has."""
    marked: dt.datetime | None = None
    """When ZooKeeper took the datamarker, by its clock: those of publishers may all be off by something else."""
    named: dt.datetime | None = None
    """When it took what its owner says of the subscriber."""

    @property
    def held_since(self) -> dt.datetime | None:
        """Since when its subscriber has it: its owner's clock says that, but nobody is told so before it is."""
        since = self.holder.since if self.holder else None
        known = [time for time in (since, self.named) if time is not None]
        return min(known, default=None)


def read_records(
    cluster: Catalogue, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> dict[Flow, FlowRecord]:
    """What ZooKeeper holds of flows, without a look at their logs."""
    return _records(cluster.coordination, flows_of(cluster, application=application, stream=stream, shard=shard))


def flows_of(
    cluster: Catalogue, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> list[Flow]:
    """The flows that there are: all of them, or those of one application, stream (or family of streams) or shard."""
    applications = cluster.applications() if application is None else [cluster.application(application)]
    chosen = cluster.streams_named(stream) if stream else cluster.streams()
    by_name = streams_by_name(one.definition for one in chosen)
    shards = {one.name: one.shards for one in chosen}
    return [
        Flow(one.name, name, number)
        for one in applications
        for name in one.reads(by_name)
        for number in range(shards[name])
        if shard in (None, number)
    ]


def check_flow(cluster: Catalogue, which: Flow) -> None:
    """Raise unless there is such a flow."""
    stream = cluster.stream(which.stream)
    check_reads(cluster.application(which.application), [stream])
    if which.shard >= stream.shards:
        raise InvalidOption(f"stream {which.stream!r} has shards 0 to {stream.shards - 1}, not {which.shard}")


def check_reads(application: Application, streams: Sequence[Stream]) -> None:
    """Raise unless the application reads one of these streams."""
    if not application.reads(streams_by_name(stream.definition for stream in streams)):
        named, reads = " or ".join(repr(stream.name) for stream in streams), ", ".join(application.streams)
        raise InvalidOption(f"application {application.name!r} does not read stream {named} (it reads {reads})")


KeptRecords = dict[Flow, tuple[tuple[int | None, ...], "FlowRecord"]]
"""Records as they were read before, each with when its nodes were written, as ZooKeeper counts that."""


def records_of(cluster: Catalogue, flows: Iterable[Flow], kept: KeptRecords | None = None) -> dict[Flow, FlowRecord]:
    """What ZooKeeper holds of these flows. Who reads them again and again has those `kept` that were not written to."""
    return _records(cluster.coordination, list(flows), kept)


def failed_flows(cluster: Catalogue, flows: Iterable[Flow]) -> list[Flow]:
    """Those of the flows at which the subscribers have failed that hold them, without a look at their logs."""
    records = records_of(cluster, flows)
    live = _live(cluster, records)
    return [
        flow
        for flow, record in records.items()
        if record.owner and (holder := record.holder) and holder.failed and holder.epoch == record.epoch
        if holder.id in live[flow.application]
    ]


def _live(cluster: Catalogue, flows: Iterable[Flow]) -> dict[str, set[str]]:
    """The subscribers that run, by application."""
    names = {flow.application for flow in flows}
    return {name: set(cluster.coordination.children("applications", name, "subscribers")) for name in names}


def _records(tree: Coordination, flows: list[Flow], kept: KeptRecords | None = None) -> dict[Flow, FlowRecord]:
    """Ask for everything at once: thousands of flows take a few requests."""
    found = iter(tree.read_many([(*flow.place, name) for flow in flows for name in NODES]))
    said = read_said(tree, flows)
    known, records = dict(kept or {}), {}
    if kept is not None:
        kept.clear()
    for flow in flows:
        nodes = [next(found) for _ in NODES]
        control = FlowControl.of(said[flow.controls_place], flow.shard)
        written = tuple(node.stat.mzxid if isinstance(node, Node) else None for node in nodes)
        before = known.get(flow)
        if before is None or before[0] != written or any(isinstance(node, CoordinationDenied) for node in nodes):
            records[flow] = _parsed(tree, flow, dict(zip(NODES, nodes, strict=True)), control)
        else:
            records[flow] = before[1] if before[1].control == control else before[1]._replace(control=control)
        if kept is not None:
            kept[flow] = written, records[flow]
    return records


def _parsed(
    tree: Coordination, flow: Flow, nodes: Mapping[str, Node | CoordinationDenied | None], control: FlowControl
) -> FlowRecord:
    values: dict[str, Any] = {}
    problem = None
    for name, parse in _READ.items():
        node, path = nodes[name], tree.path(*flow.place, name)
        try:
            if isinstance(node, CoordinationDenied):
                raise node
            value = decode(path, node.raw) if node else None
            values[name] = parse(value) if value is not None else None
        except TidingsError as error:  # of the other flows there is more to tell
            values[name] = None
            problem = str(error) if isinstance(error, ForeignValue) else f"what ZooKeeper holds at {path}: {error}"
    marker, holder = nodes["datamarker"], nodes["subscriber"]
    return FlowRecord(
        node.stat.version if isinstance(node := nodes["epoch"], Node) else None,
        values["owner"],
        values["datamarker"],
        values["subscriber"],
        control,
        problem,
        marker.stat.version if isinstance(marker, Node) else None,
        _written(marker),
        _written(holder),
    )


def _written(node: Node | CoordinationDenied | None) -> dt.datetime | None:
    return dt.datetime.fromtimestamp(node.stat.mtime / 1000, dt.UTC) if isinstance(node, Node) else None


def read_said(tree: Coordination, flows: Iterable[Flow]) -> dict[tuple[str, ...], dict[str, Any] | None]:
    """What operators have said of flows, by the place at which it is; None where that is nothing, or makes no sense."""
    places = dict.fromkeys(flow.controls_place for flow in flows)
    with tree.translating_errors():
        asked = {place: tree.client.get_async(tree.path(*place)) for place in places}
        found = {place: tree.found(one) for place, one in asked.items()}
    said: dict[tuple[str, ...], dict[str, Any] | None] = dict.fromkeys(places)
    for place, node in found.items():
        with contextlib.suppress(ForeignValue):  # publishers leave it alone, and say so
            said[place] = decode(tree.path(*place), node[0]) if node else None
    return said


_READ: dict[str, Callable[[dict[str, Any]], Any]] = {
    "owner": dict,
    "datamarker": Datamarker.from_json,
    "subscriber": HolderRecord.from_json,
}


class LogReading:
    """What a stream's log says of the lag of flows: nothing, until `look` was called."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why the log could not be asked."""
        self.bounds: dict[int, Bounds] = {}
        self.dense = False
        """Whether positions tell how many updates lie between them."""
        self.retained: RetainedBy | None = None
        """What its datastore keeps of it, as publishers report it."""
        self.request: dict[str, Any] | None = None
        """The newest snapshot on demand, as ZooKeeper has it."""
        self._identity: str | None = None
        self._ages: dict[tuple[int, Position], float] = {}
        self._aside: dict[Position, str] = {}

    def look(self, log: Log, stream: StreamDefinition, stands: set[tuple[int, Datamarker]]) -> None:
        """Ask the log for its bounds, and how far behind they are that stand at these datamarkers."""
        self.dense = isinstance(log, WritableLog)
        self.bounds = log.bounds()
        self._identity = identity_of(log, stream)
        there = {(shard, self._stand(marker)) for shard, marker in stands}
        if isinstance(log, TailedLog):
            self._aside = {at: kind for _, at in there if (kind := log.aside(at)) is not None}
            there = {(shard, at) for shard, at in there if at not in self._aside}
        for together in _passes({self._held(*one) for one in there if self._behind(*one)}):
            self._ages |= _ages(log, together)

    def head(self, shard: int) -> Position | None:
        """The newest position of the shard."""
        return self.bounds[shard].head if shard in self.bounds else None

    def beginning(self, datamarker: Datamarker) -> str | None:
        """What is to be said of a flow that is not in the log yet."""
        kind = self._aside.get(self._stand(datamarker))
        if kind is None:
            return None
        if kind == DEMANDED:
            return "it waits for a snapshot on demand, or is sent its rows; see `tidings streams describe`"
        return "it begins with a snapshot of its own, which is read for it or taken just now"

    def hold(self, application: str) -> str | None:
        """Why nobody is to own the flows of an application for a moment, if so."""
        with contextlib.suppress(InvalidOption):
            if self.request and SnapshotRequest.from_json(self.request).holds(application):
                return "it is held until a snapshot on demand has its place in the log"
        return None

    def _stand(self, datamarker: Datamarker) -> Position:
        """Where the datamarker is in this log: before all of it, if it is that of another one in its place."""
        elsewhere = None not in (datamarker.log, self._identity) and datamarker.log != self._identity
        return START if elsewhere else datamarker.position

    def lag(self, shard: int, datamarker: Datamarker) -> int | None:
        """How many updates lie after the datamarker; None if that is not known."""
        marker = self._stand(datamarker)
        if shard not in self.bounds:
            return None
        if not self._behind(shard, marker):
            return 0
        if not self.dense:
            return None  # only our own logs tell how many updates lie between two positions
        # Position(7, -1) stands before the update 7.
        return self.bounds[shard].head.seq - max(self.bounds[shard].floor.seq, marker.seq - (marker.index < 0))

    def lag_seconds(self, shard: int, datamarker: Datamarker) -> float | None:
        """How old the next update is; None if that is not known."""
        marker = self._stand(datamarker)
        if shard not in self.bounds:
            return None
        return self._ages.get(self._held(shard, marker)) if self._behind(shard, marker) else 0.0

    def _behind(self, shard: int, marker: Position) -> bool:
        return shard in self.bounds and marker < self.bounds[shard].head

    def _held(self, shard: int, marker: Position) -> tuple[int, Position]:
        """Where to read from for what comes after the marker and is still there."""
        return shard, max(self.bounds[shard].floor, marker)


def _passes(stands: set[tuple[int, Position]]) -> Iterator[dict[int, Position]]:
    """Positions that can be read from together: one a shard, and not so many that their rows are a burden."""
    left = sorted(stands)
    while left:
        together: dict[int, Position] = {}
        later = []
        for shard, position in left:
            if shard in together or len(together) == READ_SHARDS:
                later.append((shard, position))
            else:
                together[shard] = position
        yield together
        left = later


def _ages(log: Log, stands: dict[int, Position]) -> dict[tuple[int, Position], float]:
    """How old the next update of each shard is, in seconds; those that could not be had are left out.

    A log gives every shard its part of a read, so those that are far behind come first, and the others in the next one.
    """
    left, ages, patience = dict(stands), {}, 3
    while left and patience:
        heads = {shard: bounds.head for shard, bounds in log.bounds().items()}
        try:
            rows = log.tail(Positions({**heads, **left}), len(left) + ROOM_ROWS)
        except PositionsLost:
            break  # truncated this moment
        now = dt.datetime.now(dt.UTC)
        found, first = np.unique(rows["shard"].to_numpy(), return_index=True)
        came = [(shard, row) for shard, row in zip(found.tolist(), first.tolist(), strict=True) if shard in left]
        for shard, row in came:
            time, position = rows["time"][row].as_py(), left.pop(shard)
            if time is not None:
                ages[shard, position] = max(0.0, (now - time).total_seconds())
        patience = 3 if came else patience - 1
    return ages


def status_of(
    flow: Flow, record: FlowRecord, live: Container[str], log: LogReading, troubles: Mapping[str, str], *, idle: bool
) -> FlowStatus:
    """How a flow stands: `live` are its application's subscribers, `troubles` says which publishers cannot read it.

    `idle` says that no publisher runs at all.
    """
    owner, holder, marker = record.owner or {}, record.holder, record.datamarker
    runs = holder is not None and holder.id in live
    current = holder if owner and runs and holder and holder.epoch == record.epoch else None
    lag_seconds = None if marker is None else log.lag_seconds(flow.shard, marker)
    publisher = short(owner.get("publisher"))
    state, reason = state_of(
        record.control,
        bool(owner),
        holder,
        # If none owns the flow, why one of them could not read the log.
        next((why for name, why in troubles.items() if publisher in (None, name)), None)
        or (None if owner else log.hold(flow.application)),
        present=current is not None,
        runs=runs,
        stuck=stuck_reason(record.marked, record.held_since, lag_seconds, dt.datetime.now(dt.UTC)),
        beginning=log.beginning(marker) if marker else None,
        idle=idle,
    )
    return FlowStatus(
        flow,
        state,
        reason,
        publisher,
        owner.get("host"),
        owner.get("pid"),
        record.epoch,
        marker,
        log.head(flow.shard),
        None if marker is None else log.lag(flow.shard, marker),
        lag_seconds,
        current.id if current else None,
        record.problem or log.problem,
        record.control,
        current.failed_at if current else None,
        log.retained if log.retained and log.retained.flow == flow else None,
    )
