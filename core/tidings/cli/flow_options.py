"""Which flows a command is about: those that are named, or all of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.options import flow
from tidings.cli.output import refuse

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.flows import Flow
    from tidings.positions import Position

OneFlow = Annotated[Any, typer.Argument(metavar="APP/STREAM/SHARD", parser=flow, help="The flow.", show_default=False)]
SomeFlows = Annotated[
    list[Any] | None, typer.Argument(metavar="APP/STREAM/SHARD", parser=flow, help="The flows.", show_default=False)
]
OfApplication = Annotated[
    str | None, typer.Option("--application", metavar="APP", help="All of this application's.", show_default=False)
]
OfStream = Annotated[
    str | None,
    typer.Option("--stream", metavar="STREAM", help="With --application: of this stream alone.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.", show_default=False)]
Execute = Annotated[bool, typer.Option("--execute", help="Do it.", show_default=False)]


def chosen_flows(cluster: Cluster, which: list[Flow] | None, application: str | None, stream: str | None) -> list[Flow]:
    """The flows that are meant: those that are named, or all of an application, perhaps of one stream."""
    from tidings.flow_status import check_flow, check_reads, flows_of

    if bool(which) == (application is not None):
        raise refuse("name either flows, as in cache/contacts/3, or all of an application, by --application")
    if stream is not None and application is None:
        raise refuse("--stream is for --application: its flows of that stream alone")
    for one in which or ():
        check_flow(cluster, one)
    if which:
        return list(dict.fromkeys(which))
    if application and stream:
        check_reads(cluster.application(application), cluster.streams_named(stream))
    return flows_of(cluster, application=application, stream=stream)


def check_one_way(dry_run: bool, execute: bool) -> None:
    """Raise unless one of the two was said: nothing that moves a position is done, or left, by default."""
    if dry_run == execute:
        raise refuse("say either --dry-run, to see what would be done, or --execute, to do it")


def place(position: Position | None) -> int | str | None:
    """A position as `tail` writes it; None before the first update.

    >>> from tidings.positions import START, Position
    >>> place(START), place(Position(7)), place(Position(7, 2)), place(Position(7).before)
    (None, 7, '7.2', 'before 7')
    """
    if position is None or position.seq < 0:
        return None
    if position.index < 0:
        return f"before {position.seq}"
    return f"{position.seq}.{position.index}" if position.index else position.seq
