"""A pipeline whose driver fails, is killed, is stopped, or meets another: the output has every row once, in order."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tests.support.drivers import PATIENCE, Drivers, Load, applied, grows, kill
from tests.support.pipeline_fixtures import Make
from tests.support.sessions import expire
from tidings.cluster import Cluster, connect
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import PipelineFailed, PipelineHeld
from tidings.pipelines.pipeline import Pipeline
from tidings.positions import Position, Positions
from tidings.stages import Stage
from tidings.stages.filter import FilterStage
from tidings.stages.latest import LatestStage
from tidings.stages.state import State
from tidings.streams import Stream
from tidings.testing import check_log, eventually, held, make_updates, read_table
from tidings_connectors.delta.log import DeltaLog

EVERYTHING = FilterStage(filter="object exists")
COUNTS = pa.schema([("object", pa.string()), ("seen", pa.int64())])


class Numbered(Stage):
    """Numbers the updates of an object, across batches: its output depends on its table, and its table on the batch."""

    def apply(self, batch: DataFrame, state: State) -> DataFrame:
        counts = state.table("counts", COUNTS)
        known = batch.sparkSession.createDataFrame(counts.read())
        number = sf.row_number().over(Window.partitionBy("object").orderBy("seq"))
        rows = batch.join(sf.broadcast(known), "object", "left")
        rows = rows.withColumn("version", (sf.coalesce("seen", sf.lit(0)) + number).cast("long")).drop("seen")
        counts.merge(rows.groupBy("object").agg(sf.max("version").alias("seen")), ["object"])
        return rows


def dying(what: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """The function, but it fails: before it does anything, or after it has done all."""

    def fail(*arguments: Any, **options: Any) -> Any:
        if after:
            what(*arguments, **options)
        raise OSError("the driver dies here")

    return fail


@pytest.mark.parametrize("where", ["append", "commit"])
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_step_of_a_batch_leaves_nothing_lost_or_repeated(
    spark: SparkSession,
    contacts: Stream,
    copies: Stream,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    after: bool,
) -> None:
    contacts.writable_log.append(make_updates(40, objects=5))
    make(stage=Numbered()).run(spark, once=True)
    contacts.writable_log.append(make_updates(30, objects=5, seed=1))
    with monkeypatch.context() as broken:
        target: Any = DeltaLog if where == "append" else State
        broken.setattr(target, where, dying(getattr(target, where), after=after))
        with pytest.raises(PipelineFailed, match="the driver dies here"):
            make(stage=Numbered()).run(spark, once=True)
    contacts.writable_log.append(make_updates(20, objects=5, seed=2))
    pipeline = make(stage=Numbered())
    pipeline.run(spark, once=True)
    numbers: dict[str, list[int]] = {}
    for row in held(copies.log).to_pylist():
        numbers.setdefault(row["object"], []).append(row["version"])
    assert sum(map(len, numbers.values())) == 90
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
    counts = {row["object"]: row["seen"] for row in read_table(pipeline.tables, "counts")}
    assert counts == {name: len(found) for name, found in numbers.items()}


# A checkpoint that goes back

LATEST = LatestStage()


@pytest.fixture
def checkpoints(spark: SparkSession, contacts: Stream, make: Make, tmp_path: Path, stage: Stage) -> tuple[Path, ...]:
    """The folder of a pipeline after three batches, and copies of it after the first and the third."""
    output = None if stage is LATEST else "copies"
    folder, older, newest = make(stage=stage, output=output).folder, tmp_path / "older", tmp_path / "newest"
    for seed in range(3):
        contacts.writable_log.append(make_updates(10, seed=seed))
        make(stage=stage, output=output).run(spark, once=True)
        if seed == 0:
            shutil.copytree(folder, older)
    shutil.copytree(folder, newest)
    contacts.writable_log.append(make_updates(10, seed=3))
    return folder, older, newest


def put(copy: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(copy, place)


@pytest.mark.parametrize("stage", [EVERYTHING, LATEST])
def test_a_checkpoint_that_went_back_fails_the_pipeline_and_its_newest_copy_goes_on(
    spark: SparkSession, copies: Stream, make: Make, checkpoints: tuple[Path, ...], stage: Stage
) -> None:
    folder, older, newest = checkpoints
    pipeline = make(stage=stage, output=None if stage is LATEST else "copies")
    before = len(read_table(pipeline.tables, "latest")) if stage is LATEST else 30
    put(older / "checkpoint", folder / "checkpoint")
    for _ in range(2):  # it is not forgotten either
        with pytest.raises(
            PipelineFailed, match=rf"has begun batch 2, and batch 1 is no repeat .* or delete {folder} to"
        ):
            pipeline.run(spark, once=True)
        assert (len(read_table(pipeline.tables, "latest")) if stage is LATEST else len(held(copies.log))) == before
    put(newest / "checkpoint", folder / "checkpoint")
    pipeline.run(spark, once=True)
    if stage is LATEST:
        names = {row["object"] for seed in range(4) for row in make_updates(10, seed=seed).to_pylist()}
        assert {row["object"] for row in read_table(pipeline.tables, "latest")} == names
    else:
        assert len(held(copies.log)) == 40


@pytest.mark.parametrize("stage", [EVERYTHING])
def test_a_pipeline_whose_whole_folder_went_back_is_refused_by_its_output(
    spark: SparkSession, copies: Stream, make: Make, checkpoints: tuple[Path, ...], stage: Stage
) -> None:
    folder, older, newest = checkpoints
    put(older, folder)
    for _ in range(2):
        with pytest.raises(PipelineFailed, match=r"stream 'copies' holds batch 2 of .*, and batch 1 is no repeat"):
            make(stage=stage).run(spark, once=True)
        assert len(held(copies.log)) == 30
    put(newest, folder)
    make(stage=stage).run(spark, once=True)
    assert len(held(copies.log)) == 40


@pytest.mark.parametrize("deleted", ["checkpoint", "whole folder"])
def test_without_its_checkpoint_a_pipeline_begins_anew_and_writes_everything_a_second_time(
    spark: SparkSession, contacts: Stream, copies: Stream, make: Make, deleted: str
) -> None:
    for seed in range(2):
        contacts.writable_log.append(make_updates(10, seed=seed))
        make(stage=EVERYTHING).run(spark, once=True)
    contacts.writable_log.append(make_updates(10, seed=2))
    first = contacts.log.reach(Positions(), 10)
    contacts.writable_log.truncate(Positions({shard: Position(at.seq + 1) for shard, at in first.items()}))
    left = len(held(contacts.log))
    assert left == 20
    pipeline = make(stage=EVERYTHING)
    shutil.rmtree(pipeline.checkpoint if deleted == "checkpoint" else pipeline.folder)
    for _ in range(2):
        pipeline.run(spark, once=True)
        assert len(held(copies.log)) == 20 + left


def test_the_plan_of_a_batch_is_durable_before_anything_of_it_is_written(
    spark: SparkSession, contacts: Stream, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not sync its checkpoint; after a power failure it would be behind the output and the tables."""
    synced: list[str] = []
    sync, append = os.fsync, DeltaLog.append

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def check(*arguments: Any) -> Any:
        needed = [
            "checkpoint/metadata",
            "checkpoint/offsets/0",
            "checkpoint/offsets",
            "checkpoint",
            "batch.json.tmp",
            "",
        ]
        assert {str(pipeline.folder / name) for name in needed} <= set(synced)
        return append(*arguments)

    contacts.writable_log.append(make_updates(10))
    pipeline = make(stage=EVERYTHING)
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(DeltaLog, "append", check)
    pipeline.run(spark, once=True)


