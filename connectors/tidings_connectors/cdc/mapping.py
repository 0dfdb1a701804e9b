"""What becomes of a row that changed in a datastore: an update. The same for every datastore.

A connector hands over the changes of one table as columns, `Changes`; `updates_of` makes canonical rows of them, column
by column. What it makes of them is said by options of the stream:

| option | default | meaning |
| --- | --- | --- |
| `object` | `{schema}.{table}/{key}` | what an object is called; `{column}` is a column's text |
| `version` | none | a column of whole numbers; without it, the number of the transaction |
| `attributes` | none | columns that are attributes too; `schema`, `table` and `operation` always are |
| `before` | false | these columns also as they were before an update or a delete: `before.<column>` |
| `payload` | `json` | the row as JSON; or `avro`, or `none` |
| `schemas` | none | for `avro`: the schema of each table, by `schema.table`; see `avro_payloads` |
| `shard` | none | a column whose text says which objects share a shard; without it, the object does |

A table without a key is one object, `<schema>.<table>`, and so is one that is truncated. By default no two keys have
one name, nor have a key and a table: `changes.table_name`, `keys_of` and `_short` see to it.

What may concern any shard comes to all: a truncated table, and the end of a row whose shard the datastore did not tell.
"""

from __future__ import annotations

import functools
import json
import string
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from tidings.updates import (
    BYTES_PER_ATTRIBUTE,
    MAX_ATTRIBUTES_BYTES,
    MAX_OBJECT_BYTES,
    MAX_PAYLOAD_BYTES,
    SCHEMA,
    shards_of,
)
from tidings_connectors.cdc.changes import TRUNCATE, Changes, Column, schema_part, table_part

TOO_LARGE = "left out: too large"
MAX_LISTED_BYTES = MAX_ATTRIBUTES_BYTES // 2  # of the listed columns in one row; the rest is ample for all other names
ALWAYS_ATTRIBUTES = ("schema", "table", "operation")
TOLD_ATTRIBUTES = ("payload", "attributes")  # which say what was left out
NO_VERSION = "left out: no whole number"
BEFORE = "before."  # and the name of a column: what it was before
SHORT = "/#[0-9a-f]{32}$"  # how the names end that stand for those that are too long
ESCAPED = r'["\\\x00-\x1f]'  # what JSON does not take as it is


class RowMapping(BaseModel):
    """How rows become updates; made from the stream's options."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    placing: ClassVar[tuple[str, ...]] = ("object", "shard")
    """The options that decide the object, the shard or the position of an update: fixed as long as the stream lives."""

    object: str = "{schema}.{table}/{key}"
    version: str | None = None
    attributes: list[str] = []
    before: bool = False
    payload: Literal["json", "avro", "none"] = "json"
    schemas: Annotated[dict[str, dict[str, Any]], Field(validate_default=True)] = {}
    shard: str | None = None

    @field_validator("object")
    @classmethod
    def _names(cls, text: str) -> str:
        fields(text)
        return text

    @field_validator("attributes")
    @classmethod
    def _not_taken(cls, names: list[str]) -> list[str]:
        if taken := [name for name in names if name in ALWAYS_ATTRIBUTES + TOLD_ATTRIBUTES]:
            raise ValueError(f"the attribute {taken[0]!r} says what happened, or was left out: a column cannot be that")
        return names

    @field_validator("before")
    @classmethod
    def _of_attributes(cls, before: bool, others: ValidationInfo) -> bool:
        names = others.data.get("attributes", [])
        if before and not names:
            raise ValueError("it is about columns that the option 'attributes' lists, and that lists none")
        if before and (taken := [name for name in names if BEFORE + name in names]):
            raise ValueError(f"{BEFORE + taken[0]!r} is the name of a column that the option 'attributes' lists")
        return before

    @field_validator("schemas")
    @classmethod
    def _contract(cls, schemas: dict[str, Any], others: ValidationInfo) -> dict[str, Any]:
        avro = others.data.get("payload") == "avro"
        if avro != bool(schemas):
            raise ValueError("it needs 'payload: avro'" if schemas else "'payload: avro' needs a schema for each table")
        if avro:
            from tidings_connectors.cdc.avro_schemas import codecs_of  # its library is an extra

            codecs_of(schemas)
        return schemas

    @property
    def before_columns(self) -> Sequence[str]:
        """The columns of which it is wanted what they were before."""
        return self.attributes if self.before else ()

    @property
    def image_columns(self) -> Sequence[str]:
        """The same, and the column of which it is good to know: the one that says the shard."""
        return list(dict.fromkeys([*self.before_columns, *([] if self.shard is None else [self.shard])]))


def fields(template: str) -> list[tuple[str, str | None]]:
    """The parts of a template: text, and the name that comes after it.

    >>> fields("{schema}.{table}/{key}")
    [('', 'schema'), ('.', 'table'), ('/', 'key')]
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{template!r} is no template: {error}") from None
    if any(name == "" or form or conversion for _, name, form, conversion in parts):
        raise ValueError(f"{template!r} is no template: write names in braces, as in {{schema}}.{{table}}/{{key}}")
    return [(text, name) for text, name, _, _ in parts]


