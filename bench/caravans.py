"""Reading a log once for many, or many times: what each caravan more costs in reading, and gains in latency.

As in Wormhole's evaluation: ten applications are behind by equal parts of the log, and a publisher may have one to ten
caravans, of a limited speed each. It is done with a real log, publisher and subscribers, and simulated with the code by
which publishers allocate flows. Then the real thing in steady state: six applications, and how many bytes are read for
each that is sent.
"""

from __future__ import annotations

import tempfile
import time
from multiprocessing.synchronize import Event

import tidings
from bench.caravan_replay import replay
from bench.caravan_simulation import Outcome, Trace, simulate
from bench.processes import SPAWN, publish, running
from bench.report import Row, less_is_better
from tidings.flow_status import status
from tidings.testing import eventually, make_updates
from tidings_log_tailing.control import reports
from tidings_log_tailing.policies import gaps, one_per_flow

APPLICATIONS = 6
MEASURES = (("read amplification", "times"), ("latency", "s"))  # of an `Outcome`

CAPTION = (
    "Latency as in Wormhole's figure 7: from commit to callback, averaged over the updates of an application, then "
    "over the ten applications. The backlog counts as committed when they come back; Wormhole's was minutes old by "
    "then, so that a smaller part could be saved. Read amplification: what all caravans read, over the size of the log."
)


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


def saved(name: str, latency: float, alone: float) -> Row:
    """How much shorter than with one caravan the latency is, beside Wormhole's."""
    part = 100 * (1 - latency / alone)
    return Row(f"{name}: latency saved", part, "%", "Wormhole: up to", 40.0, part / 40.0)


def catching_up(trace: Trace, real: tuple[int, ...], more: tuple[int, ...]) -> list[Row]:
    """Read amplification and latency with so many caravans, beside the simulation; with `more`, of that alone."""
    found = replay(trace, real)
    model = {number: simulate(gaps, number, trace) for number in sorted({*real, *more})}
    result = []
    for number, simulated in model.items():
        name = f"{number} caravans" if number > 1 else "1 caravan"
        if number in found:
            result += beside(name, found[number], simulated)
        else:
            result.append(Row(f"{name}, simulated: read amplification", simulated.amplification, "times"))
        if number > 1 and number in found:
            result.append(saved(name, found[number].latency, found[1].latency))
        if number > 1:
            result.append(saved(f"{name}, simulated", simulated.latency, model[1].latency))
    return result


def beside(name: str, real: Outcome, simulated: Outcome) -> list[Row]:
    """What was measured, beside what was simulated."""
    return [
        less_is_better(f"{name}: {what}", ours, unit, "simulated", theirs)
        for (what, unit), ours, theirs in zip(MEASURES, real, simulated, strict=True)
    ]


def run(quick: bool) -> list[Row]:
    trace = Trace(rows=1_000_000, rate=200_000) if quick else Trace(rows=2_000_000, rate=100_000)
    result = catching_up(trace, (1, 2, 10), ()) if quick else catching_up(trace, (1, 2, 5, 10), (3, 4, 7))
    alone = simulate(one_per_flow, trace.applications, trace)
    result.append(Row("one-per-flow, simulated: read amplification", alone.amplification, "times"))
    ratio = steady(6.0 if quick else 30.0)
    result.append(less_is_better(f"{APPLICATIONS} applications, bytes read/sent", ratio, "", "Wormhole", 1 / 6))
    return result
