"""What a stage keeps between batches: Delta tables in the pipeline's own folder.

A stage reads its tables as they were before the batch, and what it writes is committed when its output is in the log,
once for each batch: every commit carries the batch's number as Delta's own application transaction. So whatever part of
a batch was carried out before a driver died, the batch can be repeated, and gives the same.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import InvalidOption, LogMismatch, LogUnavailable
from tidings.names import check_name
from tidings.storage import delta_staging
from tidings.storage.delta_commits import Action, Commits, added, done, milliseconds
from tidings.storage.delta_rs import containing_panics

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

MAX_COMMIT_ATTEMPTS = 20  # of a commit that other writers of the table come before
MAINTENANCE_INTERVAL_VERSIONS = 16
APPEND_MAINTENANCE_INTERVAL_VERSIONS = 128  # of those that only add a file: who adds one need not read the others
MAX_STATISTICS_CHARACTERS = 100  # of a text in a file's statistics
KEPT_HOURS = 1  # readers that have just begun still find the files of the version that they read
CONFIGURATION = {
    "delta.logRetentionDuration": f"interval {KEPT_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
}


class State:
    """The tables of one stage, for one batch. `heads` is what the batches of one run share: how far the tables are."""

    def __init__(self, folder: Path, app: str, batch_id: int, heads: dict[str, Head] | None = None) -> None:
        self.folder = folder
        self.app = app
        self.batch_id = batch_id
        self._heads = {} if heads is None else heads
        self._tables: dict[str, Table] = {}

    def table(
        self, name: str, schema: pa.Schema, *, partition_by: Sequence[str] = (), fixed: Mapping[str, int | str] = {}
    ) -> Table:
        """The table of this name; it comes into being when something is first written.

        `fixed` are options of the stage that cannot change as long as there is the table: it remembers them.
        """
        if name not in self._tables:
            place = self.folder / check_name("a table", name)
            remembered = {f"tidings.{key}": str(value) for key, value in fixed.items()}
            head = self._heads.setdefault(name, Head(place, self.app))
            self._tables[name] = Table(place, schema, tuple(partition_by), remembered, self.batch_id, head)
        return self._tables[name]

    def commit(self) -> None:
        """Carry out what the stage wrote. Called by the pipeline, once the batch's output is durable."""
        for table in self._tables.values():
            table.commit()


class Head:
    """The newest version of a table, as far as it is known here, and the last batch of the application in it."""

    def __init__(self, folder: Path, app: str) -> None:
        self.app = app
        self.commits = Commits(folder)
        self._version = self._batch_id = -1

    def newest(self, open_table: Callable[[], DeltaTable]) -> tuple[int, int]:
        """The newest version and batch; the table is opened only if there is no other way to know."""
        while self._version >= 0 and (commit := self.commits.read(self._version + 1)) is not None:
            self._version += 1
            for action in commit:
                if (batch := action.get("txn")) and batch["appId"] == self.app:
                    self._batch_id = batch["version"]
        if self._version < self.commits.checkpointed() or self._version < 0:
            table = open_table()
            known = table.transaction_version(self.app)
            self._version, self._batch_id = table.version(), -1 if known is None else known
        return self._version, self._batch_id


