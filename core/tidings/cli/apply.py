"""`tidings apply`: make the cluster as a `tidings.yml` says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import emit, note, print_table, warn

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

    The whole file is checked, and compared with the cluster, before anything is written. Nothing is dropped. The
    cluster is the one that --zookeeper names, else TIDINGS_ZOOKEEPER, else the file.
    """
    from tidings.cli.apply_plan import execute, plan
    from tidings.config.spec import find, load

    path = file or find(Path.cwd())
    spec = load(Path(path.name) if path.parent == Path.cwd() else path)
    above = path if file is None and path.parent != Path.cwd() else None
    with connected(zookeeper, timeout, fallback=spec.zookeeper, found_above=above) as cluster:
        actions = plan(spec, cluster)
        for action in actions:
            for warning in action.warnings:
                warn(warning)
        done = []
        try:
            for action in actions:
                if not dry_run:
                    execute(action, cluster)
                done.append(action)
        finally:
            # What was done before a step failed is done: the reader of the error must know.
            listed = [{"kind": a.kind, "name": a.name, "action": a.verb, "detail": a.detail} for a in done]
            rows = [(a.verb, a.kind, a.name, a.detail) for a in done]
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
