"""What waits in a producer's buffer: single updates and tables, each with the future that its caller holds."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from tidings.logs import Appended
from tidings.positions import Position, Positions
from tidings.tracing import PublishSpan
from tidings.updates import PUBLISHED

ROW_OVERHEAD_BYTES = 128
"""Bytes that a buffered row costs beyond its text and payload."""


class Single:
    """One buffered update."""

    __slots__ = ("bytes", "future", "row", "span")
    rows = 1

    def __init__(self, row: tuple[Any, ...], size: int, span: PublishSpan | None = None) -> None:
        self.row = row
        self.bytes = size
        self.future: Future[Position] = _uncancellable()
        self.span = span
        if span is not None:
            self.future.add_done_callback(lambda future: span.end(future.exception()))

    def resolve(self, appended: Appended, at: int) -> None:
        """It is durable; it was the row `at` of what was appended."""
        self.future.set_result(Position(int(appended.seqs[at])))

    def refuse(self, error: BaseException) -> None:
        """It was not accepted; its caller has no future, but this error."""
        if self.span is not None:
            self.span.end(error)


class Many:
    """A buffered table."""

    __slots__ = ("bytes", "future", "rows", "table")

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.rows = len(table)
        self.bytes = table.nbytes + ROW_OVERHEAD_BYTES
        self.future: Future[Positions] = _uncancellable()

    def resolve(self, appended: Appended, at: int) -> None:
        """It is durable; its first row was the row `at` of what was appended."""
        rows = slice(at, at + self.rows)
        self.future.set_result(Appended(appended.shards[rows], appended.seqs[rows]).last())


Item = Single | Many


def as_table(batch: list[Item]) -> pa.Table:
    """The items' rows in their order; single updates that stand together become one table."""
    tables: list[pa.Table] = []
    singles: list[tuple[Any, ...]] = []
    for item in [*batch, None]:
        if isinstance(item, Single):
            singles.append(item.row)
            continue
        if singles:
            columns = zip(*singles, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, PUBLISHED, strict=True)]
            tables.append(pa.table(arrays, schema=PUBLISHED))
            singles = []
        if item is not None:
            tables.append(item.table)
    return pa.concat_tables(tables)


def joined(futures: list[Future[Positions]]) -> Future[Positions]:
    """One future for several: the furthest positions once all are there, or the first error."""
    whole: Future[Positions] = _uncancellable()
    missing = len(futures)
    heads: dict[int, Position] = {}
    lock = threading.Lock()

    def one_done(future: Future[Positions]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            error = future.exception()
            if error is None:
                heads.update(future.result())
            if whole.done():
                return
            if error is not None:
                whole.set_exception(error)
            elif missing == 0:
                whole.set_result(Positions(heads))

    if not futures:
        whole.set_result(Positions())
    for future in futures:
        future.add_done_callback(one_done)
    return whole


def _uncancellable() -> Future[Any]:
    """A future that its holder cannot cancel: what was accepted is written, whoever still waits for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
