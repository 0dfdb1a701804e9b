"""A flow: the updates of one shard of one stream for one application; and what ZooKeeper holds of it.

```
/<root>/flows/<app>/<stream>/<shard>/epoch       its data version is the epoch
/<root>/flows/<app>/<stream>/<shard>/owner       ephemeral: the publisher that sends the flow
/<root>/flows/<app>/<stream>/<shard>/datamarker  position, epoch, time
/<root>/flows/<app>/<stream>/<shard>/subscriber  which subscriber holds the flow, since which epoch; parked, and why
/<root>/flows/<app>/<stream>/<shard>/control     the operator's word
```
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow.compute as pc
from kazoo.exceptions import NoNodeError

from tidings.coordination import Coordination, decode
from tidings.datamarkers import Datamarker
from tidings.errors import TidingsError
from tidings.logs import Log, WritableLog
from tidings.positions import Bounds, Position, Positions

if TYPE_CHECKING:
    from tidings.cluster import Cluster

State = Literal["unassigned", "waiting", "running", "parked"]
_NODES = ("epoch", "owner", "datamarker", "subscriber")


class Flow(NamedTuple):
    """Which flow.

    >>> str(Flow("cache", "contacts", 3))
    'cache/contacts/3'
    """

    application: str
    stream: str
    shard: int

    def __str__(self) -> str:
        return f"{self.application}/{self.stream}/{self.shard}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where the flow is in the cluster's tree."""
        return ("flows", self.application, self.stream, str(self.shard))


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """How a flow stands, as ZooKeeper and its log told at one moment. What is not known is None, and never 0.

    | state | meaning |
    | --- | --- |
    | `unassigned` | no publisher owns the flow |
    | `waiting` | a publisher owns it, and no running subscriber holds it |
    | `running` | a publisher owns it, and a subscriber holds it |
    | `parked` | the subscriber's handler failed again and again, for this `reason`; nothing is sent |
    """

    flow: Flow
    state: State
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
    """Why the log could not be asked, if so."""


def status(
    cluster: Cluster, *, application: str | None = None, stream: str | None = None, shard: int | None = None
) -> list[FlowStatus]:
    """How the flows stand: all of them, or those of one application, stream or shard.

    ZooKeeper is asked for all at once, and each log once for its bounds; and for one update where a flow lags, since
    its time tells the lag in seconds.
    """
    applications = cluster.applications() if application is None else [cluster.application(application)]
    shards = {one.name: one.shards for one in ([cluster.stream(stream)] if stream else cluster.streams())}
    flows = [
        Flow(one.name, name, number)
        for one in applications
        for name in one.streams
        for number in range(shards.get(name, 0))
        if shard in (None, number)
    ]
    records = _records(cluster.coordination, flows)
    live = {one.name: set(cluster.coordination.children(*_subscribers(one.name))) for one in applications}
    # The logs come last: then no datamarker is ahead of the head that it is compared with.
    logs = {name: _Reading(cluster, name) for name in sorted({flow.stream for flow in flows})}
    try:
        return [_status(flow, records[flow], live[flow.application], logs[flow.stream]) for flow in flows]
    finally:
        for reading in logs.values():
            reading.close()


class _Record(NamedTuple):
    """What ZooKeeper holds of a flow."""

    epoch: int | None
    owner: dict[str, Any] | None
    datamarker: Datamarker | None
    holder: dict[str, Any] | None


def _subscribers(application: str) -> tuple[str, str, str]:
    return ("applications", application, "subscribers")


def _records(tree: Coordination, flows: list[Flow]) -> dict[Flow, _Record]:
    """Ask for everything before waiting for the first answer: thousands of flows take one round trip or two."""
    with tree.speaking():
        asked = {flow: {name: tree.client.get_async(tree.path(*flow.place, name)) for name in _NODES} for flow in flows}
        found = {flow: {name: _answer(one) for name, one in nodes.items()} for flow, nodes in asked.items()}
    records = {}
    for flow, nodes in found.items():
        values = {name: decode(tree.path(*flow.place, name), raw) for name, (raw, _) in nodes.items()}
        marker = values["datamarker"]
        records[flow] = _Record(
            nodes["epoch"][1], values["owner"], Datamarker.from_json(marker) if marker else None, values["subscriber"]
        )
    return records


def _answer(asked: Any) -> tuple[bytes, int | None]:
    try:
        raw, stat = asked.get()
    except NoNodeError:
        return b"", None
    return raw, stat.version


class _Reading:
    """What a stream's log says of the lag of flows; each thing is asked once."""

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self.problem: str | None = None
        self._bounds: dict[int, Bounds] = {}
        self._ages: dict[tuple[int, Position], float | None] = {}
        self._log: Log | None = None
        try:
            self._log = cluster.stream(stream).log
            self._bounds = self._log.bounds()
        except TidingsError as error:
            self.problem = str(error)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def head(self, shard: int) -> Position | None:
        bounds = self._bounds.get(shard)
        return None if bounds is None else bounds.head

    def lag(self, shard: int, marker: Position) -> int | None:
        bounds = self._bounds.get(shard)
        if bounds is None:
            return None
        if bounds.head <= marker:
            return 0
        if not isinstance(self._log, WritableLog):
            return None  # only our own logs have dense positions
        # Position(7, -1) stands before the update 7.
        return bounds.head.seq - max(bounds.floor.seq, marker.seq - (marker.index < 0))

    def lag_seconds(self, shard: int, marker: Position) -> float | None:
        bounds = self._bounds.get(shard)
        if self._log is None or bounds is None:
            return None
        if bounds.head <= marker:
            return 0.0
        after = max(bounds.floor, marker)
        if (shard, after) not in self._ages:
            self._ages[shard, after] = self._age(self._log, shard, after)
        return self._ages[shard, after]

    def _age(self, log: Log, shard: int, after: Position) -> float | None:
        others = {other: bounds.head for other, bounds in self._bounds.items() if other != shard}
        # One row will do, unless other shards have grown meanwhile: then there must be room for one of each.
        for limit in (1, len(self._bounds)):
            try:
                rows = log.tail(Positions({**others, shard: after}), limit)
            except TidingsError:
                return None  # it was truncated this moment, or cannot be read; that is no reason to show nothing
            row = pc.index(rows["shard"], shard).as_py()
            if row >= 0:
                time = rows["time"][row].as_py()
                return None if time is None else max(0.0, (dt.datetime.now(dt.UTC) - time).total_seconds())
        return None


def _status(flow: Flow, record: _Record, live: set[str], log: _Reading) -> FlowStatus:
    owner, holder, marker = record.owner or {}, record.holder or {}, record.datamarker
    current = bool(owner) and holder.get("epoch") == record.epoch and holder.get("id") in live
    reason = holder.get("parked") if current else None
    state: State = "unassigned" if not owner else "waiting" if not current else "parked" if reason else "running"
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
        None if marker is None else log.lag(flow.shard, marker.position),
        None if marker is None else log.lag_seconds(flow.shard, marker.position),
        holder["id"] if current else None,
        log.problem,
    )
