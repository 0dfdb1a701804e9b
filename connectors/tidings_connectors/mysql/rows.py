"""Rows of the binary log become changes: what a table looks like there, and columns of what happened to it.

A table's form comes from the log alone, from the event before the rows: by the time that they are read the table itself
may have other columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.positions import Position
from tidings_connectors.cdc.changes import DELETE, INSERT, TRUNCATE, UPDATE, Changes, Column
from tidings_connectors.cdc.mapping import RowMapping, fields
from tidings_connectors.mysql.table_map import LoggedColumn, LoggedName, table_of
from tidings_connectors.mysql.values import Reading, UndecodableValues, Unreadable, reading_of

Image = list[Any]
"""A row: a raw value a column; None where it is NULL."""

Change = tuple[str, Image, Image | None]
"""An operation, the row, and what it was before, if it was there under the same key."""

UNKNOWN = object()
"""Stands in an image for a value that the log does not have."""

HIDDEN = re.compile(r"DB_ROW_HASH_\d+")
"""A column that the server adds to a table with a unique key of any length, and shows to nobody."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A table as the log describes it."""

    schema: str
    table: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    readings: tuple[Reading, ...]

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(map(self.names.index, self.key))

    def images(self, data: bytes, *present: bytes) -> Iterator[list[Image]]:
        """The rows of an event, each as its images: one, or those before and after an update.

        `present` says, for each kind of image, which columns are in it.
        """
        parts = [self._parts(bitmap) for bitmap in present]
        at, end = 0, len(data)
        while at < end:
            images = []
            for takes, places in parts:
                image, at = _image(takes, data, at)
                if places is not None:
                    whole = [UNKNOWN] * len(self.names)
                    for place, value in zip(places, image, strict=True):
                        whole[place] = value
                    image = whole
                images.append(image)
            yield images

    def _parts(self, bitmap: bytes) -> tuple[list[Any], list[int] | None]:
        """What is to be taken for an image, and to which columns it goes if it is not all of them."""
        places = [place for place in range(len(self.names)) if bitmap[place >> 3] >> (place & 7) & 1]
        takes = [self.readings[place].take for place in places]
        return takes, None if len(places) == len(self.names) else places


def shape_of(name: LoggedName, body: bytes) -> Shape:
    """The table that the body of an event describes; `Unreadable` says why its rows cannot be read."""
    described = table_of(body, name.end)
    if not described.named:
        raise Unreadable(
            f"table {name.schema}.{name.table} has rows without names of columns in the binary log, since they were "
            "written before binlog_row_metadata was FULL"
        )
    names = tuple(column.name for column in described.columns)
    readings = tuple(_reading(name, column) for column in described.columns)
    return Shape(name.schema, name.table, names, tuple(names[place] for place in described.key), readings)


def _reading(name: LoggedName, column: LoggedColumn) -> Reading:
    try:
        return reading_of(column)
    except Unreadable as error:
        raise Unreadable(f"column {column.name!r} of table {name.schema}.{name.table} {error}") from None


def _image(takes: list[Any], data: bytes, at: int) -> tuple[Image, int]:
    size = (len(takes) + 7) >> 3
    nulls = int.from_bytes(data[at : at + size], "little") & (1 << len(takes)) - 1
    at += size
    image: Image = []
    add = image.append
    if not nulls:
        for take in takes:
            value, at = take(data, at)
            add(value)
        return image, at
    for take in takes:
        if nulls & 1:
            add(None)
        else:
            value, at = take(data, at)
            add(value)
        nulls >>= 1
    return image, at


class UnreadableRows(Unreadable):
    """Some rows of a draft cannot be read; `places` says which."""

    def __init__(self, message: str, places: list[int]) -> None:
        super().__init__(message)
        self.places = places


