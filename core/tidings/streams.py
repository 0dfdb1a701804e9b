"""A stream: a named, sharded sequence of updates, kept in a log."""

from __future__ import annotations

import functools
from typing import Unpack

from tidings.errors import InvalidOption
from tidings.log_opening import open_log
from tidings.logs import Log, WritableLog
from tidings.producers import AsyncProducer, Producer, ProducerKeywords
from tidings.stream_definition import StreamDefinition
from tidings.updates import shard_of


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

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """A producer, to be used as a context manager; the options are those of `Producer`."""
        return Producer(self.writable_log, self.definition, **options)

    def async_producer(self, **options: Unpack[ProducerKeywords]) -> AsyncProducer:
        """A producer for asyncio, to be used as an asynchronous context manager."""
        return AsyncProducer(self.writable_log, self.definition, **options)
