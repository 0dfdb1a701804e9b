"""A subscriber that writes down all it is given, one line for each row and each event, with the time.

Run as `recorder.py <zookeeper> <application> <id> <file> [options]`; ends gracefully on SIGTERM. A test may also use
`Recorder` as the handler of a subscriber in its own process.

| line | |
| --- | --- |
| `row <time> <epoch> <shard> <seq> <object> <version>` | a row was delivered |
| `end <time> <epoch> <shard>` | the batch of the rows before is processed |
| `notice <time> <shard>` | a flow begins |
| `token <time> <epoch> <shard> <seq>` | everything up to here was acknowledged |
| `loss <time> <shard> <first> <last>` | |
| `skipped <time> <shard> <count>` | |
| `closed <time> <shard>` | |
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidings
from tidings.datamarkers import Datamarker
from tidings.flows import Flow
from tidings.positions import Position


class Recorder(tidings.Handler):
    """Writes with one system call a batch, so that a kill leaves whole lines and nothing is held back."""

    def __init__(self, file: Path | str, *, slow: float = 0.0, fail: str | None = None, die: int | None = None) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._slow = slow
        self._fail = fail
        self._die = die
        self._batches = 0

    def on_shard_notice(self, flow: Flow) -> None:
        self._note("notice", flow.shard)

    def on_batch(self, rows: pa.RecordBatch) -> None:
        epoch, shard = (rows.schema.metadata[key].decode() for key in (b"epoch", b"shard"))
        now = f"{time.time():.6f}"
        names, versions, seqs = (rows[column].to_pylist() for column in ("object", "version", "seq"))
        lines = [
            f"row {now} {epoch} {shard} {seq} {name} {version}\n"
            for seq, name, version in zip(seqs, names, versions, strict=True)
        ]
        if self._fail in names:
            lines = lines[: names.index(self._fail)]
            os.write(self._file, "".join(lines).encode())
            raise RuntimeError(f"{self._fail} is too much")
        self._batches += 1
        if self._batches == self._die:
            os.write(self._file, "".join(lines[: (len(lines) + 1) // 2]).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(self._file, "".join(lines).encode())
        if self._slow:
            time.sleep(self._slow)
        self._note("end", epoch, shard)

    def on_token(self, flow: Flow, datamarker: Datamarker) -> None:
        self._note("token", datamarker.epoch, flow.shard, datamarker.position.seq)

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self._note("loss", flow.shard, first.seq, last.seq)

    def on_skipped(self, flow: Flow, count: int) -> None:
        self._note("skipped", flow.shard, count)

    def on_flow_closed(self, flow: Flow) -> None:
        self._note("closed", flow.shard)

    def _note(self, kind: str, *fields: Any) -> None:
        os.write(self._file, f"{kind} {time.time():.6f} {' '.join(map(str, fields))}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("zookeeper", "application", "id", "file"):
        parser.add_argument(name)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that each batch takes")
    parser.add_argument("--fail", help="the object that is too much for the handler")
    parser.add_argument("--die", type=int, help="in the middle of which batch the process kills itself")
    parser.add_argument("--capacity", type=float, default=1.0)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--session-timeout", type=float, default=2.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    handler = Recorder(options.file, slow=options.slow, fail=options.fail, die=options.die)
    with (
        tidings.connect(options.zookeeper, session_timeout=options.session_timeout) as cluster,
        cluster.subscribe(
            options.application,
            handler,
            id=options.id,
            capacity=options.capacity,
            retries=options.retries,
            backoff=0.05,
        ),
    ):
        stop.wait()


if __name__ == "__main__":
    main()