@dataclass
class Draft:
    """Changes of one table, gathered row by row."""

    shape: Shape
    mapping: RowMapping | None = None
    images: list[Image] = field(default_factory=list)
    before: list[Image | None] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    partial: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def add(self, changes: Sequence[Change], seq: int, first: int, time: int) -> None:
        """Add changes with successive indexes from `first`."""
        count = len(changes)
        self.operations += [operation for operation, _, _ in changes]
        self.images += [image for _, image, _ in changes]
        self.before += [before for _, _, before in changes]
        self.seqs += [seq] * count
        self.indexes += range(first, first + count)
        self.times += [time] * count

    def changes(self, lose: Callable[[Position, str], None]) -> Changes | None:
        """The changes, column by column; None if there are none. `lose` is told of rows that cannot be read."""
        shape = self.shape
        while self.images:
            try:
                columns = [
                    self._column(name, reading, values)
                    for name, reading, values in zip(
                        shape.names, shape.readings, zip(*self.images, strict=True), strict=True
                    )
                    if not HIDDEN.fullmatch(name)
                ]
                known = self.mapping.image_columns if self.mapping else ()
                before = [self._column_before(name) for name in shape.names if name in known]
            except UnreadableRows as error:
                for place in reversed(error.places):
                    lose(Position(self.seqs[place], self.indexes[place]), str(error))
                    for kept in (self.images, self.before, self.operations, self.seqs, self.indexes, self.times):
                        del kept[place]
            else:
                return _changes(shape.schema, shape.table, columns, shape.key, self, before)
        return None

    def _column(self, name: str, reading: Reading, values: Sequence[Any]) -> Column:
        unknown = None
        if self.partial and UNKNOWN in values:
            unknown = pa.array([value is UNKNOWN for value in values])
            values = [None if value is UNKNOWN else value for value in values]
        try:
            return Column(name, reading.text(values), reading.kind, unknown)
        except UndecodableValues as error:
            raise UnreadableRows(
                f"column {name!r} of table {self.shape.schema}.{self.shape.table} {error}", error.places
            ) from None

    def _column_before(self, name: str) -> Column:
        place = self.shape.names.index(name)
        reading = self.shape.readings[place]
        values = [None if image is None else image[place] for image in self.before]
        unknown = [at for at, value in enumerate(values) if value is UNKNOWN]
        if unknown and self.mapping and name in self.mapping.before_columns:
            raise UnreadableRows(
                f"what column {name!r} of table {self.shape.schema}.{self.shape.table} was before is not in the "
                "binary log: see that no session has another binlog_row_image than FULL",
                unknown,
            )
        for at in unknown:
            values[at] = None
        nothing = np.array([image is None for image in self.before])
        nothing[unknown] = True
        try:
            texts = reading.text(values)
        except UndecodableValues as error:  # the row that had it was lost, so nobody knows it by this value
            for at in error.places:
                values[at] = None
            nothing[error.places] = True
            texts = reading.text(values)
        return Column(name, texts, reading.kind, pa.array(nothing))


def changed(draft: Draft, operation: str, data: bytes, *present: bytes) -> list[Change]:
    """What the rows of an event say. An update that changes the key is two: the old object goes, a new one comes."""
    shape = draft.shape
    full = all(_full(bitmap, len(shape.names)) for bitmap in present)
    draft.partial |= not full
    if operation != UPDATE:
        ends = operation == DELETE
        return [(operation, image, image if ends else None) for (image,) in shape.images(data, *present)]
    changes: list[Change] = []
    key = shape.key_places
    for before, after in shape.images(data, *present):
        if not full:
            after = [old if new is UNKNOWN else new for old, new in zip(before, after, strict=True)]
        if any(before[place] != after[place] for place in key):
            changes += [(DELETE, before, before), (UPDATE, after, None)]
        else:
            changes.append((UPDATE, after, before))
    return changes


def _full(bitmap: bytes, count: int) -> bool:
    return int.from_bytes(bitmap, "little") & (1 << count) - 1 == (1 << count) - 1


def truncated(schema: str, table: str, mapping: RowMapping, seq: int, index: int, time: int) -> Changes:
    """The change that empties a table. Columns that the mapping asks for are NULL: no row is meant."""
    draft = Draft(Shape(schema, table, (), (), ()))
    draft.add([(TRUNCATE, [], None)], seq, index, time)
    names = {name for _, name in fields(mapping.object)} | {mapping.version, mapping.shard}
    names -= {None, "schema", "table", "key"}
    columns = [Column(name, pa.nulls(1, pa.string())) for name in names if name]
    return _changes(schema, table, columns, (), draft)


def _changes(
    schema: str,
    table: str,
    columns: Sequence[Column],
    key: Sequence[str],
    draft: Draft,
    before: Sequence[Column] = (),
) -> Changes:
    times = pa.array(np.array(draft.times, np.int64) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    operations = pa.array(draft.operations, pa.string())
    return Changes(
        schema,
        table,
        columns,
        key,
        operations,
        np.array(draft.seqs, np.int64),
        np.array(draft.indexes, np.int32),
        times,
        before,
    )


__all__ = [
    "DELETE",
    "INSERT",
    "UPDATE",
    "Change",
    "Draft",
    "Shape",
    "changed",
    "shape_of",
    "truncated",
]
