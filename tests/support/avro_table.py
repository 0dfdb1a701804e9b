"""A stream whose payloads are Avro, without a database: it tails a Delta table."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tidings.cluster import Cluster
from tidings.streams import Stream

DAY, PRICE = dt.date(2026, 3, 1), Decimal("10.50")
SCHEMA = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "bytes"},
    ],
}


def items(cluster: Cluster, folder: Path, *names: str, stream: str = "items") -> Stream:
    """A stream of a table `shop.item` with a row for each name, of one shard."""
    table = folder / "shop" / "item"
    rows = {
        "id": pa.array(range(1, len(names) + 1), pa.int64()),
        "name": pa.array(names, pa.string()),
        "price": pa.array([PRICE] * len(names), pa.decimal128(10, 2)),
        "day": pa.array([DAY] * len(names), pa.date32()),
        "raw": pa.array([b"\x00\xff"] * len(names), pa.binary()),
    }
    write_deltalake(table, pa.table(rows), configuration={"delta.enableChangeDataFeed": "true"})
    options = {"key": ["id"], "payload": "avro", "schemas": {"shop.item": SCHEMA}}
    return cluster.create_stream(stream, 1, f"delta-cdf:{table}", options=options)
