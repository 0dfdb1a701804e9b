"""What others do to keep the latest row of each key: Delta by Spark, and Kafka's log compaction."""

from __future__ import annotations

import base64
import contextlib
import functools
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidings.errors import TidingsError
from tidings.runtime import jars, java
from tidings.runtime.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLIER = """
MERGE INTO {table} AS held USING (
  SELECT shard, seq FROM (
    SELECT shard, seq, row_number() OVER (PARTITION BY object ORDER BY seq DESC) AS place FROM {table}
  ) WHERE place > 1
) AS earlier ON held.shard = earlier.shard AND held.seq = earlier.seq WHEN MATCHED THEN DELETE
"""
EARLIER_THAN_NEW = """
MERGE INTO {table} AS held USING (
  SELECT object, max(seq) AS seq FROM {table} WHERE seq > {after} GROUP BY object
) AS new ON held.object = new.object AND held.seq < new.seq WHEN MATCHED THEN DELETE
"""
TOPIC = "bench"
TOPIC_SEGMENT_BYTES = 4 * 2**20  # what is in the newest segment is not compacted
CLEANER_PAUSE_MS = 50
BROKER_TIMEOUT_S = 60.0
COMPACTION_TIMEOUT_S = 600.0
POLL_S = 0.02
LOST_BROKER_PAUSE_MS = 60_000


@functools.cache
def spark_session() -> SparkSession:
    """Spark with Kafka's jars, if they can be had."""
    try:
        added = {"spark.jars": ",".join(map(str, sorted(jars.folder("kafka").glob("*.jar"))))}
    except TidingsError:
        added = {}
    return session(config=added)


# ---- Delta, by Spark -----------------------------------------------------------------------------------------------


def compact_by_delta(spark: SparkSession, folder: Path) -> float:
    """Seconds in which all rows of a table are deleted but the latest of each object."""
    return _run(spark, EARLIER, folder)


def merge_by_delta(spark: SparkSession, folder: Path, rows: pa.Table) -> float:
    """Seconds in which the rows are deleted that are earlier than new ones of their object, once these are there."""
    from pyspark.sql import functions as sf

    after = spark.sql(f"SELECT max(seq) FROM delta.`{folder}`").collect()[0][0]
    new = spark.createDataFrame(rows.select(["object", "version", "kind", "range", "payload"]))
    # The table alone knows the shard of an object; for this, any place after all others is as good.
    placed = {"shard": sf.lit(0), "seq": sf.lit(after + 1) + sf.monotonically_increasing_id(), "index": sf.lit(0)}
    schema = spark.read.format("delta").load(str(folder)).schema
    columns = {name: sf.col(name) for name in new.columns} | placed
    new.select(
        *(columns.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name) for field in schema)
    ).write.format("delta").mode("append").save(str(folder))
    return _run(spark, EARLIER_THAN_NEW, folder, after=after)


def _run(spark: SparkSession, statement: str, folder: Path, **values: int) -> float:
    table = f"delta.`{folder}`"
    start = time.perf_counter()
    spark.sql(statement.format(table=table, **values))
    spark.sql(f"OPTIMIZE {table}")
    return time.perf_counter() - start


# ---- Kafka ---------------------------------------------------------------------------------------------------------


def compact_by_kafka(spark: SparkSession, keys: npt.NDArray[np.int64], payload_bytes: int) -> tuple[int, float]:
    """How many records a local broker's one cleaner has compacted, and in how many seconds.

    The topic has one partition. It is written first, and compacted once it is told to be.
    """
    with tempfile.TemporaryDirectory() as folder, _broker(Path(folder)) as address, _admin(spark, address) as admin:
        _create_topic(spark, admin)
        payload = "x" * payload_bytes
        rows = pa.table({"key": pa.array(keys).cast(pa.string()), "value": pa.repeat(payload, len(keys))})
        written = spark.createDataFrame(rows).coalesce(1).write.format("kafka")
        written = written.option("kafka.bootstrap.servers", address).option("topic", TOPIC)
        # Spark keeps its producer for a while, which would look for the broker each second.
        written = written.option("kafka.reconnect.backoff.max.ms", str(LOST_BROKER_PAUSE_MS))
        written.save()
        segments = sorted(Path(folder, "data", f"{TOPIC}-0").glob("*.log"))
        compacted = int(segments[-1].stem)
        start = time.perf_counter()
        _compact(spark, admin)
        deadline = start + COMPACTION_TIMEOUT_S
        while _cleaned(Path(folder, "data", "cleaner-offset-checkpoint")) < compacted:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"the broker has compacted nothing in {COMPACTION_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        return compacted, time.perf_counter() - start


@contextlib.contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """A broker of the jars of the configuration `broker`, with its data in a folder."""
    libraries, program = jars.folder("broker"), str(java.find().path)
    port, controller = _free_port(), _free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "log.cleaner.threads": 1,
        "log.cleaner.backoff.ms": CLEANER_PAUSE_MS,
    }
    named = folder / "server.properties"
    named.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [program, "-Xmx1g", "-cp", f"{libraries}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_it = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(named)]
    subprocess.run(format_it, check=True, capture_output=True, timeout=BROKER_TIMEOUT_S)
    process = subprocess.Popen(
        [*command, "kafka.Kafka", str(named)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        _wait_for(port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + BROKER_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"the broker did not start in {BROKER_TIMEOUT_S:g} s")


@contextlib.contextmanager
def _admin(spark: Any, address: str) -> Iterator[Any]:
    jvm = spark._jvm
    options = jvm.java.util.HashMap()
    options.put("bootstrap.servers", address)
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(options)
    try:
        yield admin
    finally:
        admin.close()


def _create_topic(spark: Any, admin: Any) -> None:
    util, kafka = spark._jvm.java.util, spark._jvm.org.apache.kafka.clients.admin
    settings = util.HashMap()
    settings.put("segment.bytes", str(TOPIC_SEGMENT_BYTES))
    settings.put("min.cleanable.dirty.ratio", "0.01")
    topic = kafka.NewTopic(TOPIC, 1, 1).configs(settings)
    admin.createTopics(util.Collections.singleton(topic)).all().get()


def _compact(spark: Any, admin: Any) -> None:
    util, common = spark._jvm.java.util, spark._jvm.org.apache.kafka
    resource = common.common.config.ConfigResource(
        getattr(common.common.config, "ConfigResource$Type").valueOf("TOPIC"), TOPIC
    )
    entry = common.clients.admin.ConfigEntry("cleanup.policy", "compact")
    set_it = getattr(common.clients.admin, "AlterConfigOp$OpType").valueOf("SET")
    changes = util.Collections.singletonList(common.clients.admin.AlterConfigOp(entry, set_it))
    admin.incrementalAlterConfigs(util.Collections.singletonMap(resource, changes)).all().get()


def _cleaned(checkpoint: Path) -> int:
    """Up to which offset the topic is compacted, as the broker notes it."""
    with contextlib.suppress(FileNotFoundError):
        for line in checkpoint.read_text().splitlines():
            if line.startswith(f"{TOPIC} 0 "):
                return int(line.split()[2])
    return 0
