"""Reading a change data feed from the front to the back: versions in, canonical rows out.

The feed does not say in which order the rows of a version changed, and may give them in another order the next time; so
they are put in the order of their objects, and an object's end comes before its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import LogUnavailable
from tidings.logs import Read
from tidings.positions import Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.base import TailedLogBase
from tidings_connectors.cdc.changes import DELETE, UPDATE, Changes, Column
from tidings_connectors.cdc.mapping import keys_of, updates_of
from tidings_connectors.cdc.positions import chosen, later
from tidings_connectors.delta_cdf.columns import column_of
from tidings_connectors.delta_cdf.options import CdfOptions
from tidings_connectors.delta_cdf.table import FEED_COLUMNS, FedTable

POLL_TIMEOUT_S = 0.05  # that a read waits for a new version


class DeltaCdfReader:
    """Reads versions one after the other. Each is read as a whole, and so has to fit into memory."""

    def __init__(self, log: TailedLogBase, table: FedTable, options: CdfOptions, shards: int) -> None:
        self._log = log
        self._table = table
        self._options = options
        self._shards = shards
        self._held: tuple[int, pa.Table] = (-1, SCHEMA.empty_table())

    def read(self, after: Positions, limit: int) -> Read:
        held = self._log.bounds()[0]
        if any(not held.floor <= at <= held.head for at in after.values()):
            self._log.check(after)
        head = held.head
        rear = min(after.values())
        version = rear.seq + (0 if rear.index < 0 or self._has_more(rear) else 1)
        if version >= head.seq:
            time.sleep(POLL_TIMEOUT_S)
            return Read(
                SCHEMA.empty_table(), Positions({shard: max(at, Position(version, -1)) for shard, at in after.items()})
            )
        found: list[pa.Table] = []
        count, upto = 0, rear
        while version < head.seq and count < limit:
            try:
                rows = self._version(version)
            except LogUnavailable:
                if found:
                    break  # that is told next time, with the positions of what is lost
                self._log.check(after)
                raise
            rows = chosen(rows, later(rows, after))
            room = limit - count
            found.append(rows.slice(0, room))
            count += len(found[-1])
            upto = Position(version + 1, -1)
            if len(rows) > room:
                last = found[-1].slice(len(found[-1]) - 1)
                upto = Position(version, last["index"][0].as_py())
            version += 1
        table = pa.concat_tables([SCHEMA.empty_table(), *found])
        return Read(table, Positions({shard: max(at, upto) for shard, at in after.items()}))

    def close(self) -> None:
        """Nothing is held."""

    def _has_more(self, at: Position) -> bool:
        """Whether the version has rows after this one."""
        return at.seq < self._log.bounds()[0].head.seq and len(self._version(at.seq)) > at.index + 1

    def _version(self, version: int) -> pa.Table:
        if self._held[0] != version:
            self._held = (version, self._updates(version))
        return self._held[1]

    def _updates(self, version: int) -> pa.Table:
        """The updates of one version, in their order."""
        feed, folder = self._table.feed(version), self._table.folder
        count = len(feed)
        if not count:
            return SCHEMA.empty_table()
        kinds = feed["_change_type"].cast(pa.string()).combine_chunks()
        columns = [
            column_of(name, feed[name].combine_chunks()) for name in feed.column_names if name not in FEED_COLUMNS
        ]
        changes = Changes(
            folder.parent.name,
            folder.name,
            columns,
            self._options.key,
            pc.replace_substring_regex(kinds, "^update_.*image$", UPDATE),
            np.full(count, version, np.int64),
            np.zeros(count, np.int32),
            feed["_commit_timestamp"].cast(pa.timestamp("us", "UTC")).combine_chunks(),
        )
        if self._options.before:
            changes = replace(changes, before=_before(changes, kinds, self._options.before_columns))
        return _arranged(updates_of(changes, self._options, self._shards), kinds)


def _before(changes: Changes, kinds: pa.StringArray, names: Sequence[str]) -> list[Column]:
    """What the columns of these names were before: of an update, in the image before it with the same key."""
    keys, first = keys_of(changes), pc.equal(kinds, "update_preimage")
    places = pa.array(np.arange(len(changes)))
    earlier = places.filter(first).take(pc.index_in(keys, keys.filter(first), skip_nulls=True))
    there = pc.if_else(pc.equal(kinds, "insert"), None, places)
    rows = pc.if_else(pc.equal(kinds, "update_postimage"), earlier, there)
    return [replace(column, values=column.values.take(rows)) for column in changes.columns if column.name in names]


def _arranged(updates: pa.Table, kinds: pa.StringArray) -> pa.Table:
    """The updates of a version in an order that is always the same, numbered.

    What a row was before an update is left out, unless its object is not in its shard any more: its key has changed.
    """
    after = pc.equal(kinds, "update_postimage")
    placed = pc.binary_join_element_wise(updates["shard"].cast(pa.string()), updates["object"], "/")
    still = pc.is_in(placed, placed.filter(after).combine_chunks())
    before = pc.equal(kinds, "update_preimage")
    updates = updates.append_column("ends", pc.or_(before, pc.equal(kinds, "delete")))
    keyed = updates.filter(pc.invert(pc.and_(before, still)))
    keyed = keyed.append_column("begins", pc.invert(keyed["ends"]))
    keyed = keyed.sort_by([("object", "ascending"), ("begins", "ascending"), ("payload", "ascending")])
    keyed = keyed.set_column(
        SCHEMA.get_field_index("index"), SCHEMA.field("index"), pa.array(np.arange(len(keyed), dtype=np.int32))
    )
    return _ended(keyed).select(SCHEMA.names).cast(SCHEMA)


def _ended(updates: pa.Table) -> pa.Table:
    """The updates, of which those that end an object say so."""
    if not pc.any(updates["ends"]).as_py():
        return updates
    attributes = [
        [(key, DELETE if key == "operation" and ends else value) for key, value in one]
        for one, ends in zip(updates["attributes"].to_pylist(), updates["ends"].to_pylist(), strict=True)
    ]
    field = SCHEMA.field("attributes")
    return updates.set_column(updates.column_names.index("attributes"), field, pa.array(attributes, field.type))
