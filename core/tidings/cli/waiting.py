"""`--wait`: a command that ends when what was asked for is done, or when the time for that is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from tidings.cli.output import note

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.5  # between two looks, which may be at thousands of flows
FIRST_WORD_S = 1.0  # what is done sooner needs no word of how far it is
WORD_INTERVAL_S = 5.0

WaitTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600.0,
        help="How long to wait for ZooKeeper to answer; if it is given, --wait ends after as long, too.",
    ),
]


def time_limit(context: typer.Context, timeout: float) -> float | None:
    """How long `--wait` waits: as long as somebody has said; else until what was asked for is done.

    The default of `--timeout` is for ZooKeeper, which answers at once; a subscriber may take its time.
    """
    source = context.get_parameter_source("timeout")
    return timeout if source is not None and source.name == "COMMANDLINE" else None


def wait_until_none(
    look: Callable[[], Sequence[T]], tell: Callable[[Sequence[T]], str], limit: float | None
) -> list[T]:
    """Look again and again until nothing is left; what is left when the time is over.

    If it takes a while, `tell` says on stderr what is left, and again when that has changed.
    """
    begun = told_at = time.monotonic()
    told, silence, pause = "", FIRST_WORD_S, FIRST_PAUSE_S
    while left := look():
        now = time.monotonic()
        if limit is not None and now - begun >= limit:
            break
        if now - told_at >= silence and (sentence := tell(left)) != told:
            note(sentence)
            told, told_at, silence = sentence, now, WORD_INTERVAL_S
        time.sleep(pause if limit is None else min(pause, begun + limit - now))
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return list(left)
