"""`tidings flows`: who sends what to whom, and how far behind it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, flow, flow_states
from tidings.cli.output import emit, note, print_fields, print_table, refuse
from tidings.cli.watching import Listing, show_again_and_again
from tidings.errors import InvalidOption
from tidings.flows import FlowState

if TYPE_CHECKING:
    from tidings.applications import Application
    from tidings.cluster import Cluster
    from tidings.flow_status import FlowStatus
    from tidings.flows import Flow
    from tidings.positions import Position
    from tidings.streams import Stream

WhichFlows = Annotated[
    list[Any], typer.Argument(metavar="APP/STREAM/SHARD…", parser=flow, help="The flows.", show_default=False)
]

SomeFlows = Annotated[
    list[Any] | None, typer.Argument(metavar="[APP/STREAM/SHARD…]", parser=flow, help="The flows.", show_default=False)
]
OfApplication = Annotated[
    str | None, typer.Option("--application", metavar="APP", help="All of this application's.", show_default=False)
]
OfStream = Annotated[
    str | None,
    typer.Option("--stream", metavar="STREAM", help="With --application: of this stream alone.", show_default=False),
]

flows = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show flows: who sends them to whom, and how far behind they are; move and stop them.",
)

STATES = [state.upper() for state in get_args(FlowState)]
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


SPARE = ["EPOCH", "DATAMARKER", "HEAD", "SUBSCRIBER", "OWNER"]
"""What a narrow terminal is spared; `describe` shows it."""

SUMMARY = ["APPLICATION", "STREAM", "FLOWS", *STATES, "LAG", "LAG-SECONDS"]


@flows.command(
    "list",
    short_help="List flows with their lag, owner and subscriber.",
    epilog="""\b
Examples:
  tidings flows list --application cache
  tidings flows list --state parked,failing                   what needs somebody
  tidings flows list --sort lag --limit 10 --watch            the worst, live
  tidings flows list --summary                                a line for each application and stream
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
    state: Annotated[
        Any,
        typer.Option(
            metavar="STATE[,STATE…]",
            parser=flow_states,
            help=f"Only those in these states: {', '.join(get_args(FlowState))}.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        Literal["name", "lag", "lag-seconds"], typer.Option(help="By name, or those with the largest lag first.")
    ] = "name",
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many, after sorting.", show_default=False)
    ] = None,
    summary: Annotated[
        bool,
        typer.Option("--summary", help="A line for each application and stream instead.", show_default=False),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Look again every 2 s, until Ctrl-C; with --json a line each time.",
            show_default=False,
        ),
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List flows: where each stands, how far it lags, which publisher owns it and which subscriber holds it.

    LAG counts the updates that the log holds after the datamarker, those that the filter leaves out among them;
    LAG-SECONDS is the age of the oldest of them. `-` stands where there is none yet, or it is not known. A terminal
    that is too narrow is spared some columns; `describe` has them all.

    \b
    unassigned  no publisher owns the flow
    waiting     a publisher owns it, and no running subscriber holds it
    failing     its subscriber cannot be reached, or refuses it; the reason says why
    running     a publisher owns it, and a subscriber holds it
    parked      its subscriber failed again and again; nothing is sent
    stopped     an operator has stopped it; nobody owns it
    """
    from tidings.flow_status import status

    def look(cluster: Cluster) -> Listing:
        found = status(cluster, application=application, stream=stream)
        chosen = [one for one in found if state is None or one.state in state]
        if summary:
            lines = _summary(chosen)
            return Listing(SUMMARY, [list(line.values()) for line in lines], lines, _problems(found))
        if sort != "name":
            chosen.sort(key=lambda one: _size(one.lag if sort == "lag" else one.lag_seconds), reverse=True)
        shown = chosen[:limit]
        return Listing(COLUMNS, [_row(one) for one in shown], [_json(one) for one in shown], _problems(found))

    with connected(zookeeper, timeout) as cluster:
        if application and stream:
            _check_reads(cluster.application(application), cluster.streams_named(stream))
        if watch:
            show_again_and_again(lambda: look(cluster), SPARE, json=json)
            return
        found = look(cluster)
    emit(found.json, json, lambda: print_table(found.columns, found.rows, SPARE))
    _tell(found.problems)


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
    from tidings.controls import pinned_to
    from tidings.flow_status import status

    with connected(zookeeper, timeout) as cluster:
        _check_flow(cluster, which)
        found = status(cluster, application=which.application, stream=which.stream, shard=which.shard)
        pinned = pinned_to(cluster, which)
    for one in found:
        known = {**_json(one), "pinned_to": pinned}
        pid = None if one.pid is None else str(one.pid)
        fields = {**known, "datamarker": _marker(one), "head": _place(one.head), "pid": pid}
        emit(known, json, functools.partial(print_fields, fields))
    _tell(_problems(found))


@flows.command(
    "move",
    short_help="Have a publisher own flows, for as long as it runs.",
    epilog="""\b
