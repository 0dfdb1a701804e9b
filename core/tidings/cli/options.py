"""The options that commands share, and the cluster that they name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidings.errors import InvalidOption, TidingsError

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.positions import Positions

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:2181/tidings"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.", show_default=False)]

ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT[/ROOT]",
        help=f"The cluster's address; else TIDINGS_ZOOKEEPER, else {DEFAULT_ADDRESS}.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=3600.0, help="How long to wait for ZooKeeper to answer.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", show_default=False)]


@contextlib.contextmanager
def connected(zookeeper: str | None, timeout: float, *, fallback: str | None = None) -> Iterator[Cluster]:
    """The cluster that the option names, else the environment, else the fallback."""
    from tidings.cluster import connect

    address = zookeeper or os.environ.get("TIDINGS_ZOOKEEPER") or fallback or DEFAULT_ADDRESS
    credentials = os.environ.get("TIDINGS_ZOOKEEPER_CREDENTIALS") or None
    if credentials and ":" not in credentials:
        raise InvalidOption("TIDINGS_ZOOKEEPER_CREDENTIALS is not of the form user:password")
    with connect(address, timeout=timeout, credentials=credentials) as cluster:
        yield cluster


def duration(text: str) -> int:
    """An option's value as seconds."""
    from tidings.config import parse_duration

    return _usage(parse_duration, text)


def size(text: str) -> int:
    """An option's value as bytes."""
    from tidings.config import parse_size

    return _usage(parse_size, text)


def positions(text: str) -> Positions:
    """An option's value as positions."""
    from tidings.positions import Positions

    return _usage(Positions.parse, text)


def shard_set(text: str) -> frozenset[int]:
    """An option's value as a set of shards.

    >>> sorted(shard_set("0,3,5-7"))
    [0, 3, 5, 6, 7]
    """
    return _usage(_parse_shards, text)


def _parse_shards(text: str) -> frozenset[int]:
    from tidings.streams import MAX_SHARDS

    shards: set[int] = set()
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        numbers = [first, last] if dash else [first]
        if not all(
            number.isascii() and number.isdecimal() and len(number) <= 4 and int(number) < MAX_SHARDS
            for number in numbers
        ):
            raise InvalidOption(f"{part!r} is no shard; write numbers and ranges, as in 0,3,5-7")
        low, high = int(numbers[0]), int(numbers[-1])
        if low > high:
            raise InvalidOption(f"{part!r} is no range of shards: {low} is above {high}")
        shards.update(range(low, high + 1))
    return frozenset(shards)


def _usage(parse: Callable[[str], T], text: str) -> T:
    """Parse an option's value; a bad one is bad usage, and typer says which option it was."""
    try:
        return parse(text)
    except TidingsError as error:
        raise typer.BadParameter(str(error)) from None
