"""Requests for a snapshot on demand, as ZooKeeper holds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidings.errors import InvalidOption
from tidings.logs import SnapshotPlace
from tidings.positions import Position
from tidings.snapshot_requests import SnapshotRequest

ASKED = SnapshotRequest.now(["cache", "search"], ["public.item"])
PLACED = replace(ASKED, place=SnapshotPlace(Position(7, 99), Position(8, -1)))


def test_a_request_is_read_as_it_was_written() -> None:
    for request in (ASKED, PLACED, replace(PLACED, cancelled=True, ended="failed", reason="no", attempt=3)):
        assert SnapshotRequest.from_json(request.to_json()) == request
    for nonsense in ({}, {"id": "x"}, {**ASKED.to_json(), "place": [1]}, {**ASKED.to_json(), "time": "noon"}):
        with pytest.raises(InvalidOption, match="is no request for a snapshot"):
            SnapshotRequest.from_json(nonsense)


def test_flows_are_held_until_it_has_a_place_and_go_there_until_it_has_ended() -> None:
    ended = replace(PLACED, ended="complete")
    cancelled = replace(ASKED, cancelled=True)
    assert [one.state for one in (ASKED, PLACED, ended, cancelled)] == ["holding", "placed", "complete", "holding"]
    assert [one.holds("cache") for one in (ASKED, PLACED, ended, cancelled)] == [True, False, False, False]
    assert [one.detour("cache") for one in (ASKED, PLACED, ended)] == [None, Position(7, 99), None]
    assert not ASKED.holds("other")
    assert PLACED.detour("other") is None
