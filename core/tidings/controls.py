"""What operators say of flows and publishers, and publishers go by.

```
/<root>/drains/<publisher>        gives its flows away, and takes none, until this is gone
/<root>/flows/<app>/<stream>      what is said of its flows: {"shards": {"3": {"pin": "east-1", "paused": true}}}
```

A flow is to run, to be paused, or to be stopped: one word takes the place of the other. What is said of the flows of
one application and stream is one node, so that it is said of all of them at once, and publishers watch one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidings.audit import of_each, recorded
from tidings.errors import InvalidOption
from tidings.flow_status import failed_flows, read_records, read_said
from tidings.flows import DRAINS, Flow, FlowControl
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

NAMED_FLOWS = 5  # in a message about many


def owned_flows(cluster: Catalogue) -> Counter[str]:
    """How many flows each publisher owns."""
    return Counter(str(record.owner.get("publisher")) for record in read_records(cluster).values() if record.owner)


def flows_of_publisher(cluster: Catalogue, publisher: str) -> list[Flow]:
    """The flows that a publisher owns."""
    records = read_records(cluster)
    return [flow for flow, record in records.items() if record.owner and record.owner.get("publisher") == publisher]


def not_yet_stopped(cluster: Catalogue, flows: Sequence[Flow]) -> list[Flow]:
    """Those of flows that were to be stopped which a publisher owns still; it gives each up at a token.

    `InvalidOption` if one of them is not to be stopped any more: it may never be.
    """
    tree, said = cluster.coordination, read_said(cluster.coordination, flows)
    if others := [flow for flow in flows if not FlowControl.of(said[flow.controls_place], flow.shard).stopped]:
        raise InvalidOption(
            f"{named(others)} {'is' if len(others) == 1 else 'are'} not to be stopped any more: somebody has resumed "
            "or dropped this meanwhile; see `tidings audit`"
        )
    owners = tree.read_many([(*flow.place, "owner") for flow in flows])
    return [flow for flow, owner in zip(flows, owners, strict=True) if owner is not None]


def drain(cluster: Catalogue, publisher: str, *, force: bool = False) -> None:
    """Have a publisher give its flows to the others, each at a token, and take none, until `undrain`.

    `InvalidOption` if there is no other to take them, unless that is meant.
    """
    tree = cluster.coordination
    _check_runs(cluster, publisher)
    drained = tree.children(DRAINS)
    others = set(tree.children("publishers")) - {publisher} - set(drained)
    if not others and not force:
        raise InvalidOption(f"no other publisher runs that could take the flows of {publisher!r}: start one first")
    if publisher not in drained:
        with recorded(tree, "publishers drain", [publisher], before={"draining": False}, after={"draining": True}):
            tree.create({}, DRAINS, publisher)


def undrain(cluster: Catalogue, publisher: str) -> None:
    """Let a publisher take flows again."""
    tree = cluster.coordination
    if publisher not in tree.children(DRAINS):
        raise InvalidOption(f"publisher {publisher!r} does not drain")
    with recorded(tree, "publishers undrain", [publisher], before={"draining": True}, after={"draining": False}):
        tree.delete(DRAINS, publisher)


def pin(cluster: Catalogue, flows: Sequence[Flow], publisher: str) -> list[Flow]:
    """Have this publisher own flows, for as long as it runs and can read their streams; those that were not pinned so.

    `InvalidOption`, and nothing is said, if it does not run, or does not read one of the streams.
    """
    _check_runs(cluster, publisher)
    chosen = (cluster.coordination.read("publishers", publisher) or {}).get("streams")
    for stream in dict.fromkeys(flow.stream for flow in flows):
        family = cluster.stream(stream).definition.family
        if chosen is not None and not {stream, family} & set(chosen):
            raise InvalidOption(f"publisher {publisher!r} does not read stream {stream!r}")
    return say(cluster, flows, lambda _, said: replace(said, pin=publisher), action="flows move")


def unpin(cluster: Catalogue, flows: Sequence[Flow]) -> list[Flow]:
    """Let publishers share out flows again; those that were pinned."""
    return say(cluster, flows, lambda _, said: replace(said, pin=None), action="flows unpin")


def pause(cluster: Catalogue, flows: Sequence[Flow]) -> list[Flow]:
    """Have nothing sent of flows, which keep their owners and subscribers; those that were not paused.

    What was sent is still acknowledged. `InvalidOption`, and nothing is said, if one has failed: it would look as if an
    operator held it back, and nobody would mend it.
    """
    if failed := failed_flows(cluster, flows):
        raise InvalidOption(
            f"{named(failed)} failed, and {'is' if len(failed) == 1 else 'are'} not paused: mend what the reason says, "
            "skip the update, or stop the flow"
        )
    return say(cluster, flows, lambda _, said: replace(said, paused=True, stopped=False), action="flows pause")


def stop(cluster: Catalogue, flows: Sequence[Flow]) -> list[Flow]:
    """Have nobody own flows: nothing is sent, and their datamarkers stay; those that were not stopped."""
    return say(cluster, flows, lambda _, said: replace(said, stopped=True, paused=False), action="flows stop")


def resume(cluster: Catalogue, flows: Sequence[Flow]) -> list[Flow]:
    """Have flows go on that were paused or stopped, at their datamarkers; those that were."""
    return say(cluster, flows, lambda _, said: replace(said, stopped=False, paused=False), action="flows resume")


def say(
    cluster: Catalogue,
    flows: Sequence[Flow],
    change: Callable[[Flow, FlowControl], FlowControl],
    *,
    action: str = "flows control",
) -> list[Flow]:
    """Change what is said of flows, beside others who do: one write for all of an application and stream.

    Returned are the flows of which something else was said before. `action` is what the audit calls it.
    """
    tree = cluster.coordination
    nodes = {place: tree.read(*place) for place in dict.fromkeys(flow.controls_place for flow in flows)}
    said = {flow: FlowControl.of(nodes[flow.controls_place], flow.shard) for flow in flows}
    wanted = {flow: after for flow, before in said.items() if (after := change(flow, before)) != before}
    if not wanted:
        return []
    was, now = (of_each({flow: _words(one[flow]) for flow in wanted}) for one in (said, wanted))
    with recorded(tree, action, wanted, before=was, after=now):
        return [flow for place in nodes for flow in _say_at(cluster, place, flows, change)]


def _say_at(
    cluster: Catalogue,
    place: tuple[str, ...],
    flows: Sequence[Flow],
    change: Callable[[Flow, FlowControl], FlowControl],
) -> list[Flow]:
    tree, here = cluster.coordination, [flow for flow in flows if flow.controls_place == place]
    while True:
        before = tree.read(*place)
        told = (before or {}).get("shards")
        shards: dict[str, Any] = dict(told) if isinstance(told, dict) else {}
        new = []
        for flow in here:
            known = FlowControl.of(before, flow.shard)
            after = change(flow, known)
            if after != known:
                new.append(flow)
                _put(shards, flow.shard, after)
        value = {**(before or {}), "shards": shards}
        if not new or (before is None and tree.create(value, *place)) or tree.replace(value, before, *place):
            return new


def _words(control: FlowControl) -> dict[str, Any]:
    """What is said, without what is not."""
    return {key: value for key, value in control.to_json().items() if value is not None}


def _put(shards: dict[str, Any], shard: int, control: FlowControl) -> None:
    """Say this of a shard; keys of a later version stay."""
    before = shards.pop(str(shard), None)
    known = before if isinstance(before, dict) else {}
    if after := {key: value for key, value in {**known, **control.to_json()}.items() if value is not None}:
        shards[str(shard)] = after


def named(flows: Sequence[Flow]) -> str:
    """Flows in a sentence, a few of them by name.

    >>> named([Flow("cache", "contacts", shard) for shard in range(7)])
    'cache/contacts/0, cache/contacts/1, cache/contacts/2, cache/contacts/3, cache/contacts/4 and 2 others'
    """
    some = ", ".join(map(str, flows[:NAMED_FLOWS]))
    return some if len(flows) <= NAMED_FLOWS else f"{some} and {counted(len(flows) - NAMED_FLOWS, 'other')}"


def _check_runs(cluster: Catalogue, publisher: str) -> None:
    there = cluster.coordination.children("publishers")
    if publisher not in there:
        raise InvalidOption(f"no publisher {publisher!r} runs (publishers: {', '.join(there) or 'none'})")
