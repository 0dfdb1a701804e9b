"""`tidings flows`: who sends what to whom, and how far behind it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, flow
from tidings.cli.output import emit, note, print_fields, print_table
from tidings.errors import InvalidOption

if TYPE_CHECKING:
    from tidings.applications import Application
    from tidings.flow_status import FlowStatus
    from tidings.positions import Position
    from tidings.streams import Stream

flows = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show flows: who sends them to whom, and how far behind they are."
)

COLUMNS = [
    "APPLICATION",
    "STREAM",
    "SHARD",
    "DATAMARKER",
    "HEAD",
    "LAG",
    "LAG-SECONDS",
    "OWNER",
    "EPOCH",
    "SUBSCRIBER",
    "STATE",
]


@flows.command(
    "list",
    short_help="List flows with their lag, owner and subscriber.",
    epilog="""\b
Examples:
  tidings flows list --application cache
  tidings flows list --stream contacts --json | jq '.[] | select(.lag > 1000)'
""",
)
def list_command(
    application: Annotated[
        str | None, typer.Option(metavar="APP", help="Only this application's.", show_default=False)
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Only this stream's, or family's.", show_default=False)
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List flows: where each stands, how far it lags, which publisher owns it and which subscriber holds it.

    LAG counts the updates that the log holds after the datamarker, those that the filter leaves out among them;
    LAG-SECONDS is the age of the oldest of them. `-` stands where there is none yet, or it is not known.

    \b
    unassigned  no publisher owns the flow
    waiting     a publisher owns it, and no running subscriber holds it
    failing     its subscriber cannot be reached, or refuses it; the reason says why
    running     a publisher owns it, and a subscriber holds it
    parked      its subscriber failed again and again; nothing is sent
    """
    from tidings.flow_status import status

    with connected(zookeeper, timeout) as cluster:
        if application and stream:
            _check_reads(cluster.application(application), cluster.streams_named(stream))
        found = status(cluster, application=application, stream=stream)
    emit([_json(one) for one in found], json, lambda: print_table(COLUMNS, [_row(one) for one in found]))
    _tell_problems(found)


@flows.command("describe")
def describe_command(
    which: Annotated[
        Any, typer.Argument(metavar="APP/STREAM/SHARD", parser=flow, help="The flow.", show_default=False)
    ],
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show all that is known of one flow."""
    from tidings.flow_status import status

    with connected(zookeeper, timeout) as cluster:
        stream = cluster.stream(which.stream)
        shards = stream.shards
        _check_reads(cluster.application(which.application), [stream])
        if which.shard >= shards:
            raise InvalidOption(f"stream {which.stream!r} has shards 0 to {shards - 1}, not {which.shard}")
        found = status(cluster, application=which.application, stream=which.stream, shard=which.shard)
    for one in found:
        fields = {**_json(one), "datamarker": _marker(one), "head": _place(one.head)}
        emit(_json(one), json, functools.partial(print_fields, fields))
    _tell_problems(found)


def _check_reads(application: Application, streams: Sequence[Stream]) -> None:
    from tidings.stream_definition import streams_by_name

    if not application.reads(streams_by_name(stream.definition for stream in streams)):
        named, reads = " or ".join(repr(stream.name) for stream in streams), ", ".join(application.streams)
        raise InvalidOption(f"application {application.name!r} does not read stream {named} (it reads {reads})")


def _row(one: FlowStatus) -> list[Any]:
    marker, head = _marker(one), _place(one.head)
    where = [marker, head, one.lag, one.lag_seconds]
    state = f"{one.state}: {one.reason}" if one.reason else one.state
    return [*one.flow, *where, one.owner, one.epoch, one.subscriber, state]


def _json(one: FlowStatus) -> dict[str, Any]:
    marker = one.datamarker
    return {
        **one.flow._asdict(),
        "state": one.state,
        "reason": one.reason,
        "datamarker": marker.position.to_json() if marker and marker.position.seq >= 0 else None,
        "acknowledged": marker.time.isoformat().replace("+00:00", "Z") if marker else None,
        "head": one.head.to_json() if one.head and one.head.seq >= 0 else None,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        "owner": one.owner,
        "host": one.host,
        "pid": one.pid,
        "epoch": one.epoch,
        "subscriber": one.subscriber,
    }


def _marker(one: FlowStatus) -> int | str | None:
    return _place(one.datamarker.position) if one.datamarker else None


def _place(position: Position | None) -> int | str | None:
    """A position as `tail` writes it; None before the first update.

    >>> from tidings.positions import START, Position
    >>> _place(START), _place(Position(7)), _place(Position(7, 2)), _place(Position(7).before)
    (None, 7, '7.2', 'before 7')
    """
    if position is None or position.seq < 0:
        return None
    if position.index < 0:
        return f"before {position.seq}"
    return f"{position.seq}.{position.index}" if position.index else position.seq


def _tell_problems(found: list[FlowStatus]) -> None:
    """What ZooKeeper knows is worth showing even if a log cannot be asked; but the command has failed."""
    problems = list(dict.fromkeys(one.problem for one in found if one.problem))
    for problem in problems:
        note(f"error: {problem}")
    if problems:
        raise typer.Exit(1)