class Table:
    """A Delta table of a stage's. Each batch reads it as it was before the batch, and writes it at most once."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        partition_by: tuple[str, ...],
        fixed: Mapping[str, str],
        batch_id: int,
        head: Head,
    ) -> None:
        self.folder = folder
        self.schema = schema
        self._partition_by = partition_by
        self._fixed = fixed
        self._app = head.app
        self._batch_id = batch_id
        self._head = head
        self._pending: Callable[[], None] | None = None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, in the driver."""
        table = self._before()
        names = list(columns) if columns is not None else self.schema.names
        if table is None:
            return self.schema.empty_table().select(names)
        with containing_panics(self.folder):
            rows = pa.table(table.to_pyarrow_table(columns=names))
        return rows.cast(pa.schema([self.schema.field(name) for name in names]))

    def scan(self, spark: SparkSession) -> DataFrame:
        """The rows as a DataFrame, read in parallel by Spark; worth it for a large table only."""
        table = self._before()
        if table is None:
            return spark.createDataFrame(self.schema.empty_table())
        return spark.read.format("delta").option("versionAsOf", table.version()).load(str(self.folder))

    def append(self, rows: DataFrame | pa.Table) -> None:
        """Add rows."""
        self._plan(lambda: self._write(rows, "append") if self._partition_by else self._add(rows))

    def replace(self, rows: DataFrame | pa.Table) -> None:
        """Put these rows in the place of all that are there."""
        self._plan(lambda: self._write(rows, "overwrite"))

    def merge(self, rows: DataFrame | pa.Table, key: Sequence[str], *, update_if: str = "true") -> None:
        """Add rows whose key is new; of the others, those for which `update_if` holds replace the row that is there.

        `update_if` is SQL over `old` and `new`. The rows have each key once. Of a table that is partitioned, only the
        partitions that the rows fall into are read and written.
        """
        self._plan(lambda: self._merge(rows, key, update_if))

    def commit(self) -> None:
        """Carry out what was planned, unless this batch did so before."""
        if self._pending is not None:
            self._pending()

    def _plan(self, write: Callable[[], None]) -> None:
        if self._pending is not None:
            raise InvalidOption(f"a stage writes table {self.folder.name!r} once in a batch, not twice")
        self._pending = write

    def _write(self, rows: DataFrame | pa.Table, mode: Any) -> None:
        from deltalake import write_deltalake

        found = self._rows(rows)
        if len(found) or mode == "overwrite":
            self._commit(lambda table, properties: write_deltalake(table, found, mode=mode, **properties))

    def _add(self, rows: DataFrame | pa.Table) -> None:
        """Append a file, and what it takes is its own size, not the table's."""
        found = self._rows(rows)
        version, batch_id = self._head.newest(self._opened)
        if not len(found) or batch_id >= self._batch_id:
            return
        if version and version % APPEND_MAINTENANCE_INTERVAL_VERSIONS == 0:
            _maintain(self.folder)
        file = _written(self.folder, found)
        actions = [done(self._app, self._batch_id), file]
        while not self._head.commits.put(version + 1, actions):
            version, batch_id = self._head.newest(self._opened)
            if batch_id >= self._batch_id:
                return

    def _merge(self, rows: DataFrame | pa.Table, key: Sequence[str], update_if: str) -> None:
        found = self._rows(rows)
        if not len(found):
            return
        same = [f"old.{name} = new.{name}" for name in key]
        # Values, and not only the equality above, are what delta-rs tells by which files it need not read.
        within = [f"old.{name} in ({_listed(found[name])})" for name in self._partition_by]

        def merge(table: DeltaTable, properties: dict[str, Any]) -> None:
            merger = table.merge(found, " and ".join([*same, *within]), "new", "old", **properties)
            merger.when_matched_update_all(update_if).when_not_matched_insert_all().execute()

        self._commit(merge)

    def _rows(self, rows: DataFrame | pa.Table) -> pa.Table:
        found = rows if isinstance(rows, pa.Table) else rows.toArrow()
        return found.select(self.schema.names).cast(self.schema)

    def _commit(self, write: Callable[[DeltaTable, dict[str, Any]], None]) -> None:
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        properties = {
            "commit_properties": CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction(self._app, self._batch_id)]
            ),
            "post_commithook_properties": PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        }
        for _ in range(MAX_COMMIT_ATTEMPTS):
            version, batch_id = self._head.newest(self._opened)
            if batch_id >= self._batch_id:
                return
            if version and version % MAINTENANCE_INTERVAL_VERSIONS == 0:
                _maintain(self.folder)
            if delta_staging.write(self.folder, lambda table: write(table, properties)):
                return
        raise LogUnavailable(f"other writers kept the table in {self.folder} busy: a pipeline's tables are its own")

    def _opened(self) -> DeltaTable:
        """The table; made, if it is not there yet."""
        from deltalake import DeltaTable

        delta_staging.create(
            self.folder,
            self.schema,
            partition_by=list(self._partition_by) or None,
            configuration={**CONFIGURATION, **self._fixed},
        )
        self._head.commits.check()
        with containing_panics(self.folder):
            table = DeltaTable(self.folder)
            self._check_fixed(table)
        return table

    def _before(self) -> DeltaTable | None:
        """The table as it was before this batch."""
        from deltalake import DeltaTable

        if self._head.commits.newest() < 0:
            return None
        self._head.commits.check()
        with containing_panics(self.folder):
            table = DeltaTable(self.folder)
            while self._done(table):
                table.load_as_version(table.version() - 1)
        return table

    def _check_fixed(self, table: DeltaTable) -> None:
        known = table.metadata().configuration
        for key, value in self._fixed.items():
            if known.get(key) != value:
                option = key.removeprefix("tidings.")
                raise LogMismatch(
                    f"the table in {self.folder} was made with {option} = {known.get(key)}, not {value}: "
                    "set that back, or give the pipeline another name"
                )

    def _done(self, table: DeltaTable) -> bool:
        known = table.transaction_version(self._app)
        return known is not None and known >= self._batch_id


def _maintain(folder: Path) -> None:
    """Clean up. Before a write and not after it: of what was, a repeated batch needs the version that is newest now."""
    delta_staging.checkpoint(folder)
    delta_staging.vacuum(folder, KEPT_HOURS)


def _written(folder: Path, rows: pa.Table) -> Action:
    """A file with these rows, which is part of the table once a commit says so."""
    path = folder / f"part-{uuid.uuid4()}.zstd.parquet"
    collected: list[Any] = []
    try:
        with open(path, "xb") as file:
            pq.write_table(rows, file, compression="zstd", compression_level=1, metadata_collector=collected)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return added(path.name, path.stat().st_size, milliseconds(), _statistics(collected[0]))


def _statistics(metadata: Any) -> dict[str, Any]:
    """Row count, and the bounds of numbers and short texts, by which readers skip files."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for at in range(metadata.num_columns):
        each = [group.column(at).statistics for group in groups]
        name = metadata.schema.column(at).path
        if all(one is not None and one.has_min_max and isinstance(one.min, int | str) for one in each):
            low, high = min(one.min for one in each), max(one.max for one in each)
            if len(str(low)) < MAX_STATISTICS_CHARACTERS and len(str(high)) < MAX_STATISTICS_CHARACTERS:
                found["minValues"][name], found["maxValues"][name] = low, high
                found["nullCount"][name] = sum(one.null_count for one in each)
    return found


def _listed(values: pa.ChunkedArray) -> str:
    literals = (repr(value) if isinstance(value, int) else _quoted(str(value)) for value in values.unique().to_pylist())
    return ", ".join(literals)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
