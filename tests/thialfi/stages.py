"""What the tests of the stage share: batches of updates and operations, run as a pipeline would, and run again."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidings.stages.state import State
from tidings.testing import _listed, _versions
from tidings.updates import SCHEMA, checked, from_rows, shards_of
from tidings_thialfi import rows as words
from tidings_thialfi.stage import Thialfi

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

Row = dict[str, Any]


def op(client: int, what: str, number: int | None = None, **more: str) -> Row:
    """An operation of a client, whose application is `app-<client>`."""
    return words.operation(client, what, number, source=f"app-{client}", **more)


def register(client: int, name: str, number: int) -> Row:
    return op(client, words.REGISTER, number, object=name)


def unregister(client: int, name: str, number: int) -> Row:
    return op(client, words.UNREGISTER, number, object=name)


class Service:
    """A stage with its state; each call of `batch` is one, and is repeated as after a driver's death."""

    def __init__(self, spark: SparkSession, folder: Path, *, repeat: bool = True, **options: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"service": "s", **options}
        self.stage = Thialfi(**self.options)
        self.batch_id = 0
        self.now = START
        self.repeat = repeat
        self._seqs = itertools.count()

    def restart(self) -> None:
        """As after a driver's death: nothing is left but what is on the disk."""
        if self.stage._index is not None:
            self.stage._index.close()
        self.stage = Thialfi(**self.options)

    def batch(self, *, updates: Sequence[Row] = (), ops: Sequence[Row] = ()) -> list[tuple[Any, ...]]:
        """What clients are told: client, what is said, and its object, number and payload, as far as there are any."""
        return answers(self.table(updates=updates, ops=ops))

    def table(self, *, updates: Sequence[Row] = (), ops: Sequence[Row] = ()) -> pa.Table:
        self.now += dt.timedelta(seconds=1)
        rows = pa.concat_tables([self._placed("contacts", updates), self._placed("s.operations", ops)])
        batch = self.spark.createDataFrame(rows)
        attempts = [State(self.folder, "test", self.batch_id) for _ in range(3 if self.repeat else 1)]
        outputs = []
        for number, state in enumerate(attempts):
            if number == 2:
                self.restart()
            outputs.append(checked(self.stage.apply(batch, state).toArrow()))
            if number != 0 or not self.repeat:
                state.commit()
            if number == 1:
                written = _versions(self.folder)
        if self.repeat:
            assert all(_listed(one) == _listed(outputs[0]) for one in outputs), "a repeated batch gives the same"
            assert _versions(self.folder) == written, "a repeated batch writes nothing"
        self.batch_id += 1
        return outputs[-1]

    def _placed(self, stream: str, rows: Sequence[Row]) -> pa.Table:
        table = from_rows({"time": self.now, **row} for row in rows)
        columns = {name: table[name] for name in table.column_names}
        columns |= {"shard": shards_of(table["object"], 4), "seq": [next(self._seqs) for _ in rows]}
        columns |= {"index": [0] * len(rows)}
        placed = pa.table([columns[name] for name in SCHEMA.names], SCHEMA)
        return placed.append_column("stream", pa.repeat(pa.scalar(stream), len(rows)))


def answers(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of the notifications, short: `(7, "notify", "alice", 3)`."""
    found = []
    for row in table.to_pylist(maps_as_pydicts="lossy"):
        said = row["attributes"]
        parts = [int(row["object"]), said["say"], said.get("object"), row["version"], row["payload"]]
        parts += [int(said["count"])] if "count" in said else []
        found.append(tuple(part for part in parts if part is not None))
    return sorted(found, key=repr)
