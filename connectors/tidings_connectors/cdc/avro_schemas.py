"""Avro schemas of rows, ready for use: columns are written by them, and records are read.

Arrays, maps and records in a row are from columns that hold JSON. Their entries are gathered from all rows into columns
of their own, so that one set of rules, that of `avro_values`, holds at every depth.
"""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import PluginMissing
from tidings_connectors.cdc.avro_values import joined, longs, sized, write_of

try:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType, expand_schema, fingerprint, to_parsing_canonical_form
    from fastavro.validation import validate
except ModuleNotFoundError as error:
    raise PluginMissing("payloads in Avro need fastavro: pip install 'tidings[avro]'") from error

MARK = b"\xc3\x01"  # of the single-object encoding
NULL = "null"
FIRST, SECOND = b"\x00", b"\x02"  # the branches of a union
BROKEN = object()  # stands for what a text says that should be JSON and is not

Schemas = Mapping[str, Mapping[str, Any]]
"""The schemas of records, by table: `schema.table`."""


@dataclass(frozen=True)
class AvroForm:
    """How the values of a type are written."""

    write: Callable[[Any], pa.BinaryArray]
    """From texts; or, if it is nested, from what JSON says."""
    nested: bool
    null: bytes | None = None
    """What NULL is; None if it is no value of this type."""
    some: bytes = b""
    """What comes before any other value."""

    def of_texts(self, texts: pa.StringArray) -> pa.BinaryArray:
        """These values in Avro; null where one does not fit."""
        if self.nested:
            return self.of_items([None if text is None else parsed(text) for text in texts.to_pylist()])
        return self._with_nulls(self.write(texts), texts.is_null())

    def of_items(self, items: Sequence[Any]) -> pa.BinaryArray:
        """The same for values that JSON had: None, texts, booleans, lists and dictionaries."""
        if not items:
            return pa.array([], pa.binary())
        made = self.write(items if self.nested else pa.array(map(_text, items), pa.string()))
        return self._with_nulls(made, pa.array([item is None for item in items]))

    def _with_nulls(self, made: pa.BinaryArray, nulls: pa.BooleanArray) -> pa.BinaryArray:
        if self.null is None:
            return made
        return pc.if_else(nulls, _binary(self.null), joined(_binary(self.some), made))


@dataclass(frozen=True)
class AvroField:
    """A field of a record."""

    name: str
    form: AvroForm
    instead: bytes | None
    """What is written if the value is not known; None if there is nothing to write."""

    def where_known(self, made: pa.BinaryArray, unknown: pa.BooleanArray | None) -> pa.BinaryArray:
        """Values in Avro, with what stands for those that are not known."""
        return made if unknown is None else pc.if_else(unknown, _binary(self.instead), made)


@dataclass(frozen=True)
class Codec:
    """A schema that is ready to be written and read by."""

    schema: Any
    fields: tuple[AvroField, ...]
    header: bytes
    """What a record begins with: that it is one, and the fingerprint of its schema."""

    def read(self, record: io.BytesIO) -> dict[str, Any]:
        """A record without its header."""
        found: Any = fastavro.schemaless_reader(record, self.schema, None)
        return dict(found)


def codecs_of(schemas: Schemas) -> dict[str, Codec]:
    """The schemas, ready for use. A `ValueError` says what is wrong with one."""
    found: dict[str, Codec] = {}
    tables: dict[bytes, str] = {}
    for table, schema in schemas.items():
        try:
            found[table] = _codec(json.dumps(schema))
        except (SchemaParseException, TypeError, ValueError) as error:
            raise ValueError(f"the schema of {table} is wrong: {error}") from None
        # Logical types, and with them the scale of a decimal, are no part of a fingerprint.
        other = tables.setdefault(found[table].header, table)
        if found[other].schema != found[table].schema:
            raise ValueError(f"the schemas of {other} and {table} differ and have one fingerprint: use different names")
    return found


@functools.lru_cache(maxsize=1024)
def _codec(text: str) -> Codec:
    schema = _with_null(json.loads(text))
    try:
        whole, parsed = expand_schema(schema), fastavro.parse_schema(schema)
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None
    except UnknownType as error:
        raise ValueError(f"there is no type {error.name!r}") from None
    if not isinstance(whole, dict) or whole["type"] != "record":
        raise ValueError("it says no 'type: record'")
    digest = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")  # in hex, its last byte first
    return Codec(parsed, _fields(whole), MARK + bytes.fromhex(digest))


def _with_null(form: Any) -> Any:
    """A type in which null is a word, as it is in Avro: in YAML it is one only in quotes."""
    match form:
        case None:
            return NULL
        case list():
            return [_with_null(one) for one in form]
        case dict():
            inner = {key: _with_null(form[key]) for key in ("type", "items", "values", "fields") if key in form}
            return {**form, **inner}
    return form


