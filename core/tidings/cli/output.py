"""What commands print: results to stdout, as a table for people or as JSON or YAML for programs; the rest to stderr."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import typer

from tidings.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_format: ContextVar[str] = ContextVar("tidings_output_format", default="json")

# What JSON leaves as it is and a terminal may take for an order, or cannot be written at all.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

UNKNOWN = "-"
GAP = 2  # between columns
MAX_WHOLE, MIN_FOLDED = 20, 12  # characters of a word that is not broken, if there is room; of one that is


@contextlib.contextmanager
def printing_as(format: str) -> Iterator[None]:
    """Print what is for programs in this format: `json` or `yaml`."""
    before = _format.set(format)
    try:
        yield
    finally:
        _format.reset(before)


def emit(value: Any, json: bool, show: Callable[[], None]) -> None:
    """A command's result: the value where it is for programs, else what `show` prints for people.

    >>> emit({"stream": "contacts"}, True, lambda: print("stream contacts"))
    {"stream": "contacts"}
    >>> emit({"stream": "contacts"}, False, lambda: print("stream contacts"))
    stream contacts
    """
    if json:
        typer.echo(document(value, indent=2 if sys.stdout.isatty() else None), nl=False)
    else:
        show()


def chosen_format() -> str:
    """The format in which this command prints what is for programs; other threads do not know it by themselves."""
    return _format.get()


def document(value: Any, format: str | None = None, *, indent: int | None = None) -> str:
    """A result for programs in the chosen format, with its line end: a line of JSON, or a document of YAML.

    >>> print(document({"stream": "contacts"}), end="")
    {"stream": "contacts"}
    >>> print(document({"stream": "contacts", "shards": [0, 1]}, "yaml"), end="")
    ---
    stream: contacts
    shards:
    - 0
    - 1
    """
    text = json.dumps(value, ensure_ascii=not speaks_utf8(), indent=indent)
    if (format or chosen_format()) != "yaml":
        return _UNPRINTABLE.sub(_escaped, text) + "\n"
    import yaml

    plain = json.loads(text)  # what JSON can be made of, YAML may not
    ascii = not speaks_utf8() or _UNPRINTABLE.search(text) is not None
    shown: str = yaml.safe_dump(plain, explicit_start=True, allow_unicode=not ascii, sort_keys=False)
    return shown


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def speaks_utf8() -> bool:
    """Whether stdout takes any text; if not, JSON and YAML are written in ASCII."""
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
        if name in columns and sum(widths[at] + GAP for at in left) > width + GAP:
            del left[columns.index(name)]
    values = {at: [row[at] for row in rows if row[at] is not None] for at in left}
    numeric = {at for at in left if values[at] and all(isinstance(value, int | float) for value in values[at])}
    room = width - GAP * (len(left) - 1)
    fitted = {at: widths[at] for at in left}
    if sum(fitted.values()) > room:
        # What is folded is long texts: numbers and headers stay whole, and so do words, as far as there is room.
        words = {at: max((len(word) for row in cells for word in row[at].split()), default=0) for at in left}
        for most in (MAX_WHOLE, MIN_FOLDED):
            least = {at: widths[at] if at in numeric else max(len(left[at]), min(words[at], most)) for at in left}
            fitted = fit({at: widths[at] for at in left}, least, room)
            if sum(fitted.values()) <= room:
                break
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, column in left.items():
        table.add_column(column, justify="right" if at in numeric else "left", overflow="fold", width=fitted[at])
    for row in cells:
        table.add_row(*(at_slashes(row[at], fitted[at]) for at in left))
    return table


def at_slashes(text: str, width: int) -> str:
    """The text with line ends behind slashes, where a path does not fit into so many characters.

    >>> print(at_slashes("delta:/data/warehouse/contacts", 12))
    delta:/data/
    warehouse/
    contacts
    """
    return " ".join(word if len(word) <= width else _path_lines(word, width) for word in text.split(" "))


def _path_lines(path: str, width: int) -> str:
    lines = [""]
    for part in re.findall("[^/]*/|[^/]+", path):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def fit(widths: Mapping[int, int], least: Mapping[int, int], room: int) -> dict[int, int]:
    """The widths of columns for which there is so much room: the widest give way, as far as they can.

    >>> fit({0: 8, 1: 50, 2: 30}, {0: 8, 1: 10, 2: 10}, 60)
    {0: 8, 1: 26, 2: 26}
    >>> fit({0: 8, 1: 50, 2: 30}, {0: 8, 1: 10, 2: 25}, 30)
    {0: 8, 1: 10, 2: 25}
    """
    fitted = dict(widths)
    while sum(fitted.values()) > room and (wide := [at for at in fitted if fitted[at] > least[at]]):
        fitted[max(wide, key=lambda at: fitted[at])] -= 1
    return fitted


def cell(value: Any) -> str:
    """A value as a person reads it.

    >>> cell(None), cell(True), cell(1234567), cell(1.25), cell("contacts"), cell({"key": ["id"]})
    ('-', 'yes', '1,234,567', '1.2', 'contacts', '{"key": ["id"]}')
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict | list):
        return printable(json.dumps(value, ensure_ascii=False))
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def to_the_second(time: dt.datetime) -> str:
    """A time as a table has it; programs are told all of it.

    >>> to_the_second(dt.datetime(2026, 1, 1, 12, 30, 5, 123456, tzinfo=dt.UTC))
    '2026-01-01T12:30:05Z'
    """
    return time.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


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
    """A thing on stdout, a field a line; a tuple is that many lines, one below the other."""
    for key, value in fields.items():
        name = key.replace("_", " ")
        for line in value if isinstance(value, tuple) else (value,):
            typer.echo(f"{name:<18} {cell(line)}")
            name = ""


def refuse(message: str) -> typer.Exit:
    """Say why the command cannot be run as it was typed; to be raised, `raise refuse(...)`: the exit code is 2."""
    note(f"error: {message}")
    return typer.Exit(2)


def fail(message: str) -> typer.Exit:
    """Say what the command could not do, after it has printed what it did; to be raised: the exit code is 1."""
    note(f"error: {message}")
    return typer.Exit(1)
