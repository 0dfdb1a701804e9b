"""The options that commands share, and the cluster that they name."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from tidings.cli.cluster_address import cluster_address
from tidings.cli.output import note, refuse
from tidings.errors import InvalidOption, TidingsError
from tidings.hosts import DEFAULT_ADDRESS
from tidings.identity.credentials import ANONYMOUS, Credentials
from tidings.identity.environment import (
    APPLICATION_KEY,
    SECRET,
    credentials_of_environment,
    is_insecure,
    read_file,
    read_secrets,
    secrets_in,
)

if TYPE_CHECKING:
    from tidings.cluster import Cluster
    from tidings.flows import Flow
    from tidings.positions import Position, Positions
    from tidings.wire.security import Security

T = TypeVar("T")

# How long to wait for ZooKeeper: what a person waits for fails soon; what runs on may be started together with it.
COMMAND_TIMEOUT_S = 3.0
SERVICE_TIMEOUT_S = 10.0
MAX_DATA_BYTES = 2**30  # of a back-up, or of a plan
REFUSED_TIMEOUT_S = 1.0  # where nobody listens; who says how long to wait waits for one that starts

Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.", show_default=False)]

ZooKeeper = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT[/ROOT]",
        help=f"The cluster's address; else TIDINGS_ZOOKEEPER, else `zookeeper` in the nearest tidings.yml, else "
        f"{DEFAULT_ADDRESS}.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=3600.0, help="How long to wait for ZooKeeper to answer.")
]
Application = Annotated[str, typer.Argument(metavar="APP", help="The application's name.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="The same as --output json.", show_default=False)]
JsonLines = Annotated[bool, typer.Option("--json", help="As --output json: an object a line.", show_default=False)]


@contextlib.contextmanager
def connected(
    zookeeper: str | None,
    timeout: float,
    *,
    file: Path | None = None,
    session_timeout: float = 10.0,
    credentials: Credentials = ANONYMOUS,
    insecure: bool = False,
) -> Iterator[Cluster]:
    """The cluster that the option names, else the environment, else the nearest `tidings.yml`; or `file`, if given.

    Who we are is in the environment, unless `credentials` say it.
    """
    from tidings.cluster import connect
    from tidings.coordination.tls import tls_of_environment

    address = cluster_address(zookeeper, file)
    known = credentials if credentials.passwords else credentials_of_environment()
    if known.passwords:
        address.check_trusted()
    with connect(
        address.text,
        timeout=timeout,
        refused_timeout=REFUSED_TIMEOUT_S if timeout == COMMAND_TIMEOUT_S else None,
        session_timeout=session_timeout,
        credentials=known,
        tls=tls_of_environment(),
        insecure=insecure or is_insecure(),
    ) as cluster:
        yield cluster


def tell_of_nothing(cluster: Cluster) -> None:
    """Say so if nothing was ever made at the address, which may be misspelt; not that a cluster has lost everything."""
    if not cluster.coordination.is_there:
        note(f"nothing was ever made at {cluster.coordination.address}: is that the right path?")


def duration(text: str) -> int:
    """An option's value as seconds."""
    from tidings.config.units import parse_duration

    return _usage(parse_duration, text)


def size(text: str) -> int:
    """An option's value as bytes."""
    from tidings.config.units import parse_size

    return _usage(parse_size, text)


def moment(text: str) -> dt.datetime:
    """An option's value as a time: one with its zone, or so long ago."""
    return _usage(_parse_moment, text)


def entry_number(text: str) -> int:
    """An argument as the number of an entry in the audit.

    >>> entry_number("1204")
    1204
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise typer.BadParameter(f"{text!r} is no number of an entry: `tidings audit` lists them")
    return int(text)


def position(text: str) -> Position:
    """An option's value as a position."""
    from tidings.positions import Position

    return _usage(Position.parse, text)


def positions(text: str) -> Positions:
    """An option's value as positions."""
    from tidings.positions import Positions

    return _usage(Positions.parse, text)


def starting(text: str) -> str | dict[str, Any]:
    """An option's value as an application's start."""
    return _usage(_parse_start, text)


def filter_text(text: str) -> str:
    """An option's value as a filter; it stays as it was written."""
    from tidings.filters import parse

    _usage(parse, text)
    return text


def flow(text: str) -> Flow:
    """An argument as a flow.

    >>> flow("cache/contacts/3").shard
    3
    """
    return _usage(_parse_flow, text)


def flow_states(text: str) -> frozenset[str]:
    """An option's value as states of flows.

    >>> sorted(flow_states("failed,restarting"))
    ['failed', 'restarting']
    """
    return _usage(_parse_states, text)


def listen_address(text: str) -> tuple[str, int]:
    """An option's value as where to listen."""
    from tidings.metrics import parse_address

    return _usage(parse_address, text)


def existing_file(text: str) -> Path:
    """An option's value as a file that can be read."""
    _usage(read_file, text)
    return Path(text)


def read_data(path: Path) -> bytes:
    """What is in a file of data, which may be large, or a pipe."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DATA_BYTES + 1)
    except OSError as error:
        raise refuse(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_DATA_BYTES:
        raise refuse(f"{str(path)!r} is too large: it has more than {MAX_DATA_BYTES // 2**30} GiB")
    return content


def secret_file(text: str) -> list[str]:
    """An option's value as the secrets in the file that it names: one, or the new one and then the old."""
    return _usage(lambda path: read_secrets(path, read_file(path).decode(errors="replace")), text)


