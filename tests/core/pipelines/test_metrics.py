from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession

from tests.support.pipeline_fixtures import Make
from tests.support.scraping import get as ask
from tests.support.scraping import series
from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.metrics import PROGRESS_TIMEOUT_S, MetricsServer, parse_address
from tidings.pipelines.check import waves
from tidings.pipelines.metrics import PipelineCollector, unready
from tidings.pipelines.pipeline import Pipeline
from tidings.pipelines.progress import Progress, ProgressMeter
from tidings.pipelines.query import PipelineRun
from tidings.positions import Positions
from tidings.stages.filter import FilterStage
from tidings.stream_definition import StreamDefinition
from tidings.streams import Stream
from tidings.testing import eventually, make_updates

EVERYTHING = FilterStage(filter="object exists")


class Telling(FilterStage):
    """A stage that says something of itself."""

    filter: str = "object exists"

    def figures(self) -> dict[str, float]:
        return {"passed": 7.0}


class Run:
    """What is asked of a run."""

    def __init__(self, progress: Progress, *, active: bool = True, error: BaseException | None = None) -> None:
        self.progress, self.active, self.error = progress, active, error
        self.pipeline = SimpleNamespace(stage=Telling())


def runs_of(**runs: Run) -> dict[str, PipelineRun]:
    return cast(dict[str, PipelineRun], runs)


