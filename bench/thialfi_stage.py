"""The stage `thialfi`: the time of a batch of updates and acknowledgements, by how many registrations there are."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from pyspark.sql import SparkSession

import tidings
from bench.report import Row
from tidings.stages.state import State
from tidings.updates import SCHEMA
from tidings_thialfi import rows as words
from tidings_thialfi.answers import attributes_of
from tidings_thialfi.stage import Thialfi
from tidings_thialfi.tables import ACKNOWLEDGEMENTS, CLIENTS, OBJECTS, REGISTRATIONS, Index

NOTIFICATIONS = 13_000  # of a batch, and as many acknowledgements
AUDIENCE = 5  # registrations of an object


def run(quick: bool) -> list[Row]:
    spark = tidings.session("bench", master="local[2]", config={"spark.log.level": "ERROR"})
    found: list[Row] = []
    for registrations in (500_000,) if quick else (500_000, 7_000_000):
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder), registrations)
            times = [world.batch(spark, number) for number in range(1, 16 if quick else 40)][5:]
            world.close()
        size = f"{registrations / 1e6:g} M registrations"
        for at, part in enumerate(("reading and matching", "output as a DataFrame", "tables", "a batch")):
            each = [one[at] for one in times]
            found.append(Row(f"{part}, median, {size}", statistics.median(each), "s"))
        steps = [one[4] for one in times]
        found.append(Row(f"matching alone, median, {size}", statistics.median(steps), "s of CPU"))
    spark.stop()
    return found


class World:
    """A service with so many registrations, made without going through operations."""

    def __init__(self, folder: Path, registrations: int) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(0)
        self.stage = Thialfi(service="s")
        self.objects = registrations // AUDIENCE
        self.clients = registrations // 10
        self.names = pa.array([f"object-{number}" for number in range(self.objects)])
        digests = (xxhash.xxh64_intdigest(name.as_py().encode(), 42) for name in self.names)
        self.keys = np.fromiter(digests, np.uint64, self.objects).view(np.int64)
        state = State(folder, "bench", 0)
        index = self.stage.opened(state)
        index.advance(0)
        index.write(state, self._rows())
        state.commit()
        index.advance(1)
        _settle(index)

    def batch(self, spark: SparkSession, number: int) -> tuple[float, float, float, float, float]:
        """Seconds of the parts of a batch, of all of it, and of the CPU for matching."""
        frame = spark.createDataFrame(self._batch(number))
        state = State(self.folder, "bench", number)
        cpu: list[float] = []
        step = self.stage.step

        def timed(*arguments: object) -> pa.Table:
            start = time.thread_time()
            rows = step(*arguments)  # type: ignore[arg-type]
            cpu.append(time.thread_time() - start)
            return rows

        object.__setattr__(self.stage, "step", timed)
        start = time.perf_counter()
        output = self.stage.apply(frame, state)
        applied = time.perf_counter()
        rows = output.toArrow()
        written = time.perf_counter()
        state.commit()
        end = time.perf_counter()
        object.__delattr__(self.stage, "step")
        assert len(rows) > NOTIFICATIONS * 0.9
        return applied - start, written - applied, end - written, end - start, cpu[0]

    def close(self) -> None:
        self.stage.opened(State(self.folder, "bench", 0)).close()

    def _rows(self) -> dict[str, pa.Table]:
        at = np.tile(np.arange(self.objects), AUDIENCE)
        owners = self.rng.integers(1, self.clients + 1, len(at))
        ids = np.arange(1, self.clients + 1)
        none = np.zeros(self.objects, np.int64)
        registrations = {
            "client": owners,
            "key": self.keys[at],
            "rank": np.full(len(at), 20),
            "number": np.full(len(at), 10),
            "registered": np.ones(len(at), bool),
            "since": np.full(len(at), 10),
            "object": self.names.take(pa.array(at)),
            "application": pa.repeat(pa.scalar("web"), len(at)),
            "time": np.zeros(len(at), np.int64),
        }
        marks = {
            "client": np.tile(ids, 2),
            "fact": np.repeat([0, 1], len(ids)),
            "number": np.zeros(2 * len(ids), np.int64),
            "holds": np.ones(2 * len(ids), bool),
            "time": np.full(2 * len(ids), time.time_ns() // 1000),
            "application": pa.nulls(2 * len(ids), pa.string()),
            "gateway": pa.nulls(2 * len(ids), pa.string()),
        }
        objects = {
            "key": self.keys,
            "unknown": none,
            "number": none,
            "base": none,
            "object": self.names,
            "source": pa.nulls(self.objects, pa.string()),
            "payload": pa.nulls(self.objects, pa.binary()),
            "time": none,
        }
        return {
            "objects": pa.table(objects, OBJECTS),
            "registrations": pa.table(registrations, REGISTRATIONS),
            "acknowledgements": ACKNOWLEDGEMENTS.empty_table(),
            "clients": pa.table(marks, CLIENTS),
        }

    def _batch(self, number: int) -> pa.Table:
        updates = NOTIFICATIONS // AUDIENCE
        changed = self.names.take(pa.array(self.rng.integers(0, self.objects, updates)))
        heard = self.names.take(pa.array(self.rng.integers(0, self.objects, NOTIFICATIONS)))
        hearers = pa.array(self.rng.integers(1, self.clients + 1, NOTIFICATIONS)).cast(pa.string())
        said = attributes_of({"op": words.ACKNOWLEDGE, "object": heard}, NOTIFICATIONS)
        return pa.concat_tables(
            [
                _placed("contacts", changed, number, pa.nulls(updates, SCHEMA.field("attributes").type)),
                _placed("s.operations", hearers, number - 1, said),
            ]
        ).combine_chunks()


def _placed(stream: str, objects: pa.Array, version: int, attributes: pa.Array) -> pa.Table:
    count = len(objects)
    columns = {
        "shard": np.zeros(count, np.int32),
        "seq": np.arange(count) + version * 10**6,
        "index": np.zeros(count, np.int32),
        "object": objects,
        "version": np.full(count, version),
        "kind": pa.repeat(pa.scalar("data"), count),
        "range": np.ones(count, np.int64),
        "source": pa.nulls(count, pa.string()),
        "attributes": attributes,
        "payload": pa.nulls(count, pa.binary()),
        "time": pa.repeat(pa.scalar(time.time_ns() // 1000, pa.int64()), count).cast(SCHEMA.field("time").type),
    }
    return pa.table(columns, SCHEMA).append_column("stream", pa.repeat(pa.scalar(stream), count))


def _settle(index: Index) -> None:
    """Let what is due be merged before anything is measured."""
    for name in index.snapshot():
        while index["registrations_of" if name == "registrations" else name].merge():
            pass
    while index["registered_for"].merge():
        pass
