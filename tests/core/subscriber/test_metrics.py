"""What a subscriber tells of itself, and when it is ready."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.support.scraping import complaint, get, ready, scraped
from tidings.cluster import Cluster
from tidings.handlers import Handler
from tidings.metrics import MetricsServer
from tidings.subscriber.metrics import SubscriberCollector, serve
from tidings.subscriber.subscriber import Subscriber
from tidings.testing import eventually, make_updates
from tidings.updates import Update

KEY = ("cache", "contacts")


@contextlib.contextmanager
def served(cluster: Cluster, handler: Any, **options: Any) -> Iterator[tuple[Subscriber, MetricsServer]]:
    """A subscriber that tells of itself, and loses patience soon."""
    subscribers: list[Subscriber] = []
    with (
        serve(("127.0.0.1", 0), cluster.coordination, subscribers, progress_timeout=1.0) as server,
        cluster.subscribe("cache", handler, **options) as subscriber,
    ):
        assert ready(server.address) == (False, "the subscriber is starting\n")
        subscribers.append(subscriber)
        yield subscriber, server


@pytest.fixture
def contacts(cluster: Cluster) -> Iterator[Cluster]:
    cluster.create_stream("contacts", shards=2).writable_log.append(make_updates(100))
    cluster.create_application("cache", ["contacts"], start="earliest")
    with cluster.publisher(token_interval=0.2):
        yield cluster


def test_what_is_processed_is_counted_and_a_stuck_handler_makes_it_unready(contacts: Cluster) -> None:
    opened = threading.Event()
    opened.set()

    class Gate(Handler):
        def on_update(self, update: Update) -> None:
            opened.wait(60)

    with served(contacts, Gate()) as (subscriber, server):
        at, processed = server.address, ("tidings_subscriber_processed_updates_total", *KEY)
        found = scraped(at, processed, lambda updates: updates == 100)
        assert found["tidings_subscriber_flows", "cache", "running", "contacts"] == 2
        assert found["tidings_subscriber_flows", "cache", "failed", "contacts"] == 0
        assert found["tidings_subscriber_handler_seconds_count", "cache", "on_update"] == 100
        assert found["tidings_subscriber_handler_seconds_bucket", "cache", "on_update", "+Inf"] == 100
        assert found["tidings_subscriber_exchanges", "cache"] == 1
        assert found["tidings_subscriber_queued_updates", *KEY] == 0
        assert found["tidings_subscriber_queued_bytes", *KEY] == 0
        assert found["tidings_zookeeper_connected",] == 1
        assert ready(at) == (True, "ready\n")
        opened.clear()
        for seed in range(2):
            contacts.stream("contacts").writable_log.append(make_updates(20, seed=seed))
        assert "has something to do, and got no further for 1 s" in complaint(at)
        found = scraped(at, ("tidings_subscriber_oldest_update_seconds", *KEY), lambda age: age > 1)
        assert found["tidings_subscriber_stalled_seconds", *KEY] > 1
        assert found["tidings_subscriber_queued_updates", *KEY] > 0
        assert found["tidings_subscriber_queued_bytes", *KEY] > 0
        assert get(at, "/health/live") == (200, "alive\n")
        opened.set()
        eventually(lambda: ready(at)[0])
        scraped(at, processed, lambda updates: updates == 140)
        own = SubscriberCollector([subscriber])
        REGISTRY.register(own)  # as a service does that has a registry of its own
        try:
            labels = {"application": "cache", "stream": "contacts"}
            assert REGISTRY.get_sample_value(processed[0], labels) == 140
        finally:
            REGISTRY.unregister(own)


def test_failures_of_the_handler_are_counted_and_a_flow_that_has_failed_is_no_reason_to_be_unready(
    contacts: Cluster,
) -> None:
    class Poisoned(Handler):
        def on_update(self, update: Update) -> None:
            raise ValueError("no")

    with served(contacts, Poisoned(), retries=1, backoff=0.01) as (_, server):
        found = scraped(server.address, ("tidings_subscriber_failed_flows_total", *KEY), lambda flows: flows == 2)
        assert found["tidings_subscriber_flows", "cache", "failed", "contacts"] == 2
        assert found["tidings_subscriber_handler_failures_total", "cache", "on_update"] == 4
        assert ready(server.address)[0]
