"""Columns, cut out of many messages at once.

The messages are joined, and what is looked for is read at many places of them together: numbers by numpy, and texts,
which Python never touches, by Arrow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NULL, UNCHANGED = map(ord, "nu")


class Texts(NamedTuple):
    """One column of many rows: what kind of value each is, and where its text is in the messages."""

    kinds: Bytes
    starts: Ints
    ends: Ints

    def pick(self, rows: Ints) -> Texts:
        """The values of these rows."""
        return Texts(self.kinds[rows], self.starts[rows], self.ends[rows])

    def replaced(self, where: Mask, others: Texts) -> Texts:
        """With other values in some places, but for those that were not sent there and were here."""
        sent = (others.kinds != UNCHANGED) | (self.kinds[where] == NULL)
        at = np.flatnonzero(where)[sent]
        kinds, starts, ends = self.kinds.copy(), self.starts.copy(), self.ends.copy()
        kinds[at], starts[at], ends[at] = others.kinds[sent], others.starts[sent], others.ends[sent]
        return Texts(kinds, starts, ends)

    def array(self, data: Bytes) -> pa.StringArray:
        """The texts; null where there is none.

        They come in the order of the messages. So the messages as a whole are cut into texts and what is between them,
        and the texts are taken: Arrow copies each with one move.
        """
        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.string())
        cuts = np.empty(2 * count, np.int32)
        cuts[0::2], cuts[1::2] = self.starts, self.ends
        pieces = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(cuts), pa.py_buffer(data))
        none = (self.kinds == NULL) | (self.kinds == UNCHANGED)
        return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=none if none.any() else None))


def cut_columns(data: Bytes, starts: Ints, count: int) -> tuple[list[Texts], Ints]:
    """The columns of many rows, and where each row ends in the messages."""
    columns = []
    at = starts + 2  # after the number of columns
    for _ in range(count):
        kinds = data[at]
        there = (kinds != NULL) & (kinds != UNCHANGED)
        first = at + 1 + 4 * there
        last = first + np.where(there, int32(data, at + 1), 0) if not there.all() else first + int32(data, at + 1)
        columns.append(Texts(kinds, first, last))
        at = last
    return columns, at


def int64(data: Bytes, at: Ints) -> Ints:
    """The numbers of 8 bytes at these places."""
    return _numbers(data, at, 8, ">i8")


def int32(data: Bytes, at: Ints) -> Ints:
    """The numbers of 4 bytes at these places, which have no sign."""
    return _numbers(data, at, 4, ">u4")


def _numbers(data: Bytes, at: Ints, size: int, form: str) -> Ints:
    windows = np.lib.stride_tricks.sliding_window_view(data, size)
    found: Any = windows[at].view(form).reshape(len(at))
    return found.astype(np.int64)  # type: ignore[no-any-return]
