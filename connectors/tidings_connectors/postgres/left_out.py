"""Tables whose rows cannot become updates of the stream: they are left out, and all others go on.

A table that lacks a column which the stream goes by is not the stream's, as one that is not published; operators are
told. If it fits later, its rows come from then on. What was missed before is a loss, which is told where they come
back: just behind the transaction of the first row.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import InvalidOption, PositionsLost
from tidings.positions import Position, Positions
from tidings_connectors.cdc.changes import INSERT, Changes, Column, Kind, table_name
from tidings_connectors.cdc.mapping import RowMapping, updates_of
from tidings_connectors.cdc.positions import RowsLeftOut
from tidings_connectors.postgres.connections import quoted_name

UNNAMED = (
    "its replica identity does not tell its key, and the key was changed since they were written, so name it by the "
    "stream's option 'keys'"
)

logger = logging.getLogger(__name__)


class TableForm(NamedTuple):
    """What a table looks like, as far as the mapping of its rows goes."""

    schema: str
    table: str
    columns: tuple[tuple[str, Kind], ...]
    key: tuple[str, ...]
    before: tuple[str, ...]
    """The columns that are logged as they were before, as far as that is wanted."""

    @property
    def name(self) -> str:
        return table_name(self.schema, self.table)


def form_of(changes: Changes) -> TableForm:
    """The form of a table that changed."""
    columns = tuple((column.name, column.kind) for column in changes.columns)
    before = tuple(column.name for column in changes.before)
    return TableForm(changes.schema, changes.table, columns, tuple(changes.key), before)


@dataclass
class LeftOutSpan:
    """From where to where rows of a table were left out, and in which transaction it was back.

    `unnamed` are those that would have fitted, had their key been known.
    """

    first: Position
    last: Position
    back: int | None = None
    unnamed: bool = False

    @property
    def told_at(self) -> Position | None:
        """Where the loss is told: behind the transaction, at a place to which nobody comes who was not told.

        Before it would not do: readers may stand there, or in its midst, when the first row comes.
        """
        return None if self.back is None else Position(self.back + 2, -1)


class LeftOutTables:
    """What was left out of one stream since its log was opened. Its methods may be called from any thread."""

    def __init__(self, stream: str, mapping: RowMapping) -> None:
        self._stream = stream
        self._mapping = mapping
        self._lock = threading.Lock()
        self._spans: dict[str, list[LeftOutSpan]] = {}
        self._unnamed: dict[str, LeftOutSpan] = {}
        self.reason = functools.lru_cache(1000)(self._reason)
        """Why rows of a table cannot become updates; None if they can."""

    def spans(self) -> dict[str, list[LeftOutSpan]]:
        """What was left out, by table."""
        with self._lock:
            return {table: list(spans) for table, spans in self._spans.items()}

    def note(self, table: str, reason: str, first: Position, last: Position) -> None:
        """Rows of a table were left out."""
        with self._lock:
            spans = self._spans.setdefault(table, [])
            if spans and (spans[-1].back is None or first.seq < spans[-1].back):
                spans[-1].first = min(spans[-1].first, first)
                if spans[-1].back is None:
                    spans[-1].last = max(spans[-1].last, last)
                return
            spans.append(LeftOutSpan(first, last))
        logger.warning("stream %r: rows of table %s are left out from %s on: %s", self._stream, table, first, reason)

    def note_unnamed(self, table: str, first: Position, last: Position) -> None:
        """Rows of a table were left out since nobody knows their key any more: a loss, which is told behind them."""
        with self._lock:
            new = table not in self._unnamed
            span = self._unnamed.setdefault(table, LeftOutSpan(first, last, unnamed=True))
            span.first, span.last = min(span.first, first), max(span.last, last)
            span.back = span.last.seq
        if new:
            logger.warning("stream %r: rows of table %s are lost from %s on: %s", self._stream, table, first, UNNAMED)

    def came(self, table: str, at: Position) -> None:
        """Rows of a table came that were not left out, from here on."""
        with self._lock:
            for span in self._spans.get(table, ()):
                if span.last < at and (span.back is None or at.seq < span.back):
                    if span.back is None:
                        logger.warning("stream %r: rows of table %s come again from %s on", self._stream, table, at)
                    span.back = at.seq

    def loss(self, after: Positions, upto: Positions) -> PositionsLost | None:
        """The first loss to be told to readers who stand here and would go on to there."""
        with self._lock:
            told = [
                (place, table, span)
                for table, span in self._all()
                if (place := span.told_at) is not None and any(at < place <= upto[shard] for shard, at in after.items())
            ]
        if not told:
            return None
        place, table, span = min(told, key=lambda one: one[0])
        lost = {shard: (span.first, place) for shard, at in after.items() if at < place}
        what = f"rows of table {table} were left out of stream {self._stream!r} from {span.first} to {span.last}"
        return PositionsLost(f"{what}: {UNNAMED}", lost) if span.unnamed else RowsLeftOut(what, lost)

    def forget(self, before: Position) -> None:
        """All flows have come here."""
        with self._lock:
            needed = [(table, span) for table, span in self._all() if span.told_at is None or span.told_at > before]
            self._unnamed = {table: span for table, span in needed if self._unnamed.get(table) is span}
            self._spans = {
                table: left
                for table, spans in self._spans.items()
                if (left := [span for span in spans if (table, span) in needed])
            }

    def _all(self) -> Iterator[tuple[str, LeftOutSpan]]:
        yield from self._unnamed.items()
        for table, spans in self._spans.items():
            yield from ((table, span) for span in spans)

    def without_images(self, form: TableForm) -> str | None:
        """Why it is not known what rows of a table were before, if that is wanted; None if it is known."""
        for name, _ in form.columns:
            if name in self._mapping.before_columns and name not in form.before:
                return (
                    f"table {form.name} does not log what column {name!r} was before, which the stream's option "
                    "'before' needs; so for it, and for each of its partitions if it has any: "
                    f"ALTER TABLE {quoted_name(form.schema)}.{quoted_name(form.table)} REPLICA IDENTITY FULL"
                )
        return None

    def _reason(self, form: TableForm) -> str | None:
        if (lacking := self.without_images(form)) is not None:
            return lacking
        nothing = pa.nulls(1, pa.string())
        row = Changes(
            form.schema,
            form.table,
            [Column(name, nothing, kind) for name, kind in form.columns],
            form.key,
            pa.array([INSERT]),
            np.zeros(1, np.int64),
            np.zeros(1, np.int32),
            pa.array([0], pa.timestamp("us", "UTC")),
        )
        try:
            updates_of(row, self._mapping, 1)
        except InvalidOption as error:
            return str(error)
        return None
