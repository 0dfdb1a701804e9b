"""Writing a DataFrame into a stream.

Executors check the rows and stage them: few rows travel inside their commit message, many in an Arrow file beside the
log. The driver appends the rows of all tasks in one commit, in the order of the partitions. For a streaming query the
commit carries the query's id, the number of the micro-batch, and the offsets at which the batch ends, as a checkpoint
in a local folder notes them. The log takes each batch once, and refuses another under its number.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_tidings.options import WriteOptions
from pyspark_tidings.plain_errors import plain_errors
from tidings.collection import EXPLICIT
from tidings.errors import InvalidOption
from tidings.logs import UNKNOWN_ENDS, Transaction, WritableLog
from tidings.pipelines.checkpoint import covered, query_id
from tidings.streams import Stream
from tidings.updates import MAX_DELIVERABLE_BYTES, PUBLISHED, checked, timed, without_tombstones

INLINE_BYTES = 2**20


@dataclass
class Staged(WriterCommitMessage):
    """The rows of one task: the bytes of an Arrow stream, or the file that holds it."""

    inline: bytes | None
    file: Path | None


class _Writing:
    """What the two writers share."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Check the rows of one task and put them where the driver finds them."""
        # What stands for updates that were collected is none, and a gc event is of its own stream.
        plain = map(without_tombstones, batches)
        tables = (checked(batch, max_payload_bytes=MAX_DELIVERABLE_BYTES) for batch in plain)
        tables = (table.filter(pc.invert(EXPLICIT.mask(table))) for table in tables)
        small: list[pa.Table] = []
        size = 0
        for table in tables:
            small.append(table)
            size += table.nbytes
            if size > INLINE_BYTES:
                return Staged(None, self._spill(small, tables))
        sink = pa.BufferOutputStream()
        _write(sink, small)
        return Staged(sink.getvalue().to_pybytes(), None)

    def append(self, staged: list[WriterCommitMessage | None], transaction: Transaction | None) -> None:
        """Append what was staged, all of it or nothing."""
        messages = [one for one in staged if isinstance(one, Staged)]
        rows = pa.concat_tables([PUBLISHED.empty_table(), *map(_read, messages)])
        if len(rows) or transaction:  # a batch without rows may be one that cannot be, too
            log = self._log()
            log.append(timed(rows), transaction)
            log.close()
        self.discard(staged)

    def discard(self, staged: list[WriterCommitMessage | None]) -> None:
        for one in staged:
            if isinstance(one, Staged) and one.file:
                one.file.unlink(missing_ok=True)

    def _spill(self, first: list[pa.Table], rest: Iterator[pa.Table]) -> Path:
        folder = self._log().staging
        folder.mkdir(exist_ok=True)
        path = folder / f"{uuid.uuid4()}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as file:
                _write(file, first, rest)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _log(self) -> WritableLog:
        return Stream(self._options.stream).writable_log


class BatchWriter(DataSourceArrowWriter, _Writing):
    """Appends a DataFrame, whole or not at all."""

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.stage(iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.append(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.discard(messages)


class StreamWriter(DataSourceStreamArrowWriter, _Writing):
    """Appends each micro-batch of a query once, however often the query repeats it."""

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.stage(iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        checkpoint = self._checkpoint()
        ends = UNKNOWN_ENDS if checkpoint is None else covered(checkpoint, batchId)
        self.append(messages, Transaction(self._app(checkpoint), batchId, ends))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.discard(messages)

    def _app(self, checkpoint: Path | None) -> str:
        """Who writes: the id that Spark keeps in the checkpoint, and makes anew when the checkpoint is made anew."""
        if self._options.app:
            return self._options.app
        if checkpoint is None:
            raise InvalidOption(
                "format('tidings') cannot tell which query writes: set the option 'checkpointLocation' to a local "
                "folder, or the option 'txnAppId' to a name that no other query uses and that goes with the checkpoint"
            )
        return f"spark-query-{query_id(checkpoint)}"

    def _checkpoint(self) -> Path | None:
        """Where the query's checkpoint is, if that is a folder here."""
        place = urlparse(self._options.checkpoint or "")
        return Path(unquote(place.path)) if place.scheme in ("", "file") and place.path else None


def _write(sink: Any, *parts: Any) -> None:
    with pa.ipc.new_stream(sink, PUBLISHED, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for part in parts:
            for table in part:
                writer.write_table(table)


def _read(staged: Staged) -> pa.Table:
    source = pa.memory_map(str(staged.file)) if staged.file else pa.BufferReader(staged.inline)
    with source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()
