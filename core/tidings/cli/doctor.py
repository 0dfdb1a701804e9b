"""`tidings doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.cluster_address import stated_address
from tidings.cli.options import Json
from tidings.cli.output import console, emit, refuse
from tidings.errors import TidingsError
from tidings.texts import printable

if TYPE_CHECKING:
    from tidings.runtime.doctor import Check


def doctor_command(
    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT[/ROOT]",
            help="A ZooKeeper that has to answer; else TIDINGS_ZOOKEEPER, else `zookeeper` in the nearest tidings.yml.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Give every node in ZooKeeper the rights that it should have, and let nobody in but those who have "
            "the cluster's secret or a key of it. Needs TIDINGS_SECRET.",
            show_default=False,
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check Java, Python, packages, jars, memory, ports, ZooKeeper, and who may do what there.

    The exit code is 1 if one of them fails.
    """
    from tidings.identity.environment import credentials_of_environment
    from tidings.runtime.doctor import Check, checks

    problems = []
    try:
        address = stated_address(zookeeper)
        if address is not None and credentials_of_environment().passwords:
            address.check_trusted()
    except TidingsError as error:
        if repair:
            raise
        address, problems = None, [Check("tidings.yml", False, str(error), "Mend the file, or name the cluster.")]
    if repair and address is None:
        raise refuse("--repair is for a ZooKeeper: name it by --zookeeper")
    if repair and not credentials_of_environment().secrets:
        raise refuse("--repair needs the secret of the cluster: set TIDINGS_SECRET, and no other credentials")
    found = [*problems, *checks(address.text if address else None, repair=repair)]
    emit([asdict(check) for check in found], json, lambda: _print(found))
    if not all(check.ok for check in found):
        raise typer.Exit(1)


def _print(found: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("CHECK", "STATE", "FOUND", "FIX"):
        table.add_column(column, overflow="fold")
    for check in found:
        state = Text("ok", "green") if check.ok else Text("failed", "bold red")
        table.add_row(check.name, state, printable(check.found), Text(printable(check.fix), "red"))
    console().print(table)
