"""The stage `thialfi`: the time of a batch of updates and acknowledgements, by how many registrations there are."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import tidings
from bench.report import Row
from bench.thialfi_world import AUDIENCE, world
from tidings.stages.state import State
from tidings.updates import SCHEMA
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.server.notifications import attributes_of
from tidings_thialfi.server.stage import Thialfi
from tidings_thialfi.server.tables import Index

NOTIFICATIONS = 13_000  # of a batch, and as many acknowledgements


def run(quick: bool) -> list[Row]:
    spark = tidings.session("bench", master="local[2]", config={"spark.log.level": "ERROR"})
    found: list[Row] = []
    for registrations in (500_000,) if quick else (500_000, 7_000_000):
        with tempfile.TemporaryDirectory() as folder:
            service = World(Path(folder), registrations)
            times = [service.batch(spark, number) for number in range(1, 16 if quick else 40)][5:]
            service.close()
        size = f"{registrations / 1e6:g} M registrations"
        for at, part in enumerate(("reading and matching", "tables", "a batch")):
            each = [one[at] for one in times]
            found.append(Row(f"{part}, median, {size}", statistics.median(each), "s"))
        steps = [one[3] for one in times]
        found.append(Row(f"matching alone, median, {size}", statistics.median(steps), "s of CPU"))
    spark.stop()
    return found


class World:
    """A service with so many registrations, made without going through operations."""

    def __init__(self, folder: Path, registrations: int) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(0)
        self.stage = Thialfi(service="s")
        self.clients = self.objects = registrations // AUDIENCE
        rows = world(self.clients)
        self.names = rows["objects"]["object"].combine_chunks()
        state = State(folder, "bench", 0)
        index = self.stage.opened(state)
        index.advance(0)
        index.write(state, rows)
        state.commit()
        index.advance(1)
        _settle(index)

    def batch(self, spark: SparkSession, number: int) -> tuple[float, float, float, float]:
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
        rows = self.stage.apply(self.stage.prepare(frame), state)
        applied = time.perf_counter()
        state.commit()
        end = time.perf_counter()
        object.__delattr__(self.stage, "step")
        assert len(rows) > NOTIFICATIONS * 0.9
        return applied - start, end - applied, end - start, cpu[0]

    def close(self) -> None:
        self.stage.opened(State(self.folder, "bench", 0)).close()

    def _batch(self, number: int) -> pa.Table:
        updates = NOTIFICATIONS // AUDIENCE
        changed = self.names.take(pa.array(self.rng.integers(0, self.objects, updates)))
        heard = self.names.take(pa.array(self.rng.integers(0, self.objects, NOTIFICATIONS)))
        hearers = pa.array(self.rng.integers(1, self.clients + 1, NOTIFICATIONS)).cast(pa.string())
        said = attributes_of({"op": stream_schema.ACKNOWLEDGE, "object": heard}, NOTIFICATIONS)
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
