"""What Prometheus is told of the pipelines of a process, and whether all of them go on (docs/metrics.md: the list)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from tidings.metrics import PROGRESS_TIMEOUT_S
from tidings.pipelines.query import PipelineRun, cause

_PREFIX = "tidings_pipeline_"


class PipelineCollector(Collector):
    """Reads the progress of runs whenever it is asked."""

    def __init__(self, runs: Mapping[str, PipelineRun]) -> None:
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        """All series of all runs."""
        labels = ["pipeline"]
        running = GaugeMetricFamily(f"{_PREFIX}running", "1 while the pipeline runs.", labels=labels)
        read = CounterMetricFamily(f"{_PREFIX}input_updates", "Updates read.", labels=labels)
        written = CounterMetricFamily(f"{_PREFIX}output_updates", "Updates written.", labels=labels)
        batches = SummaryMetricFamily(f"{_PREFIX}batch_duration_seconds", "Batches finished.", labels=labels)
        lag = GaugeMetricFamily(f"{_PREFIX}lag_updates", "Updates still to be read.", labels=["pipeline", "stream"])
        last = GaugeMetricFamily(
            f"{_PREFIX}last_progress_timestamp_seconds", "When the pipeline last showed that it goes on.", labels=labels
        )
        of_stages: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, run in dict(self._runs).items():
            for figure, value in run.pipeline.stage.figures().items():
                family = of_stages.setdefault(figure, _of_stage(figure))
                family.add_metric([name], value)
            progress = run.progress
            running.add_metric([name], float(run.active))
            read.add_metric([name], progress.updates_in)
            written.add_metric([name], progress.updates_out)
            batches.add_metric([name], progress.batches, progress.batch_seconds)
            for stream, behind in progress.lag.items():
                if behind is not None:
                    lag.add_metric([name, stream], behind)
            if progress.at is not None:
                last.add_metric([name], progress.at)
        return [running, read, written, batches, lag, last, *of_stages.values()]


def _of_stage(figure: str) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if figure.endswith("_total") else GaugeMetricFamily
    return kind(f"tidings_stage_{figure.removesuffix('_total')}", "As the stage says it.", labels=["pipeline"])


def unready(runs: Mapping[str, PipelineRun], expected: Iterable[str]) -> list[str]:
    """Why not all of the expected pipelines go on; nothing if they do."""
    reasons = []
    for name in expected:
        run = runs.get(name)
        progress = None if run is None else run.progress
        if run is None or progress is None or (progress.at is None and run.active):
            reasons.append(f"pipeline {name!r} is starting")
        elif not run.active:
            reasons.append(f"pipeline {name!r} has {f'failed: {cause(run.error)}' if run.error else 'ended'}")
        elif progress.at is not None and (passed := time.time() - progress.at) > PROGRESS_TIMEOUT_S:
            reasons.append(f"pipeline {name!r} shows no progress for {passed:,.0f} s")
        elif progress.behind_since and (passed := time.time() - progress.behind_since) > PROGRESS_TIMEOUT_S:
            reasons.append(f"pipeline {name!r} has had updates to read for {passed:,.0f} s, and reads none")
    return reasons
