"""Overlays: which of their files to merge, how to split them, and how much of each segment they cover.

A collection lays a small overlay over many segments. Those are merged with each other; when many tombstones come
together, they are split by the segments over which they lie. So whoever folds one segment reads and writes its own
tombstones, and what a collection costs does not follow what is held.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from tidings.tombstones import Tombstones
from tidings_connectors.delta.segments import Segment, SegmentSnapshot, Span, read_overlays

FAN_IN_OVERLAYS = 8  # of a like size that make a merge worth while
SPLIT_ROWS = 100_000  # tombstones that are worth a file for each segment
COVERED_SHARE = 0.25  # of a segment's rows; so each row that is collected costs the writing of four at most


def plan_overlays(rows: Sequence[int], fan_in: int = FAN_IN_OVERLAYS) -> int:
    """How many overlays to merge, the smallest first, given their numbers of rows in that order.

    As with segments, one is written anew only together with others that have as many rows in all.

    >>> plan_overlays([1, 1, 1, 500], fan_in=3), plan_overlays([1, 2, 400, 500], fan_in=3)
    (3, 0)
    """
    totals = itertools.accumulate(rows)
    worth = [
        at for at, (one, total) in enumerate(zip(rows, totals, strict=True), 1) if at >= fan_in and total >= 2 * one
    ]
    return max(worth, default=0)


def to_merge(snapshot: SegmentSnapshot) -> list[Segment]:
    """The overlays that are to be merged: those over one segment with each other, and the wide ones with each other."""
    beside: dict[str, list[Segment]] = defaultdict(list)
    for overlay, under in _under(snapshot.overlays, snapshot.segments):
        beside[under[0].path.name if len(under) == 1 else ""].append(overlay)
    found: list[Segment] = []
    for some in beside.values():
        some.sort(key=lambda one: one.span.rows)
        found += some[: plan_overlays([one.span.rows for one in some])]
    return found


def split(gone: Tombstones, segments: Sequence[Segment]) -> list[Tombstones]:
    """These tombstones as overlays are to have them: all together, or those of each segment if they are many."""
    if len(gone) <= SPLIT_ROWS or not all(segment.span.exact for segment in segments):
        return [gone] if len(gone) else []
    parts = (gone.within(segment.span.floors, segment.span.heads) for segment in segments)
    return [part for part in parts if len(part)]


class Coverage:
    """Counts what overlays cover of segments. That never changes, so it is counted once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def worth_folding(self, snapshot: SegmentSnapshot) -> list[Segment]:
        """The segments of whose rows overlays cover so many that it pays to write the others anew."""
        segments = [segment for segment in snapshot.segments if segment.span.exact]
        totals, counts = dict.fromkeys((segment.path.name for segment in segments), 0), {}
        for overlay, under in _under(snapshot.overlays, segments):
            self._count(overlay, under)
            for segment in under:
                pair = overlay.path.name, segment.path.name
                counts[pair] = self._counts[pair]
                totals[segment.path.name] += counts[pair]
        self._counts = counts
        return [one for one in segments if totals[one.path.name] > COVERED_SHARE * one.span.rows]

    def _count(self, overlay: Segment, under: Sequence[Segment]) -> None:
        unknown = [segment for segment in under if (overlay.path.name, segment.path.name) not in self._counts]
        if not unknown:
            return
        if len(under) == 1 and overlay.span.gone and overlay.span.lies_within(under[0].span):
            self._counts[overlay.path.name, under[0].path.name] = overlay.span.gone
            return
        hull = Span.around([segment.span for segment in unknown])
        over = read_overlays([overlay.path], hull.floors, hull.heads)
        for segment in unknown:
            count = over.within(segment.span.floors, segment.span.heads).count
            self._counts[overlay.path.name, segment.path.name] = count


def _under(overlays: Sequence[Segment], segments: Sequence[Segment]) -> Iterator[tuple[Segment, list[Segment]]]:
    """Each overlay, and the segments that it may lie over."""
    if not segments or not overlays:
        return
    floors, heads = (np.array([getattr(one.span, end) for one in segments]) for end in ("floors", "heads"))
    for overlay in overlays:
        met = np.maximum(floors, overlay.span.floors) < np.minimum(heads, overlay.span.heads)
        yield overlay, [segments[at] for at in np.flatnonzero(met.any(axis=1)).tolist()]