# Who may run it


def test_a_second_driver_is_refused_and_told_who_holds_the_pipeline(
    spark: SparkSession, cluster: Cluster, make: Make
) -> None:
    with make(stage=EVERYTHING).start(spark):
        held_by = rf"process {os.getpid()} on {socket.gethostname()} has it since 20\d\d-.*Z; stop that one first"
        with (
            pytest.raises(PipelineHeld, match=rf"pipeline 'p' runs already: {held_by}"),
            connect(cluster.address) as own,
        ):
            PipelineLock(own.coordination, "p")
        holder = cluster.coordination.read("pipelines", "p")
        assert holder is not None
        assert holder["pid"] == os.getpid()
    assert cluster.coordination.read("pipelines", "p") is None


def test_a_claim_of_a_process_of_this_machine_that_died_is_waited_for(cluster: Cluster) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = connect(cluster.address)
    holder = {"host": socket.gethostname(), "pid": process.pid, "since": "just now", "session_timeout": 10.0}
    left.coordination.create(holder, "pipelines", "p", ephemeral=True)
    ending = threading.Timer(1.0, left.close)  # as ZooKeeper ends a session that is not heard of
    ending.start()
    lock = PipelineLock(cluster.coordination, "p")
    assert lock.valid()
    lock.release()
    ending.join()


class Losing(Stage):
    """Lets everything through, and the session has become another when it has; Spark may have work to do still."""

    def __init__(self, cluster: Cluster, lazy: bool) -> None:
        self._cluster = cluster
        self._lazy = lazy

    def apply(self, batch: DataFrame, state: State) -> DataFrame | pa.Table:
        rows = batch if self._lazy else batch.toArrow()
        client = self._cluster.coordination.client
        before = client.client_id
        expire(self._cluster)
        eventually(lambda: client.connected and client.client_id != before)
        return rows


