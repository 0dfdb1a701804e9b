from __future__ import annotations

import signal

import pytest

from tidings.testing import eventually

from .proxy import Proxy
from .scene import STREAM, Scene, stop

SHARDS = 4


def prepare(scene: Scene, *, recorders: tuple[str, ...] = ("r1", "r2"), shards: int = SHARDS) -> None:
    """A stream, and an application that reads all of it in two processes."""
    scene.cluster.create_stream(STREAM, shards)
    scene.cluster.create_application("cache", [STREAM], start="earliest")
    for id in recorders:
        scene.recorder("cache", id)


@pytest.mark.slow
def test_nothing_is_lost_or_out_of_order_when_the_owner_is_killed(scene: Scene) -> None:
    prepare(scene)
    first = scene.sender("p1")
    eventually(lambda: set(scene.owners("cache", SHARDS)) == {"p1"})
    second = scene.sender("p2")
    with scene.load() as count:
        eventually(lambda: scene.delivered("r1", "r2") > 200)
        stop(first)
        at = count()
        eventually(lambda: set(scene.owners("cache", SHARDS)) == {"p2"})
        eventually(lambda: scene.delivered("r1", "r2") > at + 200)
        scene.sender("p3")
        stop(second)
        eventually(lambda: set(scene.owners("cache", SHARDS)) == {"p3"})
    scene.finish("r1", "r2")
    assert all(scene.epoch("cache", shard) >= 2 for shard in range(SHARDS))
