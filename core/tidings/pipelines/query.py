"""A pipeline that runs: its query, what becomes of each batch, and how it ends."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import PipelineFailed, TidingsError
from tidings.logs import Transaction
from tidings.pipelines.checkpoint import covered, query_id
from tidings.pipelines.definition import PipelineDefinition
from tidings.pipelines.progress import Progress, ProgressMeter
from tidings.stages.state import Head, State
from tidings.updates import MAX_DELIVERABLE_BYTES, PUBLISHED, STAMPED, checked, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WATCH_INTERVAL_S = 1  # between two looks at the lock
TELL_INTERVAL_S = 5.0  # between two reports in ZooKeeper
POLL_INTERVAL_S = 0.05  # at which a query that has nothing to do looks for something
STOP_TIMEOUT_S = 30.0  # that a batch which is for the next run waits for the end
COMMIT_TIMEOUT_S = 5.0  # that Spark gets to note that a batch is done

_POLLING_DELAY = "spark.sql.streaming.pollingDelay"

# What Spark takes for an interruption.
INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling Thread.sleep: java.lang.InterruptedException"
)

logger = logging.getLogger(__name__)


class PipelineRun:
    """One run of a pipeline. Made by `Pipeline.start`; a context manager, which stops it at its end."""

    def __init__(
        self, pipeline: PipelineDefinition, spark: SparkSession, lock: PipelineLock, *, once: bool = False
    ) -> None:
        self.pipeline = pipeline
        self.name = pipeline.name
        self.error: BaseException | None = None
        self._lock = lock
        self._busy = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._batch_id = -1
        self._next_told = 0.0
        self._heads: dict[str, Head] = {}
        self._meter = ProgressMeter(pipeline.inputs)
        writer = pipeline.read(spark).writeStream.queryName(self.name).foreachBatch(self._step)
        writer = writer.option("checkpointLocation", str(pipeline.checkpoint))
        with _polling_slowly(spark):
            trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
            self._query: StreamingQuery = trigger.start()
        self._thread = threading.Thread(target=self._watch, name=f"tidings-pipeline-{self.name}", daemon=True)
        self._thread.start()
        logger.info("pipeline %r runs, from %s", self.name, pipeline.checkpoint)

    @property
    def active(self) -> bool:
        """Whether it has not ended yet."""
        return not self._ended.is_set()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return self._meter.progress()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it ends, and say whether it has; `PipelineFailed` if it ended before its time."""
        ended = self._ended.wait(timeout)
        if ended and self.error is not None:
            raise PipelineFailed(f"pipeline {self.name!r} failed: {cause(self.error)}") from self.error
        return ended

    def stop(self) -> None:
        """End it after the batch that is under way."""
        self._stopping.set()
        with self._busy:
            # Spark notes the batch as done a moment after the step; stopped before, it would repeat it.
            deadline = time.monotonic() + COMMIT_TIMEOUT_S
            noted = self.pipeline.checkpoint / "commits" / str(self._batch_id)
            while self.active and self._batch_id >= 0 and not noted.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        if self.active:
            self._query.stop()
        self._ended.wait()

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # What happens to a batch

    def _step(self, batch: DataFrame, batch_id: int) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            with self._busy:
                if not self._stopping.is_set():
                    started = time.monotonic()
                    written = self._process(batch, batch_id)
                    self._batch_id = batch_id
                    self._meter.batch_finished(batch_id, time.monotonic() - started, written)
                    return
            # It sleeps in the thread that Spark interrupts; what comes of that is no failure to Spark, but the end.
            jvm: Any = batch.sparkSession._jvm
            try:
                jvm.java.lang.Thread.sleep(int(STOP_TIMEOUT_S * 1000))
            except Py4JJavaError:
                # In few words: Spark looks for these by a pattern that a long text makes its stack overflow.
                raise PipelineFailed(INTERRUPTED) from None
            raise PipelineFailed("the pipeline is being stopped; the batch is for the next run")
        except BaseException as error:
            if not self._stopping.is_set():
                self.error = self.error or error  # what Spark says of a query that was stopped explains nothing
            raise

    def _process(self, batch: DataFrame, batch_id: int) -> int:
        """Write what the stage makes of the batch; how many updates that were."""
        self._check_lock()
        checkpoint, written = self.pipeline.checkpoint, 0
        app = f"tidings-pipeline-{query_id(checkpoint)}"
        transaction = Transaction(app, batch_id, covered(checkpoint, batch_id))
        self.pipeline.note_batch(transaction)
        state = State(self.pipeline.tables, app, batch_id, self._heads)
        made = self.pipeline.stage.apply(batch, state)
        if self.pipeline.output is not None:
            made = PUBLISHED.empty_table() if made is None else ordered(made)
            rows = timed(checked(made, max_payload_bytes=MAX_DELIVERABLE_BYTES))
            self._check_lock()
            appended = self.pipeline.output.writable_log.append(rows, transaction)
            written = 0 if appended is None else len(rows)
        state.commit()
        return written

    def _check_lock(self) -> None:
        if not self._lock.valid():
            raise _lock_lost()

    # How it goes on, and ends

    def _watch(self) -> None:
        try:
            while not self._query.awaitTermination(WATCH_INTERVAL_S):
                self._meter.add_reports(self._query.recentProgress)
                self._tell()
                if not self._lock.valid():
                    self.error = self.error or _lock_lost()
                    self._query.stop()
        except Exception as error:  # noqa: BLE001 - Spark's own, or what it wrapped: told by `wait`
            if not self._stopping.is_set() and self.error is None:
                self.error = error
        finally:
            with contextlib.suppress(Exception):  # Spark may be gone
                self._query.stop()  # never without a lock, whatever went wrong here
                self._meter.add_reports(self._query.recentProgress)
            with contextlib.suppress(Exception):  # a stage's own
                self.pipeline.stage.end()
            self._lock.release()
            self._ended.set()
            logger.info("pipeline %r has ended", self.name)

    def _tell(self) -> None:
        """Let operators see how it goes on, now and then."""
        if time.monotonic() < self._next_told:
            return
        self._next_told = time.monotonic() + TELL_INTERVAL_S
        now = self._meter.counted()
        self._lock.tell(
            {
                "stage": self.pipeline.stage_name,
                "inputs": [stream.name for stream in self.pipeline.inputs],
                "output": self.pipeline.output.name if self.pipeline.output else None,
                "batch": now.batch,
                "updates_in": now.updates_in,
                "updates_out": now.updates_out,
                "rate": round(now.rate, 1),
                "at": now.at,
            }
        )


