"""Reading a log once for many, or many times: what each caravan more costs in reading, and gains in latency.

As in Wormhole's evaluation: ten applications are behind by equal parts of the log, and a publisher may have one to ten
caravans. The policies are simulated with the code that publishers run. Then the real thing, in steady state: six
applications, and how many bytes are read for each that is sent.
"""

from __future__ import annotations

import tempfile
import time
from multiprocessing.synchronize import Event

import tidings
from bench.caravan_simulation import World, spread
from bench.processes import SPAWN, publish, running
from bench.report import Row, less_is_better
from tidings.caravans import Limits
from tidings.flows import status
from tidings.testing import eventually, make_updates
from tidings_log_tailing.control import reports
from tidings_log_tailing.policies import gaps, one_per_flow

APPLICATIONS = 6


def simulated(caravans: int, rows: int) -> tuple[float, float]:
    """Read amplification and average latency with so many caravans."""
    world = World(gaps, Limits(caravans=caravans), spread(10, rows), rows)
    world.settle(10_000)
    return world.read / rows, world.latency


class Nothing(tidings.Handler):
    """Takes updates, and does nothing with them."""

    def on_batch(self, rows: object) -> None:
        pass


def subscribe(address: str, stop: Event) -> None:
    """Subscribe all applications."""
    with tidings.connect(address) as cluster:
        subscribers = [cluster.subscribe(f"a{number}", Nothing()) for number in range(APPLICATIONS)]
        stop.wait()
        for subscriber in subscribers:
            subscriber.close()


def steady(seconds: float) -> float:
    """Bytes read over bytes sent, of a publisher whose applications all keep up."""
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("contacts", shards=8)
        for number in range(APPLICATIONS):
            cluster.create_application(f"a{number}", ["contacts"])
        stop = SPAWN.Event()
        sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
        receiver = SPAWN.Process(target=subscribe, args=(cluster.address, stop))
        with running(sender, receiver, stop=stop):
            eventually(lambda: len([one for one in status(cluster) if one.state == "running"]) == 8 * APPLICATIONS, 60)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                stream.writable_log.append(make_updates(1_000))
                time.sleep(0.05)
            found = eventually(lambda: [one for one in reports(cluster) if one["bytes_sent"]], 30)
            return float(found[0]["read_per_sent"])


def run(quick: bool) -> list[Row]:
    rows = 20_000_000
    allowed = (1, 2, 10) if quick else (1, 2, 3, 4, 5, 7, 10)
    found = {number: simulated(number, rows) for number in allowed}
    alone = found[1][1]
    result = []
    for number, (amplification, latency) in found.items():
        name = f"{number} caravans" if number > 1 else "1 caravan"
        result.append(Row(f"{name}: read amplification", amplification, "times"))
        saved = 100 * (1 - latency / alone)
        result.append(Row(f"{name}: latency saved", saved, "%", "Wormhole: up to", 40.0, saved / 40.0))
    world = World(one_per_flow, Limits(caravans=10), spread(10, rows), rows)
    world.settle(10_000)
    result.append(Row("one-per-flow: read amplification", world.read / rows, "times"))
    ratio = steady(10.0 if quick else 30.0)
    result.append(less_is_better(f"{APPLICATIONS} applications, bytes read/sent", ratio, "", "Wormhole", 1 / 6))
    return result
