"""`tidings init`: a small project that runs, to begin from."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tidings.errors import InvalidOption
from tidings.names import check_name

EXAMPLES = """\b
Examples:
  tidings init shop    makes the folder shop, and says what to type next
"""

TEMPLATE = files("tidings.cli") / "new_project"
SUFFIX = ".in"  # so that nobody takes the files for modules and tests of ours


def init_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name, and its folder's.")],
) -> None:
    """Make a project that runs: streams, a pipeline, an application, a service in Python, and its test.

    A folder that is there already is left alone.
    """
    check_name("a project", name)
    folder = Path(name)
    try:
        folder.mkdir()
        for file in TEMPLATE.iterdir():
            text = file.read_text(encoding="utf-8").replace("{{name}}", name)
            (folder / file.name.removesuffix(SUFFIX)).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise InvalidOption(f"{name} is there already: choose another name, or remove it") from None
    except OSError as error:
        raise InvalidOption(f"{name} cannot be made here: {error.strerror or error}") from None
    typer.echo(f"{name} is made. Next:\n")
    for command in next_commands(name):
        typer.echo(f"  {command}")


def next_commands(name: str) -> list[str]:
    """What to type next, in a shell that is where the folder is."""
    test = _typed("pytest") if importlib.util.find_spec("pytest") else "pip install pytest && pytest"
    return [f"cd {shlex.quote(name)} && {test}", f"{_typed('tidings')} up"]


def _typed(program: str) -> str:
    """The program as a shell finds it: that of the Python that runs this, and no other."""
    own = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    named = not own.exists() or (found is not None and Path(found).samefile(own))
    return program if named else shlex.quote(str(own))