def get(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    return ask(server.address, path, method)


def test_metrics_tell_the_progress_of_each_pipeline_and_leave_out_what_is_not_known() -> None:
    going = Progress(4, 5, 1.5, 100, 40, 10.0, {"contacts": 7, "wal": None}, 1_800_000_000.0)
    runs = runs_of(a=Run(going), b=Run(Progress(), active=False))
    with MetricsServer("127.0.0.1", 0, [PipelineCollector(runs)], list) as server:
        code, text = get(server, "/metrics")
    found = series(text)
    assert code == 200
    assert found["tidings_pipeline_running", "a"] == 1
    assert found["tidings_pipeline_running", "b"] == 0
    assert found["tidings_pipeline_input_updates_total", "a"] == 100
    assert found["tidings_pipeline_output_updates_total", "a"] == 40
    assert found["tidings_pipeline_batch_duration_seconds_count", "a"] == 5
    assert found["tidings_pipeline_batch_duration_seconds_sum", "a"] == 1.5
    assert found["tidings_pipeline_lag_updates", "a", "contacts"] == 7
    assert ("tidings_pipeline_lag_updates", "a", "wal") not in found
    assert found["tidings_pipeline_last_progress_timestamp_seconds", "a"] == 1_800_000_000
    assert ("tidings_pipeline_last_progress_timestamp_seconds", "b") not in found
    assert found["tidings_stage_passed", "b"] == 7
    assert any(name[0] == "tidings_info" for name in found)


def test_a_process_is_ready_when_every_pipeline_went_on_lately() -> None:
    now = Progress(at=time.time())
    fresh = Run(now)
    stuck = Run(replace(now, at=time.time() - PROGRESS_TIMEOUT_S - 5))
    failed = Run(now, active=False, error=ValueError("no good"))
    idle = Run(replace(now, behind_since=time.time() - PROGRESS_TIMEOUT_S - 5))
    assert unready(runs_of(a=Run(replace(now, behind_since=time.time() - 5))), ["a"]) == []
    assert unready(runs_of(a=fresh), ["a"]) == []
    assert unready(runs_of(a=fresh), ["a", "b"]) == ["pipeline 'b' is starting"]
    assert unready(runs_of(a=Run(Progress())), ["a"]) == ["pipeline 'a' is starting"]
    assert unready(runs_of(a=stuck, b=failed, c=Run(now, active=False), d=idle), "abcd") == [
        "pipeline 'a' shows no progress for 65 s",
        "pipeline 'b' has failed: ValueError: no good",
        "pipeline 'c' has ended",
        "pipeline 'd' has had updates to read for 65 s, and reads none",
    ]


def test_health_is_told_apart_from_readiness() -> None:
    reasons = ["pipeline 'a' is starting"]
    with MetricsServer("127.0.0.1", 0, [], lambda: reasons) as server:
        assert get(server, "/health/live") == (200, "alive\n")
        assert get(server, "/health/ready") == (503, "pipeline 'a' is starting\n")
        reasons.clear()
        assert get(server, "/health/ready?x=1") == (200, "ready\n")
        assert get(server, "/health/live", "HEAD") == (200, "")
        assert get(server, "/")[0] == 404
        assert get(server, "/metrics", "POST")[0] == 501
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(InvalidOption, match=rf"nothing can be served at 127\.0\.0\.1:{port}: "):
            MetricsServer("127.0.0.1", port, [], list)
    with pytest.raises(ConnectionRefusedError):
        get(server, "/health/live")


def test_a_collector_that_fails_does_not_end_the_server() -> None:
    class Broken(Collector):
        def collect(self) -> Iterable[Metric]:
            yield from ()
            if armed:
                raise RuntimeError("no")

    armed: list[int] = []
    with MetricsServer("127.0.0.1", 0, [Broken()], list) as server:
        armed.append(1)
        with pytest.raises(http.client.HTTPException):
            get(server, "/metrics")
        assert get(server, "/health/live")[0] == 200


@pytest.mark.parametrize("text", ["", "x", ":", "host:", "host:70000", "1:2:3", "-1", "a b:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="is no address to listen at"):
        parse_address(text)


def test_nothing_but_loopback_is_listened_at_unless_it_is_named() -> None:
    assert parse_address(":9464") == ("127.0.0.1", 9464)
    with MetricsServer(*parse_address("0"), [], list) as server:
        assert server.address.startswith("127.0.0.1:")
    if socket.has_ipv6:
        with MetricsServer(*parse_address("[::1]:0"), [], list) as server:
            assert server.address.startswith("[::1]:")


# Progress


def test_the_lag_of_each_of_many_inputs_is_told(
    spark: SparkSession, cluster: Cluster, contacts: Stream, make: Make
) -> None:
    names = [f"in-{number}" for number in range(6)]
    for number, name in enumerate(names):
        cluster.create_stream(name, number + 1).writable_log.append(make_updates(10 * number + 1))
    pipeline = make(input=names, stage=EVERYTHING)
    with pipeline.start(spark, once=True) as run:
        run.wait(120)
    progress = run.progress
    assert progress.lag == dict.fromkeys(names, 0)
    assert (progress.updates_in, progress.updates_out, progress.batches) == (156, 156, 1)
    assert progress.batch == 0
    cluster.stream("in-3").writable_log.append(make_updates(5))
    assert run.progress.lag["in-3"] == 5
    assert run.progress.total_lag == 5


def test_a_run_that_reports_nothing_to_read_though_there_is_something_is_behind_until_it_finishes_a_batch(
    contacts: Stream,
) -> None:
    meter = ProgressMeter([contacts])
    meter._positions = [Positions()]
    assert meter.progress().behind_since is None
    contacts.writable_log.append(make_updates(3))
    since = meter.progress().behind_since
    assert since is not None
    meter.add_reports([SimpleNamespace(batchId=0, timestamp="2026-01-01T00:00:00.000Z", sources=[])])
    assert (meter.progress().at or 0) >= since
    assert meter.progress().behind_since == since
    meter.batch_finished(0, 1.0, 3)
    assert (meter.progress().behind_since or 0) > since  # behind anew, until Spark has reported how far it read
    meter._positions = [Positions({shard: held.head for shard, held in contacts.log.bounds().items()})]
    assert meter.progress().behind_since is None


def test_a_log_that_fails_in_a_way_of_its_own_hides_its_lag_and_nothing_else(
    cluster: Cluster, contacts: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = cluster.create_stream("clicks", shards=1)
    meter = ProgressMeter([contacts, clicks])
    meter._positions = [Positions(), Positions()]
    clicks.writable_log.append(make_updates(3))
    monkeypatch.setattr(contacts.log, "bounds", lambda: 1 // 0)
    assert meter.progress().lag == {"contacts": None, "clicks": 3}
    gone = Stream(StreamDefinition("gone", 1, "delta:/nowhere/at/all"))  # before it was ever opened
    meter = ProgressMeter([gone])
    meter._positions = [Positions()]
    assert meter.progress().lag == {"gone": None}


@pytest.mark.slow
def test_an_idle_pipeline_shows_that_it_goes_on(spark: SparkSession, contacts: Stream, make: Make) -> None:
    contacts.writable_log.append(make_updates(3))
    with make(stage=EVERYTHING).start(spark) as run:
        first = eventually(lambda: run.progress.at or 0.0, timeout=60)
        assert eventually(lambda: (run.progress.at or 0) > first + 5, timeout=60)
        assert run.progress.updates_in == 3


# Waves


def test_a_pipeline_tells_in_zookeeper_how_it_goes_on(
    spark: SparkSession, cluster: Cluster, contacts: Stream, make: Make
) -> None:
    def told() -> dict[str, object]:
        return cluster.coordination.read("pipelines", "p") or {}

    with make(stage=EVERYTHING).start(spark):
        eventually(lambda: "batch" in told())
        found = told()
    assert (found["stage"], found["inputs"], found["output"]) == ("FilterStage", ["contacts"], "copies")
    assert told() == {}


def test_pipelines_are_grouped_so_that_each_reads_what_others_have_written(cluster: Cluster, make: Make) -> None:
    for name in ("x", "y", "z"):
        cluster.create_stream(name, 1)

    def one(name: str, input: list[str], output: str) -> Pipeline:
        return make(name=name, input=input, output=output, stage=EVERYTHING)

    found = waves([one("c", ["contacts", "y"], "z"), one("b", ["x"], "y"), one("a", ["contacts"], "x")])
    assert [[pipeline.name for pipeline in wave] for wave in found] == [["a"], ["b"], ["c"]]
    assert waves([]) == []
