"""A writer that never stops by itself: publishes numbered objects and notes each acknowledgement in a file.

Run as `log_writer.py <folder> <shards> <writer> <seed> <acknowledgements>`; the test that starts it kills it.
"""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import Future
from functools import partial

from tidings.positions import Position
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream


def main(folder: str, shards: str, writer: str, seed: str, acknowledgements: str) -> None:
    rng = random.Random(int(seed))
    stream = Stream(StreamDefinition("contacts", int(shards), f"delta:{folder}"))
    lock = threading.Lock()
    with (
        open(acknowledgements, "w", buffering=1) as file,
        stream.producer(linger=0.002, buffer_bytes=20_000) as producer,
    ):

        def note(name: str, future: Future[Position]) -> None:
            with lock:
                file.write(f"{name} {future.result().seq}\n")

        number = 0
        while True:
            for _ in range(rng.randrange(1, 20)):
                name = f"{writer}-{number}"
                producer.publish(name, version=number).add_done_callback(partial(note, name))
                number += 1
            if rng.random() < 0.1:
                producer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
