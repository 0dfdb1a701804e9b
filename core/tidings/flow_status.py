"""How flows stand: what operators see of them, put together from ZooKeeper and the logs."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidings.coordination.zookeeper import Coordination, decode
from tidings.datamarkers import Datamarker
from tidings.errors import ForeignValue, InvalidOption, PositionsLost, TidingsError
from tidings.flows import CONTROL, NODES, Flow, FlowState
from tidings.logs import Log, TailedLog, WritableLog, identity_of
from tidings.positions import START, Bounds, Position, Positions
from tidings.publisher.reports import read_troubles, read_unreadable
from tidings.stream_definition import streams_by_name

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

READ_SHARDS = 256  # whose next updates are read at once
ROOM_ROWS = 16  # for updates that come in while they are read


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """How a flow stands, as ZooKeeper and its log told at one moment. What is not known is None, and never 0.

    | state | meaning |
    | --- | --- |
    | `unassigned` | no publisher owns the flow; a `reason` says why one could not read the log |
    | `waiting` | a publisher owns it, and no running subscriber holds it |
    | `failing` | a running subscriber should have it, and cannot be reached, or refuses it, for this `reason` |
    | `running` | a publisher sends it to a running subscriber; a `reason` says what cannot be read, or was lost |
    | `parked` | it cannot go on, for this `reason`: a handler that failed again and again, say; nothing is sent |
    | `stopped` | an operator has said so; nobody owns it |
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


