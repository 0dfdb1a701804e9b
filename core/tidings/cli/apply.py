"""`tidings apply`: apply a `tidings.yml` to the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper
from tidings.cli.output import emit, note, print_table, warn
from tidings.cli.project import project

EXAMPLES = """\b
Examples:
  tidings apply --dry-run              what would be done, for the tidings.yml of this folder or one above
  tidings apply project/tidings.yml    do it
"""


def apply_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The file; else tidings.yml or tidings.yaml in this folder, or the nearest one above.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Create the streams of a tidings.yml and define its applications; its pipelines are checked.

    The whole file is checked, and compared with the cluster and with the datastores that it names, before anything is
    written. If writing fails halfway, what was made is taken back. Nothing is dropped. The cluster is the one that
    --zookeeper names, else TIDINGS_ZOOKEEPER, else the file.
    """
    from tidings.cli.apply_plan import carry_out, plan

    with project(file, zookeeper, timeout) as (spec, cluster):
        actions = plan(spec, cluster)
        for action in actions:
            for warning in action.warnings:
                warn(warning)
        if not dry_run:
            carry_out(actions, cluster)
        listed = [{"kind": a.kind, "name": a.name, "action": a.verb, "detail": a.detail} for a in actions]
        rows = [(a.verb, a.kind, a.name, a.detail) for a in actions]
        emit(
            {"file": str(spec.path), "zookeeper": cluster.address, "dry_run": dry_run, "actions": listed},
            json,
            lambda: print_table(["ACTION", "KIND", "NAME", "DETAIL"], rows),
        )
    if not json:
        changes = sum(action.verb in ("create", "change") for action in actions)
        note(f"{changes} to do; nothing was done (--dry-run)" if dry_run else f"{changes} done")
        if spec.pipelines:
            note("pipelines were checked only; `tidings run` runs them")