@pytest.mark.parametrize("lazy", [False, True])
def test_a_driver_that_loses_its_session_during_a_batch_writes_nothing_of_it(
    spark: SparkSession, cluster: Cluster, contacts: Stream, copies: Stream, make: Make, lazy: bool
) -> None:
    contacts.writable_log.append(make_updates(10))
    with pytest.raises(PipelineFailed, match="the session with ZooKeeper was lost, and another process may run"):
        make(stage=Losing(cluster, lazy)).run(spark, once=True)
    assert len(held(copies.log)) == 0
    make(stage=EVERYTHING).run(spark, once=True)
    assert len(held(copies.log)) == 10


def test_a_lost_session_ends_the_pipeline_and_another_driver_goes_on(
    spark: SparkSession, cluster: Cluster, contacts: Stream, copies: Stream, make: Make, tmp_path: Path
) -> None:
    contacts.writable_log.append(make_updates(10))
    run = make(stage=EVERYTHING).start(spark)
    eventually(lambda: len(held(copies.log)) == 10)
    expire(cluster)
    with pytest.raises(PipelineFailed, match="the session with ZooKeeper was lost, and another process may run"):
        run.wait(PATIENCE)
    contacts.writable_log.append(make_updates(10, seed=1))
    with connect(cluster.address) as other:
        lock = PipelineLock(other.coordination, "p")
        run.stop()  # lets go of nothing that is another's
        assert other.coordination.read("pipelines", "p") is not None
        lock.release()
        pipeline = Pipeline(
            other, "p", input="contacts", stage=EVERYTHING, output="copies", storage=tmp_path / "storage"
        )
        pipeline.run(spark, once=True)
    assert len(held(copies.log)) == 20


# Processes that are killed and stopped

SPEC = """
streams:
  contacts: {shards: 3, log: delta:data/contacts}
  copies: {shards: 2, log: delta:data/copies}
pipelines:
  copy: {input: contacts, stage: map, options: {set: {attributes.by: {constant: copy}}}, output: copies}
"""


class Project:
    """The project above, updates that come all the time, and drivers."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.contacts = cluster.stream("contacts")
        self.copies = cluster.stream("copies")
        self.drivers = Drivers(cluster, folder)
        self._seeds = itertools.count()
        self._load = Load(self._publish, every=0.03)

    def grows(self, by: int) -> None:
        grows(self.copies, by)

    def finish(self) -> None:
        """End the load, process all there is, and compare."""
        self._load.stop()
        self.drivers.finish()

        def sequences(stream: Stream) -> dict[str, list[bytes]]:
            found: dict[str, list[bytes]] = {}
            for row in held(stream.log).to_pylist():
                found.setdefault(row["object"], []).append(row["payload"])
            return found

        assert sequences(self.copies) == sequences(self.contacts)
        check_log(self.copies.log, 2)

    def close(self) -> None:
        self.drivers.close()
        self._load.stop()

    def _publish(self) -> None:
        self.contacts.writable_log.append(make_updates(10, seed=next(self._seeds), objects=20))


@pytest.fixture
def project(zookeeper: str, tmp_path: Path) -> Iterator[Project]:
    with applied(SPEC, zookeeper, tmp_path) as cluster, contextlib.closing(Project(cluster, tmp_path)) as own:
        yield own


@pytest.mark.slow
def test_drivers_that_are_killed_in_the_midst_of_a_run_lose_and_repeat_nothing(project: Project) -> None:
    rng = random.Random(7)
    for number in range(3):
        driver = project.drivers.start()
        project.grows(by=rng.randrange(1, 300))
        if number == 0:
            driver.kill()  # Spark's own process ends by itself when its driver is gone
            driver.wait()
        else:
            kill(driver)
    project.finish()


@pytest.mark.slow
def test_a_driver_that_was_stopped_ends_when_it_goes_on_beside_another(project: Project) -> None:
    first = project.drivers.start()
    project.grows(by=20)
    second = project.drivers.start()
    assert second.wait(PATIENCE) == 1
    log = project.drivers.log
    assert f"error: pipeline 'copy' runs already: process {first.pid} on {socket.gethostname()}" in log.read_text()
    os.kill(first.pid, signal.SIGSTOP)
    eventually(lambda: project.cluster.coordination.read("pipelines", "copy") is None, timeout=30)
    third = project.drivers.start()
    project.grows(by=100)
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(PATIENCE) == 1
    told = log.read_text()
    assert "error: pipeline 'copy' failed: " in told
    assert "Traceback" not in told
    project.grows(by=20)
    assert third.poll() is None
    third.send_signal(signal.SIGTERM)
    assert third.wait(PATIENCE) == 143
    project.finish()
