"""`tidings backup` and `tidings restore`: what ZooKeeper keeps of a cluster, as a file."""

from __future__ import annotations

import json as jsons
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected, read_data
from tidings.cli.output import document, emit, fail, note, refuse, warn
from tidings.errors import InvalidOption
from tidings.texts import counted

BACKUP_EXAMPLES = """\b
Examples:
  tidings backup > cluster.json
"""
RESTORE_EXAMPLES = """\b
Examples:
  tidings restore cluster.json --dry-run       what would be done
  tidings restore cluster.json --execute       do it
"""


def backup_command(zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S) -> None:
    """Print what ZooKeeper keeps of the cluster, as JSON: definitions, datamarkers, and what operators have said.

    Everything may run meanwhile. No secret is in it, and no update: those are in the logs, which are backed up after
    this, so that they are the newer ones.
    """
    from tidings.backup import take_backup

    with connected(zookeeper, timeout) as cluster:
        if not cluster.coordination.is_there:
            raise fail(f"nothing was ever made at {cluster.coordination.address}: is that the right path?")
        taken = take_backup(cluster)
    for problem in taken["left_out"]:
        warn(f"left out: {problem}")
    typer.echo(document(taken, "json"), nl=False)
    note(f"{counted(len(taken['nodes']), 'node')} of {taken['cluster']}")


def restore_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `backup` printed.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where something is there with another value.", show_default=False)
    ] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Make a cluster in ZooKeeper from what `backup` printed. Takes --dry-run or --execute.

    It wants an empty tree, unless forced, and no flow that a publisher owns. What the file does not name stays as it
    is. Flows go on at the datamarkers of the file: what was acknowledged after the back-up is sent again.
    """
    from tidings.backup import changed, read_backup, restore
    from tidings.flow_status import read_records

    if dry_run == execute:
        raise refuse("restore takes either --dry-run, to see what would be done, or --execute, to do it")
    content = read_data(file)
    try:
        nodes = read_backup(jsons.loads(content))
    except (ValueError, RecursionError):
        raise InvalidOption(f"{file} is no back-up: make one by `tidings backup`") from None
    except InvalidOption as error:
        raise InvalidOption(f"{file} cannot be restored: {error}") from None
    with connected(zookeeper, timeout) as cluster:
        steps = restore(cluster, nodes, force=force, dry_run=dry_run)
        owned = sum(bool(one.owner) for one in read_records(cluster).values()) if dry_run else 0
    done = Counter(step.verb for step in steps)
    counts = {verb: done[verb] for verb in ("create", "change", "unchanged")}
    changes = changed(steps)
    unchanged = counted(counts["unchanged"], "as it is", "as they are")
    epochs = counts["change"] - len(changes)
    rising = f" ({counted(epochs, 'epoch')} to raise among them)" if epochs else ""
    told = f"{counts['create']:,} to create, {counts['change']:,} to change{rising}, {unchanged}"
    end = "; nothing was done (--dry-run)" if dry_run else "; done"
    if dry_run and owned:
        end += f"; --execute will be refused while publishers own flows, {owned:,} of them now"
    if dry_run and changes and not force:
        end += "; --execute will be refused without --force, because of what is to change"

    def show() -> None:
        for path in changes:
            typer.echo(f"change {path}")
        note(told + end)

    emit({"executed": execute, **counts, "changes": changes, "owned": owned}, json, show)
