"""A snapshot on demand: rows of some tables as they are now, for the applications that an operator names.

Who asks holds these applications first, so that none of them is beyond the place at which the rows will stand. As soon
as that is known they go on up to there, and wait until all rows are there; others go by. So nobody takes one up that
was interrupted: it is for who asks to hold the applications again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.logs import SnapshotPlace, SnapshotProgress
from tidings.positions import START, Position
from tidings_connectors.cdc.changes import table_name
from tidings_connectors.cdc.mapping import RowMapping
from tidings_connectors.cdc.snapshot import SnapshotSource, SourceTable, StreamSnapshot, name_of
from tidings_connectors.cdc.snapshot_note import DEMANDED, Note, SnapshotRun

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition


class DemandedSnapshot(StreamSnapshot):
    """The newest snapshot on demand of one stream."""

    def __init__(self, source: SnapshotSource, stream: StreamDefinition, folder: Path, mapping: RowMapping) -> None:
        super().__init__(source, stream, folder, mapping, aside=DEMANDED)
        self._request = self._taken = ""
        """What was asked for last, and what is being taken: that is another one until it has ended."""
        self._tables: frozenset[str] = frozenset()
        self._dropped: set[str] = set()

    def tables(self) -> list[str]:
        """The tables whose rows can be asked for; an error that says the cure, if they cannot be read."""
        return sorted(table_name(*names) for names in self._source.tables())

    def begin_for(self, request: str, tables: Collection[str], since: Position) -> SnapshotPlace | None:
        """As `SnapshotLog.begin_snapshot` has it."""
        run = self._run_of(request)
        if run is not None and run.after >= since and (self._being_taken() or self.note().complete):
            return SnapshotPlace(run.before, run.after)
        if request != self._request:
            self._request, self._tables, self._failed, self._retry = request, frozenset(tables), None, 0.0
        self.start(since=since)
        return None

    def progress(self, request: str, place: SnapshotPlace) -> SnapshotProgress | None:
        """As `SnapshotLog.snapshot_progress` has it."""
        taken_now = self._being_taken()  # first: when it is not any more, the note says how it ended
        note = self.note()
        if note.request == request and any(run.after == place.after for run in note.gone):
            return SnapshotProgress(True, 0)  # every flow has passed its rows
        run = self._run_of(request)
        if run is None or run.after != place.after or not (taken_now or (note.complete and self._joins(note))):
            return None
        return SnapshotProgress(note.complete, run.end - run.base)

    def drop(self, request: str) -> bool:
        """As `SnapshotLog.drop_snapshot` has it."""
        self._dropped.add(request)
        with self._alone() as alone:
            if alone and self.note().request == request:
                self._clear()
            return alone

    def take(self, again: bool = False, since: Position = START) -> None:
        """Take one, unless somebody else does."""
        with self._alone() as alone:
            if alone and self._wanted(again, since):
                self._take()

    @property
    def trouble(self) -> str | None:
        """Why it could not be taken, the last time."""
        return None if self._failed is None else str(self._failed)

    def _wanted(self, again: bool, since: Position) -> bool:
        run = self._run_of(self._request)
        asked = self._request not in self._dropped and not self._closed.is_set()
        return asked and (run is None or not self.note().complete or run.after < since)

    def _run_of(self, request: str) -> SnapshotRun | None:
        note = self.note()
        return note.runs[0] if note.request == request and note.runs else None

    def _being_taken(self) -> bool:
        with self._alone() as alone:
            return not alone

    def _chosen(self, tables: Sequence[SourceTable]) -> Sequence[SourceTable]:
        return [table for table in tables if not self._tables or name_of(table) in self._tables]

    def _new_note(self) -> Note:
        self._taken = self._request
        return Note(request=self._taken)

    def _over(self) -> bool:
        return super()._over() or self._taken in self._dropped