def status(
    cluster: Catalogue, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> list[FlowStatus]:
    """How the flows stand: all of them, or those of one application, stream (or family of streams) or shard.

    ZooKeeper is asked for all at once, and each log for its bounds, and for the next update where a flow lags: its time
    tells the lag in seconds.
    """
    records = read_records(cluster, application=application, stream=stream, shard=shard)
    flows = list(records)
    live = {
        name: set(cluster.coordination.children(*_subscribers(name))) for name in {one.application for one in flows}
    }
    # The logs come last: then no datamarker is ahead of the head that it is compared with.
    stands: dict[str, set[tuple[int, Datamarker]]] = {flow.stream: set() for flow in flows}
    for flow, record in records.items():
        if record.datamarker is not None:
            stands[flow.stream].add((flow.shard, record.datamarker))
    unreadable = read_unreadable(cluster.coordination)
    logs = {name: _Reading(cluster, name, those, unreadable.get(name, {})) for name, those in stands.items()}
    return [_status(flow, records[flow], live[flow.application], logs[flow.stream]) for flow in flows]


class FlowRecord(NamedTuple):
    """What ZooKeeper holds of a flow."""

    epoch: int | None
    owner: dict[str, Any] | None
    datamarker: Datamarker | None
    holder: dict[str, Any] | None
    control: dict[str, Any] | None
    problem: str | None


def read_records(
    cluster: Catalogue, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> dict[Flow, FlowRecord]:
    """What ZooKeeper holds of flows, without a look at their logs."""
    applications = cluster.applications() if application is None else [cluster.application(application)]
    chosen = cluster.streams_named(stream) if stream else cluster.streams()
    by_name = streams_by_name(one.definition for one in chosen)
    shards = {one.name: one.shards for one in chosen}
    flows = [
        Flow(one.name, name, number)
        for one in applications
        for name in one.reads(by_name)
        for number in range(shards[name])
        if shard in (None, number)
    ]
    return _records(cluster.coordination, flows)


def _subscribers(application: str) -> tuple[str, str, str]:
    return ("applications", application, "subscribers")


def _records(tree: Coordination, flows: list[Flow]) -> dict[Flow, FlowRecord]:
    """Ask for everything before waiting for the first answer: thousands of flows take one round trip or two."""
    with tree.translating_errors():
        asked = {flow: {name: tree.client.get_async(tree.path(*flow.place, name)) for name in _NAMES} for flow in flows}
        found = {flow: {name: tree.found(one) for name, one in nodes.items()} for flow, nodes in asked.items()}
    records = {}
    for flow, nodes in found.items():
        values: dict[str, Any] = {}
        problem = None
        for name, parse in _READ.items():
            node, path = nodes[name], tree.path(*flow.place, name)
            try:
                value = decode(path, node[0]) if node else None
                values[name] = parse(value) if value is not None else None
            except TidingsError as error:  # of the other flows there is more to tell
                values[name] = None
                if name == CONTROL:  # publishers leave it alone, and say so
                    continue
                problem = str(error) if isinstance(error, ForeignValue) else f"what ZooKeeper holds at {path}: {error}"
        epoch = nodes["epoch"][1].version if nodes["epoch"] else None
        records[flow] = FlowRecord(
            epoch, values["owner"], values["datamarker"], values["subscriber"], values[CONTROL], problem
        )
    return records


def _holder(value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get("id"), str):
        raise InvalidOption("it names no subscriber: mend it, or delete it")
    return value


_READ: dict[str, Callable[[dict[str, Any]], Any]] = {
    "owner": dict,
    "datamarker": Datamarker.from_json,
    "subscriber": _holder,
    CONTROL: dict,
}
_NAMES = (*NODES, CONTROL)


class _Reading:
    """What a stream's log says of the lag of flows that stand at these datamarkers."""

    def __init__(
        self, cluster: Catalogue, stream: str, stands: set[tuple[int, Datamarker]], unreadable: Mapping[str, str]
    ) -> None:
        self.problem: str | None = None
        self._identity: str | None = None
        self._bounds: dict[int, Bounds] = {}
        self._ages: dict[tuple[int, Position], float] = {}
        self._aside: set[Position] = set()
        self._dense = False
        self._troubles = {**unreadable, **read_troubles(cluster.coordination, stream)}
        try:
            known = cluster.stream(stream)
            with contextlib.closing(known.log) as log:
                self._dense = isinstance(log, WritableLog)
                self._bounds = log.bounds()
                self._identity = identity_of(log, known.definition)
                there = {(shard, self._stand(marker)) for shard, marker in stands}
                if isinstance(log, TailedLog):
                    self._aside = {at for _, at in there if log.aside(at)}
                    there = {(shard, at) for shard, at in there if at not in self._aside}
                for together in _passes({self._held(*one) for one in there if self._behind(*one)}):
                    self._ages |= _ages(log, together)
        except TidingsError as error:
            self.problem = str(error)

    def trouble(self, publisher: str | None) -> str | None:
        """Why this publisher could not read it; or, if none owns the flow, why one of them could not."""
        return next((why for name, why in self._troubles.items() if publisher in (None, name)), None)

    def head(self, shard: int) -> Position | None:
        return self._bounds[shard].head if shard in self._bounds else None

    def beginning(self, datamarker: Datamarker) -> str | None:
        """What is to be said of a flow that is not in the log yet."""
        aside = self._stand(datamarker) in self._aside
        return "it begins with a snapshot of its own, which is read for it or taken just now" if aside else None

    def _stand(self, datamarker: Datamarker) -> Position:
        """Where the datamarker is in this log: before all of it, if it is that of another one in its place."""
        elsewhere = None not in (datamarker.log, self._identity) and datamarker.log != self._identity
        return START if elsewhere else datamarker.position

    def lag(self, shard: int, datamarker: Datamarker) -> int | None:
        marker = self._stand(datamarker)
        if shard not in self._bounds:
            return None
        if not self._behind(shard, marker):
            return 0
        if not self._dense:
            return None  # only our own logs tell how many updates lie between two positions
        # Position(7, -1) stands before the update 7.
        return self._bounds[shard].head.seq - max(self._bounds[shard].floor.seq, marker.seq - (marker.index < 0))

    def lag_seconds(self, shard: int, datamarker: Datamarker) -> float | None:
        marker = self._stand(datamarker)
        if shard not in self._bounds:
            return None
        return self._ages.get(self._held(shard, marker)) if self._behind(shard, marker) else 0.0

    def _behind(self, shard: int, marker: Position) -> bool:
        return shard in self._bounds and marker < self._bounds[shard].head

    def _held(self, shard: int, marker: Position) -> tuple[int, Position]:
        """Where to read from for what comes after the marker and is still there."""
        return shard, max(self._bounds[shard].floor, marker)


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


def _status(flow: Flow, record: FlowRecord, live: set[str], log: _Reading) -> FlowStatus:
    owner, holder, marker = record.owner or {}, record.holder or {}, record.datamarker
    current = bool(owner) and holder.get("epoch") == record.epoch and holder.get("id") in live
    state: FlowState = "stopped" if (record.control or {}).get("stopped") else "unassigned"
    if owner:
        troubles: tuple[tuple[str, FlowState], ...] = (("parked", "parked"), ("trouble", "failing"))
        state = next((name for key, name in troubles if holder.get(key)), "running") if current else "waiting"
    reason = log.trouble(owner.get("publisher"))
    if current:
        failed = holder.get("parked") or holder.get("trouble")
        reason = failed or reason or holder.get("lost") or (log.beginning(marker) if marker else None)
    return FlowStatus(
        flow,
        state,
        reason,
        owner.get("publisher"),
        owner.get("host"),
        owner.get("pid"),
        record.epoch,
        marker,
        log.head(flow.shard),
        None if marker is None else log.lag(flow.shard, marker),
        None if marker is None else log.lag_seconds(flow.shard, marker),
        holder["id"] if current else None,
        record.problem or log.problem,
    )
