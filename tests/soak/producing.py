"""A producer in a process of its own: `python -m tests.soak.producing <zookeeper> <stream> <name> <journal> <seed>`.

It publishes as long as it lives, notes what it tries and what was acknowledged, and goes on after its last number when
it is started again. SIGTERM ends it once all is acknowledged or has failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import tidings
from tests.soak import bodies
from tests.soak.journal import Follower, Journal, digest
from tidings.errors import TidingsError
from tidings.producers import Producer
from tidings.updates import MAX_DELIVERABLE_BYTES


class Producing:
    """Changes objects of its own one after the other, so that each has growing numbers."""

    def __init__(self, producer: Producer, stream: str, name: str, file: Path, objects: int) -> None:
        self._producer = producer
        self._stream = stream
        self._names = [bodies.name(name, number) for number in range(objects)]
        self._numbers: dict[str, int] = defaultdict(int)
        self._count = 0
        for kind, _, *fields in Follower(file).lines():
            if kind == "try":
                self._numbers[fields[1]] = max(fields[2], self._numbers[fields[1]])
                self._count += 1
        self._journal = Journal(file)

    def publish(self, rng: random.Random, lies: bool = False) -> None:
        """Publish one update; or, as a fault that must be found, only say so."""
        name = rng.choice(self._names)
        size = bodies.size(self._count, rng)
        attributes = {"filler": bodies.attribute(self._count)}
        self._count += 1
        self._numbers[name] = number = self._numbers[name] + 1
        attributes["parity"] = "odd" if number % 2 else "even"
        payload = None if size is None else rng.randbytes(size)
        self._journal.note("try", self._stream, name, number, digest(payload), (size or 0) + len(attributes["filler"]))
        if lies:
            self._journal.note("ack", self._stream, name, number)
            return
        published = self._producer.publish(name, number, payload=payload, attributes=attributes)
        published.add_done_callback(lambda future: self._done(future, name, number))

    def _done(self, future: Future[Any], name: str, number: int) -> None:
        if future.exception() is None:
            self._journal.note("ack", self._stream, name, number)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("zookeeper", "stream", "name"):
        parser.add_argument(name)
    parser.add_argument("journal", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--rate", type=float, default=8.0, help="updates a second")
    parser.add_argument("--objects", type=int, default=60)
    parser.add_argument("--lie-every", type=int, help="a fault: every so many updates are not published at all")
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with tidings.connect(options.zookeeper) as cluster:
        stream = cluster.stream(options.stream)
    with stream.producer(max_payload_bytes=MAX_DELIVERABLE_BYTES) as producer:
        one = Producing(producer, options.stream, options.name, options.journal, options.objects)
        rng = random.Random(f"{options.seed} {options.name}")
        count = 0
        while not stop.wait(rng.expovariate(options.rate)):
            count += 1
            try:
                one.publish(rng, lies=bool(options.lie_every) and count % options.lie_every == 0)
            except TidingsError as error:
                print(error, flush=True)


if __name__ == "__main__":
    main()
