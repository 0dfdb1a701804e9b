"""A subscriber in a process of its own: `python -m tests.soak.recording <zookeeper> <application> <id> <journal>`.

It notes all that it is given. SIGTERM ends it in good order.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidings
from tests.soak.journal import Journal, digest
from tidings.flows import Flow
from tidings.positions import Position


class Recording(tidings.Handler):
    """Notes what it is given; with `drop_every` not all of it, as a fault that must be found."""

    def __init__(self, application: str, id: str, file: Path, drop_every: int | None = None) -> None:
        self._me = (application, id)
        self._journal = Journal(file)
        self._drop_every = drop_every
        self._count = 0

    def on_shard_notice(self, flow: Flow) -> None:
        self._journal.note("notice", *self._me, flow.stream, flow.shard)

    def on_batch(self, rows: pa.RecordBatch) -> None:
        stream, shard = rows.schema.metadata[b"stream"].decode(), int(rows.schema.metadata[b"shard"])
        self._journal.note_all("row", self._rows(stream, shard, rows))

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self._journal.note("loss", *self._me, flow.stream, flow.shard, f"{first} to {last}")

    def on_skipped(self, flow: Flow, count: int) -> None:
        self._journal.note("loss", *self._me, flow.stream, flow.shard, f"{count} that were too old")

    def _rows(self, stream: str, shard: int, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        columns = (rows[name].to_pylist() for name in ("seq", "index", "object", "version", "attributes", "payload"))
        for seq, index, name, version, attributes, payload in zip(*columns, strict=True):
            self._count += 1
            if not self._drop_every or self._count % self._drop_every:
                body = _body(payload) if "table" in dict(attributes or ()) else payload
                yield (*self._me, stream, shard, seq, index, name, version, digest(body))


def _body(payload: bytes | None) -> bytes | None:
    """The body of a database's row."""
    return None if payload is None else str(json.loads(payload)["body"]).encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("zookeeper", "application", "id"):
        parser.add_argument(name)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--session-timeout", type=float, default=4.0)
    parser.add_argument("--drop-every", type=int, help="a fault: every so many updates are not noted")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    handler = Recording(options.application, options.id, options.journal, options.drop_every)
    with (
        tidings.connect(options.zookeeper, session_timeout=options.session_timeout) as cluster,
        cluster.subscribe(options.application, handler, id=options.id),
    ):
        stop.wait()


if __name__ == "__main__":
    main()
