"""`tidings streams tail`: print updates as they come."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import functools
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import COMMAND_TIMEOUT_S, JsonLines, Name, Timeout, ZooKeeper, connected, positions, shard_set
from tidings.cli.output import UNKNOWN, chosen_format, document, note
from tidings.errors import InvalidOption, PositionsLost
from tidings.texts import printable

if TYPE_CHECKING:
    from tidings.logs import Log
    from tidings.positions import Position, Positions
    from tidings.updates import Update

EXAMPLES = """\b
Examples:
  tidings streams tail contacts                                  what is published from now on
  tidings streams tail contacts --from earliest --limit 10
  tidings streams tail contacts --from '{"0": 1200}' --shards 0  from update 1,200 of shard 0 on
  tidings streams tail contacts --from earliest --no-follow --json | tidings streams publish copy
"""

BATCH_UPDATES = 10_000
FIRST_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 0.005, 0.1  # between two looks at a log that has nothing new


def starting(text: str) -> str | Positions:
    """The value of --from."""
    return text if text in ("earliest", "latest") else positions(text)


def tail_command(
    name: Name,
    start: Annotated[
        Any,
        typer.Option(
            "--from",
            metavar="earliest|latest|JSON",
            parser=starting,
            help='Where to start; JSON names the first update to print, {"SHARD": SEQ, ...}, '
            "and shards that it leaves out start at their earliest.",
        ),
    ] = "latest",
    shards: Annotated[
        Any,
        typer.Option(
            metavar="LIST", parser=shard_set, help="Only these shards, as in 0,3,5-7; else all.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End after so many updates.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end at what is there now.")
    ] = True,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: JsonLines = False,
) -> None:
    """Print updates as they come, in order within each shard. Ctrl-C ends it.

    If the log no longer holds what comes next, the lost positions are printed and the exit code is 1.
    """
    with connected(zookeeper, timeout) as cluster:
        stream = cluster.stream(name)
    if shards is not None and max(shards) >= stream.shards:
        raise InvalidOption(f"stream {name!r} has shards 0 to {stream.shards - 1}, not {max(shards)}")
    line = printed_line(json)
    try:
        for batch in _batches(stream.log, start, shards, limit, follow):
            sys.stdout.write("".join(f"{line(update, None)}\n" for update in batch))
            sys.stdout.flush()
    except PositionsLost as error:
        for shard, (first, last) in sorted(error.lost.items()):
            note(f"lost: shard {shard}: {first} to {last}")
        raise


def _batches(
    log: Log, start: str | Positions, shards: frozenset[int] | None, limit: int | None, follow: bool
) -> Iterator[list[Update]]:
    """The updates that are asked for, as they come; empty lists never."""
    from tidings.positions import Positions
    from tidings.updates import TOMBSTONE, to_updates

    bounds = log.bounds()
    wanted = bounds.keys() if shards is None else shards
    end = {shard: bounds[shard].head for shard in wanted}
    at = {shard: held.head for shard, held in bounds.items()}  # shards that are not wanted are not read
    if start != "latest":
        named = start if isinstance(start, Positions) else Positions()
        unknown = [shard for shard in named if shard not in bounds]
        if unknown:
            raise InvalidOption(f"--from names shard {unknown[0]}, which the stream does not have")
        at |= {shard: _before(named[shard], log) if shard in named else bounds[shard].floor for shard in wanted}
    left = limit
    interval = FIRST_POLL_INTERVAL_S
    while (left is None or left > 0) and (follow or any(at[shard] < end[shard] for shard in wanted)):
        found = to_updates(log.tail(Positions(at), BATCH_UPDATES if left is None else min(BATCH_UPDATES, left)))
        at |= {update.shard: update.position for update in found}
        if not follow and any(update.kind == TOMBSTONE for update in found):
            # What was collected since this began may be said again after the end as it was then.
            end = {shard: max(end[shard], log.bounds()[shard].head) for shard in wanted}
        updates = [
            update for update in found if update.shard in wanted and (follow or update.position <= end[update.shard])
        ]
        if updates:
            yield updates
            left = None if left is None else left - len(updates)
            interval = FIRST_POLL_INTERVAL_S
        elif not found:
            check_reader()
            time.sleep(interval)
            interval = min(2 * interval, MAX_POLL_INTERVAL_S)


def _before(position: Position, log: Log) -> Position:
    """Where to stand so that this update comes next. In our own logs that is the update before it."""
    from tidings.logs import WritableLog
    from tidings.positions import START, Position

    return max(START, Position(position.seq - 1)) if isinstance(log, WritableLog) else position.before


def check_reader() -> None:
    """End if nobody reads our output any more: an idle stream would not tell us for hours."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # stdout is no file of the system's, as in a test
        return
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "nobody reads our output")


def text_line(update: Update, stream: str | None = None) -> str:
    """The update as a person reads it, with the name of its stream where there is more than one."""
    version = UNKNOWN if update.version is None else f"v{update.version}"
    parts = [_time(update.time) or UNKNOWN, f"{update.shard}/{update.seq}", printable(update.object), version]
    if update.index:
        parts[1] += f".{update.index}"
    if stream is not None:
        parts[1] = f"{stream}/{parts[1]}"
    if update.kind != "data":
        parts.append(update.kind if update.range == 1 else f"{update.kind} of {update.range:,}")
    if update.source is not None:
        parts.append(f"from {printable(update.source)}")
    if update.attributes:
        parts.append(" ".join(f"{printable(key)}={printable(value)}" for key, value in update.attributes.items()))
    if update.payload is not None:
        text = _decoded(update.payload)
        parts.append(f"[{len(update.payload):,} B]" if text is None else printable(text))
    return "  ".join(parts)


def printed_line(json: bool) -> Callable[[Update, str | None], str]:
    """How this command prints an update: for people, or for programs in the format that was chosen."""
    return functools.partial(json_line, format=chosen_format()) if json else text_line


def json_line(update: Update, stream: str | None = None, *, format: str = "json") -> str:
    """The update for programs, with the name of its stream where there is more than one.

    As JSON, `tidings streams publish` takes it.
    """
    from tidings.updates import SCHEMA

    value: dict[str, Any] = {} if stream is None else {"stream": stream}
    value |= {name: getattr(update, name) for name in SCHEMA.names}
    payload = value.pop("payload")
    text = None if payload is None else _decoded(payload)
    if payload is not None and text is None:
        value["payload_base64"] = base64.b64encode(payload).decode()
    else:
        value["payload"] = text
    return document({**value, "time": _time(update.time)}, format).removesuffix("\n")


def _decoded(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _time(time: dt.datetime | None) -> str | None:
    return None if time is None else time.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
