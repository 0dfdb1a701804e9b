"""What all commands have in common, those of plugins among them.

`--output table|json|yaml` is on every command that has `--json`, which is short for one of them; what an argument is
called in the help; and how a value that is none of its option's is told.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import typer
import typer.core
import typer.main

from tidings.cli.output import printing_as, refuse

Output = Annotated[
    Literal["table", "json", "yaml"] | None,
    typer.Option(
        "--output", "-o", help="Print a table, which is for people, or JSON or YAML, for programs.", show_default=False
    ),
]


class CommandGroup(typer.core.TyperGroup):
    """The commands, those of plugins among them; all that print JSON print other formats, too."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _offer(self)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named, and tell in our own words what is wrong with its arguments."""
        with _in_our_words():
            return super().invoke(ctx)


@contextlib.contextmanager
def _in_our_words() -> Iterator[None]:
    """Name the value that was wrong, as our own errors do; typer says which option it was, and pydantic the rest."""
    try:
        yield
    except typer.BadParameter as error:
        from pydantic import ValidationError

        if isinstance(error.__cause__, ValidationError):
            error.message = _words(error.__cause__.errors()[0])
        raise


def _words(problem: Any) -> str:
    """What pydantic has found, in one sentence.

    >>> _words({"type": "int_parsing", "input": "many", "msg": "Input should be a valid integer, unable to parse"})
    "'many' is no whole number"
    >>> _words({"type": "greater_than_equal", "input": "0", "ctx": {"ge": 1}, "msg": "Input should be greater"})
    "'0' is too small: at least 1 is wanted"
    >>> _words({"type": "value_error", "input": "boss", "msg": "Value error, 'boss' is not one of 'viewer'."})
    "'boss' is not one of 'viewer'"
    """
    value = repr(problem["input"])
    match problem["type"]:
        case "int_parsing" | "int_from_float" | "int_parsing_size":
            return f"{value} is no whole number"
        case "float_parsing" | "finite_number":
            return f"{value} is no number"
        case "greater_than_equal":
            return f"{value} is too small: at least {problem['ctx']['ge']} is wanted"
        case "less_than_equal":
            return f"{value} is too large: at most {problem['ctx']['le']} is wanted"
    return str(problem["msg"]).removeprefix("Value error, ").removesuffix(".")


def _offer(command: Any) -> None:
    for inner in getattr(command, "commands", {}).values():
        _offer(inner)
    for one in command.params:
        if one.param_type_name == "argument" and one.metavar is not None:
            one.display_type_rich = lambda ctx: None  # the name says what it is, as it does for an option
    at = next((at for at, one in enumerate(command.params) if one.name == "json"), None)
    if at is not None:
        command.params.insert(at, _option())
        command.callback = _choosing(command.callback)


@functools.cache
def _option() -> Any:
    """The option by itself, as typer makes it."""
    alone = typer.Typer(add_completion=False)

    @alone.command()
    def command(output: Output = None) -> None: ...

    return typer.main.get_command(alone).params[0]


def _choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command to which every format but a table is JSON; what prints knows which one is meant."""

    @functools.wraps(command)
    def choosing(*, json: bool, output: str | None, **given: Any) -> Any:
        if json and output not in (None, "json"):
            raise refuse(f"--json and --output {output} ask for different formats: give one of them")
        with printing_as("json" if json else output or "table"):
            return command(json=json or output in ("json", "yaml"), **given)

    return choosing
