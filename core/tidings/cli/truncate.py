"""`tidings streams truncate`: delete old updates now, beside what retention does by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Name, Timeout, ZooKeeper, connected, duration, positions, size
from tidings.cli.output import emit, note, print_table, refuse
from tidings.cli.shard_bounds import Held, held, held_in, total
from tidings.errors import InvalidPosition
from tidings.texts import counted

if TYPE_CHECKING:
    from tidings.audit import OpenEntry
    from tidings.cluster import Cluster
    from tidings.positions import Positions

EXAMPLES = """\b
Examples:
  tidings streams truncate contacts --older-than P7D --dry-run
  tidings streams truncate contacts --older-than P7D --execute
  tidings streams truncate contacts --larger-than 10GiB --execute
  tidings streams truncate contacts --before '{"0": 1200, "1": 900}' --execute
"""


def truncate_command(
    name: Name,
    before: Annotated[
        Any,
        typer.Option(
            metavar="JSON",
            parser=positions,
            help='Delete updates before these positions, {"SHARD": SEQ, ...}; other shards keep theirs.',
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration,
            help="Delete updates older than this, as in P7D.",
            show_default=False,
        ),
    ] = None,
    larger_than: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=size,
            help="Delete the oldest updates beyond this size, as in 10GiB.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be kept, and delete nothing.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete old updates. Takes one of --before, --older-than, --larger-than, and --dry-run or --execute.

    Whole files are deleted: an update that shares a file with later ones stays until those may go too. The table
    shows what the log holds before and after; after an --execute it was read again.
    """
    if sum(option is not None for option in (before, older_than, larger_than)) != 1:
        raise refuse("truncate takes exactly one of --before, --older-than and --larger-than")
    if dry_run == execute:
        raise refuse("truncate takes either --dry-run, to see what would go, or --execute, to delete it")
    with connected(zookeeper, timeout) as cluster:
        log = cluster.stream(name).writable_log
        was = held(log)
        if before is not None:
            _check_before(before, was)
        with _recorded(cluster, name, was) if execute else contextlib.nullcontext() as entry:
            if before is not None:
                now = log.truncate(before, dry_run=dry_run)
            else:
                now = log.retain(max_age=older_than, max_bytes=larger_than, dry_run=dry_run)
            then = held(log) if execute else held_in(now, dense=True)
            if entry is not None:
                entry.after = _floors(then)
    value = {"stream": name, "executed": execute, "before": was, "after": then}
    emit(value, json, lambda: _print(was, then, execute))


def _recorded(cluster: Cluster, name: str, was: list[Held]) -> contextlib.AbstractContextManager[OpenEntry]:
    """Who may write to a log may truncate it, and need be no operator."""
    from tidings.audit import recorded

    return recorded(cluster.coordination, "streams truncate", [name], before=_floors(was), required=False)


def _floors(shards: list[Held]) -> dict[str, Any]:
    return {"updates": total(shards), "floors": {str(shard["shard"]): shard["floor"] for shard in shards}}


def _check_before(before: Positions, shards: list[Held]) -> None:
    """Refuse positions that the stream has not reached: such a typing error would empty it."""
    heads = {shard["shard"]: -1 if shard["head"] is None else shard["head"] for shard in shards}
    for shard, position in before.items():
        if shard not in heads:
            raise InvalidPosition(f"there is no shard {shard}: the stream has shards 0 to {len(heads) - 1}")
        if position.seq > heads[shard] + 1 == 0:
            raise InvalidPosition(f"shard {shard} has no update yet, so none before {position.seq:,}")
        if position.seq > heads[shard] + 1:
            raise InvalidPosition(f"shard {shard} ends at {heads[shard]:,}: there is no update {position.seq:,} yet")


def _print(was: list[Held], now: list[Held], executed: bool) -> None:
    rows = [
        (old["shard"], old["floor"], new["floor"], new["head"], old["updates"], new["updates"])
        for old, new in zip(was, now, strict=True)
    ]
    print_table(["SHARD", "FLOOR BEFORE", "FLOOR AFTER", "HEAD", "UPDATES BEFORE", "UPDATES AFTER"], rows)
    before, after = total(was) or 0, total(now) or 0  # of a log of our own, which knows it
    if executed:
        note(f"{counted(before, 'update was', 'updates were')} held, {counted(after, 'is', 'are')} held now")
    else:
        held_now = counted(before, "update is", "updates are")
        note(f"{held_now} held, {after:,} would be; nothing was deleted (--dry-run)")
