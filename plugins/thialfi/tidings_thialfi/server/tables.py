"""What the service keeps: five Delta tables, which are the truth, and sorted runs made from them, which are looked up.

Rows are only ever added; of those alike the one with the largest number counts. So a row that comes twice, or late,
changes nothing, and rows may be read back in any order.

| table | one row for each | the largest of these counts |
| --- | --- | --- |
| `objects` | `object`, `unknown` | `number`: the version; or a number for an update without one (`unknown` = 1) |
| `registrations` | `client`, `object` | `rank`, which follows the client's own `number` |
| `acknowledgements` | `client`, `object`, `unknown` | `number`: what the client has acknowledged |
| `clients` | `client`, `fact` | `number` |
| `fanouts` | `object` | `rank`; see `fanout` |

`key` is an object's 64-bit key, by which rows are found, and no more: names can be made to have one key. Times are
microseconds since 1970. `app` and `batch` say which batch of which checkpoint a row comes from: a repeated batch leaves
out what it wrote itself, and runs find what they have not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.storage.sorted_run_file import Layout
from tidings.storage.sorted_runs import Runs, RunsSnapshot
from tidings_thialfi.server import overflow
from tidings_thialfi.server.expiry import Expiry

if TYPE_CHECKING:
    from tidings.stages.state import State

OBJECTS = pa.schema(
    [
        ("key", pa.int64()),
        ("unknown", pa.int64()),
        ("number", pa.int64()),
        ("base", pa.int64()),  # of an unknown version: the version known when it came; a later one supersedes it
        ("object", pa.string()),
        ("source", pa.string()),
        ("payload", pa.binary()),
        ("time", pa.int64()),
    ]
)
REGISTRATIONS = pa.schema(
    [
        ("client", pa.int64()),
        ("key", pa.int64()),
        ("rank", pa.int64()),
        ("number", pa.int64()),
        ("registered", pa.bool_()),
        ("since", pa.int64()),  # the number with which it became registered, and has been since
        ("object", pa.string()),
        ("application", pa.string()),
        ("time", pa.int64()),
    ]
)
ACKNOWLEDGEMENTS = pa.schema(
    [
        ("client", pa.int64()),
        ("key", pa.int64()),
        ("unknown", pa.int64()),
        ("number", pa.int64()),
        ("object", pa.string()),
    ]
)
CLIENTS = pa.schema(
    [
        ("client", pa.int64()),
        ("fact", pa.int64()),
        ("number", pa.int64()),
        ("holds", pa.bool_()),
        ("time", pa.int64()),
        ("application", pa.string()),
        ("gateway", pa.string()),
    ]
)
QUEUE = 0
FANOUTS = pa.schema(
    [
        ("queue", pa.int64()),  # there is one, `QUEUE`, by which all rows are found
        ("object", pa.string()),
        ("key", pa.int64()),
        ("rank", pa.int64()),
        ("turn", pa.int64()),  # the smallest comes next
        ("parts", pa.int64()),
        ("size", pa.int64()),  # of a part, about
        ("next", pa.int64()),
        ("left", pa.int64()),
    ]
)
STAMP = (pa.field("app", pa.string()), pa.field("batch", pa.int64()))
TABLES = {
    "objects": OBJECTS,
    "registrations": REGISTRATIONS,
    "acknowledgements": ACKNOWLEDGEMENTS,
    "clients": CLIENTS,
    "fanouts": FANOUTS,
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableView:
    """Runs over a table: what they are sorted by, and which of their rows are alike."""

    table: str
    key: str
    identity: tuple[str, ...]
    order: str

    @property
    def schema(self) -> pa.Schema:
        """The columns of the runs."""
        return TABLES[self.table]

    def layout(self, schema: pa.Schema) -> Layout:
        """Which rows are alike, in rows of this schema."""
        return Layout(schema, self.key, self.identity, self.order, 1)


VIEWS = {
    "objects": TableView("objects", "key", ("unknown", "object"), "number"),
    "registered_for": TableView("registrations", "key", ("client", "object"), "rank"),
    "registrations_of": TableView("registrations", "client", ("object",), "rank"),
    "acknowledgements": TableView("acknowledgements", "client", ("object", "unknown"), "number"),
    "clients": TableView("clients", "client", ("fact",), "number"),
    "fanouts": TableView("fanouts", "queue", ("object",), "rank"),
}

WHOLE = {
    "objects": "objects",
    "registrations": "registrations_of",
    "acknowledgements": "acknowledgements",
    "clients": "clients",
    "fanouts": "fanouts",
}
"""For each table the view that has all its columns."""

Rows = Mapping[str, pa.Table]
"""Rows for the tables, by name."""


class Index:
    """The runs of one service, as its tables were before a batch.

    What a batch writes is taken over when the next one begins, since only then is it sure to be in the tables. Runs
    that were lost, or that have not seen all, are made up from the tables.
    """

    def __init__(self, folder: Path, app: str, parts: int) -> None:
        self.expiry = Expiry()
        self.expiry.registrations = lambda clients: self["registrations_of"].lookup(clients)
        self.folder = folder
        self.app = app
        self.parts = parts
        self._runs: dict[str, Runs] = {name: self._open(name, view) for name, view in VIEWS.items()}
        self._behind = set(VIEWS)
        self._written: tuple[int, Rows] | None = None
        self._waiting = {name for name in TABLES if any(overflow.folders(folder, name))}

    def __getitem__(self, name: str) -> Runs:
        return self._runs[name]

    def advance(self, batch_id: int) -> None:
        """Bring the runs to where the tables were before this batch."""
        if self._written is not None and self._written[0] < batch_id:
            before, rows = self._written
            for name, view in VIEWS.items():
                if name not in self._behind and len(rows[view.table]):
                    self._runs[name].append(rows[view.table], {"app": self.app, "batch": before})
            self._written = None
        for name in sorted(self._behind):
            self._catch_up(name, VIEWS[name], batch_id)
            self._behind.discard(name)

    def snapshot(self) -> dict[str, RunsSnapshot]:
        """All that the tables held before the batch to which the index was brought, by table."""
        return {table: self._runs[name].snapshot() for table, name in WHOLE.items()}

    def write(self, state: State, rows: Rows) -> None:
        """Plan to write the batch's rows to the tables, and remember them for the runs."""
        for name, schema in TABLES.items():
            made = stamped(rows[name].select(schema.names).cast(schema), state.app, state.batch_id)
            self._plan(state, name, made)
        self._written = (state.batch_id, rows)

    def _plan(self, state: State, name: str, rows: pa.Table) -> None:
        if not overflow.writable(state.folder / name):
            overflow.put(state, name, rows, VIEWS[WHOLE[name]].layout(rows.schema))
            self._waiting.add(name)
            return
        table = state.table(name, rows.schema)
        if name in self._waiting:
            # Only once another batch comes is it sure that they are in the table.
            waited = overflow.take(state, name, rows.schema)
            if not len(waited):
                self._waiting.discard(name)
            rows = pa.concat_tables([rows, waited])
        table.append(rows)

    def close(self) -> None:
        """Stop merging."""
        for runs in self._runs.values():
            runs.close()

    def _open(self, name: str, view: TableView) -> Runs:
        place = self.folder / "runs" / name
        return Runs(
            place,
            view.schema,
            key=view.key,
            identity=view.identity,
            order=view.order,
            parts=self.parts,
            forget=lambda rows: self.expiry.dead(view.table, rows),
        )

    def _catch_up(self, name: str, view: TableView, batch_id: int) -> None:
        ours = pc.field("app") == self.app
        note = self._runs[name].note or {}
        if note.get("app") == self.app and note["batch"] < batch_id:
            for rows in self._read(view, ours & (pc.field("batch") > note["batch"]) & (pc.field("batch") < batch_id)):
                self._runs[name].append(rows)
            self._runs[name].append(view.schema.empty_table(), {"app": self.app, "batch": batch_id - 1})
            return
        logger.info("the runs %s are made from table %s", self.folder / "runs" / name, view.table)
        rows_of_all = self._read(view, ~(ours & (pc.field("batch") >= batch_id)))
        self._runs[name].rebuild(rows_of_all, {"app": self.app, "batch": batch_id - 1})

    def _read(self, view: TableView, condition: Any) -> Iterator[pa.Table]:
        from deltalake import DeltaTable

        for place in (self.folder / view.table, *overflow.folders(self.folder, view.table)):
            if not DeltaTable.is_deltatable(str(place)):
                continue
            dataset = DeltaTable(place).to_pyarrow_dataset()
            for batch in dataset.scanner(columns=view.schema.names, filter=condition).to_batches():
                if len(batch):
                    yield pa.Table.from_batches([batch]).cast(view.schema)


def stamped(rows: pa.Table, app: str, batch_id: int) -> pa.Table:
    """The rows of a table, with where they come from."""
    values = (pa.scalar(app, pa.string()), pa.scalar(batch_id, pa.int64()))
    for field, value in zip(STAMP, values, strict=True):
        rows = rows.append_column(field, pa.repeat(value, len(rows)))
    return rows


def row_counts(folder: Path) -> dict[str, int]:
    """How many rows each table in this folder has, those included that newer ones have replaced."""
    from deltalake import DeltaTable

    there = [name for name in TABLES if DeltaTable.is_deltatable(str(folder / name))]
    return {name: DeltaTable(folder / name).count() for name in there}
