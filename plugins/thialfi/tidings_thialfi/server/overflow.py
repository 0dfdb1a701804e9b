"""Scratch tables: where rows wait when their own table cannot be written, so that the others need not wait for it.

A row's place is computed from its key and the number of the attempt: the first place that can be written gets it. So
rows of one object come to one place while all goes well there, and replace each other: what waits is the latest, for
however long. When the table can be written again, what waits is added to it.

Whether a table can be written is tried before each batch. One that fails in the midst of a batch fails the pipeline; it
is found out when the pipeline is started again and repeats the batch.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.errors import LogUnavailable
from tidings.storage.sorted_run_file import Layout, longs
from tidings_thialfi.protocol.digests import items

if TYPE_CHECKING:
    from tidings.stages.state import State

SCRATCH_TABLES = 4  # of each table
PLACEMENT_ATTEMPTS = 64  # so that a row is as good as sure to try every place

logger = logging.getLogger(__name__)


def name_of(table: str, place: int) -> str:
    """The name of a scratch table.

    >>> name_of("objects", 2)
    'scratch-2.objects'
    """
    return f"scratch-{place}.{table}"


def folders(folder: Path, table: str) -> Iterator[Path]:
    """The scratch tables of a table that are there."""
    for place in range(SCRATCH_TABLES):
        found = folder / name_of(table, place)
        if found.exists():
            yield found


def writable(place: Path) -> bool:
    """Whether a table's folder can be written; one that is not there can be made."""
    log = place / "_delta_log"
    if not place.exists():
        return True
    try:
        with tempfile.TemporaryFile(dir=log if log.exists() else place):
            return True
    except OSError:
        return False


def put(state: State, table: str, rows: pa.Table, layout: Layout) -> None:
    """Plan to write rows to scratch tables, in the place of what they replace; `LogUnavailable` if none can be written.

    `layout` says which rows are alike.
    """
    good = np.array([writable(state.folder / name_of(table, place)) for place in range(SCRATCH_TABLES)])
    keys = longs(rows, layout.key)
    chosen = np.full(len(rows), -1)
    for attempt in range(PLACEMENT_ATTEMPTS):
        places = (items(np.full(len(rows), attempt), keys) % np.uint64(SCRATCH_TABLES)).astype(np.int64)
        chosen = np.where((chosen < 0) & good[places], places, chosen)
    if (chosen < 0).any():
        raise LogUnavailable(f"neither table {state.folder / table} nor the scratch tables beside it can be written")
    for place in np.unique(chosen).tolist():
        scratch = state.table(name_of(table, place), rows.schema)
        waiting = pa.concat_tables([scratch.read(), rows.filter(pa.array(chosen == place))])
        scratch.replace(layout.newest(waiting))
    if len(rows):
        logger.warning("table %s cannot be written: %d rows wait beside it", state.folder / table, len(rows))


def take(state: State, table: str, schema: pa.Schema) -> pa.Table:
    """What waits for a table, and plan to empty the scratch tables; to be called as the table is written."""
    waiting = [schema.empty_table()]
    for folder in folders(state.folder, table):
        if not writable(folder):
            continue  # it would be taken again and again
        scratch = state.table(folder.name, schema)
        with contextlib.suppress(OSError):
            rows = scratch.read()
            if len(rows):
                waiting.append(rows)
                scratch.replace(schema.empty_table())
    return pa.concat_tables(waiting)