Examples:
  tidings flows move cache/contacts/3 cache/contacts/4 --to east-1
  tidings flows unpin cache/contacts/3 cache/contacts/4
""",
)
def move_command(
    which: WhichFlows,
    to: Annotated[
        str, typer.Option(metavar="PUBLISHER", help="The publisher that is to own them.", show_default=False)
    ],
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Pin flows to a publisher. It takes them from whoever owns them, each at a token, so that nothing is repeated.

    While that publisher does not run, drains, or cannot read the stream, others own them; `unpin` ends it.
    """
    from tidings.controls import pin

    with connected(zookeeper, timeout) as cluster:
        for one in which:
            _check_flow(cluster, one)
        for one in which:
            pin(cluster, one, to)
    told = ", ".join(map(str, which))
    emit({"pinned": list(map(str, which)), "publisher": to}, json, lambda: note(f"{told}: pinned to {to!r}"))


@flows.command("unpin", short_help="Let publishers share out flows again that were moved.")
def unpin_command(
    which: WhichFlows, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S, json: Json = False
) -> None:
    """Let publishers share out flows again that were moved by `move`."""
    from tidings.controls import unpin

    with connected(zookeeper, timeout) as cluster:
        for one in which:
            _check_flow(cluster, one)
        ended = [str(one) for one in which if unpin(cluster, one)]
    emit(
        {"unpinned": ended}, json, lambda: note(f"{', '.join(ended) or 'none of them'} was pinned, and is not any more")
    )


@flows.command(
    "stop",
    short_help="Stop flows: nothing is sent, and nobody owns them.",
    epilog="""\b
Examples:
  tidings flows stop cache/contacts/3
  tidings flows stop --application cache                      all of its flows
  tidings flows resume --application cache
""",
)
def stop_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Stop flows: their publishers give them up at a token, and nobody takes them. Their datamarkers stay.

    Updates that a log forgets meanwhile are lost to them, as to one whose subscribers are away.
    """
    from tidings.controls import stop

    with connected(zookeeper, timeout) as cluster:
        chosen = _chosen(cluster, which, application, stream)
        stopped = [str(one) for one in chosen if stop(cluster, one)]
    emit({"stopped": stopped}, json, lambda: note(f"{len(stopped):,} of {len(chosen):,} flows are stopped now"))


@flows.command("resume", short_help="Have flows go on that were stopped.")
def resume_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have flows go on at their datamarkers that were stopped."""
    from tidings.controls import resume

    with connected(zookeeper, timeout) as cluster:
        chosen = _chosen(cluster, which, application, stream)
        resumed = [str(one) for one in chosen if resume(cluster, one)]
    emit({"resumed": resumed}, json, lambda: note(f"{len(resumed):,} of {len(chosen):,} flows go on now"))


def _chosen(cluster: Cluster, which: list[Flow] | None, application: str | None, stream: str | None) -> list[Flow]:
    """The flows that are meant: those that are named, or all of an application, perhaps of one stream."""
    from tidings.flow_status import read_records

    if bool(which) == (application is not None):
        raise refuse("name flows, as in cache/contacts/3, or all of an application, by --application")
    for one in which or ():
        _check_flow(cluster, one)
    if which:
        return which
    if application and stream:
        _check_reads(cluster.application(application), cluster.streams_named(stream))
    return list(read_records(cluster, application=application, stream=stream))


def _check_flow(cluster: Cluster, which: Flow) -> None:
    stream = cluster.stream(which.stream)
    _check_reads(cluster.application(which.application), [stream])
    if which.shard >= stream.shards:
        raise InvalidOption(f"stream {which.stream!r} has shards 0 to {stream.shards - 1}, not {which.shard}")


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


def _size(lag: float | None) -> float:
    """What to sort by: a lag that is not known may be any."""
    return -1.0 if lag is None else lag


def _summary(found: list[FlowStatus]) -> list[dict[str, Any]]:
    """How many flows of each application and stream are in which state, and the largest lag of one of them."""
    by_name: dict[tuple[str, str], list[FlowStatus]] = {}
    for one in found:
        by_name.setdefault((one.flow.application, one.flow.stream), []).append(one)
    return [
        {
            "application": application,
            "stream": stream,
            "flows": len(those),
            **{state: sum(one.state == state for one in those) for state in get_args(FlowState)},
            "lag": max((one.lag for one in those if one.lag is not None), default=None),
            "lag_seconds": max((one.lag_seconds for one in those if one.lag_seconds is not None), default=None),
        }
        for (application, stream), those in by_name.items()
    ]


def _problems(found: list[FlowStatus]) -> list[str]:
    return list(dict.fromkeys(one.problem for one in found if one.problem))


def _tell(problems: Sequence[str]) -> None:
    """What ZooKeeper knows is worth showing even if a log cannot be asked; but the command has failed."""
    for problem in problems:
        note(f"error: {problem}")
    if problems:
        raise typer.Exit(1)
