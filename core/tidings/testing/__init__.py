"""Helpers for tests, of tidings itself and of plugins and connectors.

>>> from tidings.testing import make_updates
>>> make_updates(3).column_names[:2]
['object', 'version']
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.log_reading import ends
from tidings.logs import Log
from tidings.positions import Positions
from tidings.testing.handler_flow import HandlerFailed, HandlerFlow
from tidings.updates import MAX_DELIVERABLE_BYTES, SCHEMA, TOMBSTONE, checked, from_rows, shard_of, shards_of, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidings.stages import Stage
    from tidings.stages.state import State

T = TypeVar("T")

__all__ = [
    "HandlerFailed",
    "HandlerFlow",
    "check_log",
    "eventually",
    "held",
    "make_updates",
    "read_table",
    "run_stage",
]


def make_updates(count: int, *, seed: int = 0, objects: int = 100, payload_bytes: int = 32) -> pa.Table:
    """Updates as a producer gives them: a few objects, changed again and again, with versions that grow."""
    rng = random.Random(seed)
    versions: dict[str, int] = {}
    rows = []
    for _ in range(count):
        name = f"object-{rng.randrange(objects)}"
        versions[name] = versions.get(name, 0) + 1
        attributes = {"region": rng.choice(["eu", "us"])}
        payload = rng.randbytes(payload_bytes)
        rows.append({"object": name, "version": versions[name], "attributes": attributes, "payload": payload})
    return timed(from_rows(rows))


def held(log: Log) -> pa.Table:
    """All that a log holds, in the order of shards and positions."""
    after = {shard: bounds.floor for shard, bounds in log.bounds().items()}
    reads: list[pa.Table] = []
    while not reads or len(reads[-1]):  # a read has so many bytes at most
        reads.append(log.tail(Positions(after), 2**40))
        after.update(ends(reads[-1]))
    return pa.concat_tables(reads).sort_by([("shard", "ascending"), ("seq", "ascending"), ("index", "ascending")])


def check_log(log: Log, shards: int) -> None:
    """Raise AssertionError unless the log is whole: dense offsets in every shard, each object where it belongs."""
    rows = held(log)
    for shard, bounds in log.bounds().items():
        mine = rows.filter(np.equal(rows["shard"], shard))
        before, seqs = pc.subtract(mine["seq"], mine["range"]).to_pylist(), mine["seq"].to_pylist()
        assert [*before, bounds.head.seq] == [bounds.floor.seq, *seqs], f"shard {shard} holds {seqs[:9]}…, {bounds}"
    updates = rows.filter(pc.not_equal(rows["kind"], TOMBSTONE))
    for name, shard in zip(updates["object"].to_pylist(), updates["shard"].to_pylist(), strict=True):
        assert shard_of(name, shards) == shard, f"{name!r} is in shard {shard}"


def eventually(condition: Callable[[], T], timeout: float = 30.0, every: float = 0.01) -> T:
    """Wait until the condition holds and return its value; AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not true after {timeout:g} s; the last value was {value!r}")
        time.sleep(every)


def run_stage(
    stage: Stage,
    rows: Iterable[Mapping[str, Any]],
    *,
    state: Path | None = None,
    batch_id: int = 0,
    stream: str = "input",
    repeat: bool = True,
    spark: SparkSession | None = None,
) -> pa.Table:
    """What a stage makes of a batch of these rows, as a pipeline would write it; no cluster is needed.

    `state` is a folder for the stage's tables; batches that share one are numbered by `batch_id`. With `repeat` the
    batch is run again as after a driver's death, before its tables were written and after that, and `AssertionError`
    is raised if either makes a difference.
    """
    from pyspark.sql import functions as sf

    from tidings.runtime.session import session
    from tidings.stages.state import State

    with tempfile.TemporaryDirectory() as scratch:
        folder = state or Path(scratch)
        batch = (spark or session("test")).createDataFrame(_placed(rows)).withColumn("stream", sf.lit(stream))
        if repeat:
            died = _output(stage, batch, State(folder, "test", batch_id))
        attempt = State(folder, "test", batch_id)
        output = _output(stage, batch, attempt)
        attempt.commit()
        if repeat:
            written = _versions(folder)
            attempt = State(folder, "test", batch_id)
            for other in (died, _output(stage, batch, attempt)):
                assert _listed(other) == _listed(output), f"the repeated batch gives {_listed(other)}"
            attempt.commit()
            assert _versions(folder) == written, "the repeated batch writes a table again"
    return output


def read_table(state: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a stage's table, in no order."""
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(state / name).to_pyarrow_table())
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="lossy")
    return rows


def _placed(rows: Iterable[Mapping[str, Any]], shards: int = 4) -> pa.Table:
    """The rows as they would stand in a log."""
    table = timed(from_rows(rows))
    places = shards_of(table["object"], shards)
    seqs = [int((places[:at] == place).sum()) for at, place in enumerate(places)]
    stamps = {"shard": places, "seq": seqs, "index": [0] * len(table)}
    return pa.table({**stamps, **{name: table[name] for name in table.column_names}}).select(SCHEMA.names).cast(SCHEMA)


def _output(stage: Stage, batch: DataFrame, state: State) -> pa.Table:
    from tidings.pipelines.query import ordered

    made = stage.apply(stage.prepare(batch), state)
    return from_rows([]) if made is None else checked(ordered(made), max_payload_bytes=MAX_DELIVERABLE_BYTES)


def _listed(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def _versions(folder: Path) -> dict[str, int]:
    from deltalake import DeltaTable

    return {place.parent.name: DeltaTable(place.parent).version() for place in folder.glob("*/_delta_log")}
