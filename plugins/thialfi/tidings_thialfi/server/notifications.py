"""The rows of the notifications, made from columns; `protocol.stream_schema` says what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import items
from tidings_thialfi.server.arrays import Longs, flags, longs, places
from tidings_thialfi.server.matching import DueNotices

ATTRIBUTES = pa.map_(pa.string(), pa.string())
NOTIFICATIONS = pa.schema(
    [("object", pa.string()), ("version", pa.int64()), ("attributes", ATTRIBUTES), ("payload", pa.binary())]
)
PAYLOAD_BYTES_A_BATCH = 256 * 2**20


def notices(due: DueNotices) -> pa.Table:
    """Versions of objects, known and unknown; those that come first with their payloads, up to so many bytes."""
    names = due.pairs["object"]
    payload = None
    if not due.unknown:
        payloads = due.facts["payload"].combine_chunks()
        sizes = pc.fill_null(pc.binary_length(payloads), 0).to_numpy().astype(np.int64)[due.places]
        payload = payloads.take(pa.array(due.places, mask=np.cumsum(sizes) > PAYLOAD_BYTES_A_BATCH))
    say = stream_schema.UNKNOWN if due.unknown else stream_schema.NOTIFY
    return _rows(longs(due.pairs, "client"), due.numbers, {"say": say, "object": names}, payload)


def statuses(rows: pa.Table) -> pa.Table:
    """How registrations stand that someone asked to change."""
    registered = pa.array(
        np.where(flags(rows, "registered"), stream_schema.REGISTERED, stream_schema.UNREGISTERED), pa.string()
    )
    return _rows(longs(rows, "client"), longs(rows, "number"), {"say": registered, "object": rows["object"]})


def refusals(ops: pa.Table) -> pa.Table:
    """Registrations that would have been too many for their clients."""
    return _rows(longs(ops, "client"), longs(ops, "number"), {"say": stream_schema.REFUSED, "object": ops["object"]})


def digests(clients: Longs, seen: Longs, registered: pa.Table) -> pa.Table:
    """The digests of these clients' registrations, and the largest number that each had used."""
    owner = places(clients, longs(registered, "client"))
    mine = owner >= 0
    counts = np.bincount(owner[mine], minlength=len(clients))
    sums = np.zeros(len(clients), np.uint64)
    with np.errstate(over="ignore"):  # the sum is modulo 2^64
        np.add.at(sums, owner[mine], items(longs(registered, "client")[mine], longs(registered, "key")[mine]))
    texts = {
        "say": stream_schema.DIGEST,
        "count": pa.array(counts).cast(pa.string()),
        "sum": pa.array(sums).cast(pa.string()),
    }
    return _rows(clients, np.maximum(seen, 0), texts)


def invalid(clients: Longs, reason: str) -> pa.Table:
    """Clients that must start afresh."""
    return _rows(clients, None, {"say": stream_schema.INVALID, "reason": reason})


def _rows(
    clients: Longs,
    versions: Longs | None,
    attributes: dict[str, str | pa.Array | pa.ChunkedArray],
    payload: pa.Array | None = None,
) -> pa.Table:
    count = len(clients)
    columns = [
        pa.array(clients).cast(pa.string()),
        pa.nulls(count, pa.int64()) if versions is None else pa.array(versions, pa.int64()),
        attributes_of(attributes, count),
        pa.nulls(count, pa.binary()) if payload is None else payload,
    ]
    return pa.table(columns, NOTIFICATIONS)


def attributes_of(attributes: dict[str, str | pa.Array | pa.ChunkedArray], count: int) -> pa.Array:
    """One map a row, of these keys."""
    width = len(attributes)
    names = pa.array(list(attributes) * count, pa.string())
    columns = [_column(value, count) for value in attributes.values()]
    # Row by row: the first column's value, the second's, …
    order = np.arange(width * count).reshape(width, count).T.ravel()
    values = pa.concat_arrays(columns).take(pa.array(order))
    offsets = pa.array(np.arange(0, width * count + 1, width), pa.int32())
    return pa.MapArray.from_arrays(offsets, names, values, ATTRIBUTES)


def _column(value: str | pa.Array | pa.ChunkedArray, count: int) -> pa.Array:
    if isinstance(value, str):
        return pa.repeat(pa.scalar(value, pa.string()), count)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """All of them, in this order."""
    # In one piece: of a table whose first piece is empty, Spark makes an empty DataFrame.
    return pa.concat_tables([NOTIFICATIONS.empty_table(), *tables]).combine_chunks()
