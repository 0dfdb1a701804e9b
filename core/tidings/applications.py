"""An application: a named consumer of streams, with its filter, its start and the way it is delivered to."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypedDict

from tidings.errors import InvalidOption
from tidings.filters import EVERYTHING, Filter, parse
from tidings.names import check_name
from tidings.positions import Positions

MODES = ("reliable", "realtime")
PARK, SKIP, TO_STREAM = "park", "skip", "stream:"
MAX_AGE_S = 10**10  # some 300 years; a time that much earlier can still be told


class ApplicationKeywords(TypedDict, total=False):
    """The fields of an `Application` that have defaults, for those who pass them on."""

    start: Any
    mode: str
    max_age: int | None
    balance: str
    on_failure: str


class ApplicationChanges(TypedDict, total=False):
    """Those that may change while it runs."""

    streams: Sequence[str]
    filter: str | None
    max_age: int | None
    balance: str
    on_failure: str


@dataclass(frozen=True, slots=True)
class Application:
    """What the cluster knows of an application.

    | field | meaning |
    | --- | --- |
    | `streams` | the streams it reads; the name of a family stands for all of its streams |
    | `filter` | which of their updates, as text; None for all |
    | `start` | where a flow begins that has no datamarker: `earliest`, `latest`, a time, or positions a stream |
    | `mode` | `reliable`: every update, at least once; `realtime`: what is older than `max_age` is skipped |
    | `max_age` | seconds, for `realtime` |
    | `balance` | how flows are shared among its subscribers: `random`, `zookeeper`, or a plugin's name |
    | `on_failure` | when a handler fails at an update after all retries: `park` the flow, `skip` the update, or keep \
