"""How long an update takes from its commit to the subscriber's callback, at 1,000 updates a second.

Producer, publisher and subscriber are processes of their own. The paper is Wormhole's.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import Future

import tidings
from bench.processes import SPAWN, publish, running, subscribe
from bench.report import Row, less_is_better, milliseconds
from tidings.positions import Position

RATE = 1_000


def run(quick: bool) -> list[Row]:
    seconds = 10 if quick else 60
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("bench", shards=16)
        cluster.create_application("cache", ["bench"], start="earliest")
        stop, ready, results = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
        total = RATE * seconds
        arguments = (cluster.address, "cache", True, total + 1, ready, results, stop)
        sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
        receiver = SPAWN.Process(target=subscribe, args=arguments)
        committed: dict[int, float] = {}
        with running(sender, receiver, stop=stop), stream.producer() as producer:
            assert ready.wait(60)
            producer.publish("first", 0).result()
            wait_until_held(cluster)
            start = time.perf_counter()
            for number in range(1, total + 1):

                def note(future: Future[Position], number: int = number) -> None:
                    committed[number] = time.time()

                producer.publish(f"object-{number % 5_000}", number, payload=b"x" * 500).add_done_callback(note)
                time.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            _, seen = results.get(timeout=60)
    taken = [max(0.0, at - committed[version]) for version, at in seen if version in committed and version > RATE * 2]
    within = 100 * sum(one < 0.1 for one in taken) / len(taken)
    return [
        Row("commit to callback, p50", milliseconds(taken, 50), "ms"),
        Row("commit to callback, p99", milliseconds(taken, 99), "ms"),
        less_is_better("commit to callback, p99.5", milliseconds(taken, 99.5), "ms", "Wormhole: 99.5 % under", 100.0),
        Row("under 100 ms", within, "%", "Wormhole", 99.5, within / 99.5),
    ]


def wait_until_held(cluster: tidings.Cluster) -> None:
    """Until every flow has a subscriber."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        flows = [("flows", "cache", "bench", str(shard), "subscriber") for shard in range(16)]
        if all(cluster.coordination.read(*place) for place in flows):
            return
        time.sleep(0.05)
    raise TimeoutError("the flows found no subscriber")
