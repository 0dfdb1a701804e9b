"""The rows that were there before the log: read once in a consistent state, kept as Parquet, and put into the log.

A datastore tells what its tables look like just between two transactions, and that is where the rows stand: after the
last transaction that they show, before the next. They are read in chunks, in the order of a key. Each chunk is a file
of canonical rows, which is durable before the next is read, and a note says how far it is.

Who is interrupted cannot have that state again. The remaining keys are read in a later one, and its rows stand there:
each state is a `SnapshotRun` of rows. Until the last one is complete, readers that come to it wait there.

That is for all who read the log. A *late* snapshot is for those who begin when its rows are gone, and one *on demand*
for applications that an operator names: these stand aside, at indexes that nothing else has, and whoever follows the
log goes by without seeing them. Each is of one state, and read only when it is complete; so one that was interrupted
begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import re
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import model_validator

from tidings.errors import LogUnavailable, TidingsError
from tidings.positions import START, Bounds, Position
from tidings.storage import durable
from tidings.updates import SCHEMA
from tidings_connectors.cdc.changes import SNAPSHOT, Changes, Column, table_name
from tidings_connectors.cdc.mapping import RowMapping, updates_of
from tidings_connectors.cdc.snapshot_note import LATE_BASE, Aside, Chunk, Note, SnapshotRun, TableProgress

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

CHUNK_ROWS = 50_000
CHUNK_BYTES = 64 * 2**20
RETRY_DELAY_S = 5.0  # until a snapshot that failed is gone on with
CLOSE_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 1.0  # between two looks whether somebody else still takes it
PROGRESS_INTERVAL_S = 10.0  # between two messages of how far it is
RELEASE_DELAY_S = 10.0  # for which rows stay that every flow has passed: somebody may begin with them just now
HOLD_TIMEOUT_S = 1.0  # for who deletes rows to be done with it
LOCK_FILE = "lock"
OWN_FILES = re.compile(r"(note\.json|[0-9a-f]{32}\.parquet)(\.tmp)?")

logger = logging.getLogger(__name__)


class SnapshotOptions(RowMapping):
    """The options of a stream that say what comes before the log: those of every datastore, and these."""

    snapshot: bool = False
    """Whether the rows that are there already come first."""
    on_data_loss: Literal["oldest", "snapshot"] = "oldest"
    """What follows when something was lost: the oldest that the log still holds, or all rows as they are then."""
    snapshot_folder: str | None = None
    """Where those rows are kept: a folder that every process of the cluster sees."""

    @model_validator(mode="after")
    def _has_a_folder(self) -> SnapshotOptions:
        if self.snapshot_folder is None and (self.snapshot or self.on_data_loss == "snapshot"):
            raise ValueError("a snapshot needs the option 'snapshot_folder'")
        if self.snapshot_folder is not None and not Path(self.snapshot_folder).is_absolute():
            raise ValueError("'snapshot_folder' is read by processes that run anywhere: begin it with a /")
        return self


class Piece(NamedTuple):
    """Some rows of a table: its columns, and the key of the last row, by which one can go on."""

    columns: Sequence[Column]
    last: list[str] | None


class SourceTable(Protocol):
    """A table in one state of the datastore."""

    @property
    def schema(self) -> str: ...

    @property
    def table(self) -> str: ...

    @property
    def key(self) -> Sequence[str]:
        """The columns that name an object."""

    @property
    def order(self) -> Sequence[str]:
        """The columns in whose order it is read; none, if there is no order in which one could go on."""

    def pieces(self, last: list[str] | None) -> Iterator[Piece]:
        """The rows after this key, or all; at most `CHUNK_ROWS`, and about `CHUNK_BYTES`, at a time."""


class ConsistentState(NamedTuple):
    """What the tables look like at one place in the log."""

    seq: int
    """The rows have this `seq`: they stand before the first update of the next one."""
    time: datetime
    tables: Sequence[SourceTable]


class SnapshotSource(Protocol):
    """What a datastore does for a snapshot."""

    base: int
    """The index of the first row of a run: after those of any update with the same `seq`."""

    def identity(self) -> str:
        """Which datastore it is, wherever it is and whichever replica is read; nothing if that cannot be told."""

    def state(self) -> AbstractContextManager[ConsistentState]:
        """A state of now. From there on the datastore keeps its log, if it does not do so already."""

    def held(self) -> Bounds | None:
        """What the log itself holds, now; None if it has to begin anew."""

    def tables(self) -> Sequence[tuple[str, str]]:
        """The tables whose rows a state has, by schema and name; raise if they may not be read."""


class Closed(Exception):
    """The log was closed while a snapshot was taken."""


class StreamSnapshot:
    """The snapshot of one stream, in a folder that every process of the cluster sees."""

    def __init__(
        self,
        source: SnapshotSource,
        stream: StreamDefinition,
        folder: Path,
        mapping: RowMapping,
        *,
        aside: Aside | None = None,
    ) -> None:
        """With `aside` its rows are not for all who follow the log."""
        self.folder = folder
        self._source = source
        self._aside = aside
        self._stream = stream.name
        self._id = stream.id
        self._mapping = mapping
        self._shards = stream.shards
        self._lock = threading.Lock()
        self._known: tuple[object, Note] = (None, Note())
        self._thread: threading.Thread | None = None
        self._failed: TidingsError | None = None
        self._retry = 0.0
        self._closed = threading.Event()

    def note(self) -> Note:
        """How far it is; looked up again only if somebody has written it since."""
        path = self.folder / "note.json"
        try:
            found = path.stat()
            written = (found.st_mtime_ns, found.st_ino)
            if self._known[0] != written:
                text, _, checksum = path.read_bytes().rpartition(b"\n")
                if checksum != b"%08x" % zlib.crc32(text):
                    raise ValueError("its checksum is wrong")
                note = Note.model_validate_json(text)
                if note.of != self._of:
                    raise LogUnavailable(
                        f"the snapshot in {self.folder} is not of stream {self._stream!r} as it is now (another stream "
                        "or datastore had that name, or an earlier version has written it): delete the folder to begin "
                        "anew, or name another by 'snapshot_folder'"
                    )
                self._known = written, note
            return self._known[1]
        except FileNotFoundError:
            return Note()
        except OSError as error:
            raise self._unusable(error) from error
        except ValueError as error:
            raise LogUnavailable(
                f"the note of the snapshot in {self.folder} cannot be read ({error.__class__.__name__}): delete the "
                f"folder to begin anew"
            ) from error

    def covers(self, since: Position = START) -> bool:
        """Whether readers that go on with the oldest held, or after `since`, come by all rows."""
        note = self.note()
        return self._joins(note) and note.runs[0].after >= since

    def take(self, again: bool = False, since: Position = START) -> None:
        """Read what was not read yet; with `again`, all, if what was read before does not cover what was lost `since`.

        Of several processes that do this at once one works, and the others wait for it.
        """
        while self._wanted(again, since):
            with self._alone() as alone:
                if alone and self._wanted(again, since):
                    self._take()
            if not alone and self._closed.wait(LOCK_POLL_INTERVAL_S):
                raise Closed

    def start(self, again: bool = False, since: Position = START) -> None:
        """Do that in the background, unless it is being done."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            if not busy and time.monotonic() >= self._retry and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._take_quietly, args=(again, since), name="tidings-snapshot", daemon=True
                )
                self._thread.start()

    def begin(self, again: bool = False) -> None:
        """Do that in the background, and return when it has a place in the log."""
        self.start(again)
        while not self.covers():
            assert self._thread is not None
            self._thread.join(0.1)
            if not self._thread.is_alive() and not self.covers():
                raise self._failed or LogUnavailable(f"the snapshot of stream {self._stream!r} was not begun")

    def rows(self, run: SnapshotRun, index: int) -> tuple[pa.Table, int]:
        """Rows of a run from this index on, to the end of a chunk, and the index after them; none if it is over."""
        for chunk in run.chunks:
            end = chunk.first + chunk.rows
            if index < end:
                try:
                    content = (self.folder / chunk.file).read_bytes()
                except OSError as error:
                    raise self._unusable(error) from error
                if zlib.crc32(content) != chunk.checksum:
                    raise LogUnavailable(
                        f"{self.folder / chunk.file} is damaged, which has rows of a snapshot: delete the folder, and "
                        "start the publishers of the stream again, to begin anew"
                    )
                return pq.read_table(pa.BufferReader(content)).slice(max(0, index - chunk.first)), end
        return SCHEMA.empty_table(), index

    def release(self, slowest: Position) -> None:
        """Every flow has come to this place: delete the rows, if all have passed them for a while.

        Not at once, since who asks does not know of those that begin at this moment.
        """
        if self._changed_by(slowest, self.note()) is None:
            return
        with self._alone() as alone:
            note = self.note()
            changed = self._changed_by(slowest, note) if alone else None
            if changed is not None:
                self._write(changed)
                for chunk in (chunk for run in note.runs if not changed.runs for chunk in run.chunks):
                    (self.folder / chunk.file).unlink(missing_ok=True)

    def _changed_by(self, slowest: Position, note: Note) -> Note | None:
        """The note once every flow has come to this place; None if it stays as it is."""
        if not note.runs or not (note.complete or self._aside):
            return None
        if slowest < note.runs[-1].after:
            return None if note.passed is None else note.model_copy(update={"passed": None})
        now = time.time()
        passed = now if note.passed is None else note.passed
        if now - passed >= RELEASE_DELAY_S:
            gone = [run.model_copy(update={"chunks": []}) for run in note.runs]
            return note.model_copy(update={"runs": [], "gone": gone})
        return None if note.passed is not None else note.model_copy(update={"passed": passed})

    def hold(self) -> bool:
        """Have the rows stay for one who begins with them, and will be known as a flow soon; False if they are gone."""
        until = time.monotonic() + HOLD_TIMEOUT_S
        while (note := self.note()).runs:
            if note.passed is None:
                return True
            with self._alone() as alone:
                if alone and (note := self.note()).runs:
                    self._write(note.model_copy(update={"passed": None}))
            if not alone and (time.monotonic() > until or self._closed.wait(0.01)):
                return False
        return False

    def discard(self) -> None:
        """Delete all that is kept of it."""
        self._clear()
        (self.folder / LOCK_FILE).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files may be there
            self.folder.rmdir()

    def close(self) -> None:
        """Stop, if one is being taken; who opens the log next goes on with it."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=CLOSE_TIMEOUT_S)

    @functools.cached_property
    def _of(self) -> str:
        return f"{self._id or self._stream} of {self._source.identity()}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether nobody else is at it, whichever replica they read; and nobody is, until this is left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / LOCK_FILE, "ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    alone = False
                else:
                    alone = True  # until the file is closed, or the process is gone
                yield alone
        except OSError as error:
            raise self._unusable(error) from error

    def _wanted(self, again: bool, since: Position) -> bool:
        return not self.note().complete or (again and not self.covers(since))

    def _unusable(self, error: OSError) -> LogUnavailable:
        return LogUnavailable(
            f"the snapshot of stream {self._stream!r} cannot be kept in {self.folder}: {error.strerror or error}"
        )

    def _joins(self, note: Note) -> bool:
        """Whether the log goes on from where these runs are."""
        held = self._source.held()
        return held is not None and bool(note.runs) and held.floor <= note.runs[0].after <= held.head

    def _take_quietly(self, again: bool, since: Position) -> None:
        self._failed = None
        try:
            self.take(again, since)
        except Closed:
            pass
        except TidingsError as error:
            self._failed = error
            logger.warning("the snapshot of stream %r is not complete: %s", self._stream, error)
        except Exception:
            logger.exception("the snapshot of stream %r is not complete", self._stream)
        finally:
            self._retry = time.monotonic() + RETRY_DELAY_S

    def _take(self) -> None:
        note = self.note().model_copy(deep=True)
        with self._source.state() as state:
            tables = self._chosen(state.tables)
            if self._aside or note.complete or not self._joins(note):
                self._clear()  # what came after it is gone
                note = self._new_note()
            self._go_on(note, tables)
            if not note.runs or note.runs[-1].seq != state.seq:  # else it is the same state, of which nobody read yet
                note.runs.append(
                    SnapshotRun(seq=state.seq, base=self._aside.base if self._aside else self._source.base)
                )
            self._write(note)
            for table in tables:
                self._read(table, note, state.time)
        if not self._joins(note):
            raise LogUnavailable(
                f"the log of stream {self._stream!r} does not reach back to its snapshot any more: keep the log for "
                "longer than a snapshot takes"
            )
        note.complete = True
        self._write(note)

    def _chosen(self, tables: Sequence[SourceTable]) -> Sequence[SourceTable]:
        """Those whose rows it has."""
        return tables

    def _new_note(self) -> Note:
        return Note()

    def _over(self) -> bool:
        """Whether nobody wants it any more."""
        return self._closed.is_set()

    def _go_on(self, note: Note, tables: Sequence[SourceTable]) -> None:
        """Leave out what was read of tables that are to be read from the beginning."""
        for table in tables:
            known = note.tables.get(name_of(table))
            if known is None or known.order != list(table.order) or not (known.done or known.order):
                note.tables[name_of(table)] = TableProgress(order=list(table.order))
                for run in note.runs:
                    run.chunks = [chunk for chunk in run.chunks if chunk.table != name_of(table)]

    def _read(self, table: SourceTable, note: Note, taken: datetime) -> None:
        progress, run = note.tables[name_of(table)], note.runs[-1]
        if progress.done:
            return
        begun, logged = run.end, time.monotonic()
        for columns, last in table.pieces(progress.last):
            if self._over():
                raise Closed
            count = len(columns[0].values)
            if run.end + count > (self._aside.end if self._aside else LATE_BASE) - 2:
                raise LogUnavailable(f"the tables of stream {self._stream!r} hold too many rows for a snapshot")
            rows = updates_of(_changes(table, columns, run, taken), self._mapping, self._shards)
            run.chunks.append(self._write_chunk(rows, name_of(table), run.end))
            progress.last = last
            self._write(note)
            if time.monotonic() > logged + PROGRESS_INTERVAL_S:
                logged = time.monotonic()
                logger.info("snapshot of stream %r: %s, %s rows so far", self._stream, name_of(table), run.end - begun)
        progress.done = True
        self._write(note)
        logger.info("snapshot of stream %r: %s, %s rows", self._stream, name_of(table), run.end - begun)

    def _clear(self) -> None:
        """Delete what an earlier snapshot has left behind, and nothing else that may be there."""
        for path in self.folder.glob("*") if self.folder.exists() else ():
            if OWN_FILES.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _write_chunk(self, rows: pa.Table, table: str, first: int) -> Chunk:
        pq.write_table(rows, sink := pa.BufferOutputStream())
        content, file = sink.getvalue().to_pybytes(), f"{uuid.uuid4().hex}.parquet"
        self._durably(file, content)
        return Chunk(file=file, checksum=zlib.crc32(content), table=table, first=first, rows=len(rows))

    def _write(self, note: Note) -> None:
        note.of = self._of
        text = note.model_dump_json().encode()
        self._durably("note.json", text + b"\n%08x" % zlib.crc32(text))

    def _durably(self, name: str, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        durable.replace(self.folder / name, self.folder / f"{name}.tmp", lambda path: path.write_bytes(content))


def name_of(table: SourceTable) -> str:
    """What a table is called in a note, and by who asks for its rows."""
    return table_name(table.schema, table.table)


def _changes(table: SourceTable, columns: Sequence[Column], run: SnapshotRun, time: datetime) -> Changes:
    count = len(columns[0].values)
    return Changes(
        table.schema,
        table.table,
        columns,
        table.key,
        pa.repeat(pa.scalar(SNAPSHOT), count),
        np.full(count, run.seq, np.int64),
        np.arange(run.end, run.end + count, dtype=np.int32),
        pa.repeat(pa.scalar(time, pa.timestamp("us", "UTC")), count),
    )
