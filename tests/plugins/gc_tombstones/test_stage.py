"""The stage `collect`, beside other collectors of the same stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tidings.cluster import Cluster
from tidings.collection import collect
from tidings.streams import Stream
from tidings.testing import eventually, held
from tidings.updates import without_tombstones
from tidings_gc_tombstones.stage import CollectStage


@pytest.fixture
def stream(cluster: Cluster, tmp_path: Path) -> Stream:
    return cluster.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}", collect={"latest_per_key": True})


@pytest.fixture
def stage(cluster: Cluster, stream: Stream) -> Iterator[CollectStage]:
    stage = CollectStage.model_construct(every=1)
    stage.begin(cluster, [stream], None)
    yield stage
    stage.end()


def publish(stream: Stream, *versions: int) -> None:
    with stream.producer() as producer:
        for version in versions:
            producer.publish_many([{"object": f"o{n}", "version": version} for n in range(10)]).result()


def left(stream: Stream) -> int:
    return len(without_tombstones(held(stream.log)))


def test_a_stage_that_was_overtaken_says_so_and_collects_the_next_time(
    stage: CollectStage, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stream, 0, 1)
    stage.apply(Mock(), Mock())
    eventually(lambda: left(stream) == 10)
    publish(stream, 2)
    assert collect(stream.definition, stream.log) == 10  # by somebody else, who takes the index over
    publish(stream, 3)
    with caplog.at_level(logging.WARNING):
        eventually(lambda: left(stream) == 10)
    assert "was not collected, and will be later" in caplog.text
    eventually(lambda: stage.figures()["collect_collected_updates_total"] == 20)
    assert stage.figures()["collect_failures_total"] == 1


def test_the_end_of_a_burst_is_collected_though_nothing_comes_after_it(stage: CollectStage, stream: Stream) -> None:
    publish(stream, 0)
    stage.apply(Mock(), Mock())
    publish(stream, 1, 2, 3)
    stage.apply(Mock(), Mock())  # too soon after the first
    eventually(lambda: left(stream) == 10)


def test_what_came_last_is_collected_when_the_pipeline_ends(stage: CollectStage, stream: Stream) -> None:
    publish(stream, 0)
    stage.apply(Mock(), Mock())
    publish(stream, 1)
    stage.apply(Mock(), Mock())
    stage.end()
    assert left(stream) == 10


def test_policies_that_are_changed_count_from_then_on(stage: CollectStage, stream: Stream, cluster: Cluster) -> None:
    publish(stream, 0, 1)
    stage.apply(Mock(), Mock())
    eventually(lambda: left(stream) == 10)
    before = stream.definition
    after = replace(before, collect={"keep_last": 1000})
    assert cluster.coordination.replace(after.to_json(), before.to_json(), "streams", "contacts")
    publish(stream, 2, 3)
    stage.end()
    assert left(stream) == 30
