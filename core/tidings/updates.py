"""The canonical row: one change of one object, as a Python class, an Arrow schema and a Spark schema.

`Update` is the only definition; `SCHEMA` and `spark_schema()` are read off it.
"""

from __future__ import annotations

import datetime as dt
import functools
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidings.errors import InvalidUpdate
from tidings.positions import Position

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_OBJECT_BYTES = 1024
MAX_VERSION = 2**63 - 1
MAX_SOURCE_BYTES = 1024
MAX_ATTRIBUTES_BYTES = 2**20  # of one update's attributes together: names, values, and a little for each
BYTES_PER_ATTRIBUTE = 8  # beyond its name and value; so that there cannot be any number of empty ones
MAX_PAYLOAD_BYTES = 2**20
MAX_DELIVERABLE_BYTES = 32 * 2**20  # of a payload: half of what a message to a subscriber may have
FIRST_TIME, LAST_TIME = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
DATA, GC, TOMBSTONE = KINDS = ("data", "gc", "tombstone")
PUBLISHED_KINDS = (DATA, GC)
SHARD_SEED = 42  # the seed of Spark's own xxhash64()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One change of one object.

    `version` is None when it is not known; `source` is the application id of the client that made the change;
    `attributes` are what filters see; `time` is the commit time in the datastore. `range` is 1 but for tombstones,
    which stand for a run of collected updates. Two are no columns: `stream` is where a subscriber got the update from,
    and `value` what it makes of the payload, if it was told to by `payload_as`. Only `object` must be said, so that
    tests of a handler can make updates of their own.
    """

    shard: Annotated[int, pa.int32()] = 0
    seq: Annotated[int, pa.int64()] = 0
    index: Annotated[int, pa.int32()] = 0
    object: Annotated[str, pa.string()]
    version: Annotated[int | None, pa.int64()] = None
    kind: Annotated[str, pa.string()] = "data"
    range: Annotated[int, pa.int64()] = 1
    source: Annotated[str | None, pa.string()] = None
    attributes: Annotated[Mapping[str, str] | None, pa.map_(pa.string(), pa.string())] = None
    payload: Annotated[bytes | None, pa.binary()] = None
    time: Annotated[dt.datetime | None, pa.timestamp("us", "UTC")] = None
    stream: str | None = None
    value: Any = None

    @property
    def position(self) -> Position:
        """The update's place in its shard."""
        return Position(self.seq, self.index)


_HINTS = get_type_hints(Update, include_extras=True)
SCHEMA = pa.schema([(name, hint.__metadata__[0]) for name, hint in _HINTS.items() if hasattr(hint, "__metadata__")])
"""The canonical row in Arrow."""

STAMPED = ("shard", "seq", "index")
"""The columns that the log gives; the others come from whoever publishes."""

_DEFAULTS = {"kind": "data", "range": 1}

PUBLISHED = pa.schema([field for field in SCHEMA if field.name not in STAMPED])
"""The columns that a producer gives."""


