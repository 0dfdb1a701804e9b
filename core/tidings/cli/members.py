"""`tidings publishers` and `tidings subscribers`: who runs, where, and with how many flows."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, note, print_table, warn
from tidings.errors import CoordinationDenied, ForeignValue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidings.cluster import Cluster

PublisherName = Annotated[str, typer.Argument(metavar="PUBLISHER", help="Its name.", show_default=False)]

publishers = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show publishers, which send flows, and have them give these away.",
)
subscribers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show subscribers, which receive flows.")


@publishers.command("list")
def list_publishers(zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False) -> None:
    """List the publishers that run: where, what they read, how many flows they own, and what they cannot read."""
    from tidings.controls import owned_flows
    from tidings.flows import DRAINS

    with connected(zookeeper, timeout) as cluster:
        owned, drained = owned_flows(cluster), cluster.coordination.children(DRAINS)
        told = [
            {
                "publisher": name,
                **record,
                "draining": bool(record.get("draining")) or name in drained,
                "flows": owned[name],
            }
            for name, record in member_records(cluster, "publishers")
        ]
    rows = [
        [
            one["publisher"],
            one.get("address"),
            one.get("host"),
            _number(one.get("pid")),
            one["flows"],
            "draining" if one.get("draining") else "running",
            _listed(one.get("streams"), "all"),
            one.get("replica"),
            _listed(one.get("unreadable"), None),
        ]
        for one in told
    ]
    columns = ["PUBLISHER", "ADDRESS", "HOST", "PID", "FLOWS", "STATE", "STREAMS", "REPLICA", "UNREADABLE"]
    emit(told, json, lambda: print_table(columns, rows, ["REPLICA", "PID", "HOST", "STREAMS"]))


@publishers.command("drain", short_help="Have a publisher give its flows to the others.")
def drain_command(
    name: PublisherName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it owns no flow any more.", show_default=False)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Though no other publisher could take them.", show_default=False)
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have a publisher give its flows to the others, each at a token, so that nothing is repeated; it takes none.

    That holds until `undrain`, also for a publisher that comes under the same name later.
    """
    from tidings.controls import drain, owned_flows

    with connected(zookeeper, timeout) as cluster:
        drain(cluster, name, force=force)
        while (left := owned_flows(cluster)[name]) and wait:
            note(f"publisher {name!r} owns {left:,} flows")
            time.sleep(1.0)
    emit({"draining": name, "flows": left}, json, lambda: note(f"publisher {name!r} drains; it owns {left:,} flows"))


@publishers.command("undrain", short_help="Let a publisher take flows again.")
def undrain_command(
    name: PublisherName, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Let a publisher take flows again."""
    from tidings.controls import undrain

    with connected(zookeeper, timeout) as cluster:
        undrain(cluster, name)
    emit({"undrained": name}, json, lambda: note(f"publisher {name!r} takes flows again"))


@subscribers.command("list")
def list_subscribers(
    application: Annotated[
        str | None, typer.Option(metavar="APP", help="Only this application's.", show_default=False)
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List the subscribers that run: of which application, how many flows they hold, their load, and what is wrong.

    LOAD is the part of the time in which it works on updates, by its own word; WEIGHT is the share that it asks for.
    """
    from tidings.flow_status import read_records

    with connected(zookeeper, timeout) as cluster:
        names = [cluster.application(application).name] if application else _applications(cluster)
        records = read_records(cluster, application=application)
        held = Counter((flow.application, record.holder["id"]) for flow, record in records.items() if record.holder)
        told = [
            {"subscriber": id, "application": name, "flows": held.get((name, id), 0), **record}
            for name in names
            for id, record in member_records(cluster, "applications", name, "subscribers")
        ]
    rows = [
        [
            one["subscriber"],
            one["application"],
            one["flows"],
            one.get("load"),
            one.get("weight"),
            _number(one.get("pid")),
            "leaving" if one.get("leaving") else "running",
            _troubles(one.get("unreachable")),
        ]
        for one in told
    ]
    columns = ["SUBSCRIBER", "APPLICATION", "FLOWS", "LOAD", "WEIGHT", "PID", "STATE", "UNREACHABLE"]
    emit(told, json, lambda: print_table(columns, rows, ["PID", "WEIGHT"]))


def member_records(cluster: Cluster, *place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the members at a place tell of themselves; what makes no sense is told, and left out."""
    for name in cluster.coordination.children(*place):
        try:
            record = cluster.coordination.read(*place, name)
        except (ForeignValue, CoordinationDenied) as error:
            warn(f"{name!r} is left out: {error}")
            continue
        if record is not None:  # else it went this moment
            yield name, record


def _applications(cluster: Cluster) -> list[str]:
    """All, those among them that were dropped while subscribers ran."""
    return cluster.coordination.children("applications")


def _listed(names: Any, otherwise: str | None) -> str | None:
    return ", ".join(map(str, names)) if isinstance(names, list | dict) and names else otherwise


def _troubles(unreachable: Any) -> str | None:
    return "; ".join(f"{name}: {why}" for name, why in unreachable.items()) if isinstance(unreachable, dict) else None


def _number(pid: Any) -> str | None:
    """A number that is a name, and has no thousands."""
    return None if pid is None else str(pid)
