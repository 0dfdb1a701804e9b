"""`tidings run`: the pipelines of a `tidings.yml`, in the foreground."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.kept_pipelines import KeptPipelines
from tidings.cli.options import SERVICE_TIMEOUT_S, Json, Metrics, Timeout, ZooKeeper
from tidings.cli.output import emit, note, print_table, warn
from tidings.cli.project import project
from tidings.cli.signals import signals
from tidings.texts import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.cluster import Cluster
    from tidings.config.spec import Spec
    from tidings.pipelines.pipeline import Pipeline
    from tidings.pipelines.query import PipelineRun

EXAMPLES = """\b
Examples:
  tidings run --dry-run                    find every mistake; start nothing, read nothing
  tidings run                              all pipelines of the tidings.yml of this folder or one above
  tidings run swedes --once                one pipeline; end when it has processed what is there
  tidings run project/tidings.yml --metrics 9464
"""

POLL_INTERVAL_S = 0.5  # between two looks at the runs
QUERY_LOGGERS = ("org.apache.spark.sql.execution.streaming", "org.apache.spark.sql.execution.datasources.v2.python")


def run_command(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="The file; else tidings.yml or tidings.yaml in this folder, or the nearest one above.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Argument(metavar="PIPELINE", help="Run this one only. FILE may then be left out.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and start nothing.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there now is processed.")] = False,
    metrics: Metrics = None,
    session_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, max=3600.0, help="How soon another process can take over when this one dies."
        ),
    ] = 10.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")] = False,
    zookeeper: ZooKeeper = None,
    timeout: Timeout = SERVICE_TIMEOUT_S,
    json: Json = False,
) -> None:
    """Run the pipelines of a tidings.yml, all in one Spark session, until Ctrl-C.

    The whole file is checked before any pipeline starts. Ctrl-C and SIGTERM end each pipeline after its batch; a second
    Ctrl-C ends at once, which loses nothing. A pipeline that fails says why, and the others go on; while they run it is
    started again, after pauses that grow to a minute. With --once it is not. If none is left that runs, the exit code
    is 1.
    """
    from tidings.pipelines.check import choose, plan

    if file is not None and pipeline is None and not Path(file).exists() and Path(file).suffix not in (".yml", ".yaml"):
        file, pipeline = None, file
    path = None if file is None else Path(file)
    with project(path, zookeeper, timeout, session_timeout=session_timeout) as (spec, cluster):
        pipelines = plan(spec, cluster, choose(spec, pipeline))
        if dry_run:
            _print_plan(spec, pipelines, cluster, json)
            return
        code = _run(cluster, pipelines, once=once, metrics=metrics, quiet=quiet, json=json)
    if code:
        raise typer.Exit(code)


def _print_plan(spec: Spec, pipelines: Sequence[Pipeline], cluster: Cluster, json: bool) -> None:
    from tidings.coordination.pipeline_lock import lock_holder

    held = {one.name: lock_holder(cluster.coordination, one.name) for one in pipelines}
    for name, holder in held.items():
        if holder is not None:
            warn(f"pipeline {name!r} is run by {holder} now: it can be run here once that one has ended")
    rows = [
        {
            "pipeline": one.name,
            "input": [stream.name for stream in one.inputs],
            "stage": spec.pipelines[one.name].stage,
            "output": one.output.name if one.output else None,
            "folder": str(one.folder),
            "held_by": held[one.name],
        }
        for one in pipelines
    ]

    def show() -> None:
        shown = [list(row.values())[:5] for row in rows]
        cells = [[", ".join(cell) if isinstance(cell, list) else cell for cell in row] for row in shown]
        print_table(["PIPELINE", "INPUT", "STAGE", "OUTPUT", "FOLDER"], cells)
        ready = sum(holder is None for holder in held.values())
        note(f"{ready} ready to run; nothing was started (--dry-run)")

    emit({"file": str(spec.path), "pipelines": rows}, json, show)


def _run(
    cluster: Cluster,
    pipelines: Sequence[Pipeline],
    *,
    once: bool,
    metrics: tuple[str, int] | None,
    quiet: bool,
    json: bool,
) -> int:
    from tidings.cli.progress import showing
    from tidings.coordination.health import ZooKeeperCollector
    from tidings.metrics import MetricsServer
    from tidings.pipelines.check import waves
    from tidings.pipelines.metrics import PipelineCollector, unready

    runs: dict[str, PipelineRun] = {}
    with contextlib.ExitStack() as closing:
        if metrics is not None:
            names = [one.name for one in pipelines]
            collectors = [PipelineCollector(runs), ZooKeeperCollector([cluster.coordination])]
            server = MetricsServer(*metrics, collectors, lambda: unready(runs, names))
            closing.enter_context(server)
            note(f"metrics are at http://{server.address}/metrics")
        spark = closing.enter_context(_session())
        ending = closing.enter_context(signals())
        kept = KeptPipelines(spark, runs, once=once)
        # What ends by itself is run in the order in which updates pass through.
        for wave in waves(pipelines) if once else [pipelines]:
            kept.start(wave)
            if not quiet and runs and not once:
                note(f"{', '.join(runs)}: running; Ctrl-C stops")
            with showing(runs, quiet=quiet):
                while kept.active and not ending.signal:
                    ending.wait(POLL_INTERVAL_S)
                    kept.keep()
            if ending.signal:
                break
        if ending.signal and not quiet:
            note("stopping after the batches that are under way; once more ends at once")
        _stop(list(runs.values()))
        kept.tell()
    _report(runs, kept.failures, quiet=quiet, json=json)
    return 128 + ending.signal if ending.signal else int(bool(kept.failures))


def _stop(runs: Sequence[PipelineRun]) -> None:
    # In threads that nobody waits for when a second signal comes.
    threads = [threading.Thread(target=run.stop, name="tidings-stop", daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _report(runs: dict[str, PipelineRun], failures: dict[str, str], *, quiet: bool, json: bool) -> None:
    found = {name: run.progress for name, run in runs.items()}
    rows: list[dict[str, Any]] = [
        {
            "pipeline": name,
            "batches": found[name].batches if name in found else 0,
            "updates_in": found[name].updates_in if name in found else 0,
            "updates_out": found[name].updates_out if name in found else 0,
            "lag": found[name].total_lag if name in found else None,
            "error": failures.get(name),
        }
        for name in {**runs, **failures}
    ]

    def show() -> None:
        for row in rows:
            if row["error"] is None and not quiet:
                note(f"{row['pipeline']}: {counted(row['updates_in'], 'update')} in, {row['updates_out']:,} out")

    emit(rows, json, show)


@contextlib.contextmanager
def _session() -> Iterator[SparkSession]:
    """The session for all pipelines; one that was there before stays."""
    from pyspark.sql import SparkSession

    from tidings.runtime.session import session

    there = SparkSession.getActiveSession() is not None
    # Pipelines share Spark's cores fairly: none waits for the large batch of another.
    spark = session("tidings run", config=None if there else {"spark.scheduler.mode": "FAIR"})
    bridge = logging.getLogger("py4j")
    level = bridge.level
    if not logging.getLogger("tidings").isEnabledFor(logging.INFO):
        _hush(spark)
        bridge.setLevel(logging.CRITICAL)
    try:
        yield spark
    finally:
        bridge.setLevel(level)
        if not there:
            spark.stop()


def _hush(spark: SparkSession) -> None:
    """Keep Spark from printing the trace of a query that fails: what failed is told in our words."""
    jvm: Any = spark.sparkContext._jvm
    configurator = jvm.org.apache.logging.log4j.core.config.Configurator
    off = jvm.org.apache.logging.log4j.Level.OFF
    for name in QUERY_LOGGERS:
        configurator.setLevel(name, off)
