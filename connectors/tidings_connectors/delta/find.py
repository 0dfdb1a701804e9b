"""Finding the rows of segments that a filter wants, without reading what cannot hold one.

Parquet keeps the least and the largest value of each column in each row group: a group that no row of can be wanted is
not read, and of the others the columns first that the filter looks at.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidings.filters import COLUMNS, Between, Condition, Equals, Filter, In
from tidings.updates import SCHEMA
from tidings_connectors.delta.segments import open_segment

PLACES = ("shard", "seq", "index", "kind", "range")


def find(paths: Iterable[Path], wanted: Sequence[Filter]) -> Iterator[pa.Table]:
    """The rows of these segments that any of the filters wants, without their payloads."""
    keys = itertools.chain.from_iterable(one.keys() for one in wanted)
    looked_at = list(dict.fromkeys([*PLACES, *("attributes" if key not in COLUMNS else key for key in keys)]))
    others = [name for name in SCHEMA.names if name not in looked_at and name != "payload"]
    for path in paths:
        with open_segment(path) as file:
            for group in range(file.num_row_groups):
                if chosen := _possible(file.metadata.row_group(group), wanted):
                    yield from _found(file, group, chosen, looked_at, others)


def _found(
    file: pq.ParquetFile, group: int, wanted: Sequence[Filter], looked_at: list[str], others: list[str]
) -> Iterator[pa.Table]:
    rows = file.read_row_group(group, columns=looked_at)
    mask = functools.reduce(pc.or_, (one.mask(rows) for one in wanted))
    if mask.true_count:
        rest = file.read_row_group(group, columns=others).filter(mask)
        rows = rows.filter(mask)
        columns = {name: rows[name] for name in looked_at} | {name: rest[name] for name in others}
        columns["payload"] = pa.nulls(len(rows), pa.binary())
        yield pa.table({name: columns[name] for name in SCHEMA.names}).replace_schema_metadata(None).cast(SCHEMA)


def _possible(group: Any, wanted: Sequence[Filter]) -> list[Filter]:
    """The filters for whose rows the statistics of a row group leave room."""
    statistics = {}
    for at in range(group.num_columns):
        column = group.column(at)
        if column.statistics is not None and column.statistics.has_min_max:
            statistics[column.path_in_schema] = column.statistics
    return [
        one for one in wanted if any(all(_may_be(condition, statistics) for condition in term) for term in one.any_of)
    ]


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
