"""Collection, as far as the core knows of it: a plugin decides which updates of a stream are obsolete.

It is found by the entry point `tombstones` of the group `tidings.collection`.

An explicit gc event is an update of kind `gc` whose attribute `collects` has a predicate. That speaks of the positions
of its own stream, so it goes into no other: pipelines, sinks and `tidings streams publish` leave it out.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from tidings.errors import InvalidOption
from tidings.filters import parse
from tidings.logs import CollectableLog, Log
from tidings.plugins import load
from tidings.stream_definition import StreamDefinition, split_address

COLLECTS = "collects"
"""The attribute of an explicit gc event that has the text of its predicate."""

EXPLICIT = parse(f"kind = gc and {COLLECTS} exists")
"""Which updates are explicit gc events."""


class Preview(NamedTuple):
    """What a predicate would match now; `warnings` says what is allowed and cannot be meant."""

    matching: int
    warnings: list[str]


class CollectionPlugin(Protocol):
    """What the plugin does for the core."""

    def check(self, stream: StreamDefinition) -> None:
        """Raise `InvalidOption` if the policies of a stream cannot be."""

    def gc_events(self, stream: StreamDefinition, log: CollectableLog, predicate: str) -> pa.Table:
        """The rows to publish, one into each shard, so that all before them that the predicate matches is collected.

        `InvalidFilter` or `InvalidOption` if the stream does not take it.
        """

    def preview(self, stream: StreamDefinition, log: CollectableLog, predicate: str) -> Preview:
        """What gc events with this predicate would match; refused as `gc_events` does."""

    def collect(self, stream: StreamDefinition, log: CollectableLog) -> int:
        """Collect what is obsolete now; how many updates that were."""


def check_collection(stream: StreamDefinition) -> None:
    """Raise `InvalidOption` if a stream cannot be collected as its definition says."""
    if stream.collect:
        if not hasattr(load("tidings.logs", split_address(stream.log)[0]), "collect"):
            raise _uncollectable(stream)
        _plugin().check(stream)


def gc_events(stream: StreamDefinition, log: Log, predicate: str) -> pa.Table:
    """The rows to publish so that all before them that the predicate matches is collected."""
    return _plugin().gc_events(stream, collectable(stream, log), predicate)


def preview(stream: StreamDefinition, log: Log, predicate: str) -> Preview:
    """What gc events with this predicate would match now."""
    return _plugin().preview(stream, collectable(stream, log), predicate)


def collect(stream: StreamDefinition, log: Log) -> int:
    """Collect what is obsolete in a stream by now; how many updates that were. Its policies must not protect flows."""
    return _plugin().collect(stream, collectable(stream, log))


def collectable(stream: StreamDefinition, log: Log) -> CollectableLog:
    """The log of a stream, as one whose updates can be collected."""
    if not isinstance(log, CollectableLog):
        raise _uncollectable(stream)
    return log


def _uncollectable(stream: StreamDefinition) -> InvalidOption:
    return InvalidOption(f"the updates of stream {stream.name!r} are in {stream.log!r}, and cannot be collected there")


def _plugin() -> CollectionPlugin:
    plugin: CollectionPlugin = load("tidings.collection", "tombstones")  # a module
    return plugin
