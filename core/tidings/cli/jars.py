"""`tidings jars`: fetch the jars that Spark needs, once for each user, and say where they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.options import Json
from tidings.cli.output import console, emit

if TYPE_CHECKING:
    from tidings.runtime.jars import Progress


class Conf(StrEnum):
    """The configurations of ivy.xml."""

    runtime = "runtime"
    kafka = "kafka"
    broker = "broker"


def jars_command(
    conf: Annotated[
        Conf,
        typer.Option(
            help="runtime: for Spark. kafka: for Spark's Kafka source and sink; once they are there, every session has "
            "them. broker: a Kafka broker, for tests and demonstrations."
        ),
    ] = Conf.runtime,
    json: Json = False,
) -> None:
    """Fetch the jars that Spark needs, unless they are there, check them, and print their folder."""
    from tidings.runtime import jars

    with _shown() as progress:
        folder = jars.folder(conf.value, progress)
    found = {"conf": conf.value, "folder": str(folder), "jars": list(jars.pins(conf.value))}
    emit(found, json, lambda: typer.echo(folder))


@contextmanager
def _shown() -> Iterator[Progress | None]:
    """A bar on stderr once there is something to fetch; nothing where no terminal shows it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("jars", total=None, visible=False)

        def tell(message: str, done: int, total: int) -> None:
            bar.update(task, description=message, completed=done, total=total, visible=True)

        yield tell
