from __future__ import annotations

import signal

import pytest

from tests.support.proxy import Proxy
from tests.support.scene import Scene, stop
from tidings.testing import eventually

SHARDS = 4


def prepare(scene: Scene) -> None:
    """A stream, and an application that reads all of it in two processes."""
    scene.prepare(SHARDS)
    for id in ("r1", "r2"):
        scene.recorder("cache", id)


def owned_by(scene: Scene, name: str) -> bool:
    return set(scene.owners("cache", SHARDS)) == {name}


def epochs(scene: Scene) -> list[int]:
    return [scene.epoch("cache", shard) for shard in range(SHARDS)]


@pytest.mark.slow
def test_nothing_is_lost_or_out_of_order_when_the_owner_is_killed(scene: Scene) -> None:
    prepare(scene)
    first = scene.sender("p1")
    eventually(lambda: owned_by(scene, "p1"))
    second = scene.sender("p2")
    with scene.load() as count:
        eventually(lambda: scene.delivered("r1", "r2") > 200)
        stop(first)
        at = count()
        eventually(lambda: owned_by(scene, "p2"))
        eventually(lambda: scene.delivered("r1", "r2") > at + 100)
        scene.sender("p3")
        stop(second)
        eventually(lambda: owned_by(scene, "p3"))
    scene.finish("r1", "r2")
    assert all(epoch >= 2 for epoch in epochs(scene))


@pytest.mark.slow
def test_an_owner_that_slept_past_the_end_of_its_session_has_no_effect_when_it_wakes(scene: Scene) -> None:
    prepare(scene)
    sleeper = scene.sender("p1")
    eventually(lambda: owned_by(scene, "p1"))
    with scene.load():
        eventually(lambda: scene.delivered("r1", "r2") > 200)
        sleeper.send_signal(signal.SIGSTOP)
        asleep = epochs(scene)
        scene.sender("p2")
        eventually(lambda: owned_by(scene, "p2"))
        eventually(lambda: min(scene.markers("cache", SHARDS)) > 30)
        taken = epochs(scene)
        assert taken == [epoch + 1 for epoch in asleep]
        reached = scene.markers("cache", SHARDS)
        sleeper.send_signal(signal.SIGCONT)
        eventually(lambda: "p1" in scene.children("publishers"), timeout=20)
        # It comes back as a publisher like any other, and gets its share with a new epoch.
        eventually(lambda: set(scene.owners("cache", SHARDS)) == {"p1", "p2"})
        eventually(lambda: all(now > then for now, then in zip(scene.markers("cache", SHARDS), reached, strict=True)))
    scene.finish("r1", "r2")
    for shard, before in enumerate(taken):
        marker = scene.node("cache", shard, "datamarker")
        assert marker is not None
        assert marker["epoch"] >= before, "no marker is of the epoch that was over"


@pytest.mark.slow
def test_an_owner_that_is_cut_from_zookeeper_but_not_from_subscribers_stops_before_another_starts(
    scene: Scene, zookeeper: str
) -> None:
    prepare(scene)
    with Proxy(zookeeper) as proxy:
        cut_off = scene.sender("p1", via=proxy.address)
        eventually(lambda: owned_by(scene, "p1"))
        with scene.load():
            eventually(lambda: scene.delivered("r1", "r2") > 200)
            proxy.cut()
            scene.sender("p2")
            eventually(lambda: owned_by(scene, "p2"))
            taken = epochs(scene)
            before = scene.delivered("r1", "r2")
            eventually(lambda: scene.delivered("r1", "r2") > before + 200)
            assert cut_off.poll() is None
            assert epochs(scene) == taken, "the one that was cut off takes nothing"
            proxy.heal()
            eventually(lambda: set(scene.owners("cache", SHARDS)) == {"p1", "p2"})
        scene.finish("r1", "r2")


@pytest.mark.slow
def test_a_subscriber_that_is_cut_from_zookeeper_processes_nothing_once_another_may_have_its_flows(
    scene: Scene, zookeeper: str
) -> None:
    scene.prepare(SHARDS)
    scene.sender("p1", "--patience", "2")
    with Proxy(zookeeper) as proxy:
        scene.recorder("cache", "r1", via=proxy.address)
        with scene.load():
            eventually(lambda: scene.delivered("r1") > 200)
            scene.recorder("cache", "r2")
            proxy.cut()
            eventually(lambda: scene.delivered("r2") > 200)
            proxy.heal()
            eventually(lambda: "r1" in scene.children("applications", "cache", "subscribers"))
        scene.finish("r1", "r2")
        closed = {event.shard for event in scene.record("r1").events("closed")}
        assert closed == set(range(SHARDS)), "the handler is told that its flows are gone"


@pytest.mark.slow
def test_a_publisher_that_drains_hands_over_without_a_repeat(scene: Scene) -> None:
    prepare(scene)
    first = scene.sender("p1", "--session-timeout", "30")
    eventually(lambda: owned_by(scene, "p1"))
    with scene.load():
        eventually(lambda: scene.delivered("r1", "r2") > 200)
        scene.sender("p2")
        stop(first, signal.SIGTERM)
        eventually(lambda: owned_by(scene, "p2"), timeout=5)  # long before its session would be over
        before = scene.delivered("r1", "r2")
        eventually(lambda: scene.delivered("r1", "r2") > before + 200)
    scene.finish("r1", "r2")
    assert first.returncode == 0
    rows = scene.record("r1", "r2").rows
    assert len(rows) == len(set(rows))


@pytest.mark.slow
def test_the_only_subscriber_gets_its_flows_back_after_it_has_lost_its_session(scene: Scene, zookeeper: str) -> None:
    scene.prepare(SHARDS)
    scene.sender("p1", "--patience", "60")  # so that no flow comes back by patience alone
    with Proxy(zookeeper) as proxy:
        scene.recorder("cache", "r1", via=proxy.address)
        with scene.load():
            eventually(lambda: scene.delivered("r1") > 200)
            proxy.cut()
            eventually(lambda: "r1" not in scene.children("applications", "cache", "subscribers"))
            proxy.heal()
            before = scene.delivered("r1")
            eventually(lambda: scene.delivered("r1") > before + 300, timeout=20)
        scene.finish("r1")
