"""`tidings caravans`: look at the readers of streams' logs, and say how many there may be and how fast they may go."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from tidings.allocation_policies import MAX_RATE
from tidings.cli.options import COMMAND_TIMEOUT_S, Json, Timeout, ZooKeeper, connected
from tidings.cli.output import cell, emit, note, print_table, refuse

COLUMNS = ("STREAM", "PUBLISHER", "CARAVAN", "BEHIND", "FLOWS", "RATE", "READ", "READ/SENT")
SPARE = ("READ/SENT", "READ")
EXAMPLES = """\b
Examples:
  tidings caravans list
  tidings caravans set-limit contacts --caravans 4 --total-rate 200000
  tidings caravans set-limit contacts --policy one-per-flow
  tidings caravans reassign contacts
"""

caravans = typer.Typer(no_args_is_help=True, help="See and control who reads the logs of streams.", epilog=EXAMPLES)


def rate_limit(text: str) -> float:
    """An option's value as updates a second; 0 is no limit.

    >>> rate_limit("200000")
    200000.0
    """
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < MAX_RATE:
        raise typer.BadParameter(f"{text!r} is no rate: write updates a second, as in 200000, or 0 for no limit")
    return rate


Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.", show_default=False)]
Rate = Annotated[
    float | None,
    typer.Option(metavar="N", parser=rate_limit, help="Updates a second, at most; 0: no limit.", show_default=False),
]


def add(app: typer.Typer) -> None:
    """Add the commands; the entry point `caravans` of the group `tidings.commands`."""
    app.add_typer(caravans, name="caravans")


@caravans.command("list", short_help="Show the caravans of each publisher.")
def list_command(
    stream: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Only those of this stream.", show_default=False)
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show the caravans of each publisher, the lead first, as it reported them a few seconds ago.

    BEHIND is about how many updates lie between the last of its flows and the head of the log. RATE is in updates a
    second, READ in bytes. READ/SENT is the publisher's: below 1, what was read served several applications.
    """
    from tidings_log_tailing.control import CARAVAN_KEYS, reports

    with connected(zookeeper, timeout) as cluster:
        found = reports(cluster, stream)
    rows = [
        [
            report["stream"],
            report["publisher"],
            *(one[key] for key in CARAVAN_KEYS),
            None if report["read_per_sent"] is None else f"{report['read_per_sent']:.2f}",
        ]
        for report in found
        for one in report["caravans"]
    ]
    emit(found, json, lambda: print_table(COLUMNS, rows, SPARE))


@caravans.command("set-limit", short_help="Say how many caravans there may be, how fast, and who allocates flows.")
def set_limit_command(
    stream: Name,
    number: Annotated[
        int | None,
        typer.Option("--caravans", metavar="N", min=1, help="How many a publisher may have.", show_default=False),
    ] = None,
    rate: Rate = None,
    total_rate: Rate = None,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="gaps, single, one-per-flow, or another.", show_default=False)
    ] = None,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = COMMAND_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Change the limits of a stream's caravans, in each publisher; what is not named stays as it is.

    `--rate` is for one caravan, `--total-rate` for all of a publisher. They take effect within seconds.
    """
    from tidings_log_tailing.control import set_limits

    given = {"caravans": number, "rate": rate, "total_rate": total_rate, "policy": policy}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise refuse("nothing is to be changed: say what, by --caravans, --rate, --total-rate or --policy")
    with connected(zookeeper, timeout) as cluster:
        limits = set_limits(cluster, stream, changes)
    shown = ", ".join(f"{key} {cell(value)}" for key, value in limits.items())
    emit(limits, json, lambda: note(f"caravans of stream {stream!r}: {shown}"))


@caravans.command("reassign", short_help="Let all flows of a stream leave their caravans, and allocate them anew.")
def reassign_command(stream: Name, zookeeper: ZooKeeper = None, timeout: Timeout = COMMAND_TIMEOUT_S) -> None:
    """Let all flows of a stream leave their caravans, and allocate them anew; nothing is lost or repeated by it."""
    from tidings_log_tailing.control import reassign

    with connected(zookeeper, timeout) as cluster:
        reassign(cluster, stream)
    note(f"the flows of stream {stream!r} are allocated anew")
