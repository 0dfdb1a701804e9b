"""`tidings publishers` and `tidings subscribers`: who runs, where, and with how many flows."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, fail, note, print_fields, print_table, warn
from tidings.cli.waiting import WaitTimeout, time_limit, wait_until_none
from tidings.errors import CoordinationDenied, ForeignValue, InvalidOption
from tidings.names import check_name
from tidings.protocol_versions import SpokenVersions
from tidings.texts import counted, number, short, short_texts, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidings.cluster import Cluster
    from tidings.flows import Flow

MAX_LISTED = 10_000  # characters

PublisherName = Annotated[str, typer.Argument(metavar="PUBLISHER", help="Its name.", show_default=False)]

publishers = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show publishers, and have them give up their flows.",
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
            short(one.get("address")),
            short(one.get("host")),
            _plain(one.get("pid")),
            one["flows"],
            "draining" if one.get("draining") else "running",
            _listed(one.get("streams"), "all"),
            short(one.get("replica")),
            short(one.get("tidings")),
            _plain(SpokenVersions.from_json(one).protocol),
            _listed(one.get("unreadable"), None),
        ]
        for one in told
    ]
    columns = ["PUBLISHER", "ADDRESS", "HOST", "PID", "FLOWS", "STATE", "STREAMS", "REPLICA", "TIDINGS", "PROTOCOL"]
    columns.append("UNREADABLE")
    spare = ["REPLICA", "PID", "PROTOCOL", "HOST", "TIDINGS", "STREAMS"]
    emit(told, json, lambda: print_table(columns, rows, spare))


@publishers.command("describe", short_help="Show a publisher, and the flows that it owns.")
def describe_publisher(
    name: PublisherName, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Show what a publisher tells of itself, and how many flows of which applications and streams it owns."""
    from tidings.flow_status import read_records
    from tidings.flows import DRAINS

    with connected(zookeeper, timeout) as cluster:
        record = cluster.coordination.read("publishers", check_name("a publisher", name))
        if record is None:
            raise _not_running(cluster, name)
        drained = name in cluster.coordination.children(DRAINS)
        records = read_records(cluster)
    owned = [flow for flow, one in records.items() if one.owner and one.owner.get("publisher") == name]
    pinned = [str(flow) for flow, one in records.items() if one.control.pin == name]
    draining = bool(record.get("draining")) or drained
    told = {"publisher": name, **record, "draining": draining, "flows": list(map(str, owned)), "pinned": pinned}

    def show() -> None:
        unreadable = record.get("unreadable")
        print_fields(
            {
                **record,
                "publisher": name,
                "draining": "yes" if draining else "no",
                "pid": _plain(record.get("pid")),
                "streams": _listed(record.get("streams"), "all"),
                "applications": _listed(record.get("applications"), None),
                "unreadable": _troubles(unreadable),
                "flows": len(owned),
                "pinned": ", ".join(pinned) or None,
            }
        )
        typer.echo()
        counts = Counter((flow.application, flow.stream) for flow in owned)
        print_table(["APPLICATION", "STREAM", "FLOWS"], [[*key, count] for key, count in sorted(counts.items())])

    emit(told, json, show)


