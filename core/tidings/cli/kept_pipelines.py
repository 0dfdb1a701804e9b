"""Pipelines that one process keeps running: one that fails is started again, as long as others run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidings.cli.output import note
from tidings.errors import TidingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.pipelines.pipeline import Pipeline
    from tidings.pipelines.query import PipelineRun

FIRST_PAUSE_S = 1.0  # and twice as long after each failure that follows
LONGEST_PAUSE_S = 60.0


class KeptPipelines:
    """The runs of pipelines, and why those failed that do not run. `runs` is filled in, for others to look at.

    With `once` nothing is started again: what ends is to end.
    """

    def __init__(
        self,
        spark: SparkSession,
        runs: dict[str, PipelineRun],
        *,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures: dict[str, str] = {}
        self._spark = spark
        self._runs = runs
        self._once = once
        self._clock = clock
        self._pipelines: dict[str, Pipeline] = {}
        self._pauses: dict[str, float] = {}
        self._due: dict[str, float] = {}

    @property
    def active(self) -> bool:
        """Whether any runs."""
        return any(run.active for run in self._runs.values())

    def start(self, pipelines: Sequence[Pipeline]) -> None:
        """Start these; one that cannot be started has failed."""
        for pipeline in pipelines:
            self._pipelines[pipeline.name] = pipeline
            self._start(pipeline.name)
        self.tell()

    def tell(self) -> None:
        """Tell of those that have failed since."""
        for name, run in self._runs.items():
            if run.error is not None and not run.active and name not in self.failures:
                try:
                    run.wait(0)
                except TidingsError as error:
                    self._fail(name, error)

    def keep(self) -> None:
        """Tell of those that have failed since, and start those again whose pause is over, if others run."""
        self.tell()
        for name in [name for name, due in self._due.items() if due <= self._clock()]:
            if self.active:
                del self._due[name], self.failures[name]
                self._start(name)

    def _start(self, name: str) -> None:
        try:
            self._runs[name] = self._pipelines[name].start(self._spark, once=self._once)
        except TidingsError as error:
            self._fail(name, error)

    def _fail(self, name: str, error: TidingsError) -> None:
        self.failures[name] = str(error)
        run = self._runs.get(name)
        if run is not None and run.progress.batches:  # it did something, so that this is another failure
            self._pauses.pop(name, None)
        pause = self._pauses[name] = min(2 * self._pauses.get(name, FIRST_PAUSE_S / 2), LONGEST_PAUSE_S)
        if not self._once:
            self._due[name] = self._clock() + pause
        again = f"; it is started again in {pause:g} s" if not self._once and self.active else ""
        note(f"error: {error}{again}")
