"""The lock of a pipeline, and what is said of one who has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.sessions import expire
from tidings.cluster import Cluster, connect
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.errors import PipelineHeld
from tidings.testing import eventually


def test_a_lock_that_was_lost_is_not_had_again_by_the_session_that_comes_after(cluster: Cluster) -> None:
    with connect(cluster.address, session_timeout=2) as own:
        lock = PipelineLock(own.coordination, "p")
        assert lock.valid()
        expire(own)
        eventually(lambda: not lock.valid())
        eventually(lambda: lock._lease.valid())  # of the session that comes after
        assert not lock.valid()
        with connect(cluster.address) as other:
            taken = PipelineLock(other.coordination, "p")
            assert taken.valid()
            assert not lock.valid()
            lock.release()
            assert other.coordination.read("pipelines", "p") is not None
            taken.release()


@pytest.mark.parametrize("record", [{}, {"host": 7}, {"host": "h", "pid": 1}, {"host": [], "pid": {}, "since": 1}])
def test_a_lock_that_makes_no_sense_is_told_with_its_node_and_the_cure(cluster: Cluster, record: Any) -> None:
    cluster.coordination.create(record, "pipelines", "latest")
    with pytest.raises(
        PipelineHeld, match=r"pipeline 'latest' (is held by what .*/pipelines/latest, .*delete it|runs)"
    ):
        PipelineLock(cluster.coordination, "latest")


def test_what_is_told_with_a_lock_is_seen_as_long_as_it_is_held_and_takes_none_from_others(cluster: Cluster) -> None:
    def seen() -> Any:
        return (cluster.coordination.read("pipelines", "p") or {}).get("batch")

    with connect(cluster.address) as own:
        lock = PipelineLock(own.coordination, "p")
        for batch in (7, 8):
            lock.tell({"batch": batch})
            assert seen() == batch
        lock.release()
        with connect(cluster.address) as other:
            taken = PipelineLock(other.coordination, "p")
            lock.tell({"batch": 9})
            assert seen() is None
            taken.release()