it in `stream:<name>` and go on |
    """

    name: str
    streams: tuple[str, ...]
    filter: str | None = None
    start: str | Mapping[str, Mapping[str, Any]] = field(default="latest", hash=False)  # a mapping has no hash
    mode: str = "reliable"
    max_age: int | None = None
    balance: str = "random"
    on_failure: str = PARK

    def __post_init__(self) -> None:
        check_name("an application", self.name)
        object.__setattr__(self, "streams", _streams(self.name, self.streams))
        object.__setattr__(self, "start", check_start(self.start))
        self.parsed_filter()
        if self.mode not in MODES:
            raise InvalidOption(f"mode {self.mode!r} of application {self.name!r} is none of {', '.join(MODES)}")
        if self.max_age is not None and self.mode != "realtime":
            raise InvalidOption(f"max_age is for realtime mode, and application {self.name!r} is {self.mode}")
        if self.max_age is not None and not 0 < self.max_age <= MAX_AGE_S:
            raise InvalidOption(f"max_age of application {self.name!r} is a number of seconds, {MAX_AGE_S} at most")
        if not isinstance(self.balance, str):
            raise InvalidOption(f"balance of application {self.name!r} is a name, not {str(self.balance)[:100]}")
        check_on_failure(self.on_failure)

    @property
    def dead_letters(self) -> str | None:
        """The stream in which updates are kept at which its handler fails, if there is one."""
        return self.on_failure.removeprefix(TO_STREAM) if self.on_failure.startswith(TO_STREAM) else None

    def parsed_filter(self) -> Filter:
        """The filter, ready to be used."""
        return parse(self.filter) if self.filter else EVERYTHING

    def reads(self, by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """The streams that it reads, each once; what is not there is left out.

        >>> Application("cache", ("shop", "shop.east")).reads({"shop": ["shop.east", "shop.west"]})
        ['shop.east', 'shop.west']
        """
        return list(dict.fromkeys(stream for name in self.streams for stream in by_name.get(name, ())))

    def repeated(self, by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """The streams that it names twice, by themselves and by their family."""
        named = Counter(stream for name in self.streams for stream in by_name.get(name, ()))
        return [stream for stream, times in named.items() if times > 1]

    def warnings(self, shards: Mapping[str, int]) -> list[str]:
        """What is allowed in its filter and cannot be meant; `shards` is how many each stream has that it reads.

        >>> Application("cache", ("contacts",), "shard = 7").warnings({"contacts": 4})
        ["the filter of application 'cache': `shard = 7` holds for no update: shard is between 0 and 3"]
        """
        most = max(shards.values(), default=None)
        return [f"the filter of application {self.name!r}: {one}" for one in self.parsed_filter().warnings(most)]

    def starting_positions(self, stream: str) -> Positions | None:
        """The first positions wanted of a stream, if the start names them."""
        return Positions.from_json(self.start.get(stream, {})) if isinstance(self.start, Mapping) else None

    def starting_time(self) -> dt.datetime | None:
        """The time from which updates are wanted, if the start is one."""
        if isinstance(self.start, str) and self.start not in ("earliest", "latest"):
            return dt.datetime.fromisoformat(self.start)
        return None

    def to_json(self) -> dict[str, Any]:
        """The definition as it is kept in ZooKeeper."""
        return {**asdict(self), "streams": list(self.streams)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Application:
        """The definition that `to_json` wrote; keys of a later version are left alone.

        `InvalidOption`, or another error of ours, if it was written by a later version that this one cannot follow, or
        by hand.
        """
        known: dict[str, Any] = {one.name: value[one.name] for one in fields(cls) if one.name in value}
        try:
            return cls(**known)
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidOption(f"this is no definition of an application: {error}") from None


def check_on_failure(policy: Any) -> str:
    """The policy, if it is one.

    >>> check_on_failure("stream:letters")
    'stream:letters'
    """
    if policy in (PARK, SKIP):
        return str(policy)
    if not isinstance(policy, str) or not policy.startswith(TO_STREAM):
        raise InvalidOption(f"on_failure is {PARK}, {SKIP} or {TO_STREAM}NAME, not {str(policy)[:100]!r}")
    check_name("a stream", policy.removeprefix(TO_STREAM))
    return policy


def check_start(start: Any) -> str | dict[str, dict[str, Any]]:
    """The start in its one written form: `earliest`, `latest`, a time in UTC, or positions a stream.

    >>> check_start(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    '2026-01-01T00:00:00Z'
    """
    if start in ("earliest", "latest"):
        return str(start)
    if isinstance(start, Mapping) and start:
        return {stream: Positions.from_json(positions).to_json() for stream, positions in start.items()}
    if isinstance(start, str):
        try:
            start = dt.datetime.fromisoformat(start)
        except ValueError:
            start = None
    if not isinstance(start, dt.datetime) or start.tzinfo is None:
        raise InvalidOption(
            "start is earliest, latest, a time with its zone, as in 2026-01-01T00:00:00Z, "
            "or positions, as in {'contacts': {0: 1200}}"
        )
    try:
        return start.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise InvalidOption(f"start {start.isoformat()} is not in the years 1 to 9999 of UTC") from None


def start_problems(start: Any, shards: Mapping[str, int | None]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a start names that no flow could ever use: the keys that lead to it, and what is wrong.

    `shards` has the application's streams, each with its number of shards, or None where that is not known.

    >>> list(start_problems({"contacts": {"4": 1200}}, {"contacts": 4}))
    [(('contacts', '4'), "stream 'contacts' has shards 0 to 3, not 4")]
    """
    for stream, positions in start.items() if isinstance(start, Mapping) else ():
        if stream not in shards:
            yield (stream,), f"stream {stream!r} is none of the application's"
        elif (count := shards[stream]) is not None:
            for shard in positions:
                if int(shard) >= count:
                    yield (stream, shard), f"stream {stream!r} has shards 0 to {count - 1}, not {shard}"


def _streams(application: str, streams: Sequence[str]) -> tuple[str, ...]:
    if isinstance(streams, str) or not streams or len(set(streams)) < len(streams):
        raise InvalidOption(f"application {application!r} reads one stream or more, each named once, not {streams!r}")
    return tuple(check_name("a stream", stream) for stream in streams)
