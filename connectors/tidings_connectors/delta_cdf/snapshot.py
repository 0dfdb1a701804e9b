"""What a Delta table gives for a snapshot: its rows in one version, which stand after the changes of that version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.errors import LogUnavailable
from tidings.positions import Bounds
from tidings.storage.delta_rs import containing_panics
from tidings_connectors.cdc import snapshot
from tidings_connectors.cdc.snapshot import ConsistentState, Piece
from tidings_connectors.delta_cdf.columns import column_of
from tidings_connectors.delta_cdf.table import FedTable

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True)
class Version:
    """The table in one version. It has no order in which one could go on, so it is read from the beginning."""

    schema: str
    table: str
    key: Sequence[str]
    rows: DeltaTable
    order: tuple[str, ...] = ()

    def pieces(self, last: list[str] | None) -> Iterator[Piece]:
        from deltalake import QueryBuilder
        from deltalake.exceptions import DeltaError

        try:
            with containing_panics(Path(self.rows.table_uri)):
                for batch in QueryBuilder().register("rows", self.rows).execute("SELECT * FROM rows"):
                    rows = pa.record_batch(batch)
                    fitting = snapshot.CHUNK_BYTES * len(rows) // max(1, rows.nbytes)
                    step = max(1, min(snapshot.CHUNK_ROWS, fitting))
                    for start in range(0, len(rows), step):
                        yield self._piece(rows.slice(start, step))
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise LogUnavailable(f"table {self.schema}.{self.table} cannot be read: {error}") from None

    def _piece(self, rows: Any) -> Piece:
        return Piece([column_of(name, rows.column(name)) for name in rows.schema.names], None)


class DeltaRows:
    """A Delta table as a `SnapshotSource`."""

    base = 2**30

    def __init__(self, table: FedTable, key: Sequence[str]) -> None:
        self._table = table
        self._key = key

    def identity(self) -> str:
        return self._table.id()

    def held(self) -> Bounds:
        return self._table.bounds()

    def tables(self) -> list[tuple[str, str]]:
        folder = self._table.folder
        return [(folder.parent.name, folder.name)]

    @contextlib.contextmanager
    def state(self) -> Iterator[ConsistentState]:
        table = self._table.open()
        rows = Version(*self.tables()[0], self._key, table)
        yield ConsistentState(int(table.version()), datetime.now(UTC), [rows])