@functools.cache
def spark_schema() -> StructType:
    """The canonical row in Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(SCHEMA)


def shard_of(object: str, shards: int) -> int:
    """The shard of an object: Spark's `pmod(xxhash64(object), shards)`, without Spark.

    >>> shard_of("contacts/alice", 16)
    12
    """
    digest = xxhash.xxh64_intdigest(object.encode(), SHARD_SEED)
    return (digest - 2**64 if digest >= 2**63 else digest) % shards


def shards_of(objects: pa.Array | pa.ChunkedArray, shards: int) -> npt.NDArray[np.int32]:
    """`shard_of` for a whole column."""
    digest, seed = xxhash.xxh64_intdigest, SHARD_SEED
    names = objects.cast(pa.binary()).to_pylist()
    digests = np.fromiter((digest(name, seed) for name in names), np.uint64, len(names))
    return (digests.view(np.int64) % shards).astype(np.int32)


def check_row(
    object: Any,
    version: Any = None,
    kind: Any = "data",
    range: Any = 1,
    source: Any = None,
    attributes: Any = None,
    payload: Any = None,
    time: Any = None,
    *,
    max_payload_bytes: int = MAX_PAYLOAD_BYTES,
) -> None:
    """Raise `InvalidUpdate` if these values make no update.

    >>> check_row("contacts/alice", version=-1)
    Traceback (most recent call last):
    tidings.errors.InvalidUpdate: version -1 of object 'contacts/alice' is negative
    """
    _check_object(object)
    _check_integer("version", version, object, optional=True)
    if range != 1:
        raise InvalidUpdate(f"range {range!r} of object {object!r} is not 1, as that of all but tombstones is")
    if kind == TOMBSTONE:
        raise InvalidUpdate(f"object {object!r} cannot be published as a tombstone: these come of collecting updates")
    if kind not in PUBLISHED_KINDS:
        raise InvalidUpdate(f"kind {kind!r} of object {object!r} is none of {', '.join(PUBLISHED_KINDS)}")
    if source is not None:
        size = _check_text("source", source, object)
        if size > MAX_SOURCE_BYTES:
            raise InvalidUpdate(f"source of object {object!r} has {size:,} bytes; the limit is {MAX_SOURCE_BYTES:,}")
    if attributes is not None:
        if not isinstance(attributes, Mapping):
            raise InvalidUpdate(f"attributes of object {object!r} are {type(attributes).__name__}, not a mapping")
        size = BYTES_PER_ATTRIBUTE * len(attributes)
        for key, value in attributes.items():
            size += _check_text("attribute name", key, object)
            size += _check_text(f"attribute {reprlib.repr(key)}", value, object)
        if size > MAX_ATTRIBUTES_BYTES:
            raise _too_many_attributes(size, object)
    if payload is not None:
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidUpdate(f"payload of object {object!r} is {type(payload).__name__}, not bytes")
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if size > max_payload_bytes:
            raise InvalidUpdate(f"payload of object {object!r} has {size:,} bytes; the limit is {max_payload_bytes:,}")
    if time is not None:
        if not isinstance(time, dt.datetime) or time.tzinfo is None:
            raise InvalidUpdate(f"time {time!r} of object {object!r} is not a datetime with a time zone")
        if not FIRST_TIME <= time <= LAST_TIME:
            raise _no_such_year(time, object)


def _too_many_attributes(size: int, object: Any) -> InvalidUpdate:
    return InvalidUpdate(
        f"attributes of object {object!r} have {size:,} bytes together; the limit is {MAX_ATTRIBUTES_BYTES:,}"
    )


def _no_such_year(time: Any, object: Any) -> InvalidUpdate:
    return InvalidUpdate(f"time {time} of object {object!r} is not in the years 1 to 9999 of UTC")


def _check_object(object: Any) -> None:
    if not isinstance(object, str):
        raise InvalidUpdate(f"object {object!r} is {type(object).__name__}, not text")
    if not object:
        raise InvalidUpdate("an update names its object; this one's name is empty")
    try:
        size = len(object.encode())
    except UnicodeEncodeError:
        raise InvalidUpdate(f"object {object!r} is not valid UTF-8") from None
    if size > MAX_OBJECT_BYTES:
        raise InvalidUpdate(f"object {object[:32]!r}… has {size:,} bytes; the limit is {MAX_OBJECT_BYTES:,}")


def _check_integer(name: str, value: Any, object: str, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidUpdate(f"{name} {value!r} of object {object!r} is not a whole number")
    if value < 0:
        raise InvalidUpdate(f"{name} {value} of object {object!r} is negative")
    if value > MAX_VERSION:
        raise InvalidUpdate(f"{name} {value} of object {object!r} is above 2^63-1")


def _check_text(name: str, value: Any, object: str) -> int:
    """How many bytes the text has."""
    if not isinstance(value, str):
        raise InvalidUpdate(f"{name} of object {object!r} is {type(value).__name__}, not text")
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidUpdate(f"{name} of object {object!r} is not valid UTF-8") from None


def checked(rows: pa.Table | pa.RecordBatch, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> pa.Table:
    """The rows as a table of the `PUBLISHED` columns, or `InvalidUpdate` that names the first bad row.

    Columns that the log stamps are left out; missing ones get their defaults; unknown ones are an error.
    """
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    unknown = sorted(set(table.column_names) - set(SCHEMA.names))
    if unknown:
        raise InvalidUpdate(f"an update has no column {unknown[0]!r}; its columns are {', '.join(PUBLISHED.names)}")
    if "object" not in table.column_names:
        raise InvalidUpdate("the rows have no column 'object'")
    columns = [_column(table, field) for field in PUBLISHED]
    table = pa.table(columns, schema=PUBLISHED)
    bad = _first_bad_row(table, max_payload_bytes)
    if bad is not None:
        if not _in_years(table["time"].slice(bad, 1))[0].as_py():  # Python has no value for it that could be checked
            raise _no_such_year(f"{table['time'].cast(pa.int64())[bad]} µs after 1970", table["object"][bad].as_py())
        _check_object(table["object"][bad].as_py())
        size = int(_attribute_sizes(table["attributes"].slice(bad, 1))[0])
        if size > MAX_ATTRIBUTES_BYTES:  # a mapping would have those once whose names are there twice
            raise _too_many_attributes(size, table["object"][bad].as_py())
        check_row(**table.slice(bad, 1).to_pylist(maps_as_pydicts="lossy")[0], max_payload_bytes=max_payload_bytes)
        raise InvalidUpdate(f"row {bad} is no update: {table.slice(bad, 1).to_pylist()[0]!r}")
    return table


def row_sizes(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    """About how many bytes each row takes in memory; exactly, all of them together.

    What may be large in a few rows is measured one by one; the rest is spread evenly.
    """
    sizes = np.zeros(len(rows), np.int64)
    for name in ("object", "payload"):
        sizes += _lengths(rows[name])
    sizes += _attribute_sizes(rows["attributes"])
    rest = max(0, int(rows.nbytes) - int(sizes.sum()))
    return sizes + -(-rest // max(1, len(rows)))


def _lengths(texts: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _attribute_sizes(attributes: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """How many bytes the attributes of each row have together."""
    chunks = attributes.chunks if isinstance(attributes, pa.ChunkedArray) else [attributes]
    return np.concatenate([np.empty(0, np.int64), *map(_chunk_attribute_sizes, chunks)])


def _chunk_attribute_sizes(attributes: pa.MapArray) -> npt.NDArray[np.int64]:
    offsets = attributes.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    each = sum(_lengths(part.slice(first, last - first)) for part in (attributes.keys, attributes.items))
    upto = np.zeros(last - first + 1, np.int64)
    np.cumsum(each, out=upto[1:])
    sizes: npt.NDArray[np.int64] = np.diff(upto[offsets - first]) + BYTES_PER_ATTRIBUTE * np.diff(offsets)
    return np.where(attributes.is_valid().to_numpy(zero_copy_only=False), sizes, 0)


def portions(sizes: npt.NDArray[np.int64], max_rows: int, max_bytes: int) -> Iterator[slice]:
    """Runs of rows of these sizes, one after the other: as long as they may be, and of one row at least.

    >>> list(portions(np.array([1, 1, 9, 1, 1, 1]), max_rows=2, max_bytes=4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    ends, start, before = sizes.cumsum(), 0, 0
    while start < len(sizes):
        fitting = int(np.searchsorted(ends, before + max_bytes, "right"))
        end = max(start + 1, min(start + max_rows, fitting))
        yield slice(start, end)
        start, before = end, int(ends[end - 1])


def timed(table: pa.Table) -> pa.Table:
    """The table with the time of now where it has none."""
    at = table.column_names.index("time")
    if table["time"].null_count == 0:
        return table
    now = pa.scalar(dt.datetime.now(dt.UTC), SCHEMA.field("time").type)
    return table.set_column(at, SCHEMA.field("time"), table["time"].fill_null(now))


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    default = pa.scalar(_DEFAULTS.get(field.name), field.type)
    if field.name not in table.column_names:
        return pa.repeat(default, len(table))
    column = table[field.name]
    try:
        column = column.cast(field.type)
        column.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidUpdate(f"column {field.name!r} does not fit {field.type}: {error}") from None
    return column.fill_null(default) if default.is_valid else column


def without_tombstones(rows: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The updates among these: what stands for those that were collected is none."""
    if "kind" not in rows.schema.names:
        return rows
    return rows.filter(pc.fill_null(pc.not_equal(rows["kind"], TOMBSTONE), True))


def _first_bad_row(table: pa.Table, max_payload_bytes: int) -> int | None:
    """The index of the first row that `check_row` would refuse, found without a loop over the rows."""
    size = pc.binary_length(table["object"])
    bad = [
        pc.fill_null(pc.or_(pc.equal(size, 0), pc.greater(size, MAX_OBJECT_BYTES)), True),
        pc.fill_null(pc.less(table["version"], 0), False),
        pc.fill_null(pc.not_equal(table["range"], 1), True),
        pc.invert(pc.is_in(table["kind"], pa.array(PUBLISHED_KINDS))),
        pc.fill_null(pc.greater(pc.binary_length(table["payload"]), max_payload_bytes), False),
        pc.invert(_in_years(table["time"])),
        pc.fill_null(pc.greater(pc.binary_length(table["source"]), MAX_SOURCE_BYTES), False),
        pa.array(_attribute_sizes(table["attributes"]) > MAX_ATTRIBUTES_BYTES),
        *_null_attributes(table["attributes"]),
    ]
    at = pc.index(functools.reduce(pc.or_, bad), True).as_py()
    return None if at < 0 else int(at)


def _in_years(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which times Python can hold; readers in Python would fail at others."""
    first, last = (pa.scalar(time, times.type) for time in (FIRST_TIME, LAST_TIME))
    return pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), True)


def _null_attributes(attributes: pa.ChunkedArray) -> list[pa.Array]:
    if sum(chunk.items.null_count for chunk in attributes.chunks) == 0:
        return []
    rows = [value is not None and any(item is None for _, item in value) for value in attributes.to_pylist()]
    return [pa.array(rows, pa.bool_())]


def from_rows(rows: Iterable[Mapping[str, Any]], *, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> pa.Table:
    """Rows given as mappings, checked one by one, as a table of the `PUBLISHED` columns."""
    columns: dict[str, list[Any]] = {name: [] for name in PUBLISHED.names}
    for row in rows:
        unknown = row.keys() - columns.keys()
        if unknown:
            raise InvalidUpdate(f"an update has no {min(unknown)!r}; it has {', '.join(columns)}")
        if "object" not in row:
            raise InvalidUpdate(f"an update names its object; this one does not: {dict(row)!r}")
        check_row(**row, max_payload_bytes=max_payload_bytes)
        for name, values in columns.items():
            values.append(row.get(name, _DEFAULTS.get(name)))
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in PUBLISHED}, schema=PUBLISHED)


