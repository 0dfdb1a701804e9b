"""The options of `format("tidings")`, read and checked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from tidings.cluster import connect
from tidings.coordination.tls import tls_of_environment
from tidings.errors import InvalidOption
from tidings.identity.environment import credentials_of_environment, is_insecure
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition

COMMON = {"stream", "zookeeper", "definition"}
READ = COMMON | {"startingposition", "shards", "failondataloss", "tombstones"}
WRITE = COMMON | {"txnappid", "checkpointlocation", "queryname", "path"}


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
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        known = _known(options, READ | ({"maxrowsperbatch"} if streaming else {"endingposition"}))
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
        if overwrite:
            raise InvalidOption("a stream's log is only ever appended to: use mode('append')")
        known = _known(options, WRITE)
        return cls(_stream(known), known.get("txnappid"), known.get("checkpointlocation"))


def _known(options: Mapping[str, str], names: set[str]) -> dict[str, str]:
    known = {key.lower(): value for key, value in options.items()}
    unknown = sorted(known.keys() - names)
    if unknown:
        raise InvalidOption(
            f"format('tidings') has no option {unknown[0]!r} here; it has {', '.join(sorted(names - {'definition'}))}"
        )
    return known


def _stream(known: Mapping[str, str]) -> StreamDefinition:
    if "definition" in known:  # from a log that is open already, and needs no look into ZooKeeper
        return StreamDefinition.from_json(json.loads(known["definition"]))
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
