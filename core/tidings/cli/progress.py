"""How the pipelines of `tidings run` go on: a table that is drawn anew on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidings.cli.output import cell, console, note

if TYPE_CHECKING:
    from rich.table import Table

    from tidings.pipelines.progress import Progress
    from tidings.pipelines.query import PipelineRun

REDRAW_INTERVAL_S = 1.0  # on a terminal
LINE_INTERVAL_S = 10.0  # elsewhere, between two lines of a pipeline that moves


@contextlib.contextmanager
def showing(runs: Mapping[str, PipelineRun], *, quiet: bool) -> Iterator[None]:
    """Show on stderr how the runs go on, while the block runs."""
    if quiet or not runs:
        yield
        return
    ended = threading.Event()
    show = _draw if sys.stderr.isatty() else _print
    thread = threading.Thread(target=show, args=(runs, ended), name="tidings-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def line(name: str, progress: Progress, now: dt.datetime) -> str:
    """What a log file gets.

    >>> from tidings.pipelines.progress import Progress
    >>> line("swedes", Progress(batch=7, rate=1234.5, lag={"contacts": 12}), dt.datetime(2026, 1, 1))
    '2026-01-01T00:00:00Z swedes: batch 7, 1,234.5 rows/s, lag 12'
    """
    batch, rate, lag = cell(progress.batch), cell(progress.rate), cell(progress.total_lag)
    return f"{now:%Y-%m-%dT%H:%M:%SZ} {name}: batch {batch}, {rate} rows/s, lag {lag}"


def _print(runs: Mapping[str, PipelineRun], ended: threading.Event) -> None:
    printed: dict[str, int | None] = {}
    while not ended.wait(LINE_INTERVAL_S):
        for name, run in list(runs.items()):  # another may be started meanwhile
            progress = run.progress
            if run.active and progress.batch != printed.get(name):
                printed[name] = progress.batch
                note(line(name, progress, dt.datetime.now(dt.UTC)))


def _draw(runs: Mapping[str, PipelineRun], ended: threading.Event) -> None:
    from rich.live import Live

    with Live(_table(runs), console=console(stderr=True), auto_refresh=False, transient=True) as live:
        while not ended.wait(REDRAW_INTERVAL_S):
            live.update(_table(runs), refresh=True)


def _table(runs: Mapping[str, PipelineRun]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("PIPELINE", "STATE", "BATCH", "ROWS/S", "LAG", "IN", "OUT"):
        table.add_column(title, justify="left" if title in ("PIPELINE", "STATE") else "right")
    for name, run in list(runs.items()):
        progress = run.progress
        state = "running" if run.active else "failed" if run.error else "ended"
        numbers = (progress.batch, progress.rate, progress.total_lag, progress.updates_in, progress.updates_out)
        table.add_row(name, state, *map(cell, numbers))
    return table
