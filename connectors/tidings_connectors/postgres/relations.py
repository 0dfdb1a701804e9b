"""What a table looks like, as `pgoutput` describes it, and its values as JSON has them."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidings_connectors.cdc.changes import Kind

KINDS: dict[int, Kind] = {
    16: "boolean",
    20: "integer",
    21: "integer",
    23: "integer",
    26: "integer",
    114: "json",
    700: "number",
    701: "number",
    3802: "json",
}
"""What is more than text, by the type's oid. Decimals are text, so that they keep their digits."""

ODD_NUMBERS = pa.array(["NaN", "Infinity", "-Infinity"])  # no JSON


class RelationField(NamedTuple):
    """A column as the server describes it; `identity` if old rows come with it."""

    name: str
    kind: Kind
    identity: bool


@dataclasses.dataclass(frozen=True)
class Relation:
    """A table as the server describes it, before the first row that looks like this."""

    oid: int
    schema: str
    table: str
    fields: tuple[RelationField, ...]
    key: tuple[str, ...]
    key_known_from: int = 0
    """Of rows in transactions before this place it is not known what the key was."""
    full: bool = False
    """Whether old rows come with all columns, as far as the table itself says so."""

    def bare(self) -> Relation:
        """The same table, without old rows."""
        fields = tuple(field._replace(identity=False) for field in self.fields)
        return dataclasses.replace(self, fields=fields, full=False)


class KnownKey(NamedTuple):
    """The columns of a key, and the place in the log from which on it is known that they are."""

    columns: tuple[str, ...]
    known_from: int = 0


KeyOf = Callable[[int, str, Sequence[str]], KnownKey]
"""The key of a table by its oid, name and columns, for those whose replica identity does not tell it."""


def parse_relation(message: bytes, key_of: KeyOf) -> Relation:
    """The table that a message describes."""
    (oid,) = struct.unpack_from("!I", message, 1)
    schema, at = _text(message, 5)
    table, at = _text(message, at)
    identity, count = struct.unpack_from("!ch", message, at)
    at += 3
    fields = []
    for _ in range(count):
        name, end = _text(message, at + 1)
        (kind,) = struct.unpack_from("!I", message, end)
        fields.append(RelationField(name, KINDS.get(kind, "text"), bool(message[at] & 1)))
        at = end + 8
    if identity in (b"f", b"n"):  # all columns are marked, or none: neither says what the key is
        known = key_of(oid, f"{schema}.{table}", [field.name for field in fields])
    else:
        known = KnownKey(tuple(field.name for field in fields if field.identity))
    return Relation(oid, schema or "pg_catalog", table, tuple(fields), *known, full=identity == b"f")


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def as_json(values: pa.StringArray, kind: Kind) -> pa.StringArray:
    """Values as JSON has them, if they are more than text."""
    if kind == "boolean":
        return pc.if_else(pc.equal(values, "t"), "true", "false")
    if kind == "number":
        odd = pc.is_in(values, ODD_NUMBERS)
        if pc.any(odd).as_py():
            return pc.if_else(odd, pc.binary_join_element_wise('"', values, '"', ""), values)
    return values
