from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.invariants import Batch
from tests.support.proxy import Proxy
from tests.support.scene import Scene, stop
from tidings.subscriber import dialer
from tidings.testing import eventually
from tidings.wire.channel import open_channel

SHARDS = 6


def holders(scene: Scene) -> Counter[str]:
    """How many flows each subscriber holds, as ZooKeeper has it."""
    nodes = [scene.node("cache", shard, "subscriber") for shard in range(SHARDS)]
    return Counter(node["id"] for node in nodes if node)


def shards_of(scene: Scene, id: str, since: float = 0.0) -> set[int]:
    """The shards of which a recorder was given rows."""
    return {batch.shard for batch in scene.record(id).batches if batch.begin > since}


@contextlib.contextmanager
def detour(proxy: Proxy) -> Iterator[None]:
    """Subscribers of this process come to the publisher through a proxy, and know nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialer, "open_channel", lambda _, security: open_channel(proxy.address, security))
        yield


def prepare(scene: Scene) -> None:
    scene.prepare(SHARDS, balance="zookeeper")


def test_a_flow_goes_on_when_its_connection_breaks_and_both_ends_live(scene: Scene) -> None:
    prepare(scene)
    publisher = scene.publisher("p1")
    with Proxy(publisher.address) as proxy, detour(proxy), scene.subscriber("cache", "r1"):
        with scene.load():
            for _ in range(3):
                before = scene.delivered("r1")
                eventually(lambda: scene.delivered("r1") > before + 50)  # noqa: B023
                proxy.cut()
                proxy.heal()
        scene.finish("r1")
    assert scene.epoch("cache", 0) == 1, "the owner has stayed the same"


@pytest.mark.slow
def test_a_connection_that_falls_silent_is_given_up_and_the_flow_goes_on_over_another(scene: Scene) -> None:
    prepare(scene)
    publisher = scene.publisher("p1", patience=0.5)
    with Proxy(publisher.address) as proxy, ExitStack() as way:
        way.enter_context(detour(proxy))
        with scene.subscriber("cache", "r1"):
            with scene.load():
                eventually(lambda: scene.delivered("r1") > 100)
                proxy.freeze()  # both ends live, and neither hears that the other cannot be reached
                way.close()
                before = scene.delivered("r1")
                eventually(lambda: scene.delivered("r1") > before + 200)
            proxy.heal()
            scene.finish("r1")
    assert scene.epoch("cache", 0) == 1, "the owner has stayed the same"


@pytest.mark.slow
def test_flows_of_a_subscriber_that_lives_and_cannot_be_reached_any_more_go_to_another(scene: Scene) -> None:
    prepare(scene)
    publisher = scene.publisher("p1", patience=2.0)
    with Proxy(publisher.address) as proxy, detour(proxy), scene.subscriber("cache", "r1"):
        scene.recorder("cache", "r2")  # in a process of its own: nothing comes between it and the publisher
        eventually(lambda: holders(scene) == {"r1": 3, "r2": 3})
        with scene.load():
            eventually(lambda: len(shards_of(scene, "r1")) == len(shards_of(scene, "r2")) == 3)
            proxy.cut()
            gone = time.time()
            eventually(lambda: len(shards_of(scene, "r2", since=gone)) == SHARDS, timeout=20)
            assert time.time() - gone > 1.5, "it had its time to be reached again"
        scene.finish("r1", "r2")
        assert "r1" in scene.children("applications", "cache", "subscribers")


@pytest.mark.slow
def test_flows_move_at_a_token_when_a_subscriber_joins_or_leaves_and_are_spread_evenly(scene: Scene) -> None:
    prepare(scene)
    scene.publisher("p1")
    scene.publisher("p2")
    with scene.load(), scene.subscriber("cache", "r1", slow=0.01):
        eventually(lambda: holders(scene) == {"r1": 6} and len(shards_of(scene, "r1")) == 6)
        with scene.subscriber("cache", "r2", slow=0.01):
            eventually(lambda: holders(scene) == {"r1": 3, "r2": 3} and len(shards_of(scene, "r2")) == 3)
            with scene.subscriber("cache", "r3", slow=0.01):
                eventually(lambda: holders(scene) == {"r1": 2, "r2": 2, "r3": 2} and len(shards_of(scene, "r3")) == 2)
            eventually(lambda: holders(scene) == {"r1": 3, "r2": 3})
            left = time.time()
            eventually(lambda: len(shards_of(scene, "r1", since=left) | shards_of(scene, "r2", since=left)) == SHARDS)
    scene.finish("r1", "r2", "r3", complete=False, timeout=0)
    record = scene.record("r1", "r2", "r3")
    moves = 0
    for shard in range(SHARDS):
        batches = sorted((one for one in record.batches if one.shard == shard), key=lambda one: one.begin)
        seen: set[int] = set()
        last: Batch | None = None
        for batch in batches:
            if last is not None and batch.recorder != last.recorder:
                moves += 1
                assert not seen & set(batch.seqs), "a flow that moves at a token repeats nothing"
            seen |= set(batch.seqs)
            last = batch
    assert moves >= 7, "three to the second subscriber, two to the third, and those two back again when it leaves"


@pytest.mark.slow
def test_a_subscriber_that_leaves_hands_its_flows_over_at_once(scene: Scene) -> None:
    prepare(scene)
    scene.sender("p1")
    scene.recorder("cache", "r1", "--session-timeout", "30")
    second = scene.recorder("cache", "r2", "--session-timeout", "30")
    with scene.load():
        eventually(lambda: len(shards_of(scene, "r2")) == 3)
        left = time.time()
        stop(second, signal.SIGTERM)
        eventually(lambda: len(shards_of(scene, "r1", since=left)) == SHARDS, timeout=10)
    scene.finish("r1", "r2")
    assert {event.shard for event in scene.record("r2").events("closed")} == shards_of(scene, "r2")
    rows = scene.record("r1", "r2").rows
    assert len(rows) == len(set(rows)), "a flow that moves at a token repeats nothing"


@pytest.mark.slow
def test_a_subscriber_in_the_middle_of_a_long_callback_keeps_its_flow_until_it_returns(scene: Scene) -> None:
    prepare(scene)
    scene.publisher("p1", patience=0.5)
    with scene.subscriber("cache", "r1", slow=1.0):
        eventually(lambda: holders(scene) == {"r1": 6})
        scene.publish(0, 100)
        eventually(lambda: scene.delivered("r1") > 0)
        with scene.subscriber("cache", "r2"):
            eventually(lambda: holders(scene) == {"r1": 3, "r2": 3})
            scene.publish(100, 100)
            scene.finish("r1", "r2")
            assert len(shards_of(scene, "r2")) == 3
