"""What operators say of caravans, and see of them; publishers read and write it as `tidings.publisher.reports` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidings.allocation_policies import Limits, default_policy, policy
from tidings.errors import InvalidOption
from tidings.publisher.reports import PLACE

if TYPE_CHECKING:
    from tidings.cluster import Cluster

Said = dict[str, Any]


def reports(cluster: Cluster, stream: str | None = None) -> list[dict[str, Any]]:
    """What each publisher told of its caravans, by stream."""
    streams = [stream] if stream else sorted(one.name for one in cluster.streams())
    if stream:
        cluster.stream(stream)
    tree = cluster.coordination
    found = []
    for name in streams:
        for publisher in sorted(tree.children(PLACE, name)):
            told = tree.read(PLACE, name, publisher)
            if told is not None:
                ratio = told["bytes_read"] / told["bytes_sent"] if told["bytes_sent"] else None
                found.append({"stream": name, "publisher": publisher, **told, "read_per_sent": ratio})
    return found


def set_limits(cluster: Cluster, stream: str, changes: Mapping[str, Any]) -> Said:
    """Change what is said of a stream's caravans; what it is then."""
    if not changes:
        raise InvalidOption("nothing is to be changed: name a limit, as in --caravans 4")
    if "policy" in changes:
        policy(changes["policy"])
    return _say(cluster, stream, lambda said: {**said, **{key: value or None for key, value in changes.items()}})


def reassign(cluster: Cluster, stream: str) -> None:
    """Have all flows of a stream allocated anew."""
    _say(cluster, stream, lambda said: {**said, "again": said.get("again", 0) + 1})


def _say(cluster: Cluster, stream: str, change: Any) -> Said:
    cluster.stream(stream)
    tree = cluster.coordination
    while True:
        before = tree.read(PLACE, stream)
        said: Said = change(before or {})
        limits = Limits.from_json(said)
        if (before is None and tree.create(said, PLACE, stream)) or tree.replace(said, before, PLACE, stream):
            return {
                "policy": said.get("policy") or default_policy(),
                "caravans": limits.caravans,
                "rate": limits.rate,
                "total_rate": limits.total_rate,
            }