def _fields(record: Mapping[str, Any]) -> tuple[AvroField, ...]:
    if not record["fields"]:
        raise ValueError(f"record {record['name']!r} has no fields")
    return tuple(map(_field, record["fields"]))


def _field(field: Mapping[str, Any]) -> AvroField:
    try:
        form = form_of(field["type"])
        return AvroField(field["name"], form, _default(field) if "default" in field else form.null)
    except ValueError as error:
        raise ValueError(f"field {field['name']!r}: {error}") from None


def form_of(form: Any) -> AvroForm:
    """How values of this type are written; names in it must have been replaced by what they mean."""
    match form:
        case [first, second] if (first == NULL) != (second == NULL):
            some = form_of(second if first == NULL else first)
            null, before = (FIRST, SECOND) if first == NULL else (SECOND, FIRST)
            return AvroForm(some.write, some.nested, null, before)
        case list():
            raise ValueError("a union must be of null and one other type")
        case {"type": "array"}:
            return AvroForm(functools.partial(_arrays, form_of(form["items"])), True)
        case {"type": "map"}:
            return AvroForm(functools.partial(_maps, form_of(form["values"])), True)
        case {"type": "record"}:
            return AvroForm(functools.partial(_records, _fields(form)), True)
    return AvroForm(write_of(form if isinstance(form, dict) else {"type": form}), False)


def _default(field: Mapping[str, Any]) -> bytes:
    form, made = field["type"], io.BytesIO()
    try:
        value = _of_default(form, field["default"])
        fits = validate(value, form, raise_errors=False)
    except (AttributeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"{field['default']!r} cannot be its default")
    fastavro.schemaless_writer(made, form, value)
    return made.getvalue()


def _of_default(form: Any, value: Any) -> Any:
    """A default as fastavro writes it: what is bytes is text in a schema, a character for each byte."""
    match form:
        case list():
            return None if value is None else _of_default(next(one for one in form if one != NULL), value)
        case {"type": "array"}:
            return [_of_default(form["items"], one) for one in value]
        case {"type": "map"}:
            return {key: _of_default(form["values"], one) for key, one in value.items()}
        case {"type": "record"}:
            return {
                one["name"]: _of_default(one["type"], value.get(one["name"], one.get("default")))
                for one in form["fields"]
            }
        case "bytes" | {"type": "bytes" | "fixed"}:
            return value.encode("latin-1")
        case "float" | "double":
            return float(value)
    return value


# Nested values


def parsed(text: str) -> Any:
    """What JSON says; its numbers stay texts, so that they keep their digits.

    >>> parsed('{"a": [1, 2.50, null, true]}')
    {'a': ['1', '2.50', None, True]}
    """
    try:
        value = json.loads(text, parse_float=str, parse_int=str, parse_constant=str)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half a character can be escaped, and not be written
    except (ValueError, RecursionError):
        return BROKEN
    return value


def _text(item: Any) -> str | None:
    """What is in JSON, as the text of a column; None if that is not one value."""
    return item if isinstance(item, str) else json.dumps(item) if isinstance(item, bool) else None


def _arrays(entries: AvroForm, items: Sequence[Any]) -> pa.BinaryArray:
    lists = [item if isinstance(item, list) else None for item in items]
    return _blocks(lists, entries.of_items([one for each in lists for one in each or ()]))


def _maps(entries: AvroForm, items: Sequence[Any]) -> pa.BinaryArray:
    maps = [item if isinstance(item, dict) else None for item in items]
    keys = pa.array([key for each in maps for key in each or ()], pa.string())
    values = entries.of_items([value for each in maps for value in (each or {}).values()])
    return _blocks(maps, joined(sized(keys), values))


def _blocks(collections: Sequence[Any], entries: pa.BinaryArray) -> pa.BinaryArray:
    """Collections in Avro, given all their entries one after the other: how many there are, they, and a zero."""
    counts = longs(pa.array([len(each or ()) for each in collections])).to_pylist()
    rest = iter(entries.to_pylist())
    made: list[bytes | None] = []
    for each, count in zip(collections, counts, strict=True):
        parts = list(itertools.islice(rest, len(each or ())))
        made.append(None if each is None or None in parts else b"".join([count, *parts, b"\0"]) if parts else b"\0")
    return pa.array(made, pa.binary())


def _records(fields: Sequence[AvroField], items: Sequence[Any]) -> pa.BinaryArray:
    records = [item if isinstance(item, dict) else {} for item in items]
    parts = [
        field.where_known(
            field.form.of_items([record.get(field.name) for record in records]),
            pa.array([field.name not in record for record in records]),
        )
        for field in fields
    ]
    return pc.if_else(pa.array([isinstance(item, dict) for item in items]), joined(*parts), _binary(None))


def _binary(value: bytes | None) -> pa.Scalar:
    return pa.scalar(value, pa.binary())
