"""Compaction: the tables without rows that newer ones have replaced, and in few files, made in the background.

A table only grows, by a file a batch. When most of its rows are replaced, what the runs held before some batch is
written in the place of all rows up to it; nothing that the pipeline appends meanwhile is touched. When it merely has
many small files, those are joined. Either can fail or be killed, and is tried again later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping

import pyarrow as pa

from tidings.errors import LogUnavailable
from tidings.storage import delta_staging
from tidings.storage.sorted_runs import RunsSnapshot
from tidings_thialfi.server.tables import STAMP, TABLES, Index, stamped

COMPACTION_INTERVAL_BATCHES = 64
MAX_FILES = 64  # of a table, before they are joined
SPARE_ROWS = 100_000  # that may be replaced, in any case

logger = logging.getLogger(__name__)


class Compactor:
    """Compacts the tables of one service, one at a time, in a thread that comes and goes."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def look(self, index: Index, batch_id: int, every: int = COMPACTION_INTERVAL_BATCHES) -> None:
        """See to it every so many batches. The index is as before this batch."""
        if batch_id % every or not batch_id or (self._thread is not None and self._thread.is_alive()):
            return
        work = (index, batch_id - 1, index.snapshot())
        self._thread = threading.Thread(target=self._run, args=work, name="tidings-thialfi-compaction", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, index: Index, batch_id: int, tables: Mapping[str, RunsSnapshot]) -> None:
        from deltalake.exceptions import DeltaError

        for name, held in tables.items():
            try:
                compact(index, name, batch_id, held)
            except (DeltaError, OSError, LogUnavailable) as error:
                logger.warning("table %s was not compacted, and will be later: %s", index.folder / name, error)


def compact(index: Index, name: str, batch_id: int, held: RunsSnapshot) -> str | None:
    """Compact a table, of which `held` are the newest rows up to this batch; what was done, if anything."""
    from deltalake import DeltaTable, write_deltalake

    place = index.folder / name
    if not DeltaTable.is_deltatable(str(place)):
        return None
    table = DeltaTable(place)
    if table.count() > 2 * held.rows + SPARE_ROWS:
        schema = pa.schema([*TABLES[name], *STAMP])
        rows = pa.RecordBatchReader.from_batches(schema, _batches(index, name, batch_id, held, schema))
        # The names of checkpoints are Spark's, and have no quote in them.
        up_to = f"app <> '{index.app}' or batch <= {batch_id}"
        done = delta_staging.rewrite(
            place, lambda stand_in: write_deltalake(stand_in, rows, mode="overwrite", predicate=up_to)
        )
        return "rewritten" if done else None
    if len(table.file_uris()) > MAX_FILES and delta_staging.rewrite(
        place, lambda stand_in: stand_in.optimize.compact()
    ):
        return "joined"
    return None


def _batches(index: Index, name: str, batch_id: int, held: RunsSnapshot, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in range(held.manifest.layout.parts):
        rows = held.scan(part)
        rows = rows.filter(pa.array(~index.expiry.dead(name, rows)))
        yield from stamped(rows.select(TABLES[name].names), index.app, batch_id).cast(schema).to_batches()
