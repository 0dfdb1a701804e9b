from __future__ import annotations

import contextlib
import logging
import signal
import time

import pytest

from tests.support.liar import LIES, Message, about, lying
from tests.support.scene import STREAM, Scene
from tidings.streams import Stream
from tidings.testing import eventually

SHARDS = 4


@pytest.mark.slow
def test_what_a_subscriber_was_killed_in_the_middle_of_goes_to_another(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.sender("p1")
    victim = scene.recorder("cache", "r1", "--die", "12")
    with scene.load():
        eventually(lambda: scene.delivered("r1") > 20)
        scene.recorder("cache", "r2")
        victim.wait(timeout=30)
        before = scene.delivered("r2")
        eventually(lambda: scene.delivered("r2") > before + 200)
    assert victim.returncode == -signal.SIGKILL
    scene.finish("r1", "r2")


@pytest.mark.slow
def test_a_subscriber_that_sleeps_past_the_end_of_its_session_processes_nothing_when_it_wakes(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.sender("p1", "--patience", "2")
    sleeper = scene.recorder("cache", "r1")
    with scene.load():
        eventually(lambda: scene.delivered("r1") > 100)
        scene.recorder("cache", "r2")
        sleeper.send_signal(signal.SIGSTOP)
        eventually(lambda: scene.delivered("r2") > 200)
        sleeper.send_signal(signal.SIGCONT)
        eventually(lambda: "r1" in scene.children("applications", "cache", "subscribers"))
        before = scene.delivered("r1", "r2")
        eventually(lambda: scene.delivered("r1", "r2") > before + 100)
    scene.finish("r1", "r2")


@pytest.mark.slow
def test_a_slow_subscriber_keeps_nobody_waiting(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.cluster.create_application("slow", [STREAM], start="earliest")
    scene.publisher("p1", window_bytes=20_000)
    with scene.subscriber("cache", "fast"), contextlib.ExitStack() as leaving:
        leaving.enter_context(scene.subscriber("slow", "slow", slow=0.5))
        started = time.time()
        with scene.load(rows=50):
            eventually(lambda: scene.delivered("fast") > 3000)
        scene.finish("fast", timeout=20)
        assert scene.delivered("slow") < 0.7 * scene.delivered("fast")
        times = {row: batch.begin for batch in scene.record("fast").batches for row in [(batch.shard, batch.seqs[-1])]}
        commits = scene.published().select(["shard", "seq", "time"]).to_pylist()
        waits = sorted(
            times[key] - row["time"].timestamp() for row in commits if (key := (row["shard"], row["seq"])) in times
        )
        assert waits[len(waits) // 2] < 1.0, "a bound that holds on a busy machine; alone it takes some 0.05 s"
        assert time.time() - started < 60
    # The slow one has lost nothing either.
    with scene.subscriber("slow", "quick"):
        scene.finish("slow", "quick")


@pytest.mark.slow
def test_a_flow_whose_handler_raises_is_parked_before_the_failing_update_and_the_others_go_on(scene: Scene) -> None:
    scene.prepare(SHARDS)
    scene.publisher("p1")
    bad = Stream.shard_of(scene.stream, "o-55")
    others = [shard for shard in range(SHARDS) if shard != bad]
    with scene.subscriber("cache", "r1", fail="o-55"):
        scene.publish(0, 50)
        scene.finish("r1")
        scene.publish(50, 200)
        published = scene.published().to_pylist()
        failing = next(row["seq"] for row in published if row["object"] == "o-55")
        parked = eventually(lambda: (scene.node("cache", bad, "subscriber") or {}).get("parked", ""), timeout=20)
        assert "o-55 is too much" in parked
        heads = [max(row["seq"] for row in published if row["shard"] == shard) for shard in range(SHARDS)]
        eventually(lambda: all(scene.markers("cache", SHARDS)[shard] == heads[shard] for shard in others))
        assert scene.markers("cache", SHARDS)[bad] < failing
        assert not any((scene.node("cache", shard, "subscriber") or {}).get("parked") for shard in others)
    # Whoever comes next, and can do better, begins at or before it.
    with scene.subscriber("cache", "r2"):
        eventually(lambda: scene.markers("cache", SHARDS) == heads)
    assert {row["seq"] for row in published if row["shard"] == bad} == {
        seq for shard, seq in scene.record("r1", "r2").seen() if shard == bad
    }


@pytest.mark.slow
def test_a_publisher_outlives_a_subscriber_that_lies_and_writes_nothing_that_it_says(scene: Scene) -> None:
    scene.prepare(2)
    scene.cluster.create_application("lied-to", [STREAM], start="earliest")
    scene.publisher("p1", patience=0.3)
    scene.publish(0, 20)
    with scene.subscriber("cache", "r1"), lying(scene.address, "lied-to", "liar", list(LIES.values())) as liar:
        with scene.load():
            eventually(lambda: liar.told >= 3 * len(LIES), timeout=60)
            before = scene.delivered("r1")
            eventually(lambda: scene.delivered("r1") > before + 100)
        scene.finish("r1")
        assert scene.markers("lied-to", 2) == [-1, -1]
        assert [scene.epoch("lied-to", shard) for shard in range(2)] == [1, 1], "and the publisher keeps its flows"
        # An honest subscriber of the same application gets the flows, and everything from the first update on.
        with scene.subscriber("lied-to", "honest"):
            scene.finish("honest")


def test_a_subscriber_that_refuses_without_end_is_told_of_once_a_change(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals(open: Message) -> list[bytes]:
        stale = about({**open, "turn": 0}, "refused", reason="of long ago")
        return [stale] * 500 + [about(open, "refused", reason="no room")] * 500

    scene.prepare(2)
    with caplog.at_level(logging.INFO), lying(scene.address, "cache", "liar", [refusals]) as liar:
        scene.publisher("p1", patience=0.5)
        eventually(lambda: liar.told > 6)
    assert "of long ago" not in caplog.text
    for shard in range(2):
        assert caplog.text.count(f"flow cache/{STREAM}/{shard} is refused: no room") == 1


def test_subscribers_of_two_applications_may_have_one_id(scene: Scene) -> None:
    scene.prepare(2)
    scene.cluster.create_application("other", [STREAM], start="earliest", filter="parity = odd")
    scene.publisher("p1")
    with scene.subscriber("cache", "same"), scene.subscriber("other", "same", file="same-too"):
        with scene.load():
            eventually(lambda: scene.delivered("same") > 200)
        scene.finish("same")
        scene.finish("same-too", passes=lambda row: row["attributes"]["parity"] == "odd")
    assert len(scene.record("same").events("notice")) == 2, "no flow was opened a second time"
