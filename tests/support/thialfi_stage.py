"""What the tests of the stage share: batches of updates and operations, run as a pipeline would, and run again."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tidings.stages.state import State
from tidings.testing import _listed, _versions
from tidings.updates import SCHEMA, checked, from_rows, shards_of
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.constants import MAX_PAYLOAD_BYTES
from tidings_thialfi.protocol.digests import key_of
from tidings_thialfi.server.payloads import INLINE_BYTES
from tidings_thialfi.server.stage import Thialfi

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

Row = dict[str, Any]


def op(client: int, what: str, number: int | None = None, **more: str) -> Row:
    """An operation of a client, whose application is `app-<client>`."""
    return stream_schema.operation(client, what, number, source=f"app-{client}", **more)


def register(client: int, name: str, number: int) -> Row:
    return op(client, stream_schema.REGISTER, number, object=name)


def unregister(client: int, name: str, number: int) -> Row:
    return op(client, stream_schema.UNREGISTER, number, object=name)


class Service:
    """A stage with its state; each call of `batch` is one, and is repeated as after a driver's death, if one likes.

    Without Spark, the columns that it would make are made here.
    """

    def __init__(
        self, folder: Path, *, spark: SparkSession | None = None, repeat: bool = False, **options: Any
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"service": "s", **options}
        self.stage = Thialfi(**self.options)
        self.batch_id = 0
        self.now = START
        self.repeat = repeat
        self.more: list[Row] = []
        """What the stage wants to be among the operations of the next batch; there it is."""
        self._seqs = itertools.count()

    def restart(self) -> None:
        """As after a driver's death: nothing is left but what is on the disk."""
        self.close()
        self.stage = Thialfi(**self.options)

    def close(self) -> None:
        self.stage.opened(State(self.folder, "test", 0)).close()

    def batch(self, *, updates: Sequence[Row] = (), ops: Sequence[Row] = ()) -> list[tuple[Any, ...]]:
        """What clients are told: client, what is said, and its object, number and payload, as far as there are any."""
        return answers(self.table(updates=updates, ops=ops))

    def table(self, *, updates: Sequence[Row] = (), ops: Sequence[Row] = ()) -> pa.Table:
        self.now += dt.timedelta(seconds=1)
        ops = [*ops, *self.more]
        rows = pa.concat_tables([self._placed("contacts", updates), self._placed("s.operations", ops)])
        attempts = [State(self.folder, "test", self.batch_id) for _ in range(3 if self.repeat else 1)]
        outputs = []
        for number, state in enumerate(attempts):
            if number == 2:
                self.restart()
            outputs.append(checked(self._applied(rows, state)))
            if number != 0 or not self.repeat:
                state.commit()
            if number == 1:
                written = _versions(self.folder)
        if self.repeat:
            assert all(_listed(one) == _listed(outputs[0]) for one in outputs), "a repeated batch gives the same"
            assert _versions(self.folder) == written, "a repeated batch writes nothing"
        self.batch_id += 1
        return outputs[-1]

    def _applied(self, rows: pa.Table, state: State) -> pa.Table:
        if self.spark is not None:
            return self.stage.apply(self.stage.prepare(self.spark.createDataFrame(rows.combine_chunks())), state)
        index = self.stage.opened(state)
        index.advance(state.batch_id)
        columns = _columns(rows, _micros(self.now))
        told, more = self.stage.step(columns.drop_columns("late"), index, state, lambda places: _late(columns, places))
        self.more = list(more)
        return told

    def _placed(self, stream: str, rows: Sequence[Row]) -> pa.Table:
        table = from_rows({"time": self.now, **row} for row in rows)
        columns = {name: table[name] for name in table.column_names}
        columns |= {"shard": shards_of(table["object"], 4), "seq": [next(self._seqs) for _ in rows]}
        columns |= {"index": [0] * len(rows)}
        placed = pa.table([columns[name] for name in SCHEMA.names], SCHEMA)
        return placed.append_column("stream", pa.repeat(pa.scalar(stream), len(rows)))


def _columns(rows: pa.Table, now: int) -> pa.Table:
    """What the stage asks Spark for."""
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
    for row in rows.to_pylist(maps_as_pydicts="lossy"):
        is_op = row["stream"] == "s.operations"
        said = row["attributes"] or {}
        name = said.get("object") if is_op else row["object"]
        size = len(row["payload"] or b"")
        late = not is_op and INLINE_BYTES < size <= MAX_PAYLOAD_BYTES
        made = {
            **{one: row[one] for one in ("stream", "seq", "source")},
            "op": said["op"] if is_op else None,
            "client": int(row["object"]) if is_op else None,
            "number": -1 if row["version"] is None else row["version"],
            "object": name,
            "key": key_of(name or ""),
            "gateway": said.get("gateway") if is_op else None,
            "payload": None if is_op or late or size > INLINE_BYTES else row["payload"],
            "late_bytes": size if late else 0,
            "late": row["payload"] if late else None,
            "place": len(found["place"]),
            "time": now,
            "written": _micros(row["time"]) if is_op else None,
        }
        for column, values in found.items():
            values.append(made[column])
    return pa.table(found, COLUMNS)


def _late(columns: pa.Table, places: list[int]) -> pa.Table:
    rows = columns.select(["place", "object", "late"])
    return rows.filter(pc.is_in(rows["place"], pa.array(places, pa.int64())))


def _micros(time: dt.datetime) -> int:
    return int(time.timestamp() * 1_000_000)


COLUMNS = pa.schema(
    [
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("op", pa.string()),
        ("client", pa.int64()),
        ("number", pa.int64()),
        ("object", pa.string()),
        ("key", pa.int64()),
        ("gateway", pa.string()),
        ("source", pa.string()),
        ("payload", pa.binary()),
        ("late_bytes", pa.int64()),
        ("late", pa.binary()),
        ("place", pa.int64()),
        ("time", pa.int64()),
        ("written", pa.int64()),
    ]
)


def answers(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows of the notifications, short: `(7, "notify", "alice", 3)`."""
    found = []
    for row in table.to_pylist(maps_as_pydicts="lossy"):
        said = row["attributes"]
        parts = [int(row["object"]), said["say"], said.get("object"), row["version"], row["payload"]]
        parts += [int(said["count"])] if "count" in said else []
        found.append(tuple(part for part in parts if part is not None))
    return sorted(found, key=repr)
