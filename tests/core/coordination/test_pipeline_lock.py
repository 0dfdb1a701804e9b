"""The lock of a pipeline, and what is said of one who has it."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.cluster import Cluster
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import PipelineHeld


@pytest.mark.parametrize("record", [{}, {"host": 7}, {"host": "h", "pid": 1}, {"host": [], "pid": {}, "since": 1}])
def test_a_lock_that_makes_no_sense_is_told_with_its_node_and_the_cure(cluster: Cluster, record: Any) -> None:
    cluster.coordination.create(record, "pipelines", "latest")
    with pytest.raises(
        PipelineHeld, match=r"pipeline 'latest' (is held by what .*/pipelines/latest, .*delete it|runs)"
    ):
        PipelineLock(cluster.coordination, "latest")
