"""Changes of rows, as connectors hand them over: columns of one table, the same for every datastore."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import InvalidOption

INSERT, UPDATE, DELETE, TRUNCATE, SNAPSHOT = "insert", "update", "delete", "truncate", "snapshot"

Kind = Literal["text", "integer", "number", "boolean", "json"]


@dataclass(frozen=True)
class Column:
    """A column of the changes: its values as text, null where they are NULL. All but `text` is JSON as it stands."""

    name: str
    values: pa.StringArray
    kind: Kind = "text"
    unknown: pa.BooleanArray | None = None
    """Where the datastore did not say what the value is: a large one that was not changed, all but the key of a row
    that was deleted."""


@dataclass(frozen=True)
class Changes:
    """Changes of rows of one table, in their order."""

    schema: str
    table: str
    columns: Sequence[Column]
    key: Sequence[str]
    operations: pa.StringArray
    seqs: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int32]
    times: pa.TimestampArray
    before: Sequence[Column] = ()
    """Columns as they were before an update or a delete; null where the row was not there, or had another key. Those
    are `unknown` where that is told."""

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def name(self) -> str:
        """The table's name, which no other has."""
        return table_name(self.schema, self.table)

    def column(self, name: str) -> Column:
        """The column of this name."""
        for column in self.columns:
            if column.name == name:
                return column
        there = ", ".join(column.name for column in self.columns)
        raise InvalidOption(f"table {self.schema}.{self.table} has no column {name!r} (columns: {there})")


def table_name(schema: str, table: str) -> str:
    """The name of a table. No other has it, nor one with a slash and more behind it.

    What could be taken for more than one part is in quotes: a dot in the schema ends it, and a slash ends the table.

    >>> print(table_name("public", "item"), table_name("a.b", "c"), table_name("a", "b.c"), table_name("a", "b/c"))
    public.item "a.b".c a.b.c a."b/c"
    """
    return f"{schema_part(schema)}.{table_part(table)}"


def schema_part(schema: str) -> str:
    """The name of a schema, as a part of another name."""
    return _part(schema, "./")


def table_part(table: str) -> str:
    """The name of a table without its schema, as a part of another name."""
    return _part(table, "/")


def _part(name: str, ends: str) -> str:
    odd = name.startswith('"') or any(end in name for end in ends)
    return '"' + name.replace('"', '""') + '"' if odd else name
