"""Overlays: kept few and small, so that what a collection costs does not follow what is held."""

from __future__ import annotations

import numpy as np
import pytest

from tests.connectors.delta.test_tombstones import over, shown, some_of
from tests.support.burying import bury
from tidings.stream_definition import StreamDefinition
from tidings.testing import check_log, held, make_updates
from tidings.tombstones import Tombstones
from tidings_connectors.delta import maintenance, overlays
from tidings_connectors.delta.log import DeltaLog
from tidings_connectors.delta.segments import Segment


@pytest.fixture
def filled(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> DeltaLog:
    """A log of four segments that are not merged, and whose overlays are split."""
    monkeypatch.setattr(maintenance, "plan_compaction", lambda sizes: [])
    monkeypatch.setattr(overlays, "SPLIT_ROWS", 20)
    for number in range(4):
        log.append(make_updates(400, seed=number))
    return log


def merge_overlays(log: DeltaLog, share: float) -> None:
    """Lay so many overlays over the segments that they are merged, each over so small a share of the rows."""
    for seed in range(overlays.FAN_IN_OVERLAYS):
        bury(log, some_of(log, share, seed))


def of(log: DeltaLog, segment: Segment, share: float) -> Tombstones:
    """Some of the updates of one segment."""
    return some_of(log, share).within(segment.span.floors, segment.span.heads)


def test_many_tombstones_are_split_by_the_segments_over_which_they_lie(filled: DeltaLog) -> None:
    merge_overlays(filled, 0.02)
    snapshot = filled._table.refresh()
    assert len(snapshot.overlays) == len(snapshot.segments)
    for overlay in snapshot.overlays:
        assert sum(overlay.span.lies_within(segment.span) for segment in snapshot.segments) == 1


def test_to_fold_a_segment_leaves_the_overlays_of_others_alone(filled: DeltaLog, definition: StreamDefinition) -> None:
    merge_overlays(filled, 0.02)
    before = filled._table.refresh()
    first, *others = before.segments
    gone = of(filled, first, 0.3)
    model = over(shown(held(filled)), gone)
    bury(filled, gone)
    after = filled._table.refresh()
    assert first.path not in {segment.path for segment in after.segments}
    assert {one.path for one in after.overlays} == {
        one.path for one in before.overlays if not one.span.lies_within(first.span)
    }
    assert {segment.path for segment in others} <= {segment.path for segment in after.segments}
    assert shown(held(filled)) == model
    check_log(filled, definition.shards)


def test_what_an_overlay_of_one_segment_covers_is_known_without_reading_it(
    filled: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_overlays(filled, 0.02)
    snapshot = filled._table.refresh()
    read: list[object] = []
    monkeypatch.setattr(overlays, "read_overlays", lambda *parts: read.append(parts))
    monkeypatch.setattr(overlays, "COVERED_SHARE", 0.0)
    assert overlays.Coverage().worth_folding(snapshot) == snapshot.segments
    assert not read


def test_no_tombstone_is_lost_where_many_are_split(filled: DeltaLog) -> None:
    snapshot = filled._table.refresh()
    gone = some_of(filled, 0.5)
    parts = overlays.split(gone, snapshot.segments)
    assert len(parts) == len(snapshot.segments)
    whole = Tombstones.runs(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("shard", "first", "last"))
    )
    assert whole == gone
