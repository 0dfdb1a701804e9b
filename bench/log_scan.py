"""Reading a stream with Spark, by `tidings.read` and `format("tidings")`, beside a plain read of its Delta table."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import tidings
from bench.report import Row, more_is_better
from tidings.positions import Positions
from tidings.stream_definition import StreamDefinition
from tidings.updates import checked, timed
from tidings_connectors.delta.log import DeltaLog

APPEND = 500_000
PAYLOAD = "number LONG, text STRING"


def make_rows(first: int) -> pa.Table:
    numbers = np.arange(first, first + APPEND)
    payload = pa.array([b'{"number": %d, "text": "%080d"}' % (number, number) for number in numbers.tolist()])
    return timed(
        checked(pa.table({"object": [f"object-{n}" for n in numbers], "version": numbers, "payload": payload}))
    )


def best_of(times: int, frames: list[Callable[[], DataFrame]]) -> list[float]:
    """The best time of each, taken in turns so that a busy machine is unfair to all alike."""
    best = [float("inf")] * len(frames)
    for _ in range(times):
        for number, frame in enumerate(frames):
            start = time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            best[number] = min(best[number], time.perf_counter() - start)
    return best


def run(quick: bool) -> list[Row]:
    spark = tidings.session("bench", master="local[2]")
    total = 1_000_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "log"
        definition = StreamDefinition("bench", 16, f"delta:{folder}")
        log = DeltaLog.create(str(folder), definition)
        for first in range(0, total, APPEND):
            log.append(make_rows(first))
        log.compact()
        half = log.reach(Positions(), total // 2)

        def plain() -> DataFrame:
            return spark.read.format("delta").load(str(folder))

        stream = tidings.Stream(definition)
        whole, ranged, decoded, through_python, delta, delta_decoded = best_of(
            5,
            [
                lambda: tidings.read(spark, stream),
                lambda: tidings.read(spark, stream, after=half),
                lambda: tidings.read(spark, stream, payload="json", schema=PAYLOAD),
                lambda: spark.read.format("tidings").option("definition", json.dumps(definition.to_json())).load(),
                plain,
                lambda: plain().withColumn("payload", sf.from_json(sf.col("payload").cast("string"), PAYLOAD)),
            ],
        )
    peer = f"plain Delta read of all {total:,} rows"
    return [
        more_is_better("tidings.read, all rows", total / whole, "rows/s", peer, total / delta),
        more_is_better("tidings.read, the newer half", total / 2 / ranged, "rows/s", peer, total / delta),
        more_is_better(
            "tidings.read, payload='json'", total / decoded, "rows/s", f"{peer}, and from_json", total / delta_decoded
        ),
        more_is_better("format('tidings'), all rows", total / through_python, "rows/s", peer, total / delta),
    ]
