"""`tidings streams snapshot`: the rows that tables have now, for some applications, while everything runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Name, ZooKeeper, connected
from tidings.cli.output import emit, fail, note, print_fields, refuse, warn
from tidings.cli.waiting import WaitTimeout, time_limit, wait_until_none
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.snapshots import SnapshotPlan, SnapshotStatus

EXAMPLES = """\b
Examples:
  tidings streams snapshot shop --application cache --dry-run
  tidings streams snapshot shop --application cache --execute --wait
  tidings streams snapshot shop --table public.item --application cache --application search --execute
  tidings streams snapshot shop --cancel
"""


def snapshot_command(
    context: typer.Context,
    name: Name,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="SCHEMA.TABLE", help="Only rows of this table; may be repeated.", show_default=False),
    ] = None,
    application: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP", help="For this application; may be repeated. Without: all that read it.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the one that runs; what has come stays.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it has ended; Ctrl-C ends the waiting alone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, where no application is named.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: WaitTimeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Send the rows that a stream's tables have now to applications, as updates whose operation is `snapshot`.

    For an application that joined later, or lost its store. Takes exactly one of --dry-run, --execute and --cancel.
    The application's flows stop for a moment, until the rows have a place in the log; they get what is before it, the
    rows, and what comes after it. Other applications get nothing of it. Publishers do it, also after this command has
    ended; `tidings streams describe` shows how far it is.
    """
    if dry_run + execute + cancel != 1:
        raise refuse("snapshot takes exactly one of --dry-run, --execute and --cancel")
    if cancel and (table or application):
        raise refuse("--cancel ends the snapshot that runs, as a whole: leave out --table and --application")
    if execute and not application and not yes and not sys.stdin.isatty():
        raise refuse("without --application all that read the stream get the rows: name some, or add --yes")
    from tidings.snapshots import cancel_snapshot, plan_snapshot, request_snapshot

    with connected(zookeeper, timeout) as cluster:
        if cancel:
            request = cancel_snapshot(cluster, name)
            told = f"the snapshot {request.id} of stream {name!r} is being cancelled"
        else:
            plan = plan_snapshot(cluster, name, application or (), table or ())
            if dry_run:
                emit({**_json(plan), "executed": False}, json, lambda: _show(plan))
                return
            if not application and not yes:
                _confirm(plan)
            request = request_snapshot(cluster, plan)
            if not cluster.coordination.children("publishers"):
                warn("no publisher runs: it begins when one does")
            for one in plan.applications:
                if not cluster.coordination.children("applications", one, "subscribers"):
                    warn(f"no subscriber of {one} runs: its rows wait for one")
            told = f"the snapshot {request.id} of stream {name!r} begins, for {', '.join(plan.applications)}"
        if not wait:
            emit({"stream": name, **request.to_json(), "executed": True}, json, lambda: note(told))
            return
        note(told)
        status = _wait(cluster, name, request.id, time_limit(context, timeout))
    emit({"stream": name, **status.to_json(), "executed": True}, json, lambda: note(sentence(status)))
    if status.request.ended is None:
        raise fail(
            f"after {timeout:g} s the snapshot {request.id} of stream {name!r} has not ended: publishers go on with "
            f"it; see `tidings streams describe {name}`"
        )
    if status.request.ended != ("cancelled" if cancel else "complete"):
        raise typer.Exit(1)


def _json(plan: SnapshotPlan) -> dict[str, Any]:
    return {
        "stream": plan.stream,
        "applications": list(plan.applications),
        "tables": list(plan.tables),
        "flows": plan.flows,
    }


def _show(plan: SnapshotPlan) -> None:
    print_fields(_json(plan) | {"applications": ", ".join(plan.applications), "tables": ", ".join(plan.tables)})
    note("nothing was done (--dry-run)")


def _confirm(plan: SnapshotPlan) -> None:
    what = f"rows of {', '.join(plan.tables)} to {', '.join(plan.applications)}"
    if not typer.confirm(f"Send {what}, {counted(plan.flows, 'flow')}?", err=True):
        note("nothing was done")
        raise typer.Exit(1)


def _wait(cluster: Cluster, stream: str, request: str, limit: float | None) -> SnapshotStatus:
    """How it stands when it has ended, or when the time is over; meanwhile it is told how far it is."""
    from tidings.errors import InvalidOption
    from tidings.snapshots import snapshot_status

    def look() -> list[SnapshotStatus]:
        status = snapshot_status(cluster, stream)
        if status is None or status.request.id != request:
            raise InvalidOption(f"the snapshot {request} of stream {stream!r} was replaced by another, or dropped")
        seen[:] = [status]
        return seen if status.request.ended is None else []

    seen: list[SnapshotStatus] = []
    wait_until_none(look, lambda left: sentence(left[0]), limit)
    return seen[0]


def sentence(status: SnapshotStatus) -> str:
    """How it stands, in a sentence."""
    request = status.request
    whom = ", ".join(request.applications)
    why = f": {status.reason}" if status.reason else ""
    if request.ended is not None:
        return f"the snapshot {request.id} for {whom} is {request.ended}{why}"
    if request.place is None:
        return f"the snapshot {request.id} for {whom} waits for its place in the log{why}"
    rows = "its rows are read" if status.rows is None else counted(status.rows, "row was read", "rows were read")
    left = status.flows_left or 0
    flows = f"{left:,} of {counted(status.flows or 0, 'flow')} {'has' if left == 1 else 'have'} not come by them yet"
    return f"the snapshot {request.id} for {whom} is under way: {rows}, and {flows}"