def updates_of(changes: Changes, mapping: RowMapping, shards: int) -> pa.Table:
    """The updates that these changes are, as canonical rows in the same order; one of all shards is a row in each."""
    count = len(changes)
    objects = _objects(changes, mapping)
    everywhere, placed = pc.equal(changes.operations, TRUNCATE), objects
    if mapping.shard is not None:
        column = changes.column(mapping.shard)
        placed = pc.coalesce(column.values, objects)
        if column.unknown is not None:
            everywhere = pc.or_(everywhere, column.unknown)
    payloads, reasons = _payloads(changes, mapping)
    versions, no_versions = _versions(changes, mapping)
    columns = {
        "shard": shards_of(placed, shards),
        "seq": changes.seqs,
        "index": changes.indexes,
        "object": objects,
        "version": versions,
        "kind": pa.repeat(pa.scalar("data"), count),
        "range": np.ones(count, np.int64),
        "source": pa.nulls(count, pa.string()),
        "attributes": _attributes(changes, mapping, reasons, no_versions),
        "payload": payloads,
        "time": changes.times,
    }
    rows = pa.table([columns[field.name] for field in SCHEMA], SCHEMA)
    return _in_all(rows, everywhere.to_numpy(zero_copy_only=False), shards) if pc.any(everywhere).as_py() else rows


def _in_all(rows: pa.Table, which: npt.NDArray[np.bool_], shards: int) -> pa.Table:
    """The rows, with one in each shard for those that are of all."""
    at = np.repeat(np.arange(len(rows)), np.where(which, shards, 1))
    numbers = rows["shard"].to_numpy()[at]
    numbers[which[at]] = np.tile(np.arange(shards, dtype=np.int32), np.count_nonzero(which))
    return rows.take(at).set_column(SCHEMA.get_field_index("shard"), SCHEMA.field("shard"), pa.array(numbers))


def _objects(changes: Changes, mapping: RowMapping) -> pa.StringArray:
    parts: list[Any] = []
    for text, name in fields(mapping.object):
        parts.append(text)
        match name:
            case None:
                pass
            case "schema":
                parts.append(schema_part(changes.schema))
            case "table":
                parts.append(table_part(changes.table))
            case "key":
                parts.append(keys_of(changes))
            case _:
                parts.append(changes.column(name).values)
    parts = [pa.repeat(pa.scalar(part), len(changes)) if isinstance(part, str) else part for part in parts]
    named = pc.binary_join_element_wise(*parts, "", null_handling="emit_null")
    # A table without a key, a truncated one, or a name that would be made from a NULL.
    keyless = pc.or_(pc.equal(changes.operations, TRUNCATE), pa.scalar(not changes.key and "{key}" in mapping.object))
    named = pc.fill_null(pc.if_else(keyless, changes.name, named), changes.name)
    odd = pc.greater(pc.binary_length(named), MAX_OBJECT_BYTES)
    if pc.any(alike := pc.match_substring(named, "/#")).as_py():
        odd = pc.or_(odd, pc.and_(alike, pc.match_substring_regex(named, SHORT)))
    if pc.any(odd).as_py():
        short = [_short(changes.name, name) for name in named.filter(odd).to_pylist()]
        named = pc.replace_with_mask(named, odd, pa.array(short, pa.string()))
    return named


def _short(table: str, name: str) -> str:
    """A name for an object whose own is too long, or looks like one of these."""
    return f"{table}/#{xxhash.xxh3_128_hexdigest(name.encode())}"


def keys_of(changes: Changes) -> pa.StringArray:
    """The key as text; if it has several columns, with commas between them and none within. A key with a NULL tells no
    row from another, and is none."""
    values = [changes.column(name).values for name in changes.key]
    if not values:
        return pa.nulls(len(changes), pa.string())
    if len(values) == 1:
        return values[0]
    plain = [pc.replace_substring(pc.replace_substring(one, "%", "%25"), ",", "%2C") for one in values]
    return pc.binary_join_element_wise(*plain, ",", null_handling="emit_null")


def _versions(changes: Changes, mapping: RowMapping) -> tuple[Any, pa.StringArray]:
    """The versions; null where there is none, and then the reason, unless it is NULL."""
    if mapping.version is None:
        return changes.seqs, pa.nulls(len(changes), pa.string())
    values = changes.column(mapping.version).values
    whole = pc.match_substring_regex(values, r"^[0-9]{1,18}$")
    # What one writer puts into one row must not stop all others.
    return pc.cast(pc.if_else(whole, values, None), pa.int64()), pc.if_else(whole, None, NO_VERSION)


