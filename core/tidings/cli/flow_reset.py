"""`tidings flows reset`: where flows go on, in the words of Kafka's tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.flow_options import (
    DryRun,
    Execute,
    OfApplication,
    OfStream,
    SomeFlows,
    check_one_way,
    chosen_flows,
    place,
)
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, read_data
from tidings.cli.output import emit, note, print_table, refuse, warn
from tidings.errors import TidingsError
from tidings.positions import START, Position
from tidings.texts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidings.flow_reset import PlannedReset, ResetDone, ResetTarget

COLUMNS = ["APPLICATION", "STREAM", "SHARD", "BEFORE", "AFTER", "NOTE"]
RESET_EXAMPLES = """\b
Examples:
  tidings flows stop cache/contacts/3 --wait
  tidings flows reset cache/contacts/3 --to-earliest --dry-run
  tidings flows reset cache/contacts/3 --shift-by -100 --execute
  tidings flows resume cache/contacts/3
  tidings flows reset --application cache --to-datetime 2026-01-01T12:00:00+01:00 --execute
  tidings flows reset --application cache --to-current --dry-run --export > plan.csv
  tidings flows reset --from-file plan.csv --execute
"""


def reset_command(
    which: SomeFlows = None,
    application: OfApplication = None,
    stream: OfStream = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the oldest that the log holds.", show_default=False)
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.", show_default=False)] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To where they stand, as for --export.", show_default=False)
    ] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="To the first update that is not older; without a zone, as in 2026-01-01T12:00:00, it is UTC.",
            show_default=False,
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="To a time so long ago, as in PT1H30M or P7D.", show_default=False),
    ] = None,
    shift_by: Annotated[
        str | None,
        typer.Option(metavar="±N", help="So many updates on, or back; within the log.", show_default=False),
    ] = None,
    to_position: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            help="To this position: what comes after it is sent next; -1 is before everything.",
            show_default=False,
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="To the positions in a CSV file, as --export prints it; it names the flows, too.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    execute: Execute = False,
    export: Annotated[
        bool,
        typer.Option(
            "--export", help="Print the plan as CSV: application,stream,shard,position,log.", show_default=False
        ),
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Set the datamarkers of flows, so that they go on elsewhere. Exactly one target, and --dry-run or --execute.

    A flow that a publisher owns is not reset: stop it first. What is written is read back, and shown as BEFORE and
    AFTER: the position up to which updates count as processed. Nothing is written if a flow was taken or acknowledged
    between the plan and its execution.
    """
    from tidings.flow_reset import execute_reset, plan_reset, to_csv

    check_one_way(dry_run, execute)
    if export and json:
        raise refuse("--export prints CSV, and --json prints JSON: take one of them")
    chosen_targets = {
        "earliest": to_earliest,
        "latest": to_latest,
        "current": to_current,
        "datetime": to_datetime,
        "by-duration": by_duration,
        "shift-by": shift_by,
        "position": to_position,
        "file": from_file,
    }
    target = _target({kind: value for kind, value in chosen_targets.items() if value not in (None, False)})
    if from_file is not None and (which or application or stream):
        raise refuse("the file of --from-file names the flows: name no others")
    if target.time is not None:
        note(f"to {target.time.isoformat()} ({target.time.tzname()})")
    with connected(zookeeper, timeout) as cluster:
        flows = [] if from_file is not None else chosen_flows(cluster, which, application, stream)
        plan = plan_reset(cluster, flows, target)
        done = execute_reset(cluster, plan) if execute else []
    if export:
        typer.echo(to_csv(plan), nl=False)
    elif execute:
        warned = {one.flow: one.warnings for one in plan}
        _show([_done(one, warned[one.flow]) for one in done], json)
    else:
        _show([_planned(one) for one in plan], json)
    if dry_run:
        _tell_held(plan)
        moved = sum(one.before != one.after for one in plan)
        note(f"{moved:,} of {counted(len(plan), 'flow')} would move; nothing was done (--dry-run)")
    failed = [one for one in done if one.error]
    for flow in failed:
        note(f"error: flow {flow.flow}: {flow.error}")
    if failed:
        raise typer.Exit(1)


def _target(given: dict[str, Any]) -> ResetTarget:
    from tidings.flow_reset import ResetTarget

    if len(given) != 1:
        raise refuse(
            "say where to, by exactly one of --to-earliest, --to-latest, --to-current, --to-datetime, --by-duration, "
            "--shift-by, --to-position, --from-file"
        )
    ((kind, value),) = given.items()
    try:
        if kind == "file":
            return ResetTarget.from_file(read_data(value).decode())
        return ResetTarget.parse(kind, None if value is True else value)
    except UnicodeDecodeError:
        raise refuse(f"{value} is no text in UTF-8") from None
    except TidingsError as error:
        raise refuse(str(error)) from None


def _tell_held(plan: Sequence[PlannedReset]) -> None:
    held = [one for one in plan if one.held_by]
    if held:
        others = f", and {counted(len(held) - 1, 'other is', 'others are')} owned, too" if len(held) > 1 else ""
        until = "it is" if len(held) == 1 else "they are"
        warn(f"flow {held[0].flow} is owned by {held[0].held_by}{others}: --execute is refused until {until} stopped")


def _planned(one: PlannedReset) -> dict[str, Any]:
    value = {**one.flow._asdict(), "before": one.before, "after": one.after}
    return {**value, "held_by": one.held_by, "warnings": list(one.warnings)}


def _done(one: ResetDone, warnings: Sequence[str]) -> dict[str, Any]:
    value = {**one.flow._asdict(), "before": one.before, "after": one.after}
    return {**value, "error": one.error, "warnings": list(warnings)}


def _place(position: Position | None) -> int | str | None:
    """As elsewhere, but for the beginning: that is a place to go to, and not something unknown."""
    return START.seq if position == START else place(position)


def _show(told: list[dict[str, Any]], json: bool) -> None:
    table = [
        [
            *(one[key] for key in ("application", "stream", "shard")),
            _place(one["before"]),
            _place(one["after"]),
            one.get("error") or "; ".join(one["warnings"]) or None,
        ]
        for one in told
    ]
    written = [
        {**one, **{key: None if one[key] is None else one[key].to_json() for key in ("before", "after")}}
        for one in told
    ]
    emit(written, json, lambda: print_table(COLUMNS, table))
