"""Appending to the Delta log: throughput, latency of single updates, and four writers at once.

The peer is delta-rs's own `write_deltalake`, appending the same rows in commits of the same size. It gives no offsets,
does not sync, and is what the log would be built on if it did not write its own commits.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from bench.report import Row, less_is_better, milliseconds, more_is_better
from tidings.logs import Appended, Transaction
from tidings.positions import Position
from tidings.producers import Producer
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.updates import PUBLISHED, from_rows, timed
from tidings_connectors.delta.log import DeltaLog

PAYLOAD = 500
COMMIT_ROWS = 50_000


def make_log(folder: Path) -> DeltaLog:
    return DeltaLog.create(str(folder), definition(folder))


def definition(folder: Path) -> StreamDefinition:
    return StreamDefinition("bench", 16, f"delta:{folder}")


def make_rows(count: int) -> pa.Table:
    return timed(
        from_rows({"object": f"object-{n}", "version": n, "payload": os.urandom(PAYLOAD)} for n in range(count))
    )


def throughput(folder: Path, quick: bool) -> list[Row]:
    rows = make_rows(COMMIT_ROWS)
    commits = 10 if quick else 40
    make_log(folder / "ours")
    with Stream(definition(folder / "ours")).producer(max_rows=COMMIT_ROWS) as producer:
        start = time.perf_counter()
        futures = [producer.publish_many(rows) for _ in range(commits)]
        for future in futures:
            future.result()
        ours = commits * COMMIT_ROWS / (time.perf_counter() - start)
    table = DeltaTable.create(folder / "theirs", PUBLISHED)
    start = time.perf_counter()
    for _ in range(commits):
        write_deltalake(table, rows, mode="append")
    theirs = commits * COMMIT_ROWS / (time.perf_counter() - start)
    megabytes = rows.nbytes / COMMIT_ROWS / 1e6
    peer = f"write_deltalake, {COMMIT_ROWS:,} rows a commit"
    return [
        more_is_better("publish_many", ours, "updates/s", peer, theirs),
        more_is_better("publish_many", ours * megabytes, "MB/s", peer, theirs * megabytes),
    ]


class PeerLog:
    """As much of a log as a producer needs, on `write_deltalake`."""

    def __init__(self, folder: Path) -> None:
        self._table = DeltaTable.create(folder, PUBLISHED)

    def append(self, updates: pa.Table, transaction: Transaction | None = None) -> Appended:
        write_deltalake(self._table, updates, mode="append")
        return Appended(np.zeros(len(updates), np.int32), np.zeros(len(updates), np.int64))

    def close(self) -> None:
        """Nothing to let go of."""


def latencies(producer: Producer, rate: int, seconds: int) -> list[float]:
    taken: list[float] = []
    with producer:
        start = time.perf_counter()
        for number in range(rate * seconds):
            called = time.perf_counter()

            def note(future: Future[Position], called: float = called) -> None:
                taken.append(time.perf_counter() - called)

            producer.publish(f"object-{number}", number, payload=b"x" * PAYLOAD).add_done_callback(note)
            time.sleep(max(0.0, start + number / rate - time.perf_counter()))
    return taken


def latency(folder: Path, quick: bool) -> list[Row]:
    seconds = 5 if quick else 30
    ours = latencies(Producer(make_log(folder / "ours")), 1_000, seconds)
    theirs = latencies(Producer(PeerLog(folder / "theirs")), 1_000, seconds)  # type: ignore[arg-type]  # enough of one
    peer = "the same producer on write_deltalake"
    return [
        less_is_better(f"publish at 1,000 calls/s, p{p}", milliseconds(ours, p), "ms", peer, milliseconds(theirs, p))
        for p in (50, 99)
    ]


def write_for_a_while(
    folder: str, ours: bool, seconds: float, start: float, counts: multiprocessing.Queue[int]
) -> None:
    rows = make_rows(10)
    log = DeltaLog.open(folder, definition(Path(folder))) if ours else None
    table = None if ours else DeltaTable(folder)
    time.sleep(max(0.0, start - time.time()))
    count = 0
    while time.time() < start + seconds:
        if log:
            log.append(rows)
            count += 1
        elif table:
            try:
                write_deltalake(table, rows, mode="append", commit_properties=CommitProperties(max_commit_retries=0))
                count += 1
            except CommitFailedError:
                pass
            table.update_incremental()
    if log:
        log.close()
    counts.put(count)


def four_writers(folder: Path, quick: bool) -> list[Row]:
    seconds = 5.0 if quick else 20.0
    make_log(folder / "ours")
    DeltaTable.create(folder / "theirs", PUBLISHED)
    context = multiprocessing.get_context("spawn")
    rates = []
    for ours in (True, False):
        counts = context.Queue()
        arguments = (str(folder / ("ours" if ours else "theirs")), ours, seconds, time.time() + 5, counts)
        writers = [context.Process(target=write_for_a_while, args=arguments) for _ in range(4)]
        for writer in writers:
            writer.start()
        rates.append(sum(counts.get() for _ in writers) / seconds)
        for writer in writers:
            writer.join()
    peer = "write_deltalake that commits or starts anew"
    return [more_is_better("appends of 10 rows by 4 processes", rates[0], "commits/s", peer, rates[1])]


def run(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for part in (throughput, latency, four_writers):
        with tempfile.TemporaryDirectory() as folder:
            rows += part(Path(folder), quick)
    return rows
