"""A table that is looked at again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import typer

from tidings.cli.output import console, document, make_table, note
from tidings.errors import TidingsError

INTERVAL_S = 2.0


class Listing(NamedTuple):
    """What there is to show: as a table, and as JSON; and what could not be found out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    json: Any
    problems: Sequence[str] = ()


def show_again_and_again(look: Callable[[], Listing], spare: Sequence[str], *, json: bool) -> None:
    """Show what there is, and again every 2 s: on a terminal in place, else one below the other.

    What cannot be found out just now is told, and is no reason to end: that is when one watches.
    """
    from rich.live import Live

    screen = console()
    with contextlib.ExitStack() as stack:
        in_place = screen.is_terminal and not json
        live = stack.enter_context(Live(console=screen, auto_refresh=False, screen=True)) if in_place else None
        while True:
            try:
                found = look()
            except TidingsError as error:
                note(f"error: {error}")
            else:
                table = make_table(found.columns, found.rows, spare, screen.width)
                if live:
                    live.update(table, refresh=True)
                elif json:
                    typer.echo(document(found.json), nl=False)
                else:
                    screen.print(table)
            time.sleep(INTERVAL_S)
