"""Small tools for columns: joins and groups over numpy and Arrow, without a Python function a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.storage.sorted_run_file import longs

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

__all__ = ["Flags", "Longs", "codes", "flags", "groups", "last_of_each", "longs", "places", "text_equal"]


def flags(rows: pa.Table, name: str) -> Flags:
    """A column of truth values as numpy has it; null is false."""
    column = rows.column(name).combine_chunks()
    found: Flags = column.fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
    return found


def places(held: Longs, wanted: Longs) -> Longs:
    """For each wanted value its place among those held, which are unlike; -1 where it is not.

    >>> places(np.array([7, 3]), np.array([3, 4, 7])).tolist()
    [1, -1, 0]
    """
    if not len(held):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(held, kind="stable")
    at = np.minimum(np.searchsorted(held, wanted, sorter=order), len(held) - 1)
    found: Longs = np.where(held[order[at]] == wanted, order[at], -1)
    return found


def codes(*columns: tuple[Longs, Longs]) -> tuple[Longs, Longs]:
    """Two tables' tuples of numbers as one number each, alike exactly where the tuples are.

    >>> left, right = codes((np.array([1, 2]), np.array([2])), (np.array([5, 6]), np.array([6])))
    >>> left[1] == right[0], left[0] == right[0]
    (np.True_, np.False_)
    """
    size = len(columns[0][0])
    whole = np.zeros(size + len(columns[0][1]), np.int64)
    for left, right in columns:
        values, number = np.unique(np.concatenate([left, right]), return_inverse=True)
        whole = whole * max(len(values), 1) + number
    return whole[:size], whole[size:]


def last_of_each(group: Longs, *order: npt.NDArray[Any]) -> Longs:
    """The index of the last row of each group, by these columns, the first of which counts most; sorted by group.

    >>> last_of_each(np.array([1, 2, 1]), np.array([5, 0, 4])).tolist()
    [0, 1]
    """
    at = np.lexsort((*reversed(order), group))
    placed = group[at]
    found: Longs = at[np.append(placed[1:] != placed[:-1], True)] if len(at) else at
    return found


def groups(values: Longs, group: Longs, wanted: Longs, start: int = -1) -> Longs:
    """The largest value of each wanted group, or `start`; `wanted` are unlike.

    >>> groups(np.array([4, 9, 1]), np.array([7, 7, 8]), np.array([8, 7, 6])).tolist()
    [1, 9, -1]
    """
    found = np.full(len(wanted), start, np.int64)
    at = places(wanted, group)
    np.maximum.at(found, at[at >= 0], values[at >= 0])
    return found


def text_equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Flags:
    """Where two columns of text have the same text; null is like nothing."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.equal(left, right), False), bool)
