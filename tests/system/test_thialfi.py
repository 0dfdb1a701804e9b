"""The whole way: from a back end's change to a client's cache, whatever is lost in between."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.thialfi_stack import Cache, Stack
from tidings.cluster import Cluster
from tidings.testing import eventually

PATIENCE = 60.0


@pytest.fixture
def stack(cluster: Cluster, tmp_path: Path, spark: SparkSession) -> Iterator[Stack]:
    own = Stack(cluster, tmp_path, spark)
    yield own
    own.close()


def address(url: str) -> str:
    return url.replace("http://", "ws://")


@pytest.mark.slow
def test_a_client_that_was_away_hears_only_the_latest(stack: Stack) -> None:
    gateway = stack.gateway("g1")
    cache = Cache(stack.store)
    cache.wanted = {"alice", "bob"}
    with stack.cached(address(gateway.url), "web-1", cache):
        stack.store.change("alice")
        eventually(lambda: ("alice", 1) in cache.notified, PATIENCE)
        eventually(cache.fresh, PATIENCE)
    cache.notified.clear()
    for _ in range(5):
        stack.store.change("alice")
        stack.store.change("bob")
    eventually(stack.caught_up, PATIENCE)
    with stack.cached(address(gateway.url), "web-1", cache):
        eventually(cache.fresh, PATIENCE)
    told = {pair for pair in cache.notified if pair[1] is not None}
    assert told <= {("alice", 6), ("bob", 5)}, "and not of the four versions before"


@pytest.mark.slow
def test_who_made_a_change_is_not_told_of_it(stack: Stack) -> None:
    gateway = stack.gateway("g1")
    mine, other = Cache(stack.store), Cache(stack.store)
    mine.wanted = other.wanted = {"alice"}
    with (
        stack.cached(address(gateway.url), "web-1", mine),
        stack.cached(address(gateway.url), "web-2", other),
    ):
        eventually(lambda: mine.notified and other.notified, PATIENCE)
        stack.store.change("alice", source="web-1")
        eventually(lambda: ("alice", 1) in other.notified, PATIENCE)
        stack.store.change("alice", source="web-2")
        eventually(lambda: ("alice", 2) in mine.notified, PATIENCE)
    assert ("alice", 1) not in mine.notified
    assert ("alice", 2) not in other.notified


@pytest.mark.slow
def test_a_gateway_that_is_killed_loses_nothing(stack: Stack) -> None:
    first = stack.gateway("g1")
    port = first.url.rpartition(":")[2]
    cache = Cache(stack.store)
    cache.wanted = {"alice", "bob"}
    with stack.cached(address(first.url), "web-1", cache):
        eventually(lambda: len(cache.notified) >= 2, PATIENCE)
        stack.store.change("alice")
        eventually(cache.fresh, PATIENCE)
        first.end(signal.SIGKILL)
        stack.store.change("alice")
        stack.store.change("bob")
        stack.gateway("g2", "--listen", f"127.0.0.1:{port}")
        eventually(cache.fresh, PATIENCE)


@pytest.mark.slow
def test_clients_bring_everything_back_when_all_state_is_dropped(stack: Stack) -> None:
    from tidings_thialfi import service

    gateway = stack.gateway("g1")
    cache = Cache(stack.store)
    cache.wanted = {f"person-{number}" for number in range(20)}
    with stack.cached(address(gateway.url), "web-1", cache):
        for name in sorted(cache.wanted):
            stack.store.change(name)
        eventually(cache.fresh, PATIENCE)
        stack.stop_stage()
        stack.store.change("person-3")
        before = stack.service.identity
        stack.service = service.drop_state(stack.cluster, stack.service.name)
        assert stack.service.identity != before
        stack.start_stage()
        eventually(cache.fresh, PATIENCE)
        stack.store.change("person-7")
        eventually(cache.fresh, PATIENCE)
