"""The options of `format("tidings")`: what there is, read and checked."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tidings.cluster import connect
from tidings.coordination.tls import tls_of_environment
from tidings.errors import InvalidOption
from tidings.identity.environment import credentials_of_environment, is_insecure
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition

Use = Literal["batch", "streaming"]


@dataclass(frozen=True)
class Option:
    """An option, as docs/spark.md has it."""

    name: str
    default: str
    meaning: str
    use: Use | None = None
    """What alone it is for, if it is not for both."""


STREAM = Option("stream", "required", "the stream's name")
ZOOKEEPER = Option("zookeeper", "`$TIDINGS_ZOOKEEPER`", "the cluster, `host:port[,host:port…][/root]`")
READ = (
    STREAM,
    ZOOKEEPER,
    Option(
        "startingPosition",
        "`earliest`",
        '`earliest`, `latest`, or the first seq wanted of each shard: `{"0": 23, "1": 0}`. '
        "A query that has a checkpoint goes on from there",
    ),
    Option("endingPosition", "`latest`", "`latest`, or the last seq wanted of each shard", use="batch"),
    Option("maxRowsPerBatch", "no limit", "the rows in one micro-batch", use="streaming"),
    Option("shards", "all", "the shards to read: `0,3,5-7`"),
    Option("tombstones", "`true`", "`false`: leave out rows that stand for updates which were collected"),
    Option(
        "failOnDataLoss",
        "`true`",
        "`false`: go on with the oldest updates held when the log no longer holds the next ones",
    ),
)
WRITE = (
    STREAM,
    ZOOKEEPER,
    Option(
        "txnAppId",
        "the query's id",
        "who writes: a micro-batch that this writer repeats is appended once",
        use="streaming",
    ),
)

DEFINITION = "definition"  # from a log that is open already, and needs no look into ZooKeeper
SPARKS_OWN = frozenset(["checkpointlocation", "queryname", "path"])  # what it hands to every sink


@dataclass(frozen=True)
class ReadOptions:
    """What to read: of which stream, which shards, from where to where."""

    stream: StreamDefinition
    shards: tuple[int, ...]
    start: Positions | str
    end: Positions | str
    max_rows: int | None
    fail_on_data_loss: bool
    tombstones: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
        """The options of a read; None if it is not known yet what kind of read it will be."""
        other = {None: None, True: "batch", False: "streaming"}[streaming]
        known = _known(options, [one.name for one in READ if one.use is None or one.use != other])
        stream = _stream(known)
        shards = _shards(known.get("shards"), stream)
        return cls(
            stream,
            shards,
            _boundary("startingPosition", known.get("startingposition", "earliest"), ("earliest", "latest"), shards),
            _boundary("endingPosition", known.get("endingposition", "latest"), ("latest",), shards),
            _count("maxRowsPerBatch", known.get("maxrowsperbatch")),
            _flag("failOnDataLoss", known.get("failondataloss", "true")),
            _flag("tombstones", known.get("tombstones", "true")),
        )


@dataclass(frozen=True)
class WriteOptions:
    """Where to write, and who writes."""

    stream: StreamDefinition
    app: str | None
    checkpoint: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str], overwrite: bool) -> WriteOptions:
        """The options of a write."""
        if overwrite:
            raise InvalidOption("a stream's log is only ever appended to: use mode('append')")
        known = _known(options, [one.name for one in WRITE], SPARKS_OWN)
        return cls(_stream(known), known.get("txnappid"), known.get("checkpointlocation"))


def _known(options: Mapping[str, str], names: Iterable[str], others: frozenset[str] = frozenset()) -> dict[str, str]:
    """The options, by their names in lower case: as Spark hands them over."""
    spelled = {name.lower(): name for name in names}
    known = {key.lower(): value for key, value in options.items()}
    for name in sorted(known.keys() - spelled.keys() - others - {DEFINITION}):
        meant = difflib.get_close_matches(name, spelled, 1)
        advice = f"did you mean {spelled[meant[0]]!r}?" if meant else f"it has {', '.join(spelled.values())}"
        raise InvalidOption(f"format('tidings') has no option {name!r} here; {advice}")
    return known


def _stream(known: Mapping[str, str]) -> StreamDefinition:
    if DEFINITION in known:
        return StreamDefinition.from_json(json.loads(known[DEFINITION]))
    if "stream" not in known:
        raise InvalidOption("format('tidings') needs the option 'stream'")
    address = known.get("zookeeper") or os.environ.get("TIDINGS_ZOOKEEPER")
    if not address:
        raise InvalidOption("format('tidings') needs the option 'zookeeper', or TIDINGS_ZOOKEEPER in the environment")
    who, tls = credentials_of_environment(), tls_of_environment()
    with connect(address, credentials=who, tls=tls, insecure=is_insecure()) as cluster:
        return cluster.stream(known["stream"]).definition


def _shards(text: str | None, stream: StreamDefinition) -> tuple[int, ...]:
    """The shards that are meant by `0,3,5-7`; all of them if nothing is said."""
    if text is None:
        return tuple(range(stream.shards))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidOption(f"option 'shards' is {text!r}; write it as in 0,3,5-7")
        if int(last or first) >= stream.shards:
            raise InvalidOption(f"stream {stream.name!r} has shards 0 to {stream.shards - 1}, not {last or first}")
        chosen.update(range(int(first), int(last or first) + 1))
    if not chosen:
        raise InvalidOption(f"option 'shards' is {text!r}, which is no shard at all")
    return tuple(sorted(chosen))


def _boundary(name: str, text: str, words: tuple[str, ...], shards: tuple[int, ...]) -> Positions | str:
    if text in words:
        return text
    if not text.lstrip().startswith("{"):
        raise InvalidOption(f'option {name!r} is {text!r}; write {" or ".join(words)}, or JSON such as {{"0": 23}}')
    positions = Positions.parse(text)
    missing, surplus = set(shards) - set(positions), set(positions) - set(shards)
    if missing or surplus:
        wrong = f"leaves out shard {min(missing)}" if missing else f"names shard {min(surplus)}, which is not read"
        raise InvalidOption(f"option {name!r} {wrong}: name every shard that is read, and no other")
    return positions


def _count(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOption(f"option {name!r} is {text!r}, not a number above 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"option {name!r} is {text!r}; write true or false")
    return text.lower() == "true"