def publisher_security(secrets: list[str] | None, **tls: Any) -> Security:
    """How a publisher knows subscribers; the secret of the cluster is in the environment if no file was named."""
    from tidings.wire.security import Security

    first, *others = secrets or secrets_in(SECRET) or [""]
    return Security(secret=first or None, accepted=tuple(others), **tls)


def subscriber_security(keys: list[str] | None, **tls: Any) -> Security:
    """How a subscriber knows publishers; the application's key is in the environment if no file was named.

    Who has the secret of the cluster can be any application.
    """
    from tidings.wire.security import Security

    known, secrets = keys or secrets_in(APPLICATION_KEY), secrets_in(SECRET)
    if known is None and secrets is not None:
        return Security(secret=secrets[0], accepted=tuple(secrets[1:]), **tls)
    first, *others = known or [""]
    return Security(application_key=first or None, accepted=tuple(others), **tls)


def shard_set(text: str) -> frozenset[int]:
    """An option's value as a set of shards.

    >>> sorted(shard_set("0,3,5-7"))
    [0, 3, 5, 6, 7]
    """
    return _usage(_parse_shards, text)


def _parse_shards(text: str) -> frozenset[int]:
    from tidings.stream_definition import MAX_SHARDS

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


def _parse_start(text: str) -> str | dict[str, Any]:
    from tidings.applications import check_start

    if not text.lstrip().startswith("{"):
        return check_start(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{text[:100]!r} is no JSON: {error}") from None
    return check_start(value)


def _parse_moment(text: str) -> dt.datetime:
    from tidings.config.units import parse_duration

    now = dt.datetime.now(dt.UTC)
    try:
        if text.startswith("P"):
            return now - dt.timedelta(seconds=parse_duration(text))
        found = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        found = now.replace(tzinfo=None)
    if found.tzinfo is None:
        raise InvalidOption(
            f"{text!r} is no time: write one with its zone, as in 2026-01-01T00:00:00Z, or PT1H for an hour ago"
        )
    return found


def _parse_states(text: str) -> frozenset[str]:
    from tidings.flows import FlowState

    states = [one.strip() for one in text.split(",")]
    for one in states:
        if one not in get_args(FlowState):
            raise InvalidOption(f"{one!r} is no state of a flow; the states are {', '.join(get_args(FlowState))}")
    return frozenset(states)


def _parse_flow(text: str) -> Flow:
    from tidings.flows import Flow

    application, _, rest = text.partition("/")
    stream, _, shard = rest.partition("/")
    if not application or not stream or not (shard.isascii() and shard.isdecimal()):
        raise InvalidOption(f"{text!r} is no flow; write APP/STREAM/SHARD, as in cache/contacts/3")
    return Flow(application, stream, int(shard))


def _usage(parse: Callable[[str], T], text: str) -> T:
    """Parse an option's value; a bad one is bad usage, and typer says which option it was."""
    try:
        return parse(text)
    except TidingsError as error:
        raise typer.BadParameter(str(error)) from None


Metrics = Annotated[
    Any,
    typer.Option(
        metavar="[HOST:]PORT",
        parser=listen_address,
        help="Serve /metrics, /health/live and /health/ready there; the host is 127.0.0.1 unless it is named.",
        show_default=False,
    ),
]
ProgressTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=1.0,
        max=86400.0,
        help="After how long /health/ready tells of a flow that has work and makes no progress.",
    ),
]
SecretFile = Annotated[
    Any,
    typer.Option(
        metavar="FILE",
        parser=secret_file,
        help="The file of the cluster's secret; else TIDINGS_SECRET or TIDINGS_SECRET_FILE. While it is replaced, the "
        "new one is the first line, and the old one the second.",
        show_default=False,
    ),
]
ApplicationKey = Annotated[
    Any,
    typer.Option(
        metavar="FILE",
        parser=secret_file,
        help="The file of the application's key; else TIDINGS_APPLICATION_KEY, or TIDINGS_APPLICATION_KEY_FILE. See "
        "`tidings keys show`.",
        show_default=False,
    ),
]


def key_texts(texts: list[str] | None) -> dict[str, str]:
    """Options as they are typed, whose values are text.

    >>> key_texts(["realm=7"])
    {'realm': '7'}
    """
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise refuse(f"{text!r} is no option: write KEY=VALUE")
        if key in found:
            raise refuse(f"{key!r} is given twice")
        found[key] = value
    return found


def logs(texts: list[str]) -> dict[str, str]:
    """The logs of a stream as they are typed, by name; the one of a stream that has no other is called "".

    >>> logs(["postgres:service=shop"]), logs(["east=delta:/east", "west=delta:/west"])
    ({'': 'postgres:service=shop'}, {'east': 'delta:/east', 'west': 'delta:/west'})
    """
    if len(texts) == 1 and "=" not in texts[0].partition(":")[0]:
        return {"": texts[0]}
    for text in texts:
        if "=" not in text.partition(":")[0]:
            raise refuse(f"{text!r} is one of several logs, and has no name: write NAME=SCHEME:PLACE")
    return key_texts(texts)


def key_values(texts: list[str] | None) -> dict[str, Any]:
    """Options as they are typed: the value is JSON if it can be read as that, else text.

    >>> key_values(["away_days=7", 'key=["id"]', "publication=tidings"])
    {'away_days': 7, 'key': ['id'], 'publication': 'tidings'}
    """
    found: dict[str, Any] = {}
    for key, value in key_texts(texts).items():
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
        except RecursionError:
            raise refuse(f"the value of {key!r} is nested too deeply") from None
    return found
