"""How long a change takes from its publication to the first attempt to send it to a client, as in Thialfi's evaluation.

The service's state is as large as the paper's: 1.4 million clients with five objects each. Updates are published at
the paper's rates, the stage runs in Spark, and a subscriber stands where gateways do: what it is given would be on its
way to a client, and it acknowledges each, as a client would. Producer, publisher and subscriber are processes of their
own.
"""

from __future__ import annotations

import os
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import tidings
from bench.processes import SPAWN, publish, running
from bench.report import Row, less_is_better, milliseconds
from bench.thialfi_world import AUDIENCE, preload
from tidings.updates import PUBLISHED
from tidings_thialfi import service
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.notifications import attributes_of

SERVICE = "bench"
STEP = 0.02  # seconds between two portions of updates
WARM_UP = 15.0  # seconds, in which Java compiles what it runs most


def produce(address: str, objects: int, rate: int, seconds: float) -> None:
    """Change objects at random, so many a second; the payload says when."""
    rng = np.random.default_rng()
    with tidings.connect(address) as cluster, cluster.stream("updates").producer(linger=0.04) as producer:
        started, made = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            due = int((time.perf_counter() - started) * rate) - made
            if due > 0:
                now = time.time_ns()
                columns = {
                    "object": [f"object-{number}" for number in rng.integers(0, objects, due).tolist()],
                    "version": np.full(due, now // 1000),
                    "payload": pa.repeat(pa.scalar(now.to_bytes(8, "little"), pa.binary()), due),
                }
                producer.publish_many(as_published(columns, due))
                made += due
            time.sleep(STEP)


class Arrivals(tidings.Handler):
    """Notes how long each notification took, and acknowledges it."""

    def __init__(self, operations: tidings.Producer) -> None:
        self.delays: list[np.ndarray[Any, Any]] = []
        self._operations = operations

    def on_batch(self, rows: pa.RecordBatch) -> None:
        rows = rows.filter(rows["payload"].is_valid())
        count = rows.num_rows
        if not count:
            return
        sent = np.frombuffer(b"".join(rows["payload"].to_pylist()), np.int64)
        self.delays.append((time.time_ns() - sent) / 1e9)
        names = pc.map_lookup(rows["attributes"], "object", "first")
        columns = {
            "object": rows["object"],
            "version": rows["version"],
            "attributes": attributes_of({"op": stream_schema.ACKNOWLEDGE, "object": names}, count),
        }
        self._operations.publish_many(as_published(columns, count))


def receive(address: str, results: Any, begin: Event, stop: Event) -> None:
    """Stand where gateways do; report the delays of all that came after the beginning."""
    with (
        tidings.connect(address) as cluster,
        cluster.stream(stream_schema.operations_of(SERVICE)).producer(linger=0.1) as operations,
    ):
        arrivals = Arrivals(operations)
        with cluster.subscribe("gateways", arrivals):
            while not stop.is_set():
                if begin.wait(0.1):
                    begin.clear()
                    results.put(np.concatenate(arrivals.delays) if arrivals.delays else np.zeros(0))
                    arrivals.delays = []


def as_published(columns: dict[str, Any], count: int) -> pa.Table:
    """Columns as rows that a producer takes without a look at each."""
    now = pa.scalar(time.time_ns() // 1000, pa.int64())
    values = {
        "kind": pa.repeat(pa.scalar("data"), count),
        "range": np.ones(count, np.int64),
        "time": pa.repeat(now, count).cast(pa.timestamp("us", "UTC")),
        **columns,
    }
    arrays = [values.get(field.name, pa.nulls(count, field.type)) for field in PUBLISHED]
    return pa.table([_array(value, field.type) for value, field in zip(arrays, PUBLISHED, strict=True)], PUBLISHED)


def _array(value: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(value, pa.Array):
        return value if value.type == kind else value.cast(kind)
    return pa.array(value, kind)


class Measured(NamedTuple):
    """The delays of notifications, in seconds, and the CPU that the driver and its JVM took for each."""

    delays: np.ndarray[Any, Any]
    cpu: float


def measure(clients: int, rates: tuple[int, ...], seconds: float) -> dict[int, Measured]:
    """What was measured at each rate of notifications a second."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        for name in ("updates", stream_schema.operations_of(SERVICE), stream_schema.notifications_of(SERVICE)):
            cluster.create_stream(name, shards=8)
        contacts = service.create(cluster, SERVICE, ["updates"], storage=Path(folder, "storage"), shards=8)
        preload(contacts.folder / "state", clients)
        cluster.create_application("gateways", [stream_schema.notifications_of(SERVICE)], start="latest")
        spark = tidings.session("bench", master="local[2]", config={"spark.log.level": "ERROR"})
        stop, begin, results = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
        sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
        receiver = SPAWN.Process(target=receive, args=(cluster.address, results, begin, stop))
        with running(sender, receiver, stop=stop), contacts.open(cluster).start(spark):

            def arrived() -> np.ndarray[Any, Any]:
                begin.set()
                delays: np.ndarray[Any, Any] = results.get(timeout=60)
                return delays

            produce(cluster.address, clients, 100, 1.0)
            deadline = time.monotonic() + 300
            while not len(arrived()) and time.monotonic() < deadline:
                time.sleep(1.0)  # Spark starts, and makes its runs from the tables
            for rate in rates:
                arguments = (cluster.address, clients, rate // AUDIENCE, WARM_UP + seconds)
                producer = SPAWN.Process(target=produce, args=arguments)
                producer.start()
                time.sleep(WARM_UP)
                arrived()  # of the warming up
                before = _cpu(spark)
                producer.join()
                time.sleep(3.0)
                delays = arrived()
                found[rate] = Measured(delays, (_cpu(spark) - before) / max(1, len(delays)))
        spark.stop()
    return found


def _cpu(spark: SparkSession) -> float:
    """Seconds of CPU that this process and Spark's have taken."""
    assert spark._jvm is not None
    fields = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/stat").read_text().rpartition(")")[2]
    ticks = sum(map(int, fields.split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def run(quick: bool) -> list[Row]:
    clients, rates = (100_000, (1_000,)) if quick else (1_400_000, (1_000, 5_000, 13_000))
    rows = []
    for rate, (delays, _) in measure(clients, rates, 10.0 if quick else 30.0).items():
        name = f"{rate:,} notifications/s, {clients / 1e6:g} M clients"
        within = 100 * float((delays < 1.0).mean()) if len(delays) else 0.0
        rows += [
            less_is_better(f"{name}: median", milliseconds(delays, 50), "ms", "Thialfi", 650.0),
            Row(f"{name}: under 1 s", within, "%", "Thialfi", 88.0, within / 88.0),
            Row(f"{name}: 88th percentile", milliseconds(delays, 88), "ms"),
            Row(f"{name}: 99th percentile", milliseconds(delays, 99), "ms"),
        ]
    return rows
