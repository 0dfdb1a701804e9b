from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.scene import Scene
from tidings.cluster import Cluster, connect
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationUnavailable
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper
from tidings.testing import eventually

SHARDS = 4


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[tuple[EmbeddedZooKeeper, Scene]]:
    """A ZooKeeper that may be harmed, and a scene in it: two publishers, two recorders, under load."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        scene = Scene(f"{server.address}/fragile", tmp_path)
        try:
            scene.prepare(SHARDS)
            for id in ("r1", "r2"):
                scene.recorder("cache", id)
            for name in ("p1", "p2"):
                scene.sender(name)
            yield server, scene
        finally:
            server.start()  # so that everybody can leave
            scene.close()


@pytest.mark.slow
def test_flows_survive_a_restart_of_zookeeper(fragile: tuple[EmbeddedZooKeeper, Scene]) -> None:
    server, scene = fragile
    with scene.load():
        for _ in range(2):
            before = scene.delivered("r1", "r2")
            eventually(lambda: scene.delivered("r1", "r2") > before + 150)  # noqa: B023
            address = server.address
            server.stop()
            server.start()
            assert server.address == address
        before = scene.delivered("r1", "r2")
        eventually(lambda: scene.delivered("r1", "r2") > before + 150)
    scene.finish("r1", "r2")


@pytest.mark.slow
def test_flows_stop_while_zookeeper_is_away_for_a_minute_and_go_on_when_it_is_back(
    fragile: tuple[EmbeddedZooKeeper, Scene],
) -> None:
    server, scene = fragile
    with scene.load(rows=5):
        eventually(lambda: scene.delivered("r1", "r2") > 150)
        server.stop()
        # A publisher's lease is over after two seconds, and so is a subscriber's.
        counts: list[int] = []

        def settled() -> bool:
            counts.append(scene.delivered("r1", "r2"))
            return len(counts) > 3 and len(set(counts[-3:])) == 1

        eventually(settled, timeout=8, every=0.5)
        quiet = [scene.delivered("r1", "r2")]

        def goes_on() -> bool:
            quiet.append(scene.delivered("r1", "r2"))
            return len(set(quiet)) > 1

        with pytest.raises(AssertionError):
            eventually(goes_on, timeout=55, every=0.5)
        server.start()
        eventually(lambda: scene.delivered("r1", "r2") > quiet[0] + 150, timeout=120)
    scene.finish("r1", "r2")


@pytest.mark.slow
def test_producers_and_queries_that_run_go_on_without_zookeeper_and_new_ones_say_that_it_does_not_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    session_timeout = 2.0
    seen: list[str] = []

    def note(rows: DataFrame, number: int) -> None:
        seen.extend(row.object for row in rows.select("object").collect())

    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        Cluster(Coordination(server.address, session_timeout=session_timeout), logs=f"delta:{tmp_path}") as cluster,
        cluster.create_stream("contacts", 2).producer() as producer,
    ):
        address = server.address
        options = {"stream": "contacts", "zookeeper": address}
        source = spark.readStream.format("tidings").options(**options).load()
        query = source.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "query")).start()
        published = ["before"]
        producer.publish("before").result(10)
        eventually(lambda: query.exception() or seen == published, timeout=60)
        server.stop()
        try:
            gone = time.monotonic()
            while time.monotonic() - gone < 2 * session_timeout:
                published.append(f"o-{len(published)}")
                producer.publish(published[-1]).result(10)
            eventually(lambda: query.exception() or sorted(seen) == sorted(published), timeout=60)
            assert query.exception() is None
            with pytest.raises(CoordinationUnavailable, match=f"no ZooKeeper answers at {address}"):
                connect(address, timeout=1)
            with pytest.raises(PySparkException, match=f"no ZooKeeper answers at {address}"):
                spark.read.format("tidings").options(**options).load().count()
        finally:
            query.stop()
            server.start()  # so that everybody can leave
