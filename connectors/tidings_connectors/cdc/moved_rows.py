"""Rows that go to another shard, since the column that says it has changed: they end in the one that they were in.

The end is a `delete` at the place of the update, with its version, and with the key and the column as they were. It is
told where the datastore says what the column was before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_connectors.cdc.changes import DELETE, UPDATE, Changes, Column
from tidings_connectors.cdc.mapping import RowMapping, fields, updates_of

PLACE = ("shard", "seq", "index")


def updates_with_ends(changes: Changes, mapping: RowMapping, shards: int) -> pa.Table:
    """The updates that these changes are, and the ends of rows in the shards that they have left."""
    updates = updates_of(changes, mapping, shards)
    moved = _moved(changes, mapping)
    if moved is None:
        return updates
    there = set(zip(*(updates[name].to_pylist() for name in PLACE), strict=True))
    ends = updates_of(moved, mapping, shards)
    left = [place not in there for place in zip(*(ends[name].to_pylist() for name in PLACE), strict=True)]
    rows = pa.concat_tables([updates, ends.filter(pa.array(left))]).combine_chunks()
    return rows.take(np.lexsort((rows["index"].to_numpy(), rows["seq"].to_numpy())))


def _moved(changes: Changes, mapping: RowMapping) -> Changes | None:
    """The ends of all rows whose shard is said by another value than before; None if there are none."""
    was = next((column for column in changes.before if column.name == mapping.shard), None)
    names = {name for _, name in fields(mapping.object)} - {None, "schema", "table", "key"}
    if was is None or not changes.key or not names <= {*changes.key, mapping.shard}:
        return None
    now = changes.column(was.name)
    same = pc.fill_null(pc.equal(was.values, now.values), pc.and_(was.values.is_null(), now.values.is_null()))
    moved = pc.and_not(pc.equal(changes.operations, UPDATE), same)
    for column in (was, now):
        if column.unknown is not None:
            moved = pc.and_not(moved, column.unknown)
    if not pc.any(moved).as_py():
        return None
    which = moved.to_numpy(zero_copy_only=False)
    count, told = int(which.sum()), {*changes.key, mapping.shard, mapping.version}

    def ended(column: Column) -> Column:
        if column.name not in told:
            return replace(column, values=pa.nulls(count, pa.string()), unknown=pa.repeat(True, count))
        values = was.values if column.name == was.name else column.values
        return replace(column, values=values.filter(moved), unknown=None)

    return replace(
        changes,
        columns=[ended(column) for column in changes.columns],
        operations=pa.repeat(pa.scalar(DELETE), count),
        seqs=changes.seqs[which],
        indexes=changes.indexes[which],
        times=changes.times.filter(moved),
        before=[replace(column, values=column.values.filter(moved), unknown=None) for column in changes.before],
    )
