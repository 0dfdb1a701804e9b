"""The stage `collect`, beside other collectors of the same stream."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tidings.cluster import Cluster
from tidings.collection import collect
from tidings.streams import Stream
from tidings.testing import held
from tidings.updates import without_tombstones
from tidings_gc_tombstones.stage import CollectStage


@pytest.fixture
def stream(cluster: Cluster, tmp_path: Path) -> Stream:
    return cluster.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}", collect={"latest_per_key": True})


@pytest.fixture
def stage(cluster: Cluster, stream: Stream) -> Iterator[CollectStage]:
    stage = CollectStage.model_construct(every=0)
    stage.begin(cluster, [stream], None)
    yield stage
    stage.end()


def publish(stream: Stream, version: int) -> None:
    with stream.producer() as producer:
        producer.publish_many([{"object": f"o{n}", "version": version} for n in range(10)]).result()


def left(stream: Stream) -> int:
    return len(without_tombstones(held(stream.log)))


def test_a_stage_that_was_overtaken_says_so_and_collects_the_next_time(
    stage: CollectStage, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Mock()
    for version in range(2):
        publish(stream, version)
        stage.apply(rows, rows)
    assert left(stream) == 10
    publish(stream, 2)
    assert collect(stream.definition, stream.log) == 10  # by somebody else, who takes the index over
    publish(stream, 3)
    with caplog.at_level(logging.WARNING):
        stage.apply(rows, rows)
    assert "was not collected, and will be later" in caplog.text
    assert stage.figures()["collect_failures"] == 1
    stage.apply(rows, rows)
    assert left(stream) == 10
    assert stage.figures()["collect_failures"] == 1
    assert stage.figures()["collect_collected_updates"] == 20
