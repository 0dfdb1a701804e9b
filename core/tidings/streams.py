"""A stream: a named, sharded sequence of updates, kept in a log."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from tidings.coordination.zookeeper import check_name
from tidings.errors import InvalidOption
from tidings.logs import Log, WritableLog, open_log, split_address
from tidings.publisher.caravans import Limits
from tidings.updates import shard_of

if TYPE_CHECKING:
    from tidings.producers import AsyncProducer, Producer

MAX_SHARDS = 4096
DEFAULT_SHARDS = 16


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """What the cluster knows of a stream: its name, the number of its shards, the address of its log.

    A log of ours lets go of updates that are older than `retention_seconds`, and of the oldest ones when it holds more
    than `retention_bytes`.
    """

    name: str
    shards: int
    log: str
    retention_seconds: int | None = None
    retention_bytes: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the log is told; it says what it takes."""
    caravans: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The policy and the limits of its caravans, as long as no operator says otherwise."""
    replicas: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Other logs that have the same updates at the same positions, by name; those named first are preferred."""

    def __post_init__(self) -> None:
        check_name("a stream", self.name)
        if not 1 <= self.shards <= MAX_SHARDS:
            raise InvalidOption(f"stream {self.name!r} cannot have {self.shards!r} shards: from 1 to {MAX_SHARDS:,}")
        split_address(self.log)
        for limit in (self.retention_seconds, self.retention_bytes):
            if limit is not None and limit <= 0:
                raise InvalidOption(f"stream {self.name!r} cannot retain {limit!r}: seconds and bytes are above 0")
        Limits.from_json(self.caravans)
        for name, log in self.replicas.items():
            check_name("a replica", name)
            split_address(log)

    def at(self, replica: str | None) -> StreamDefinition:
        """The stream as it is read at a replica."""
        return self if replica is None else replace(self, log=self.replicas[replica])

    def to_json(self) -> dict[str, Any]:
        """The definition as it is kept in ZooKeeper."""
        return {key: value for key, value in asdict(self).items() if value != {}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StreamDefinition:
        """The definition that `to_json` wrote; keys of a later version are left alone."""
        known = {one.name for one in fields(cls)}
        return cls(**{key: known_value for key, known_value in value.items() if key in known})


class Stream:
    """A stream that is there. Made by `Cluster.create_stream` and `Cluster.stream`."""

    def __init__(self, definition: StreamDefinition) -> None:
        self.definition = definition
        self.name = definition.name
        self.shards = definition.shards

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, shards={self.shards}, log={self.definition.log!r})"

    @functools.cached_property
    def log(self) -> Log:
        """The stream's log, opened at first use."""
        return open_log(self.definition)

    @property
    def writable_log(self) -> WritableLog:
        """The log, if it is one of ours; a datastore's own change log cannot be written."""
        if not isinstance(self.log, WritableLog):
            raise InvalidOption(f"stream {self.name!r} is read from {self.definition.log!r} and cannot be written")
        return self.log

    def shard_of(self, object: str) -> int:
        """The shard that holds the updates of this object."""
        return shard_of(object, self.shards)

    def producer(self, **options: Any) -> Producer:
        """A producer, to be used as a context manager; the options are those of `Producer`."""
        from tidings.producers import Producer

        return Producer(self.writable_log, **options)

    def async_producer(self, **options: Any) -> AsyncProducer:
        """A producer for asyncio, to be used as an asynchronous context manager."""
        from tidings.producers import AsyncProducer

        return AsyncProducer(self.writable_log, **options)
