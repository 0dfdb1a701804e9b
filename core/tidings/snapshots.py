"""Snapshots on demand, as operators ask for them: the rows that tables have now, for some applications.

What is asked for is a request in ZooKeeper; publishers see to it, whoever has asked. See `tidings.snapshot_requests`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidings.audit import recorded
from tidings.errors import InvalidOption
from tidings.flows import Flow
from tidings.log_opening import is_tailed
from tidings.logs import SnapshotLog
from tidings.publisher.reports import read_datamarkers, read_reports
from tidings.snapshot_requests import CANCELLED, SNAPSHOTS, SnapshotRequest, read_request
from tidings.stream_definition import streams_by_name

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a snapshot would be: whose, of which tables, and how many flows get it."""

    stream: str
    applications: tuple[str, ...]
    tables: tuple[str, ...]
    """All that it has rows of."""
    chosen: bool
    """Whether these were named, or are all that there are."""
    flows: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """How a snapshot on demand stands. What is not known is None."""

    request: SnapshotRequest
    rows: int | None = None
    """How many were read from the tables so far."""
    flows: int | None = None
    flows_left: int | None = None
    """How many flows have not come by the rows yet."""
    reason: str | None = None
    """What it waits for, if a publisher says so; or why it has failed."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        told = {key: value for key, value in self.request.to_json().items() if key not in ("cancelled", "ended")}
        more = {"rows": self.rows, "flows": self.flows, "flows_left": self.flows_left}
        return {**told, "state": self.request.state, **more, "reason": self.reason}


def plan_snapshot(
    cluster: Catalogue, stream: str, applications: Sequence[str] = (), tables: Sequence[str] = ()
) -> SnapshotPlan:
    """What a snapshot of a stream would be, for these applications, or for all that read it; of these tables, or all.

    `InvalidOption`, or another error of ours, says why there can be none.
    """
    known = cluster.stream(stream)
    if not is_tailed(known.definition):
        raise InvalidOption(
            f"stream {stream!r} is a log of our own, and no tables: all that it holds is sent again by `tidings flows "
            f"reset --application APP --stream {stream} --to-earliest`"
        )
    by_name = streams_by_name([known.definition])
    reading = {one.name: one for one in cluster.applications() if stream in one.reads(by_name)}
    for name in applications:
        if name not in reading:
            cluster.application(name)  # is there
            raise InvalidOption(
                f"application {name!r} does not read stream {stream!r} (applications: {', '.join(reading) or 'none'})"
            )
    chosen = tuple(dict.fromkeys(applications)) or tuple(
        name for name, one in reading.items() if one.mode == "reliable"
    )
    for name in chosen:
        if reading[name].mode != "reliable":
            raise InvalidOption(f"application {name!r} is {reading[name].mode}: it gets what is new, and no snapshot")
    if not chosen:
        raise InvalidOption(f"no reliable application reads stream {stream!r}, so nobody would get its rows")
    with contextlib.closing(known.log) as log:
        if not isinstance(log, SnapshotLog):
            raise InvalidOption(f"the log of stream {stream!r} in {known.definition.log} knows no snapshots on demand")
        there = log.snapshot_tables()
    for table in tables:
        if table not in there:
            raise InvalidOption(f"stream {stream!r} has no table {table!r} (tables: {', '.join(there) or 'none'})")
    _check_none_runs(stream, read_request(cluster.coordination, stream))
    which = tuple(dict.fromkeys(tables)) or tuple(there)
    return SnapshotPlan(stream, chosen, which, bool(tables), len(chosen) * known.shards)


def request_snapshot(cluster: Catalogue, plan: SnapshotPlan) -> SnapshotRequest:
    """Have publishers do it. `InvalidOption` if another one of the stream runs."""
    tree = cluster.coordination
    wanted = SnapshotRequest.now(plan.applications, plan.tables if plan.chosen else ())
    with recorded(tree, "streams snapshot", [plan.stream], after=wanted.to_json()):
        while not tree.create(wanted.to_json(), SNAPSHOTS, plan.stream):
            known = read_request(tree, plan.stream)
            _check_none_runs(plan.stream, known)
            if known is not None and tree.replace(wanted.to_json(), known.to_json(), SNAPSHOTS, plan.stream):
                break
    return wanted


def _check_none_runs(stream: str, known: SnapshotRequest | None) -> None:
    if known is not None and known.ended is None:
        raise InvalidOption(
            f"a snapshot of stream {stream!r} runs already, for {', '.join(known.applications)}: wait until it is "
            f"complete, or end it by `tidings streams snapshot {stream} --cancel`"
        )


def cancel_snapshot(cluster: Catalogue, stream: str) -> SnapshotRequest:
    """Have nobody get more rows of the snapshot that runs; what has come stays. Flows go on in the log."""
    cluster.stream(stream)  # is there
    while True:
        known = read_request(cluster.coordination, stream)
        if known is None or known.ended is not None:
            raise InvalidOption(f"no snapshot of stream {stream!r} runs")
        ended = CANCELLED if known.place is None else None  # else publishers have to take the rows away first
        cancelled = replace(known, cancelled=True, ended=ended)
        before, after = known.to_json(), cancelled.to_json()
        with recorded(cluster.coordination, "streams snapshot", [stream], before=before, after=after):
            if known.cancelled or cluster.coordination.replace(after, before, SNAPSHOTS, stream):
                return known


def snapshot_status(cluster: Catalogue, stream: str) -> SnapshotStatus | None:
    """How the newest snapshot on demand of a stream stands; None if there was none yet."""
    tree = cluster.coordination
    request = read_request(tree, stream)
    if request is None or request.ended is not None:
        return None if request is None else SnapshotStatus(request, reason=request.reason)
    shards = cluster.stream(stream).shards
    flows = [Flow(name, stream, shard) for name in request.applications for shard in range(shards)]
    left = None
    if request.place is not None:
        markers = read_datamarkers(tree, flows)
        left = sum(flow not in markers or markers[flow].position < request.place.after for flow in flows)
    told: dict[str, Any] = {}
    for report in read_reports(tree, stream).values():
        found = report.get("snapshot")
        if isinstance(found, dict) and found.get("id") == request.id:
            told = found
    return SnapshotStatus(request, told.get("rows"), len(flows), left, told.get("trouble"))
