"""A pipeline: streams in, a stage, a stream out, run as one Structured Streaming query.

Each micro-batch is handed to the stage; what the stage returns is put in order and appended to the output in one commit
that carries the batch's number, and then the stage's tables are committed likewise. Spark repeats a batch that was not
finished, with the very same rows. So the output has the rows of each batch once, wherever a driver dies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import PipelineFailed
from tidings.pipelines.definition import PipelineDefinition
from tidings.pipelines.query import PipelineRun, cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Pipeline(PipelineDefinition):
    """A pipeline that can be started. Made by `Cluster.pipeline`; the options are those of `PipelineDefinition`."""

    def start(self, spark: SparkSession, *, once: bool = False) -> PipelineRun:
        """Start it; with `once` it ends when it has processed what is there now.

        `PipelineHeld` if another process runs it.
        """
        from pyspark.errors import PySparkException

        lock = PipelineLock(self.cluster.coordination, self.name)
        try:
            self.note_inputs()
            self.stage.begin(self.cluster, self.inputs, self.output)
            return PipelineRun(self, spark, lock, once=once)
        except BaseException as error:
            lock.release()
            if isinstance(error, PySparkException):
                raise PipelineFailed(f"pipeline {self.name!r} does not start: {cause(error)}") from error
            raise

    def run(self, spark: SparkSession, *, once: bool = False) -> None:
        """Start it and wait until it ends; `PipelineFailed` if it does so before its time."""
        with self.start(spark, once=once) as run:
            run.wait()
