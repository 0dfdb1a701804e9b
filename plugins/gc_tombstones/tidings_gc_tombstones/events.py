"""Explicit gc events, as producers publish them; and the part of this plugin that the core asks.

A gc event is an update of kind `gc` whose attribute `collects` has a predicate. It speaks of its own shard, so one is
published into each; its object is a name that falls there.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools

import pyarrow as pa

from tidings.collection import COLLECTS, EXPLICIT, Preview
from tidings.errors import InvalidOption
from tidings.filters import Filter
from tidings.logs import CollectableLog
from tidings.stream_definition import StreamDefinition
from tidings.updates import GC, SCHEMA, from_rows, shard_of
from tidings_gc_tombstones.collector import Collector
from tidings_gc_tombstones.covering import GcEvent, check_covering
from tidings_gc_tombstones.policies import policies_of
from tidings_gc_tombstones.predicates import Predicate


def check(stream: StreamDefinition) -> None:
    """Raise `InvalidOption` if the policies of a stream cannot be."""
    if not policies_of(stream.collect).named:
        raise InvalidOption(
            f"stream {stream.name!r} is to be collected, and no policy says what: add latest_per_key, say"
        )


def gc_events(stream: StreamDefinition, log: CollectableLog, predicate: str) -> pa.Table:
    """The gc events with this predicate, one for each shard.

    `InvalidFilter` or `InvalidOption` if it cannot be read, costs too much, or would not match all that an earlier gc
    event matches which it collects.
    """
    read = Predicate.parse(predicate)
    policies_of(stream.collect).check(read)
    now = dt.datetime.now(dt.UTC)
    earlier = explicit_events(log)
    for shard, bounds in log.bounds().items():
        check_covering(GcEvent(shard, bounds.head.seq + 1, now, read), earlier)
    rows = [
        {"object": name, "kind": GC, "attributes": {COLLECTS: str(read)}, "time": now} for name in names(stream.shards)
    ]
    return from_rows(rows)


def preview(stream: StreamDefinition, log: CollectableLog, predicate: str) -> Preview:
    """What gc events with this predicate would match now; refused as `gc_events` does."""
    gc_events(stream, log, predicate)
    matching = Predicate.parse(predicate).at(dt.datetime.now(dt.UTC))
    return Preview(sum(map(len, log.find(matching))), matching.warnings(stream.shards))


def collect(stream: StreamDefinition, log: CollectableLog) -> int:
    """Collect what is obsolete now; how many updates that were."""
    with Collector(stream, log) as collector:
        return sum(step.gone.count for step in collector.run())


def explicit_events(log: CollectableLog, wanted: Filter = EXPLICIT) -> pa.Table:
    """The explicit gc events that a log holds."""
    return pa.concat_tables([SCHEMA.empty_table(), *log.find(wanted)])


@functools.cache
def names(shards: int) -> tuple[str, ...]:
    """For each shard the first of the names gc/0, gc/1, ... that falls into it.

    >>> names(2)
    ('gc/0', 'gc/4')
    """
    found: dict[int, str] = {}
    for number in itertools.count():
        found.setdefault(shard_of(f"gc/{number}", shards), f"gc/{number}")
        if len(found) == shards:
            return tuple(found[shard] for shard in range(shards))
    raise AssertionError("there are names for each shard")
