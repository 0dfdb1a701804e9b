"""How long an update takes from its append to a micro-batch of `format("tidings")`.

The peer is Spark's own Delta source, which reads the very same table. Each query gets single updates, one after the
other; the clock runs from the moment the update is durable to the moment the batch's rows are in the driver.
"""

from __future__ import annotations

import json
import queue
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import tidings
from bench.report import Row, less_is_better, milliseconds
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings_connectors.delta.log import DeltaLog


def measure(rows: DataFrame, stream: Stream, checkpoint: Path, count: int, warm: int) -> list[float]:
    arrived: queue.Queue[tuple[list[str], float]] = queue.Queue()

    def keep(batch: DataFrame, number: int) -> None:
        names = batch.select("object").toArrow()["object"].to_pylist()
        arrived.put((names, time.perf_counter()))

    writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    taken = []
    try:
        with stream.producer(linger=0) as producer:
            for number in range(warm + count):
                name = f"{checkpoint.name}-{number}"
                producer.publish(name, number).result()
                durable = time.perf_counter()
                while True:
                    names, seen = arrived.get(timeout=60)
                    if name in names:
                        break
                if number >= warm:
                    taken.append(seen - durable)
    finally:
        query.stop()
    return taken


def run(quick: bool) -> list[Row]:
    spark: SparkSession = tidings.session("bench", master="local[2]")
    count, warm = (15, 10) if quick else (100, 30)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        definition = StreamDefinition("bench", 16, f"delta:{folder / 'log'}")
        DeltaLog.create(str(folder / "log"), definition)
        stream = Stream(definition)
        rows = spark.readStream.format("tidings").option("definition", json.dumps(definition.to_json())).load()
        ours = measure(rows, stream, folder / "ours", count, warm)
        delta = spark.readStream.format("delta").load(str(folder / "log"))
        theirs = measure(delta, stream, folder / "theirs", count, warm)
    peer = "Spark's Delta source, same table"
    return [
        less_is_better(f"append to micro-batch, p{p}", milliseconds(ours, p), "ms", peer, milliseconds(theirs, p))
        for p in (50, 90)
    ]
