"""What ZooKeeper holds of a cluster, read at once: definitions, members, reports, pipelines and the records of flows.

What makes no sense is left out, and told among the problems; it harms nothing beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tidings.applications import Application
from tidings.coordination.values import decode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, InvalidOption, TidingsError
from tidings.flow_status import FlowRecord, KeptRecords, records_of
from tidings.flows import DRAINS, Flow
from tidings.names import check_name
from tidings.publisher.reports import PLACE as CARAVANS
from tidings.stream_definition import StreamDefinition, streams_by_name
from tidings.texts import short

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

T = TypeVar("T")
Place = tuple[str, ...]
Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """What ZooKeeper held at one moment."""

    time: float
    streams: Mapping[str, StreamDefinition] = field(default_factory=dict)
    applications: Mapping[str, Application] = field(default_factory=dict)
    publishers: Mapping[str, Value] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    subscribers: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """By application and id; those of applications that were dropped meanwhile, too."""
    caravans: Mapping[tuple[str, str], Value] = field(default_factory=dict)
    """The report of each publisher on the caravans of each stream."""
    pipelines: Mapping[str, Value] = field(default_factory=dict)
    """Who runs each pipeline, and how far it is."""
    records: Mapping[Flow, FlowRecord] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def troubles(self, stream: str) -> dict[str, str]:
        """Why publishers cannot read the log of a stream, by their names."""
        found = {}
        for name, record in self.publishers.items():
            unreadable = record.get("unreadable")
            if isinstance(unreadable, Mapping) and stream in unreadable:
                found[name] = short(str(unreadable[stream])) or ""
        for (which, name), report in self.caravans.items():
            if which == stream and (told := short(report.get("trouble"))):
                found[name] = told
        return found

    def reads(self) -> dict[str, list[str]]:
        """The streams that each application reads."""
        by_name = streams_by_name(self.streams.values())
        return {name: one.reads(by_name) for name, one in self.applications.items()}


def read_nodes(cluster: Catalogue, kept: KeptRecords | None = None) -> ClusterNodes:
    """Read all of it: few round trips, however much there is. What was `kept` and is the same is not parsed again."""
    tree, problems = cluster.coordination, list[str]()
    tops = ("streams", "applications", "publishers", DRAINS, "pipelines", CARAVANS)
    names = children(tree, [(top,) for top in tops])
    below = {top: names[top,] for top in tops}
    values = read_values(
        tree,
        [(top, name) for top in ("streams", "applications", "publishers", "pipelines") for name in below[top]],
        problems,
    )
    members = children(
        tree,
        [
            *(("applications", name, "subscribers") for name in below["applications"]),
            *((CARAVANS, name) for name in below[CARAVANS]),
        ],
    )
    more = read_values(tree, [(*place, name) for place, those in members.items() for name in those], problems)
    streams = _parsed(values, "streams", _stream, problems)
    applications = _parsed(values, "applications", _application, problems)
    by_name = streams_by_name(streams.values())
    flows = [
        Flow(name, stream, shard)
        for name, one in applications.items()
        for stream in one.reads(by_name)
        for shard in range(streams[stream].shards)
    ]
    subscribers: dict[str, dict[str, Value]] = {}
    caravans: dict[tuple[str, str], Value] = {}
    for place, value in more.items():
        if place[0] == CARAVANS:
            caravans[place[1], place[2]] = value
        else:
            subscribers.setdefault(place[1], {})[place[3]] = value
    return ClusterNodes(
        time.time(),
        streams,
        applications,
        {place[1]: value for place, value in values.items() if place[0] == "publishers"},
        frozenset(below[DRAINS]),
        subscribers,
        caravans,
        {place[1]: value for place, value in values.items() if place[0] == "pipelines"},
        records_of(cluster, flows, kept),
        tuple(problems),
    )


def children(tree: Coordination, places: Sequence[Place]) -> dict[Place, list[str]]:
    """The names below places; none below a place that is not there, or is not for us."""
    found = zip(places, tree.children_of_many(places), strict=True)
    return {place: names if isinstance(names, list) else [] for place, names in found}


def read_values(tree: Coordination, places: Sequence[Place], problems: list[str]) -> dict[Place, Value]:
    """The values at places; what is not there is left out, and what makes no sense, or is not for us, is told."""
    found: dict[Place, Value] = {}
    for place, node in zip(places, tree.read_many(places), strict=True):
        try:
            if isinstance(node, CoordinationDenied):
                raise CoordinationDenied(f"{tree.path(*place)}: we may not read it; see `tidings doctor`")
            value = decode(tree.path(*place), node.raw) if node else None
        except TidingsError as error:
            problems.append(str(error))
            continue
        if value is not None:
            found[place] = value
    return found


def _parsed(
    values: Mapping[Place, Value], top: str, parse: Callable[[str, Any], T], problems: list[str]
) -> dict[str, T]:
    found = {}
    for (where, name), value in values.items():
        if where == top:
            try:
                found[name] = parse(name, value)
            except TidingsError as error:
                problems.append(f"{top}/{name} is left out: {error}")
    return found


def _stream(name: str, value: Any) -> StreamDefinition:
    check_name("a stream", name)
    definition = StreamDefinition.from_json(value)
    if definition.name != name:
        raise InvalidOption(f"it has the definition of {definition.name!r}")
    return definition


def _application(name: str, value: Any) -> Application:
    application = Application.from_json(value)
    if application.name != name:
        raise InvalidOption(f"it has the definition of {application.name!r}")
    return application