@contextlib.contextmanager
def _polling_slowly(spark: SparkSession) -> Iterator[None]:
    """Let a query that is started here look for rows every so often when it has none: Spark's own pace takes a core.

    A trigger with that interval would do the same, and complain of every batch that takes longer.
    """
    ours = f"{int(POLL_INTERVAL_S * 1000)}ms"
    if spark.conf.get(_POLLING_DELAY, ours) != ours:  # someone has set it
        yield
        return
    spark.conf.set(_POLLING_DELAY, ours)
    try:
        yield
    finally:
        spark.conf.unset(_POLLING_DELAY)


def _lock_lost() -> PipelineFailed:
    return PipelineFailed("the session with ZooKeeper was lost, and another process may run the pipeline now")


def ordered(made: DataFrame | pa.Table) -> pa.Table:
    """What a stage made as a log takes it: in the order of the updates that it was made from, as far as that is told.

    Rows of one update stay in the order in which they are.
    """
    rows = made if isinstance(made, pa.Table) else made.toArrow()
    keys = [(name, "ascending") for name in ("stream", *STAMPED) if name in rows.column_names]
    if keys:
        rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
    return rows.drop_columns("stream") if "stream" in rows.column_names else rows


def cause(error: BaseException) -> str:
    """What went wrong, in one line, without the trace that Spark puts around it."""
    if isinstance(error, TidingsError):
        return str(error)
    messages = re.findall(r"tidings\.errors\.\w+: (.+)", str(error))
    if messages:
        return str(messages[-1])
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason was given'}"
