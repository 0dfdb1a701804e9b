"""A copy of what a cluster keeps in ZooKeeper, as JSON; and the cluster made again from it.

The copy has what outlives processes: definitions, datamarkers, epochs, operators' words, and what plugins keep. It has
no secret and nothing made of one: rights are given anew, by whoever restores. Nor does it have who runs, owns or holds
anything, nor the audit, whose numbers are ZooKeeper's.

It is taken while everything runs. Datamarkers only go forward, so those of the copy are those of a moment ago, or
older: a cluster that is restored repeats what was acknowledged since, and skips nothing.

A restored flow has a larger epoch than in the copy: owners that came since had larger ones, and subscribers that still
run refuse what is not newer. ZooKeeper counts the versions of a node, and lets nobody set them: so its value is written
as often as needed. Applications come last of all, since a publisher that saw one without its datamarkers would begin
where new applications do.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError

from tidings.audit import AUDIT, recorded
from tidings.coordination.roles import ACCESS, top_places
from tidings.coordination.values import decode, encode
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationDenied, ForeignValue, InvalidOption
from tidings.protocol_versions import own_record

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

FORMAT = 1
NAMED_CHANGES = 5  # in a message
EPOCHS_AHEAD = 10  # of those in the copy: so many owners may have come since; more cost the subscribers' patience each
MAX_EPOCH = 100_000  # ZooKeeper is written to as often for one that is restored
BATCH = 500  # requests that ZooKeeper has at once
_LEFT_OUT = (ACCESS, AUDIT, "publishers", "pipelines")
_APPLICATIONS = "applications"

MAX_PARTS, MAX_NAME_CHARACTERS = 10, 512  # of a place in a file, which may be anybody's
FORBIDDEN = object()

Place = tuple[str, ...]
Verb = Literal["create", "change", "unchanged"]


class KeptNode(NamedTuple):
    """A node of the copy: where it is, its value, and for that of an epoch the epoch."""

    place: Place
    value: dict[str, Any] | None
    epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        found: dict[str, Any] = {"place": list(self.place), "value": self.value}
        return found if self.epoch is None else {**found, "epoch": self.epoch}

    @classmethod
    def from_json(cls, said: Any) -> KeptNode:
        """The same, from a file; ValueError if that makes no sense."""
        place, value, epoch = said["place"], said["value"], said.get("epoch")
        if (
            not isinstance(place, list)
            or not place
            or len(place) > MAX_PARTS
            or not all(isinstance(name, str) and _is_name(name) for name in place)
        ):
            raise ValueError("a place that is none")
        if not (value is None or isinstance(value, dict)) or type(epoch) not in (int, type(None)):
            raise ValueError(f"no value at {'/'.join(place)}")
        if place[0] in _LEFT_OUT or _goes_with_a_process(tuple(place)):
            raise ValueError(f"what cannot be restored at {'/'.join(place)}")
        if epoch is not None and not (_is_of_flow(tuple(place), "epoch") and 0 <= epoch <= MAX_EPOCH):
            raise ValueError(f"no epoch at {'/'.join(place)}")
        if place[0] not in top_places():
            raise ValueError(f"{'/'.join(place)} is no place of tidings, nor of a plugin that is installed here")
        return cls(tuple(place), value, epoch)


class RestoreStep(NamedTuple):
    """What is to be done with one node."""

    node: KeptNode
    verb: Verb

    @property
    def path(self) -> str:
        """Where that is."""
        return "/".join(self.node.place)


def take_backup(cluster: Catalogue) -> dict[str, Any]:
    """The copy. What makes no sense in the tree is left out, and named under `left_out`."""
    left_out: list[str] = []
    nodes = [node.to_json() for node in _walk(cluster.coordination, left_out, [])]
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    about = {"format": FORMAT, "tidings": own_record()["tidings"], "time": now, "cluster": cluster.coordination.address}
    return {**about, "left_out": left_out, "nodes": nodes}


def read_backup(said: Any) -> list[KeptNode]:
    """The nodes of a copy; `InvalidOption` if it is none."""
    if not isinstance(said, dict) or not {"format", "nodes"} <= said.keys():
        raise InvalidOption("it is no back-up: make one by `tidings backup`")
    try:
        if said["format"] != FORMAT:
            raise InvalidOption(f"it has the format {said['format']!r}, and this release of tidings knows {FORMAT}")
        return [KeptNode.from_json(node) for node in said["nodes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidOption(f"it is no back-up of a cluster: {error}") from None


def plan_restore(nodes: Iterable[KeptNode], there: Mapping[Place, KeptNode]) -> list[RestoreStep]:
    """What is to be done for a tree in which this is there, in the order in which it is to be done.

    >>> cache = KeptNode(("applications", "cache"), {"streams": ["s"]})
    >>> stream = KeptNode(("streams", "s"), {"shards": 1})
    >>> [(step.verb, step.node.place[0]) for step in plan_restore([cache, stream], {stream.place: stream})]
    [('unchanged', 'streams'), ('create', 'applications')]
    """
    ordered = sorted(nodes, key=lambda node: (node.place[0] == _APPLICATIONS, len(node.place), node.place))
    return [RestoreStep(node, _verb(node, there.get(node.place))) for node in ordered]


def restore(
    cluster: Catalogue, nodes: Iterable[KeptNode], *, force: bool = False, dry_run: bool = False
) -> list[RestoreStep]:
    """Make the cluster as the copy says; which nodes were created, changed, and left as they are.

    What the copy does not name stays. `InvalidOption`, and nothing is done, if something is there with another value,
    unless `force` says that this is meant; and in any case while flows are owned, since owners would go on as before.
    """
    tree = cluster.coordination
    wanted = list(nodes)
    owned: list[Place] = []
    steps = plan_restore(wanted, {node.place: node for node in _walk(tree, [], owned)})
    if owned and not dry_run:
        raise InvalidOption(f"publishers that run own {len(owned):,} of the flows: stop all publishers first")
    changes = changed(steps)
    if changes and not force and not dry_run:
        named = ", ".join(changes[:NAMED_CHANGES]) + (", …" if len(changes) > NAMED_CHANGES else "")
        raise InvalidOption(
            f"the tree has other values than the back-up at {len(changes):,} of its places ({named}): restore into an "
            "empty tree, or say --force to have those of the back-up"
        )
    if not dry_run:
        with recorded(tree, "restore", [tree.root], after=dict(Counter(step.verb for step in steps))):
            _carry_out(tree, [step for step in steps if step.verb != "unchanged"])
    return steps


def changed(steps: Iterable[RestoreStep]) -> list[str]:
    """Where another value would be lost. An epoch only grows, and that of a restore which was interrupted grows on."""
    return [step.path for step in steps if step.verb == "change" and step.node.epoch is None]


def _verb(node: KeptNode, known: KeptNode | None) -> Verb:
    if known is None or (known.value is None and node.value is not None):  # it was made to hold those below it
        return "create"
    if node.epoch is not None and known.epoch is not None:
        return "unchanged" if known.epoch >= node.epoch + EPOCHS_AHEAD else "change"
    return "unchanged" if node.value == known.value else "change"


def _carry_out(tree: Coordination, steps: list[RestoreStep]) -> None:
    for _, those in itertools.groupby(steps, lambda step: step.node.place[0] == _APPLICATIONS):
        steps = list(those)
        nodes = [step.node for step in steps]
        for node, verb in steps:
            if node.value is None and verb == "change":  # what operators have said since of flows, say
                tree.clear(*node.place)
            elif node.value is None:
                tree.create_path(*node.place)
            else:
                tree.write(node.value, *node.place)
        _advance(tree, [node for node in nodes if node.epoch is not None])


def _advance(tree: Coordination, nodes: list[KeptNode]) -> None:
    """Have the nodes of epochs be of those, and a few more."""
    writes: list[Callable[[], Any]] = []
    for node, found in zip(nodes, tree.read_many([node.place for node in nodes]), strict=True):
        if isinstance(found, CoordinationDenied):
            raise found
        version = found.stat.version if found is not None else 0
        write = functools.partial(tree.client.set_async, tree.path(*node.place), encode(node.value or {}))
        writes += [write] * ((node.epoch or 0) + EPOCHS_AHEAD - version)
    _all(tree, writes)


def _walk(tree: Coordination, left_out: list[str], owned: list[Place]) -> Iterator[KeptNode]:
    """All nodes that outlive processes, those above others first; what makes no sense, and which flows are owned."""
    level: list[Place] = [(name,) for name in tree.children() if name not in _LEFT_OUT]
    while level:
        paths = [tree.path(*place) for place in level]
        values = _all(tree, (functools.partial(tree.client.get_async, path) for path in paths), forbidden=FORBIDDEN)
        children = _all(tree, (functools.partial(tree.client.get_children_async, path) for path in paths), forbidden=[])
        below: list[Place] = []
        for place, path, found, names in zip(level, paths, values, children, strict=True):
            if found is FORBIDDEN:
                left_out.append(f"{path}: we may not read it; see `tidings doctor`")
                continue
            if found is not None and _is_of_flow(place, "owner"):
                owned.append(place)
            if found is None or found[1].ephemeralOwner:  # it went this moment, or goes with a process
                continue
            below += [one for name in sorted(names or ()) if not _is_of_subscriber(one := (*place, name))]
            if _is_of_flow(place, "subscriber"):
                continue
            try:
                value = decode(path, found[0])
            except ForeignValue as error:
                left_out.append(str(error))
                continue
            yield KeptNode(place, value, found[1].version if _is_of_flow(place, "epoch") else None)
        level = below


def _goes_with_a_process(place: Place) -> bool:
    """Whether it is made by somebody who runs, of which no copy knows."""
    return any(_is_of_flow(place, name) for name in ("owner", "subscriber")) or _is_of_subscriber(place)


def _is_of_subscriber(place: Place) -> bool:
    """Whether a subscriber has made it, which may keep even operators from it."""
    return len(place) > 3 and (place[0], place[2]) == (_APPLICATIONS, "subscribers")


def _is_of_flow(place: Place, name: str) -> bool:
    return len(place) == 5 and place[0] == "flows" and place[-1] == name


def _all(tree: Coordination, requests: Iterable[Callable[[], Any]], *, forbidden: Any = None) -> list[Any]:
    """The answers to many requests, in their order; None for what is about a place that is not there.

    What we may not do is an error, unless there is an answer for that.
    """
    answers: list[Any] = []
    todo = iter(requests)
    with tree.translating_errors():
        while pending := [request() for request in itertools.islice(todo, BATCH)]:
            for one in pending:
                try:
                    answers.append(tree.wait(one))
                except NoNodeError:
                    answers.append(None)
                except NoAuthError:
                    if forbidden is None:
                        raise
                    answers.append(forbidden)
    return answers


def _is_name(name: str) -> bool:
    sane = 0 < len(name) <= MAX_NAME_CHARACTERS and "/" not in name and name not in (".", "..")
    return sane and name.isprintable()
