"""Maintenance of a Delta log: compaction, retention, checkpoints, and the deletion of files that nobody needs.

Whichever writer makes a version that is a multiple of `MAINTENANCE_INTERVAL_VERSIONS` does it, in the background: so it
needs no leader, its cost follows the writing, and a writer that dies in the middle leaves nothing but a file for the
next vacuum.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidings.errors import ENDING
from tidings.storage import delta_staging
from tidings.storage.durable import time_in
from tidings.tombstones import Tombstones
from tidings.updates import SCHEMA
from tidings_connectors.delta.overlays import Coverage, split, to_merge
from tidings_connectors.delta.retention import Retention
from tidings_connectors.delta.segments import (
    Offsets,
    Segment,
    SegmentSnapshot,
    Selection,
    Span,
    is_clean_cut,
    read_overlays,
    sort,
    write_overlay,
    write_segment,
)
from tidings_connectors.delta.table import SegmentTable

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

MAINTENANCE_INTERVAL_VERSIONS = 64
VACUUM_INTERVAL_VERSIONS = 64 * MAINTENANCE_INTERVAL_VERSIONS
VACUUM_INTERVAL_S = 3600.0
VACUUM_PAUSE_S = 300.0
FAN_IN_SEGMENTS = 8  # neighbours of a like size that make a merge worth while
TARGET_BYTES = 256 * 2**20  # of rows in memory, which is what a merge needs
GRACE_HOURS = 1

Condition = Callable[[SegmentSnapshot], bool]

logger = logging.getLogger(__name__)


def plan_compaction(sizes: Sequence[int], fan_in: int = FAN_IN_SEGMENTS, target: int = TARGET_BYTES) -> list[slice]:
    """Which runs of neighbouring segments to merge, given their sizes from the oldest to the newest.

    A segment is rewritten only together with others of its own size or less, so that every row is rewritten about once
    for each factor of `fan_in` in size, and never once it is in a segment of half the target.

    >>> plan_compaction([500, 1, 1, 1, 1], fan_in=4, target=1000)
    [slice(1, 5, None)]
    """
    runs = []
    end = len(sizes)
    while end > 0:
        start, total, largest = end, 0, 0
        best = end
        while start > 0 and sizes[start - 1] < target // 2 and total + sizes[start - 1] <= target:
            start -= 1
            largest = max(largest, sizes[start])
            total += sizes[start]
            if end - start >= fan_in and total >= 2 * largest:
                best = start
        if best < end:
            runs.append(slice(best, end))
            end = best
        else:
            end -= 1
    return runs[::-1]


def plan_truncation(segments: Sequence[Segment], upto: Offsets) -> int:
    """How many of the oldest segments lie whole at or before these offsets."""
    drop = next((n for n, segment in enumerate(segments) if np.any(segment.span.heads > upto)), len(segments))
    return _clean(segments, drop)


def plan_retention(segments: Sequence[Segment], max_age: float | None, max_bytes: int | None, now: float) -> int:
    """How many of the oldest segments hold only rows that are too old, or lie beyond the newest `max_bytes`.

    `now` is in seconds since 1970, by the clock of the file system: that of this machine may be wrong.
    """
    drop = 0
    if max_age is not None:
        too_old = (now - max_age) * 1000
        drop = next((n for n, segment in enumerate(segments) if segment.span.time >= too_old), len(segments))
    if max_bytes is not None:
        kept = np.cumsum([segment.size for segment in segments][::-1])[::-1]
        drop = max(drop, int(np.count_nonzero(kept[1:] >= max_bytes)))
    return _clean(segments, drop)


def _clean(segments: Sequence[Segment], drop: int) -> int:
    """So many at most that no row is dropped which comes after one that stays."""
    return next(at for at in range(drop, -1, -1) if is_clean_cut(segments, at))


class Maintenance:
    """The maintenance of one log, by one of its writers."""

    def __init__(self, table: SegmentTable, stream: StreamDefinition) -> None:
        self._table = table
        self._stream = stream
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._vacuumed = -math.inf
        self._coverage = Coverage()

    def after_commit(self, version: int) -> None:
        """Tell that this process made this version."""
        if version % MAINTENANCE_INTERVAL_VERSIONS == 0 and self._running.acquire(blocking=False):
            self._thread = threading.Thread(target=self._run, args=(version,), name="tidings-maintenance", daemon=True)
            self._thread.start()

    def after_collection(self) -> None:
        """Fold what is worth it, right here: the collector pays for it, and not those who append."""
        with self._running:
            try:
                self.compact()
            except ENDING:
                raise
            except BaseException as error:  # noqa: BLE001 - the log is whole without it, and the next round tries again
                logger.warning("maintenance of stream %r failed: %s", self._stream.name, error)

    def close(self) -> None:
        """Wait for what is under way."""
        if self._thread:
            self._thread.join()

    def compact(self) -> int:
        """Merge small segments, and put tombstones into those that they mostly cover; how many files went away."""
        self._adopt(self._table.refresh().segments)
        snapshot = self._table.refresh()
        segments = snapshot.segments
        # What cannot be adopted is as large as can be.
        sizes = [segment.span.memory if segment.span.exact else TARGET_BYTES for segment in segments]
        runs = [segments[run] for run in plan_compaction(sizes)]
        merged = {segment.path for run in runs for segment in run}
        runs += [[segment] for segment in self._coverage.worth_folding(snapshot) if segment.path not in merged]
        return self._merge(runs, snapshot)

    def _adopt(self, segments: Sequence[Segment]) -> None:
        """Put sorted segments that know all shards in the place of files that another engine wrote."""
        if all(segment.span.exact for segment in segments):
            return
        cuts = [at for at in range(len(segments) + 1) if is_clean_cut(segments, at)]
        for run in (segments[start:end] for start, end in itertools.pairwise(cuts)):
            if not all(one.span.exact for one in run) and sum(one.span.memory for one in run) <= TARGET_BYTES:
                self._merge([run], self._table.refresh())

    def checkpoint(self) -> None:
        """Write a Delta checkpoint, and delete the commit files that it makes needless."""
        delta_staging.checkpoint(self._table.folder)

    def vacuum(self, grace_hours: int = GRACE_HOURS) -> None:
        """Delete the files that no version has named for this long, those of writers that died among them."""
        delta_staging.vacuum(self._table.folder, grace_hours, full=True)
        oldest = time_in(self._table.folder) - grace_hours * 3600
        for draft in self._table.drafts():
            with contextlib.suppress(FileNotFoundError):  # others look for them, too
                if draft.stat().st_mtime < oldest:
                    draft.unlink()

    def _run(self, version: int) -> None:
        try:
            self._retain()
            self.compact()
            self.checkpoint()
            if version % VACUUM_INTERVAL_VERSIONS == 0 or self._is_vacuum_due():
                self._vacuumed = time.monotonic()
                self.vacuum()
        except ENDING:
            raise
        except BaseException as error:  # noqa: BLE001 - the log is whole without it, and the next round tries again
            logger.warning("maintenance of stream %r failed: %s", self._stream.name, error)
        finally:
            self._running.release()

    def _retain(self) -> None:
        """Let go of what the table says, whatever the definition said when this writer opened it.

        If that is changed while this is under way, all is kept until the next round.
        """
        snapshot = self._table.refresh()
        limits = Retention.of(self._stream) if snapshot.retention is None else snapshot.retention
        old = snapshot.segments[: plan_retention(snapshot.segments, *limits, time_in(self._table.folder))]
        self.drop(old, lambda now: now.retention == snapshot.retention)

    def _is_vacuum_due(self) -> bool:
        """Whether it is long since a look at what can be deleted; or a while, and more bytes are dead than are held."""
        pause = time.monotonic() - self._vacuumed
        if not VACUUM_PAUSE_S <= pause <= VACUUM_INTERVAL_S:
            return pause > VACUUM_INTERVAL_S
        size = 0
        for path in self._table.folder.glob("*.parquet"):
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size
        return size > 2 * sum(segment.size for segment in self._table.refresh().segments)

    def _merge(self, runs: Sequence[Sequence[Segment]], snapshot: SegmentSnapshot) -> int:
        """Put one segment in the place of each run, with the tombstones that lie over it; how many files went away.

        All in one commit: an overlay must not lie over rows that have its tombstones already.
        """
        spans = [Span.around([segment.span for segment in run]) for run in runs]
        touched = to_merge(snapshot)
        merged = {one.path for one in touched}
        touched += [
            one
            for one in snapshot.overlays
            if one.path not in merged and any(one.span.meets(span.floors, span.heads) for span in spans)
        ]
        if not runs and not touched:
            return 0
        old, new = [*itertools.chain(*runs), *touched], list[Segment]()
        try:
            for run, span in zip(runs, spans, strict=True):
                rows = pa.Table.from_batches(Selection.of(run, touched).read(span.floors, span.heads), SCHEMA)
                new.append(write_segment(self._table.folder, sort(rows), span))
            time = max((one.span.time for one in touched), default=0)
            for part in split(self._rest(touched, spans), snapshot.segments):
                new.append(write_overlay(self._table.folder, part, self._table.shards, time))
            replaced = self._replace(old, new, data_change=False)
        except FileNotFoundError:  # another writer was quicker
            replaced = False
        if not replaced:
            for one in new:
                one.path.unlink(missing_ok=True)
        return len(old) - len(new) if replaced else 0

    def _rest(self, overlays: Sequence[Segment], spans: Sequence[Span]) -> Tombstones:
        """What overlays have beside these spans, as far as it is held."""
        snapshot = self._table.refresh()
        wider = [one.path for one in overlays if not any(one.span.lies_within(span) for span in spans)]
        rest = read_overlays(wider, snapshot.floors, snapshot.heads)
        for span in spans:
            rest -= rest.within(span.floors, span.heads)
        return rest

    def drop(self, old: Sequence[Segment], still: Condition = lambda _: True) -> None:
        """Let go of these segments, which are the oldest, if it is still to be done when it is committed.

        On a full disk, what is dead makes room for saying so.
        """
        try:
            self._drop(old, still)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.vacuum()
            self._drop(old, still)

    def _drop(self, old: Sequence[Segment], still: Condition) -> None:
        if not old:
            return
        snapshot = self._table.refresh()
        rest: list[Segment] = []
        if len(old) == len(snapshot.segments):  # an empty segment goes on saying where the shards end
            span = Span(snapshot.heads, snapshot.heads, old[-1].span.time)
            rest = [write_segment(self._table.folder, SCHEMA.empty_table(), span)]
        if not self._replace(old, rest, still, data_change=True):
            for one in rest:
                one.path.unlink(missing_ok=True)

    def _replace(
        self,
        old: Sequence[Segment],
        new: Sequence[Segment],
        still: Condition = lambda _: True,
        *,
        data_change: bool,
    ) -> bool:
        """Commit the exchange, whatever else is committed meanwhile.

        False if an old segment is not there any more, or it is not to be done any more.
        """
        while True:
            snapshot = self._table.refresh()
            if not still(snapshot) or any(segment.path.name not in snapshot.live for segment in old):
                return False
            if self._table.commit(snapshot, new, old, data_change=data_change):
                return True
