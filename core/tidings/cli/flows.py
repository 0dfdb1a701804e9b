"""`tidings flows`: who sends what to whom, and how far behind it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tidings.cli.flow_actions import (
    MOVE_EXAMPLES,
    PAUSE_EXAMPLES,
    STOP_EXAMPLES,
    move_command,
    pause_command,
    resume_command,
    stop_command,
    unpin_command,
)
from tidings.cli.flow_history import history_command
from tidings.cli.flow_options import OneFlow, place
from tidings.cli.flow_reset import RESET_EXAMPLES, reset_command
from tidings.cli.flow_skip import SKIP_EXAMPLES, skip_command
from tidings.cli.options import (
    COMMAND_TIMEOUT_S,
    Json,
    Timeout,
    ZooKeeper,
    connected,
    flow_states,
    tell_of_nothing,
)
from tidings.cli.output import emit, note, print_fields, print_table, refuse, warn
from tidings.cli.watching import Listing, show_again_and_again
from tidings.flows import FlowState

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.flow_status import FlowStatus

flows = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show flows and their lag; move, pause, stop and reset them.",
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
  tidings flows list --state failed,restarting,unassigned,waiting    what needs somebody
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
            metavar="STATE[,STATE...]",
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
    unassigned  no publisher owns the flow, perhaps because none can read its log
    waiting     a publisher owns it, and no running subscriber holds it
    restarting  its subscriber cannot be reached, or refuses it; it is tried again
    running     a publisher owns it, and a subscriber holds it
    paused      an operator has paused it; it has an owner, and nothing is sent
    stopped     an operator has stopped it; nobody owns it
    failed      its subscriber failed again and again, or its owner cannot read the log
    """
    from tidings.flow_status import check_reads, status

    if summary and (limit is not None or sort != "name"):
        raise refuse("--summary lists all applications and streams, by name: --sort and --limit are for flows")
    kept: list[str] = []

    def look(cluster: Cluster) -> Listing:
        found = status(cluster, application=application, stream=stream)
        kept[:] = [str(one.retained) for one in found if one.retained and one.retained.much]
        chosen = [one for one in found if state is None or one.state in state]
        if summary:
            lines = _summary(chosen)
            there = {one.state.upper() for one in chosen}  # a column for each state that no flow is in says nothing
            columns = [name for name in SUMMARY if name not in STATES or name in there]
            rows = [[line[name.lower().replace("-", "_")] for name in columns] for line in lines]
            return Listing(columns, rows, lines, _problems(found))
        if sort != "name":
            chosen.sort(key=lambda one: _size(one.lag if sort == "lag" else one.lag_seconds), reverse=True)
        shown = chosen[:limit]
        return Listing(COLUMNS, [_row(one) for one in shown], [_json(one) for one in shown], _problems(found))

    with connected(zookeeper, timeout) as cluster:
        if application and stream:
            check_reads(cluster.application(application), cluster.streams_named(stream))
        if watch:
            show_again_and_again(lambda: look(cluster), SPARE, json=json)
            return
        found = look(cluster)
        if not found.rows:
            tell_of_nothing(cluster)
    emit(found.json, json, lambda: print_table(found.columns, found.rows, SPARE))
    for one in kept:
        warn(one)
    _tell(found.problems)


@flows.command("describe")
def describe_command(
    which: OneFlow,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show all that is known of one flow."""
    from tidings.flow_status import check_flow, status

    with connected(zookeeper, timeout) as cluster:
        check_flow(cluster, which)
        found = status(cluster, application=which.application, stream=which.stream, shard=which.shard)
    for one in found:
        known = {**_json(one), **_details(one)}
        skipped = ", ".join(map(str, sorted(one.control.skip))) or None
        places = {"datamarker": _marker(one), "head": place(one.head), "failed_at": place(one.failed_at)}
        fields = {**known, **places, "pid": None if one.pid is None else str(one.pid), "skip": skipped}
        emit(known, json, functools.partial(print_fields, fields))
    _tell(_problems(found))


def _row(one: FlowStatus) -> list[Any]:
    marker, head = _marker(one), place(one.head)
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
        "retained_bytes": one.retained.bytes if one.retained else None,
    }


def _details(one: FlowStatus) -> dict[str, Any]:
    return {
        "pinned_to": one.control.pin,
        "paused": one.control.paused,
        "stopped": one.control.stopped,
        "failed_at": one.failed_at.to_json() if one.failed_at else None,
        "skip": [position.to_json() for position in sorted(one.control.skip)],
    }


def _marker(one: FlowStatus) -> int | str | None:
    return place(one.datamarker.position) if one.datamarker else None


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


flows.command("history", short_help="Show who owned and who held a flow, and why that changed.")(history_command)
flows.command("move", short_help="Have a publisher own flows, for as long as it runs.", epilog=MOVE_EXAMPLES)(
    move_command
)
flows.command("unpin", short_help="Let publishers share out flows again that were moved.")(unpin_command)
flows.command("pause", short_help="Pause flows: nothing more is sent.", epilog=PAUSE_EXAMPLES)(pause_command)
flows.command("stop", short_help="Stop flows: nothing is sent, and nobody owns them.", epilog=STOP_EXAMPLES)(
    stop_command
)
flows.command("resume", short_help="Resume flows that were paused or stopped.")(resume_command)
flows.command("reset", short_help="Set where flows go on.", epilog=RESET_EXAMPLES)(reset_command)
flows.command("skip", short_help="Leave out one update that a subscriber fails at.", epilog=SKIP_EXAMPLES)(skip_command)