def to_updates(rows: pa.Table | pa.RecordBatch, stream: str | None = None) -> list[Update]:
    """The rows as `Update` objects of a stream, for handlers that take one at a time.

    Column by column: that takes a third of the time that rows as dictionaries take.
    """
    columns = [_values(rows[name]) for name in SCHEMA.names]
    names = SCHEMA.names
    return [Update(**dict(zip(names, values, strict=True)), stream=stream) for values in zip(*columns, strict=True)]


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_map(column.type):
        return _mappings(column)
    found: list[Any]
    if column.null_count or pa.types.is_binary(column.type):
        found = column.to_pylist()
    elif pa.types.is_timestamp(column.type):
        moments = numbers(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).view("M8[us]").tolist()
        found = [moment.replace(tzinfo=dt.UTC) for moment in moments]
    elif pa.types.is_string(column.type):
        found = _texts(column)
    else:
        found = numbers(column).tolist()
    return found


def numbers(column: pa.Array) -> npt.NDArray[Any]:
    """A column of numbers without nulls, as it lies in memory.

    `to_numpy` would do the same, and import pandas: a service that only subscribes can do without that second.
    """
    found: npt.NDArray[Any] = np.from_dlpack(column)
    return found


def are_tombstones(kinds: pa.Array) -> pa.BooleanArray:
    """Which of these kinds are tombstones; without a value of Python's, for which pandas would be imported."""
    return pc.match_like(kinds, TOMBSTONE)


def _texts(column: pa.Array) -> list[str]:
    """Words that come again and again are made once."""
    encoded = column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    return [words[index] for index in numbers(encoded.indices).tolist()]


def _mappings(column: pa.MapArray) -> list[dict[str, str] | None]:
    offsets, valid = numbers(column.offsets).tolist(), column.is_valid().to_pylist()
    first, last = offsets[0], offsets[-1]
    keys, items = (_texts(part.slice(first, last - first)) for part in (column.keys, column.items))
    pairs = list(zip(keys, items, strict=True))
    return [
        dict(pairs[start - first : end - first]) if there else None
        for start, end, there in zip(offsets, offsets[1:], valid, strict=False)
    ]
