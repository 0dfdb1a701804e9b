"""The Delta table under a log: its segments, version after version."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import LogMismatch, LogUnavailable
from tidings.logs import Transaction
from tidings.storage import delta_staging
from tidings.storage.delta_commits import Action, Commits, Fingerprint, added, done, is_ours, removed
from tidings.storage.delta_rs import containing_panics
from tidings.updates import SCHEMA
from tidings_connectors.delta.retention import Retention
from tidings_connectors.delta.segments import Offsets, Segment, SegmentSnapshot
from tidings_connectors.delta.turns import Turns

SLEPT_S = 1800.0  # commits are kept for twice as long
LOAD_ATTEMPTS = 5  # at a table that is made anew, or restored, while it is being loaded

ENDS = "/ends"  # after an application's name: the transaction that holds what its last one covers


class SegmentTable:
    """A Delta table as a set of segments. May be used from any thread.

    The table may be made anew, or be restored from a copy, under whoever has it open. So what is known of it holds only
    while the file of the newest version that is known is there; with any other in its place it is loaded anew.
    """

    def __init__(self, folder: Path, stream: str, shards: int) -> None:
        self.folder = folder
        self.stream = stream
        self.shards = shards
        self.turns = Turns(folder / "_turns")
        self._commits = Commits(folder)
        self._lock = threading.Lock()
        self._refreshed = time.time()
        self._snapshot = self._load()

    @classmethod
    def check_place(cls, folder: Path, stream: str, shards: int) -> None:
        """Raise unless the table could be made in this folder, or was made there for this stream."""
        commits = folder / "_delta_log"
        if commits.exists():
            if any(commits.glob("[0-9]*")):  # else it was begun, and whoever did so has died
                cls(folder, stream, shards)
        elif folder.exists() and any(folder.iterdir()):
            raise LogMismatch(f"{folder} is not empty and holds no log; name another folder for stream {stream!r}")
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise LogUnavailable(
                f"the log of stream {stream!r} in {folder} cannot be made, since {there} is no folder that can be "
                "written to: name another one"
            )

    @classmethod
    def create(cls, folder: Path, stream: str, shards: int, retention: Retention) -> SegmentTable:
        """Make the table, or open the one that was made for this stream."""
        from deltalake.exceptions import DeltaError

        cls.check_place(folder, stream, shards)
        configuration = {
            "tidings.stream": stream,
            "tidings.shards": str(shards),
            **retention.properties(),
            "delta.logRetentionDuration": "interval 1 hours",
            "delta.deletedFileRetentionDuration": "interval 1 hours",
        }
        try:
            delta_staging.create(folder, SCHEMA, name=stream, configuration=configuration)
        except DeltaError as error:
            raise LogUnavailable(f"no log can be made in {folder}: {error}") from None
        table = cls(folder, stream, shards)
        table.set_retention(retention)
        return table

    def set_retention(self, retention: Retention) -> None:
        """Have maintenance let go of what is beyond this from now on, whoever does it."""
        while (snapshot := self.refresh()).retention != retention:
            self.commit(snapshot, metadata=self._metadata(retention.properties()))

    def _metadata(self, properties: dict[str, str]) -> Action:
        """The table's metadata as it is, but for these properties."""
        with containing_panics(self.folder):
            table = self.delta_table()
            known, schema = table.metadata(), table.schema().to_json()
        return {
            "metaData": {
                "id": str(known.id),
                "name": known.name,
                "description": known.description,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema,
                "partitionColumns": known.partition_columns,
                "createdTime": known.created_time,
                "configuration": {**known.configuration, **properties},
            }
        }

    @property
    def identity(self) -> str:
        """The table's id, as of the last refresh: another one is another table."""
        return str(self._snapshot.table)

    def mark(self) -> dict[str, int]:
        """By which the version of the last refresh is known in copies of the table."""
        return self._commits.mark(self._snapshot.version)

    def check_mark(self, known: Mapping[str, Any]) -> None:
        """Raise `LogMismatch` if a version that was read elsewhere is another one here, or not here yet."""
        self._commits.check_mark(known)

    def refresh(self) -> SegmentSnapshot:
        """The newest state. Cheap when nothing has changed."""
        with self._lock:
            snapshot = self._snapshot
            now = time.time()
            if snapshot.last is None or not self._commits.is_there(snapshot.last):
                snapshot = self._load()  # the commit was cleaned up, or this is another table by now
            elif now - self._refreshed > SLEPT_S and self._commits.checkpointed() > snapshot.version:
                snapshot = self._load()  # a name that was cleaned up may for a moment be that of another commit
            self._refreshed = now
            while (taken := self._commits.take(snapshot.version + 1)) is not None:
                made, commit = taken
                snapshot = self._apply(snapshot, made, commit, ours=is_ours(commit))
            if self._commits.checkpointed() > snapshot.version:  # the commits that would bring us there were cleaned up
                snapshot = self._load()
            self._snapshot = snapshot
            return snapshot

    def ends(self, app: str) -> int:
        """What the last transaction of this application covers; `UNKNOWN_ENDS` if that was not said."""
        return self.transaction(f"{app}{ENDS}")

    def transaction(self, app: str) -> int:
        """The number of the last transaction of this application, or -1."""
        snapshot = self.refresh()
        if app not in snapshot.transactions:
            with containing_panics(self.folder):
                known = self.delta_table().transaction_version(app)
            with self._lock:
                if self._snapshot.table != snapshot.table:
                    return -1 if known is None else known
                transactions = {app: -1 if known is None else known, **self._snapshot.transactions}
                self._snapshot = replace(self._snapshot, transactions=transactions)
                return transactions[app]
        return snapshot.transactions[app]

    def sync(self) -> None:
        """Make sure of what `refresh` has seen, whoever wrote it."""
        self._commits.sync()

    @property
    def staging(self) -> Path:
        """Rows on their way into an append; no Delta reader looks below a name that begins like this."""
        return self.folder / "_staging"

    def drafts(self) -> list[Path]:
        """Commits and appends that were begun, and turns; those of a writer that died stay behind."""
        return [*self._commits.drafts(), *self.staging.glob("*"), *self.turns.folder.glob("*")]

    def commit(
        self,
        after: SegmentSnapshot,
        add: Iterable[Segment] = (),
        remove: Iterable[Segment] = (),
        *,
        transaction: Transaction | None = None,
        metadata: Action | None = None,
        data_change: bool = True,
    ) -> bool:
        """Make this the version after that one; False, and nothing changed, if it is not the newest any more."""
        add = list(add)
        actions = [*_marks(transaction)] if transaction else []
        actions += [metadata] if metadata else []
        actions += [removed(one.path.name, one.size, data_change=data_change) for one in remove]
        actions += [
            added(one.path.name, one.size, one.span.time, _statistics(one), data_change=data_change) for one in add
        ]
        made = self._commits.put(after.version + 1, actions, after.last)
        if made is None:
            return False
        with self._lock:
            if self._snapshot.last == after.last:  # spares the next refresh from reading what is known here
                known = {segment.path.name: segment for segment in add}
                applied = self._apply(self._snapshot, made, actions, ours=True)
                self._snapshot = replace(applied, live={**applied.live, **known})
        return True

    def _apply(
        self, snapshot: SegmentSnapshot, made: Fingerprint, commit: list[Action], *, ours: bool
    ) -> SegmentSnapshot:
        live = dict(snapshot.live)
        past = snapshot.past if ours else snapshot.heads  # which files of another engine may not tell any more
        transactions = dict(snapshot.transactions)
        retention = snapshot.retention
        for action in commit:
            if remove := action.get("remove"):
                live.pop(unquote(remove["path"]), None)
            elif add := action.get("add"):
                if add.get("deletionVector"):
                    raise LogMismatch(f"{self.folder} has deletion vectors, which a log cannot have")
                path = unquote(add["path"])
                live[path] = Segment(self.folder / path, add["size"], self.shards)
            elif transaction := action.get("txn"):
                transactions[transaction["appId"]] = transaction["version"]
            elif metadata := action.get("metaData"):
                retention = self._checked(metadata["configuration"])
        version, table = snapshot.version + 1, snapshot.table
        return SegmentSnapshot(version, self.shards, live, transactions, past, table, made, retention)

    def _load(self) -> SegmentSnapshot:
        for _ in range(LOAD_ATTEMPTS):
            before = self._commits.fingerprint(self._commits.newest())
            self._commits.check()
            table = self.delta_table()
            last = self._commits.fingerprint(table.version())
            if last is not None and before is not None and self._commits.is_there(before):
                return self._loaded(table, last)  # and what was loaded is what is there
        raise LogUnavailable(f"the log of stream {self.stream!r} in {self.folder} changes while it is being read")

    def _loaded(self, table: Any, last: Fingerprint) -> SegmentSnapshot:
        from deltalake.exceptions import DeltaError

        try:
            with containing_panics(self.folder):
                metadata = table.metadata()
                # As a stream, since `pa.table` would import pandas to see whether it is given a frame.
                actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
        except (DeltaError, pa.ArrowException) as error:
            raise self._unreadable(error) from None
        retention = self._checked(metadata.configuration)
        if table.protocol().min_writer_version > 2:
            raise LogMismatch(f"{self.folder} was upgraded to Delta features that a log cannot have")
        live = {
            unquote(path): Segment(self.folder / unquote(path), size, self.shards)
            for path, size in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        }
        past = None if all(segment.span.exact for segment in live.values()) else self._past()
        snapshot = SegmentSnapshot(
            table.version(),
            self.shards,
            live,
            past=past,
            table=str(metadata.id),
            last=last,
            retention=retention,
        )
        for before, after in itertools.pairwise(snapshot.segments):
            if past is None and not np.array_equal(before.span.heads, after.span.floors):
                raise LogUnavailable(f"a segment is missing between {before.path} and {after.path}")
        return snapshot

    def _checked(self, configuration: Mapping[str, Any]) -> Retention | None:
        """What the configuration says of retention; `LogMismatch` if it is not that of the stream."""
        found = configuration.get("tidings.stream"), configuration.get("tidings.shards")
        if found != (self.stream, str(self.shards)):
            held = f"stream {found[0]!r} with {found[1]} shards" if found[0] else "a table that is no log of tidings"
            raise LogMismatch(f"{self.folder} holds {held}, not stream {self.stream!r} with {self.shards} shards")
        return Retention.read(configuration)

    def _past(self) -> Offsets:
        """How far the shards got at least, by the files that were removed and are still there."""
        heads = np.full(self.shards, -1, np.int64)
        for commit in self._commits.all():
            for path in (unquote(action["remove"]["path"]) for action in commit if "remove" in action):
                with contextlib.suppress(FileNotFoundError):
                    heads = np.maximum(heads, Segment(self.folder / path, 0, self.shards).span.heads)
        return heads

    def delta_table(self) -> Any:
        """The table as delta-rs sees it."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            with containing_panics(self.folder):
                return DeltaTable(self.folder)
        except TableNotFoundError:
            raise LogUnavailable(f"the log of stream {self.stream!r} is not to be found in {self.folder}") from None
        except (DeltaError, OSError) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> LogUnavailable:
        return LogUnavailable(f"the log of stream {self.stream!r} in {self.folder} is unreadable: {error}")


def _marks(transaction: Transaction) -> Iterator[Action]:
    """The ends are a transaction too: Delta keeps the last of each application, whatever is cleaned up."""
    yield done(transaction.app, transaction.number)
    yield done(f"{transaction.app}{ENDS}", transaction.ends)


def _statistics(segment: Segment) -> dict[str, Any]:
    """Row count, and the bounds by which Delta readers skip files."""
    metadata = pq.read_metadata(segment.path)
    columns = {"shard": 0, "seq": 1}
    found = {
        name: [metadata.row_group(n).column(at).statistics for n in range(metadata.num_row_groups)]
        for name, at in columns.items()
    }
    statistics: dict[str, Any] = {"numRecords": metadata.num_rows}
    if metadata.num_rows:
        statistics["minValues"] = {name: min(one.min for one in each) for name, each in found.items()}
        statistics["maxValues"] = {name: max(one.max for one in each) for name, each in found.items()}
    return statistics
