"""What commands print: results to stdout, as a table for people or as JSON for programs; everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tidings.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNKNOWN = "-"
GAP = 2  # between columns


def emit(value: Any, json: bool, show: Callable[[], None]) -> None:
    """A command's result: the value as JSON where --json was given, else what `show` prints for people.

    >>> emit({"stream": "contacts"}, True, lambda: print("stream contacts"))
    {"stream": "contacts"}
    >>> emit({"stream": "contacts"}, False, lambda: print("stream contacts"))
    stream contacts
    """
    if json:
        print_json(value)
    else:
        show()


def print_json(value: Any) -> None:
    """A JSON document on stdout, indented on a terminal, on one line otherwise."""
    typer.echo(json.dumps(value, ensure_ascii=not speaks_utf8(), indent=2 if sys.stdout.isatty() else None))


def speaks_utf8() -> bool:
    """Whether stdout takes any text; if not, JSON is written in ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], spare: Sequence[str] = ()) -> None:
    """A table on stdout; numbers stand to the right, None is `-`. It is never cut off where a program reads it.

    A terminal that is too narrow for all columns is spared these, one after the other, until the others fit.
    """
    screen = console()
    screen.print(make_table(columns, rows, spare, screen.width))


def make_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], spare: Sequence[str], width: int) -> Table:
    """The same, to be shown on a screen of this width."""
    from rich.table import Table

    rows = list(rows)
    cells = [list(map(cell, row)) for row in rows]
    widths = [max(map(len, (name, *(row[at] for row in cells)))) for at, name in enumerate(columns)]
    left = dict(enumerate(columns))
    for name in spare:
        if sum(widths[at] + GAP for at in left) > width + GAP:
            del left[columns.index(name)]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, column in left.items():
        values = [row[at] for row in rows if row[at] is not None]
        numeric = bool(values) and all(isinstance(value, int | float) for value in values)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(row[at] for at in left))
    return table


def cell(value: Any) -> str:
    """A value as a person reads it.

    >>> cell(None), cell(1234567), cell(1.25), cell("contacts")
    ('-', '1,234,567', '1.2', 'contacts')
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def console(*, stderr: bool = False) -> Console:
    """A console that takes text as it is; it is as wide as it needs to be where no terminal sets a width."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    return Console(file=file, width=None if file.isatty() else 10_000, markup=False, highlight=False, emoji=False)


def note(message: str) -> None:
    """A sentence on stderr, for the person who runs the command."""
    typer.echo("\n".join(map(printable, message.split("\n"))), err=True)


def warn(message: str) -> None:
    """A sentence on stderr about what is allowed and may not be meant."""
    note(f"warning: {message}")


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Tell what the framework warns of as a command tells it, and not as Python does."""
    from tidings.errors import FilterWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", FilterWarning)
        warnings.showwarning = lambda message, *place: warn(str(message))
        yield


def print_fields(fields: Mapping[str, Any]) -> None:
    """A thing on stdout, a field a line."""
    for key, value in fields.items():
        typer.echo(f"{key.replace('_', ' '):<18} {cell(value)}")


def refuse(message: str) -> typer.Exit:
    """Say why the command cannot be run as it was typed; to be raised, `raise refuse(...)`: the exit code is 2."""
    note(f"error: {message}")
    return typer.Exit(2)
