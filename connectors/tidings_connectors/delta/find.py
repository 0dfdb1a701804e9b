"""Finding the rows of segments that a filter wants, without reading what cannot hold one.

Parquet keeps the least and the largest value of each column in each row group: a group that no row of can be wanted is
not read, and of the others the columns first that the filter looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.filters import COLUMNS, Between, Condition, Equals, Filter, In
from tidings.updates import SCHEMA
from tidings_connectors.delta.segments import open_segment

PLACES = ("shard", "seq", "index", "kind", "range")


def find(paths: Iterable[Path], wanted: Filter) -> Iterator[pa.Table]:
    """The wanted rows of these segments, without their payloads."""
    keys = wanted.keys()
    looked_at = list(dict.fromkeys([*PLACES, *("attributes" if key not in COLUMNS else key for key in keys)]))
    others = [name for name in SCHEMA.names if name not in looked_at and name != "payload"]
    for path in paths:
        with open_segment(path) as file:
            for group in range(file.num_row_groups):
                if _may_hold(file.metadata.row_group(group), wanted):
                    yield from _found(file, group, wanted, looked_at, others)


def _found(
    file: pq.ParquetFile, group: int, wanted: Filter, looked_at: list[str], others: list[str]
) -> Iterator[pa.Table]:
    rows = file.read_row_group(group, columns=looked_at)
    mask = wanted.mask(rows)
    if mask.true_count:
        rest = file.read_row_group(group, columns=others).filter(mask)
        rows = rows.filter(mask)
        columns = {name: rows[name] for name in looked_at} | {name: rest[name] for name in others}
        columns["payload"] = pa.nulls(len(rows), pa.binary())
        yield pa.table({name: columns[name] for name in SCHEMA.names}).replace_schema_metadata(None).cast(SCHEMA)


def _may_hold(group: Any, wanted: Filter) -> bool:
    """Whether a row group's statistics leave room for a wanted row."""
    statistics = {}
    for at in range(group.num_columns):
        column = group.column(at)
        if column.statistics is not None and column.statistics.has_min_max:
            statistics[column.path_in_schema] = column.statistics
    return any(all(_may_be(condition, statistics) for condition in term) for term in wanted.any_of)


def _may_be(condition: Condition, statistics: dict[str, Any]) -> bool:
    """Whether the condition may hold for a row of the group; in doubt, it may."""
    if not isinstance(condition, Equals | In | Between) or condition.key not in COLUMNS.keys() & statistics.keys():
        return True
    least, most = statistics[condition.key].min, statistics[condition.key].max
    match condition:
        case Between(key) if COLUMNS[key] == "text":  # it compares texts as numbers
            return True
        case Equals(_, value):
            return bool(least <= value <= most)
        case In(_, values):
            return any(least <= value <= most for value in values)
    return (condition.low is None or condition.low <= most) and (condition.high is None or condition.high >= least)
