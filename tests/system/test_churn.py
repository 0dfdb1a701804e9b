from __future__ import annotations

import random
import signal
import subprocess
import time

import pytest

from tests.support.scene import Scene, stop
from tidings.testing import eventually

SHARDS = 64
SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_publishers_that_come_and_go_at_random_under_load_lose_and_mix_up_nothing(scene: Scene, seed: int) -> None:
    rng = random.Random(seed)
    scene.prepare(SHARDS)
    recorders = ("r1", "r2")
    for id in recorders:
        scene.recorder("cache", id)
    live: dict[str, subprocess.Popen[bytes]] = {name: scene.sender(name) for name in ("p1", "p2", "p3")}
    started = 3
    with scene.load(rows=20, every=0.05):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if len(live) == 3 or (len(live) == 2 and rng.random() < 0.3):
                victim = live.pop(rng.choice(sorted(live)))
                stop(victim, rng.choice([signal.SIGKILL, signal.SIGTERM]))
            else:
                started += 1
                live[f"p{started}"] = scene.sender(f"p{started}")
            time.sleep(rng.random() * 2)  # anywhere in the midst of what the others make of it
        before = scene.delivered(*recorders)
        eventually(lambda: scene.delivered(*recorders) > before + 500)
    scene.finish(*recorders)
    assert set(scene.owners("cache", SHARDS)) == set(live), "every flow has an owner, and every publisher its share"
    eventually(lambda: scene.markers("cache", SHARDS) == heads(scene), timeout=10)


def heads(scene: Scene) -> list[int]:
    return [bounds.head.seq for _, bounds in sorted(scene.stream.log.bounds().items())]
