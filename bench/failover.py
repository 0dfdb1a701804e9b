"""From the death of a publisher (kill -9) to the first update that another one delivers. The paper is Wormhole's.

And how long it takes one publisher to take, place and open very many flows, which it finds without an owner.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time

import tidings
from bench.processes import SPAWN, publish, running
from bench.report import Row, less_is_better

SESSION = 2.0


class Arrivals(tidings.Handler):
    def __init__(self) -> None:
        self.last: dict[int, float] = {}

    def on_update(self, update: tidings.Update) -> None:
        self.last[update.shard] = time.monotonic()


def once(cluster: tidings.Cluster, stream: tidings.Stream, arrivals: Arrivals) -> float:
    """Seconds until every shard that the dead one owned is served again."""
    never, stop = SPAWN.Event(), SPAWN.Event()  # an event that a dead process waits for cannot be set
    options = {"session_timeout": SESSION, "token_interval": 0.5}
    first = SPAWN.Process(target=publish, args=(cluster.address, {**options, "name": "a"}, never))
    second = SPAWN.Process(target=publish, args=(cluster.address, {**options, "name": "b"}, stop))
    with running(first, second, stop=stop), stream.producer() as producer:
        owned = wait_for_owners(cluster)
        over = threading.Event()

        def load() -> None:
            number = 0
            while not over.wait(0.002):
                producer.publish(f"object-{number % 1_000}", number)
                number += 1

        loading = threading.Thread(target=load)
        loading.start()
        mine = [shard for shard, owner in owned.items() if owner == "a"]
        begun = time.monotonic()
        while not all(arrivals.last.get(shard, 0) > begun for shard in mine):
            time.sleep(0.01)
        os.kill(first.pid or 0, signal.SIGKILL)
        killed = time.monotonic()
        while not all(arrivals.last[shard] > killed + 0.5 for shard in mine) and time.monotonic() < killed + 60:
            time.sleep(0.005)
        taken = max(arrivals.last[shard] for shard in mine) - killed
        over.set()
        loading.join()
    return taken


def wait_for_owners(cluster: tidings.Cluster) -> dict[int, str]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        places = {shard: ("flows", "cache", "bench", str(shard)) for shard in range(16)}
        owners = {shard: cluster.coordination.read(*place, "owner") for shard, place in places.items()}
        if all(owners.values()) and len({owner["publisher"] for owner in owners.values() if owner}) == 2:
            return {shard: owner["publisher"] for shard, owner in owners.items() if owner}
        time.sleep(0.05)
    raise TimeoutError("the publishers did not share the flows")


def take_many(flows: int) -> float:
    """Seconds until one publisher has so many flows open with a subscriber."""
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        cluster.create_stream("bench", shards=flows)
        cluster.create_application("cache", ["bench"])
        stop = SPAWN.Event()
        sender = SPAWN.Process(target=publish, args=(cluster.address, {"name": "a"}, stop))
        with cluster.subscribe("cache", Arrivals()) as subscriber, running(sender, stop=stop):
            while not cluster.coordination.children("publishers"):
                time.sleep(0.01)
            begun = time.monotonic()
            while len(subscriber.flows) < flows and time.monotonic() < begun + 120:
                time.sleep(0.1)
            return time.monotonic() - begun


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("bench", shards=16)
        cluster.create_application("cache", ["bench"])
        arrivals = Arrivals()
        with cluster.subscribe("cache", arrivals):
            taken = sorted(once(cluster, stream, arrivals) for _ in range(2 if quick else 7))
    many = 200 if quick else 2_000
    opened = take_many(many)
    name = f"kill -9 to delivery again, sessions of {SESSION:g} s"
    return [
        less_is_better(f"{name}, median", taken[len(taken) // 2], "s", "Wormhole", 60.0),
        less_is_better(f"{name}, worst", taken[-1], "s", "Wormhole", 60.0),
        Row(f"{many:,} flows taken and open", opened, "s"),
    ]
