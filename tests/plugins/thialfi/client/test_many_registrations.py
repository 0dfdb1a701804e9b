"""The client with as many registrations as a gateway takes: all of them are confirmed, and all is heard."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.thialfi.client.test_client import Notes
from tests.plugins.thialfi.client.test_with_gateway import StandIn
from tests.support.gateway_scene import Scene, scene_of
from tidings.cluster import Cluster
from tidings.testing import eventually
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.client.sync import Client

MANY = 10_000
PACE = Pace(settle=0.3)


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(cluster, tmp_path) as own, contextlib.closing(StandIn(own)):
        yield own


@pytest.mark.parametrize("polling", [False, True], ids=["websocket", "poll"])
def test_ten_thousand_registrations_are_confirmed_and_all_is_heard(scene: Scene, polling: bool) -> None:
    gateway = scene.gateway("g1")
    names = [f"contacts/{n:06}/Zoë" for n in range(MANY)]
    notes = Notes()

    def told(kind: str) -> Counter[object]:
        return Counter(one[1] for one in notes.told if one[0] == kind)

    with Client(gateway.url, "web", notes, polling=polling, pace=PACE) as client:
        client.register_many(names)
        eventually(lambda: len(told("status")) == MANY, 60, 0.2)
        eventually(lambda: len(told("unknown")) == MANY, 60, 0.2)
        eventually(lambda: gateway.metric("unacknowledged_notifications") == 0, 60, 0.2)
    assert told("failure") == Counter()
    assert gateway.metric("limited_total", limit="slow") == 0