@publishers.command("drain", short_help="Have a publisher give its flows to the others.")
def drain_command(
    context: typer.Context,
    name: PublisherName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it owns no flow any more.", show_default=False)
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Though no other publisher could take them.", show_default=False)
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: WaitTimeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have a publisher give its flows to the others, each at a token, so that nothing is repeated; it takes none.

    That holds until `undrain`, also for a publisher that comes under the same name later.
    """
    from tidings.controls import drain, flows_of_publisher, named

    def owned() -> list[Flow]:
        return flows_of_publisher(cluster, name)

    with connected(zookeeper, timeout) as cluster:
        drain(cluster, name, force=force)
        if wait:
            limit = time_limit(context, timeout)
            left = wait_until_none(owned, lambda left: f"publisher {name!r} owns {counted(len(left), 'flow')}", limit)
        else:
            left = owned()
    told = f"publisher {name!r} drains; it owns {counted(len(left), 'flow')}"
    emit({"draining": name, "flows": len(left)}, json, lambda: note(told))
    if wait and left:
        raise fail(
            f"after {timeout:g} s publisher {name!r} still owns {named(left)}: it gives each up once its subscriber "
            "has acknowledged what was sent; see `tidings flows describe`"
        )


@publishers.command("undrain", short_help="Let a publisher take flows again.")
def undrain_command(
    name: PublisherName, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Let a publisher take flows again. One that does not drain is left as it is."""
    from tidings.controls import undrain
    from tidings.flows import DRAINS

    with connected(zookeeper, timeout) as cluster:
        drained = name in cluster.coordination.children(DRAINS)
        if drained:
            undrain(cluster, name)
        else:
            _check_runs(cluster, name)
    told = f"publisher {name!r} takes flows again" if drained else f"publisher {name!r} does not drain: nothing changes"
    emit({"undrained": name if drained else None}, json, lambda: note(told))


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

    LOAD is the part of the time in which it processes updates, as it reports; WEIGHT is the share that it asks for.
    """
    from tidings.coordination.subscriber_record import MAX_WEIGHT, present_troubles
    from tidings.flow_status import read_records

    with connected(zookeeper, timeout) as cluster:
        names = [cluster.application(application).name] if application else _applications(cluster)
        records = read_records(cluster, application=application)
        addresses = _publisher_addresses(cluster)
        held = Counter((flow.application, record.holder.id) for flow, record in records.items() if record.holder)
        told = [
            {
                "subscriber": id,
                "application": name,
                "flows": held.get((name, id), 0),
                **record,
                "unreachable": present_troubles(record, addresses),
            }
            for name in names
            for id, record in member_records(cluster, "applications", name, "subscribers")
        ]
    rows = [
        [
            one["subscriber"],
            one["application"],
            one["flows"],
            number(one.get("load"), most=1),
            number(one.get("weight"), most=MAX_WEIGHT),
            short(one.get("host")),
            _plain(one.get("pid")),
            "leaving" if one.get("leaving") else "running",
            short(one.get("tidings")),
            _plain(SpokenVersions.from_json(one).protocol),
            _troubles({f"{name}{_at(one, name)}": why for name, why in one["unreachable"].items()}),
        ]
        for one in told
    ]
    columns = ["SUBSCRIBER", "APPLICATION", "FLOWS", "LOAD", "WEIGHT", "HOST", "PID", "STATE", "TIDINGS", "PROTOCOL"]
    columns.append("UNREACHABLE")
    emit(told, json, lambda: print_table(columns, rows, ["PID", "PROTOCOL", "WEIGHT", "TIDINGS", "HOST"]))


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


def _publisher_addresses(cluster: Cluster) -> dict[str, Any]:
    """Where publishers are reached, of those that tell it in a way that makes sense."""
    found = {}
    for name in cluster.coordination.children("publishers"):
        with contextlib.suppress(ForeignValue, CoordinationDenied):  # `publishers list` tells of it
            if (record := cluster.coordination.read("publishers", name)) is not None:
                found[name] = record.get("address")
    return found


def _at(subscriber: dict[str, Any], publisher: str) -> str:
    """Where a subscriber has tried to reach a publisher, if it says so."""
    tried = subscriber.get("tried")
    address = short(tried.get(publisher)) if isinstance(tried, dict) else None
    return f" at {address}" if address else ""


def _check_runs(cluster: Cluster, publisher: str) -> None:
    if publisher not in cluster.coordination.children("publishers"):
        raise _not_running(cluster, publisher)


def _not_running(cluster: Cluster, publisher: str) -> InvalidOption:
    there = ", ".join(cluster.coordination.children("publishers")) or "none"
    return InvalidOption(f"no publisher {publisher!r} runs (publishers: {there})")


def _applications(cluster: Cluster) -> list[str]:
    """All, those among them that were dropped while subscribers ran."""
    return cluster.coordination.children("applications")


def _listed(names: Any, otherwise: str | None) -> str | None:
    return short(", ".join(map(str, names)), MAX_LISTED) if isinstance(names, list | dict) and names else otherwise


def _troubles(told: Any) -> str | None:
    return "; ".join(f"{name}: {why}" for name, why in short_texts(told).items()) or None


def _plain(told: Any) -> str | None:
    """A number that is a name, and has no thousands."""
    return None if (found := whole(told)) is None else str(found)
