"""How long a service takes to learn again what its clients want, after all that it knew was dropped.

Every client says hello again and sends its registrations, all at once: rows of the operations, as gateways write them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidings
from bench.report import Row
from bench.thialfi_delay import SERVICE, as_published
from bench.thialfi_world import AUDIENCE, preload
from tidings.streams import Stream
from tidings_thialfi import service
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.notifications import attributes_of

PORTION = 10_000  # clients


def come_back(operations: Stream, clients: int) -> None:
    """What gateways write when so many clients come back: each is created, registers, and has synced."""
    with operations.producer() as producer:
        for first in range(1, clients + 1, PORTION):
            ids = np.arange(first, min(first + PORTION, clients + 1))
            producer.publish_many(_operations(ids, stream_schema.CREATED, None))
            for offset in range(AUDIENCE):
                names = pa.array([f"object-{(number + offset) % clients}" for number in ids.tolist()])
                producer.publish_many(_operations(ids, stream_schema.REGISTER, names))
            producer.publish_many(_operations(ids, stream_schema.SYNC, None))
        producer.flush()


def _operations(clients: np.ndarray[tuple[int], np.dtype[np.int64]], op: str, names: pa.Array | None) -> pa.Table:
    count = len(clients)
    said = {"op": op} if names is None else {"op": op, "object": names}
    numbers = None if op == stream_schema.CREATED else pa.array(np.full(count, 20))
    columns = {"object": pa.array(clients).cast(pa.string()), "attributes": attributes_of(said, count)}
    return as_published(columns | ({} if numbers is None else {"version": numbers}), count)


def run(quick: bool) -> list[Row]:
    clients = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        for name in ("updates", stream_schema.operations_of(SERVICE), stream_schema.notifications_of(SERVICE)):
            cluster.create_stream(name, shards=8)
        contacts = service.create(cluster, SERVICE, ["updates"], storage=Path(folder, "storage"), shards=8)
        preload(contacts.folder / "state", clients)
        contacts = service.drop_state(cluster, SERVICE)
        spark = tidings.session("bench", master="local[2]", config={"spark.log.level": "ERROR"})
        with contacts.open(cluster).start(spark) as working:
            begun = time.monotonic()
            come_back(cluster.stream(stream_schema.operations_of(SERVICE)), clients)
            written = time.monotonic() - begun
            while working.progress.updates_in < (AUDIENCE + 2) * clients and time.monotonic() < begun + 600:
                time.sleep(0.1)
            taken, told = time.monotonic() - begun, working.progress.updates_out
        spark.stop()
    assert told >= AUDIENCE * clients, "each registration is answered"
    name = f"{clients:,} clients with {AUDIENCE} objects each"
    return [
        Row(f"{name}: their operations durable", written, "s"),
        Row(f"{name}: all registered again, and told", taken, "s"),
        Row("registrations a second", AUDIENCE * clients / taken, "1/s"),
    ]