def _attributes(
    changes: Changes, mapping: RowMapping, reasons: pa.StringArray, no_versions: pa.StringArray
) -> pa.MapArray:
    count = len(changes)
    given: dict[str, Any] = {
        "schema": pa.repeat(pa.scalar(changes.schema), count),
        "table": pa.repeat(pa.scalar(changes.table), count),
        "operation": changes.operations,
    }
    there = {column.name for column in changes.columns}
    columns = {name: changes.column(name).values for name in mapping.attributes if name in there}
    wanted = [column for column in changes.before if column.name in mapping.before_columns]
    columns |= {BEFORE + column.name: column.values for column in wanted}
    listed, left_out = _fitting(columns)
    given |= listed
    if left_out is not None:
        given["attributes"] = left_out
    if reasons.null_count < count:
        given["payload"] = reasons
    if no_versions.null_count < count:
        given.setdefault("version", no_versions)  # a column of that name tells it itself
    values = np.stack([_array(value) for value in given.values()], axis=1).ravel()
    names = np.tile(np.array(list(given), object), count)
    known = values != None  # noqa: E711 - numpy compares value by value
    offsets = np.concatenate([[0], np.cumsum(known.reshape(count, -1).sum(axis=1))]).astype(np.int32)
    keys, items = pa.array(names[known], pa.string()), pa.array(values[known], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


def _fitting(listed: dict[str, pa.StringArray]) -> tuple[dict[str, pa.StringArray], pa.StringArray | None]:
    """The columns without the large values of rows that have too much in them; and where one was left out, the reason.

    Large is what has more than an even share of the room.
    """
    sizes = {name: pc.fill_null(pc.binary_length(values), 0).cast(pa.int64()) for name, values in listed.items()}
    room = MAX_LISTED_BYTES - sum(len(name.encode()) + BYTES_PER_ATTRIBUTE for name in listed)
    if sum(pc.max(size).as_py() or 0 for size in sizes.values()) <= room:
        return listed, None
    full = pc.greater(functools.reduce(pc.add, sizes.values()), room)
    large = {name: pc.and_(full, pc.greater(size, room // len(sizes))) for name, size in sizes.items()}
    names = [pc.if_else(large[name], name, None) for name in listed]
    # Arrow leaves a row out altogether if all that is joined in it is null, so there is always something before it.
    before = pa.repeat(pa.scalar(f"{TOO_LARGE}:"), len(full))
    told = pc.binary_join_element_wise(before, *names, ", ", null_handling="skip")
    told = pc.replace_substring(told, ":, ", ": ", max_replacements=1)
    reasons = pc.if_else(functools.reduce(pc.or_, large.values()), told, None)
    return {name: pc.if_else(large[name], None, values) for name, values in listed.items()}, reasons


def _array(values: pa.Array) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _payloads(changes: Changes, mapping: RowMapping) -> tuple[pa.BinaryArray, pa.StringArray]:
    """The rows as payloads; and where one was left out though there is a row, the reason."""
    count = len(changes)
    rows = pc.not_equal(changes.operations, TRUNCATE)
    if mapping.payload == "none" or not pc.any(rows).as_py():
        return pa.nulls(count, pa.binary()), pa.nulls(count, pa.string())
    if mapping.payload == "avro":
        from tidings_connectors.cdc.avro_payloads import payloads  # its library is an extra

        whole, reasons = payloads(changes, mapping.schemas)
    else:
        whole, reasons = _json(changes), pa.nulls(count, pa.string())
    large = pc.greater(pc.binary_length(whole), MAX_PAYLOAD_BYTES)
    reasons = pc.if_else(pc.fill_null(large, False), TOO_LARGE, reasons)
    return pc.if_else(pc.and_kleene(rows, pc.invert(large)), whole, None), pc.if_else(rows, reasons, None)


def _json(changes: Changes) -> pa.BinaryArray:
    members = [_member(column) for column in changes.columns]
    # Arrow leaves a row out altogether if all that is joined in it is null, so there is always something before it.
    inner = pc.binary_join_element_wise(pa.repeat("", len(changes)), *members, ",", null_handling="skip")
    return pc.binary_join_element_wise(pc.binary_replace_slice(inner, 0, 1, "{"), "}", "").cast(pa.binary())


def _member(column: Column) -> pa.StringArray:
    """`"name":value` of each row; null where the value is not known, and so is left out."""
    values = column.values if column.kind != "text" else quoted(column.values)
    members = pc.binary_join_element_wise(json.dumps(column.name) + ":", pc.fill_null(values, "null"), "")
    return members if column.unknown is None else pc.if_else(column.unknown, None, members)


def quoted(values: pa.StringArray) -> pa.StringArray:
    """Texts as JSON has them.

    >>> quoted(pa.array(["plain", 'a "word"', None])).to_pylist()
    ['"plain"', '"a \\\\"word\\\\""', None]
    """
    made = pc.binary_join_element_wise('"', values, '"', "")
    odd = pc.fill_null(pc.match_substring_regex(values, ESCAPED), False)
    if pc.any(odd).as_py():
        escaped = [json.dumps(value, ensure_ascii=False) for value in values.filter(odd).to_pylist()]
        made = pc.replace_with_mask(made, odd, pa.array(escaped, pa.string()))
    return made
