"""What operators set for caravans, and see of them; publishers use both as `tidings.publisher.reports` says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidings.allocation_policies import Limits, default_policy, policy
from tidings.audit import recorded
from tidings.errors import ForeignValue, InvalidOption
from tidings.publisher.reports import PLACE

if TYPE_CHECKING:
    from tidings.cluster import Cluster

CARAVAN_KEYS = ("number", "behind", "flows", "rate", "bytes_read")

Settings = dict[str, Any]
logger = logging.getLogger(__name__)


def reports(cluster: Cluster, stream: str | None = None) -> list[dict[str, Any]]:
    """What each publisher reports of its caravans, by stream."""
    streams = [stream] if stream else sorted(one.name for one in cluster.streams())
    if stream:
        cluster.stream(stream)
    tree = cluster.coordination
    found = []
    for name in streams:
        for publisher in sorted(tree.children(PLACE, name)):
            try:
                report = tree.read(PLACE, name, publisher)
                if report is not None:
                    found.append({"stream": name, "publisher": publisher, **_checked(report)})
            except ForeignValue as error:
                logger.warning("%s", error)
            except (KeyError, TypeError, ValueError, OverflowError):
                logger.warning("what ZooKeeper holds at %s is no report", tree.path(PLACE, name, publisher))
    return found


def _checked(report: dict[str, Any]) -> dict[str, Any]:
    """A report with all that is shown of it."""
    caravans = [{**one, **{key: one[key] for key in CARAVAN_KEYS}} for one in report["caravans"]]
    ratio = report["bytes_read"] / report["bytes_sent"] if report["bytes_sent"] else None
    return {**report, "caravans": caravans, "read_per_sent": ratio}


def set_limits(cluster: Cluster, stream: str, changes: Mapping[str, Any]) -> Settings:
    """Change the limits of a stream's caravans, or their policy; what they are then."""
    if not changes:
        raise InvalidOption("nothing is to be changed: name a limit, or a policy")
    if "policy" in changes:
        policy(changes["policy"])
    given = {key: value or None for key, value in changes.items()}
    return _change_settings(cluster, "caravans set-limit", stream, lambda settings: {**settings, **given})


def reassign(cluster: Cluster, stream: str) -> None:
    """Have all flows of a stream allocated anew."""
    _change_settings(
        cluster, "caravans reassign", stream, lambda settings: {**settings, "again": _next(settings.get("again"))}
    )


def _next(again: Any) -> int:
    return again + 1 if type(again) is int else 1


def _change_settings(cluster: Cluster, action: str, stream: str, change: Callable[[Settings], Settings]) -> Settings:
    cluster.stream(stream)
    tree = cluster.coordination
    before = tree.read(PLACE, stream)
    settings = change(before or {})
    limits = Limits.from_json(settings)
    with recorded(tree, action, [stream], before=before, after=settings) as entry:
        while not (before is None and tree.create(settings, PLACE, stream)) and not tree.replace(
            settings, before, PLACE, stream
        ):
            before = tree.read(PLACE, stream)
            settings = change(before or {})
            limits = Limits.from_json(settings)
            entry.add([stream], before, settings)
    return {
        "policy": settings.get("policy") or default_policy(),
        "caravans": limits.caravans,
        "rate": limits.rate,
        "total_rate": limits.total_rate,
    }
