"""The answers of the console: functions of what is known of the cluster, and of what was asked."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidings.console.cluster_view import STATES, ClusterView
from tidings.console.flow_map import publisher_state
from tidings.console.history import OverviewPoint
from tidings.coordination.subscriber_record import MAX_WEIGHT, present_troubles
from tidings.errors import InvalidOption, InvalidPosition
from tidings.flow_status import FlowStatus
from tidings.flows import Flow
from tidings.log_opening import is_tailed
from tidings.positions import Position, Positions
from tidings.protocol_versions import SpokenVersions
from tidings.texts import MAX_ENTRIES, number, short, short_list, short_texts, whole

Answer = dict[str, Any]

MAX_PAGE = 1000
WORST = 10
LATE_S = 60.0  # a flow that is further behind is told of
SORTS = ("name", "lag", "lag-seconds")
MAX_TIME_S = 250_000_000_000  # beyond which there is no year


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """Which flows are asked for, in which order."""

    application: str | None = None
    stream: str | None = None
    states: frozenset[str] = frozenset()
    publisher: str | None = None
    subscriber: str | None = None
    text: str = ""
    sort: str = "name"

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise InvalidOption(f"sort is one of {', '.join(SORTS)}, not {self.sort!r}")
        for state in self.states:
            if state not in STATES:
                raise InvalidOption(f"{state!r} is no state of a flow; the states are {', '.join(STATES)}")

    def wants(self, one: FlowStatus) -> bool:
        """Whether a flow is among those that are asked for."""
        return (
            self.application in (None, one.flow.application)
            and self.stream in (None, one.flow.stream)
            and (not self.states or one.state in self.states)
            and self.publisher in (None, one.owner)
            and self.subscriber in (None, one.subscriber)
            and (not self.text or self.text in f"{one.flow} {one.owner} {one.subscriber}".lower())
        )


def completeness(view: ClusterView) -> Answer:
    """What every list says of itself: whether something is missing, and why; and how old it is."""
    unread = None if view.time else "the cluster was not read yet"
    problems = [*(one for one in (view.away, unread) if one), *view.problems]
    return {"partial": bool(problems), "problems": problems[:50], "as_of": time_text(view.time) if view.time else None}


def overview(view: ClusterView, point: OverviewPoint, history: Sequence[OverviewPoint] | None = None) -> Answer:
    """The cluster in one look."""
    health, reasons = health_of(view)
    nodes = view.nodes
    behind = sorted((one for one in view.flows if one.lag or one.lag_seconds), key=_by_lag, reverse=True)
    found: Answer = {
        "health": health,
        "reasons": reasons,
        "counts": {
            "streams": len(nodes.streams),
            "applications": len(nodes.applications),
            "publishers": len(nodes.publishers),
            "subscribers": sum(map(len, nodes.subscribers.values())),
            "flows": len(view.flows),
            "pipelines": len(nodes.pipelines),
        },
        "states": {state: view.states[state] for state in STATES},
        "rates": {"updates_per_second": point.updates_per_second, "bytes_per_second": _rounded(view.bytes_per_second)},
        "worst": [flow_json(view, one) for one in behind[:WORST]],
        **completeness(view),
    }
    if history is None:
        found["point"] = list(point)
    else:
        names = {"times": 0, "updates_per_second": 1, "worst_lag_seconds": 2, "lag": 3}
        found["history"] = {name: [one[at] for one in history] for name, at in names.items()}
    return found


def health_of(view: ClusterView) -> tuple[str, list[str]]:
    """How the cluster is, and why that is said."""
    critical, warning = list[str](), list[str]()
    states, nodes = view.states, view.nodes
    if view.away:
        critical.append(view.away)
    if states["failed"]:
        critical.append(_count(states["failed"], "flow has failed", "flows have failed"))
    if view.flows and not nodes.publishers:
        critical.append("no publisher runs")
    elif states["unassigned"]:
        critical.append(_count(states["unassigned"], "flow has no owner", "flows have no owner"))
    if states["restarting"]:
        warning.append(_count(states["restarting"], "flow does not reach", "flows do not reach") + " its subscriber")
    if states["waiting"]:
        warning.append(_count(states["waiting"], "flow waits for a subscriber", "flows wait for subscribers"))
    late = sum((one.lag_seconds or 0.0) > LATE_S for one in view.flows)
    if late:
        warning.append(_count(late, "flow is", "flows are") + f" more than {LATE_S:.0f} s behind")
    draining = [name for name in nodes.publishers if publisher_state(view, name) == "draining"]
    if draining:
        warning.append(f"draining: {', '.join(draining[:5])}")
    if states["stopped"] or states["paused"]:
        held = states["stopped"] + states["paused"]
        warning.append(_count(held, "flow is stopped or paused", "flows are stopped or paused") + " by an operator")
    warning += view.problems[:5]
    return "critical" if critical else "warning" if warning else "ok", [*critical, *warning]


def flows(view: ClusterView, query: FlowQuery, page: int, size: int) -> Answer:
    """A page of flows."""
    if not 1 <= size <= MAX_PAGE or page < 0:
        raise InvalidOption(f"a page has 1 to {MAX_PAGE:,} flows, and pages are numbered from 0")
    found = [one for one in view.flows if query.wants(one)]
    if query.sort == "lag":
        found.sort(key=lambda one: -1 if one.lag is None else one.lag, reverse=True)
    elif query.sort == "lag-seconds":
        found.sort(key=lambda one: -1.0 if one.lag_seconds is None else one.lag_seconds, reverse=True)
    shown = found[page * size : (page + 1) * size]
    return {
        "total": len(found),
        "page": page,
        "size": size,
        "items": [flow_json(view, one) for one in shown],
        **completeness(view),
    }


def flow_json(view: ClusterView, one: FlowStatus) -> Answer:
    """A flow as pages show it."""
    marker = one.datamarker
    return {
        "flow": str(one.flow),
        "application": one.flow.application,
        "stream": one.flow.stream,
        "shard": one.flow.shard,
        "state": one.state,
        "reason": one.reason or one.problem,
        "owner": one.owner,
        "epoch": one.epoch,
        "subscriber": one.subscriber,
        "datamarker": position_json(marker.position) if marker else None,
        "acknowledged": moment_text(marker.time) if marker else None,
        "head": position_json(one.head) if one.head else None,
        "lag": one.lag,
        "lag_seconds": _rounded(one.lag_seconds),
        "pinned_to": one.control.pin,
    }


def flow(view: ClusterView, which: Flow) -> Answer | None:
    """All that is known of one flow; None if there is no such flow."""
    one = view.by_flow.get(which)
    if one is None:
        return None
    return {**flow_json(view, one), "host": short(one.host), "pid": whole(one.pid), **completeness(view)}


def streams(view: ClusterView) -> Answer:
    """The streams, with who reads them."""
    readers = _readers(view)
    items = []
    for name, definition in view.nodes.streams.items():
        state = view.logs.get(name)
        dense = state is not None and state.reading.dense and state.reading.bounds
        bounds = state.reading.bounds.values() if state and dense else ()
        items.append(
            {
                "name": name,
                "shards": definition.shards,
                "log": definition.log,
                "kind": definition.log.partition(":")[0],
                "tailed": _tailed(definition),
                "updates": sum(held.head.seq - held.floor.seq for held in bounds) if dense else None,
                "updates_per_second": _rounded(view.rates.get(name)),
                "readers": readers[name],
                "problem": _log_problem(view, name),
                "as_of": time_text(state.time) if state and state.time else None,
            }
        )
    return {"items": items, **completeness(view)}


def stream(view: ClusterView, name: str) -> Answer | None:
    """A stream with its shards; None if there is no such stream."""
    definition = view.nodes.streams.get(name)
    if definition is None:
        return None
    state = view.logs.get(name)
    bounds = state.reading.bounds if state else {}
    dense = state is not None and state.reading.dense
    return {
        **definition.to_json(),
        "kind": definition.log.partition(":")[0],
        "shard_count": definition.shards,
        "readers": _readers(view)[name],
        "problem": _log_problem(view, name),
        "updates_per_second": _rounded(view.rates.get(name)),
        "shards": [
            {
                "shard": shard,
                # The first one that is still there; in a datastore's log nobody can say which that is.
                "oldest": position_json(Position(held.floor.seq + 1)) if dense and not held.empty else None,
                "newest": position_json(held.head),
                "updates": held.head.seq - held.floor.seq if dense else None,
                "last_time": None,
            }
            for shard, held in sorted(bounds.items())
        ],
        **completeness(view),
    }


def applications(view: ClusterView) -> Answer:
    """The applications, with how their flows stand."""
    mine: dict[str, list[FlowStatus]] = defaultdict(list)
    for one in view.flows:
        mine[one.flow.application].append(one)
    items = []
    for name, definition in view.nodes.applications.items():
        states = Counter(one.state for one in mine[name])
        items.append(
            {
                **definition.to_json(),
                "flows": len(mine[name]),
                "states": {state: states[state] for state in STATES},
                "lag": _total(mine[name], lambda one: one.lag),
                "lag_seconds": _rounded(
                    max((one.lag_seconds for one in mine[name] if one.lag_seconds is not None), default=None)
                ),
                "subscribers": len(view.nodes.subscribers.get(name, {})),
            }
        )
    return {"items": items, **completeness(view)}


def publishers(view: ClusterView) -> Answer:
    """The publishers that run."""
    items = []
    for name, record in view.nodes.publishers.items():
        items.append(
            {
                "name": name,
                **{key: short(record.get(key)) for key in ("address", "host", "replica", "tidings")},
                "protocol": SpokenVersions.from_json(record).protocol,
                "pid": whole(record.get("pid")),
                "streams": short_list(record.get("streams")),
                "flows": view.owned[name],
                "state": publisher_state(view, name),
                "unreadable": short_texts(record.get("unreadable")),
            }
        )
    return {"items": items, **completeness(view)}


def subscribers(view: ClusterView, application: str | None) -> Answer:
    """The subscribers that run."""
    items = []
    addresses = {name: record.get("address") for name, record in view.nodes.publishers.items()}
    for name, those in view.nodes.subscribers.items():
        for id, record in those.items() if application in (None, name) else ():
            items.append(
                {
                    "id": id,
                    "application": name,
                    "flows": view.held[name, id],
                    "load": number(record.get("load"), most=1),
                    "weight": number(record.get("weight"), most=MAX_WEIGHT),
                    **{key: short(record.get(key)) for key in ("host", "tidings")},
                    "protocol": SpokenVersions.from_json(record).protocol,
                    "pid": whole(record.get("pid")),
                    "state": "leaving" if record.get("leaving") else "running",
                    "unreachable": present_troubles(record, addresses),
                }
            )
    return {"items": items, **completeness(view)}


def caravans(view: ClusterView) -> Answer:
    """The caravans of each publisher, by stream, as it reported them."""
    items = []
    for (stream, publisher), report in view.nodes.caravans.items():
        told = report.get("caravans")
        those = [one for one in told[:MAX_ENTRIES] if isinstance(one, Mapping)] if isinstance(told, list) else []
        state = view.logs.get(stream)
        bounds = state.reading.bounds if state else {}
        items.append(
            {
                "stream": stream,
                "publisher": publisher,
                "caravans": [_caravan(number, one) for number, one in enumerate(those)],
                "head": {str(shard): position_json(held.head) for shard, held in sorted(bounds.items())[:64]},
                **{key: whole(report.get(key)) for key in ("bytes_read", "bytes_sent")},
                "trouble": short(report.get("trouble")),
            }
        )
    return {"items": items, **completeness(view)}


def _caravan(place: int, told: Mapping[str, Any]) -> Answer:
    found = whole(told.get("number"))
    return {
        "id": place if found is None else found,
        "lead": place == 0,
        "flows": short_list(told.get("riders")) or [],
        "flow_count": whole(told.get("flows")),
        "position": _positions(told.get("at")),
        **{key: number(told.get(key)) for key in ("behind", "rate", "rows_read", "bytes_read")},
    }


def _positions(told: Any) -> Answer:
    try:
        return Positions.from_json(told).to_json()
    except InvalidPosition:
        return {}


def pipelines(view: ClusterView) -> Answer:
    """The pipelines that run, as their drivers tell; processed are those that were written."""
    return {"items": [_pipeline(name, one) for name, one in view.nodes.pipelines.items()], **completeness(view)}


def _pipeline(name: str, record: Mapping[str, Any]) -> Answer:
    at = number(record.get("at"), most=MAX_TIME_S)
    return {
        "name": name,
        "state": "running",
        **{key: short(record.get(key)) for key in ("stage", "output", "host", "since")},
        "inputs": short_list(record.get("inputs")),
        **{key: whole(record.get(key)) for key in ("pid", "batch", "updates_in", "updates_out")},
        "input_rows_per_second": number(record.get("rate")),
        "processed_rows_per_second": None,
        "last_progress": time_text(at) if at else None,
        "problem": None,
    }


def position_json(position: Position) -> int | list[int] | None:
    """A position as commands print it; None before the first update."""
    return position.to_json() if position.seq >= 0 else None


def moment_text(moment: dt.datetime) -> str:
    """A time as ISO 8601 has it.

    >>> moment_text(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    '2026-01-01T00:00:00Z'
    """
    return moment.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as ISO 8601 has it."""
    return moment_text(dt.datetime.fromtimestamp(round(seconds, 3), dt.UTC))


def _readers(view: ClusterView) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for application, read in view.nodes.reads().items():
        for name in read:
            found[name].append(application)
    return found


def _log_problem(view: ClusterView, name: str) -> str | None:
    state = view.logs.get(name)
    if state is not None and state.problem:
        return state.problem
    return next(iter(view.nodes.troubles(name).values()), None)


def _tailed(definition: Any) -> bool | None:
    try:
        return is_tailed(definition)
    except Exception:  # noqa: BLE001 - a plugin that is not here, or is broken
        return None


def _total(those: Sequence[FlowStatus], of: Callable[[FlowStatus], int | None]) -> int | None:
    known = [value for one in those if (value := of(one)) is not None]
    return sum(known) if known else None


def _by_lag(one: FlowStatus) -> tuple[float, int]:
    return one.lag_seconds or 0.0, one.lag or 0


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"
