"""The page docs/cli.md, as the commands describe themselves: `python -m tidings.cli.reference > docs/cli.md`."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import typer.main

INTRODUCTION = """\
# The command line

Made from the commands' own help by `python -m tidings.cli.reference > docs/cli.md`.

Results go to stdout, everything else to stderr. `--output json` and `--output yaml` print results for programs: one
document, or, from `tidings streams tail` and `tidings subscribe`, one an update. `--json` is short for the former. In a
table `-` stands for what is not known or not there, in JSON and YAML `null`. With `NO_COLOR` set nothing is coloured.

Where no ZooKeeper answers, a command says so after `--timeout` seconds: 3, or 10 where it is a service: `up`, `run`,
`subscribe`, `publisher`, `gateway` and `console`. Where nobody listens at its address, a command that is no service
says so after 1 second, and ends; with --timeout it says so then, too, and waits for one that starts.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | failed; the reason is one sentence on stderr |
| 2 | bad usage |
| 130 | interrupted, by Ctrl-C |
| 143 | terminated |

From Python, `tidings.cli.main(["streams", "list"])` runs a command and returns its exit code.
"""


def page() -> str:
    """The whole page."""
    from tidings.cli.command import app

    sections = [f"## {' '.join(path)}\n\n```\n{_help(path)}```\n" for path in _commands(typer.main.get_command(app))]
    return "\n".join([INTRODUCTION, *sections])


def _commands(command: Any, path: tuple[str, ...] = ("tidings",)) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def _help(path: tuple[str, ...]) -> str:
    from tidings.cli import main

    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            main([*path[1:], "--help"])
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return out.getvalue()


if __name__ == "__main__":
    print(page(), end="")
