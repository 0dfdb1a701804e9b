"""What a publisher tells of itself, and when it is ready."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.support.scraping import complaint, get, ready, scrape, scraped
from tidings.cluster import Cluster, connect
from tidings.errors import LogUnavailable
from tidings.handlers import Handler
from tidings.metrics import MetricsServer
from tidings.publisher.metrics import serve
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually, make_updates
from tidings.updates import Update

KEY = ("cache", "contacts")


class Gate(Handler):
    """Processes nothing until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()

    def on_update(self, update: Update) -> None:
        self.opened.wait(60)


@contextlib.contextmanager
def served(cluster: Cluster, *, by_shard: bool = False) -> Iterator[tuple[Publisher, MetricsServer]]:
    """A publisher that tells of itself, and loses patience soon."""
    publishers: list[Publisher] = []
    with (
        serve(("127.0.0.1", 0), cluster.coordination, publishers, by_shard=by_shard, progress_timeout=1.0) as server,
        cluster.publisher(token_interval=0.2) as publisher,
    ):
        assert ready(server.address) == (False, "the publisher is starting\n")
        publishers.append(publisher)
        yield publisher, server


@pytest.fixture
def contacts(cluster: Cluster) -> Cluster:
    cluster.create_stream("contacts", shards=2).writable_log.append(make_updates(100))
    cluster.create_application("cache", ["contacts"], start="earliest")
    return cluster


def test_what_is_read_sent_and_acknowledged_is_counted_and_a_stuck_handler_makes_it_unready(contacts: Cluster) -> None:
    gate = Gate()
    with served(contacts) as (_, server):
        at = server.address
        found = scraped(at, ("tidings_consumergroup_lag_seconds", *KEY), lambda age: age > 1)
        assert found["tidings_consumergroup_lag", *KEY] == 100
        assert found["tidings_publisher_flows", "cache", "waiting", "contacts"] == 2
        assert found["tidings_publisher_taken_flows_total", *KEY] == 2
        assert found["tidings_publisher_log_readable", "contacts"] == 1
        assert found["tidings_zookeeper_connected",] == 1
        assert ready(at) == (True, "ready\n"), "nothing is wrong with a publisher whose subscribers are away"
        with contacts.subscribe("cache", gate):
            found = scraped(at, ("tidings_consumergroup_lag", *KEY), lambda lag: lag == 0)
            assert found["tidings_consumergroup_lag_seconds", *KEY] == 0
            assert found["tidings_publisher_stalled_seconds", *KEY] == 0
            assert found["tidings_publisher_flows", "cache", "running", "contacts"] == 2
            assert found["tidings_publisher_read_updates_total", "contacts"] >= 100
            assert found["tidings_publisher_sent_updates_total", *KEY] == 100
            assert found["tidings_publisher_sent_bytes_total", *KEY] > 3200
            assert found["tidings_publisher_written_datamarkers_total", *KEY] >= 2
            assert found["tidings_publisher_in_flight_bytes", *KEY] == 0
            assert found["tidings_publisher_exchanges", "cache"] == 1
            assert found["tidings_publisher_caravans", "contacts"] == 1
            gate.opened.clear()
            contacts.stream("contacts").writable_log.append(make_updates(20))
            reason = complaint(at)
            assert reason.startswith("flow cache/contacts/")
            assert "has work, and has made no progress for 1 s" in reason
            found = scrape(at)
            assert found["tidings_ready",] == 0
            assert found["tidings_publisher_in_flight_bytes", *KEY] > 0
            assert found["tidings_consumergroup_lag_seconds", *KEY] > 1
            assert get(at, "/health/live") == (200, "alive\n"), "it is the handler that is stuck"
            gate.opened.set()
            eventually(lambda: ready(at)[0])
            assert scrape(at)["tidings_ready",] == 1


def test_a_flow_that_has_failed_is_counted_and_no_reason_to_be_unready(contacts: Cluster) -> None:
    class Poisoned(Handler):
        def on_update(self, update: Update) -> None:
            raise ValueError("no")

    with served(contacts) as (_, server), contacts.subscribe("cache", Poisoned(), retries=0):
        at = server.address
        found = scraped(at, ("tidings_publisher_flows", "cache", "failed", "contacts"), lambda flows: flows == 2)
        assert found["tidings_publisher_failed_flows_total", *KEY] == 2
        scraped(at, ("tidings_consumergroup_lag_seconds", *KEY), lambda age: age > 1)
        assert ready(at)[0]


def test_lags_are_told_by_shard_on_demand_only(contacts: Cluster) -> None:
    with served(contacts, by_shard=True) as (_, server):
        lags = eventually(
            lambda: {
                shard: value
                for (name, *labels), value in scrape(server.address).items()
                if name == "tidings_consumergroup_lag"
                for _, shard, _ in [labels]
            }
        )
        assert sorted(lags) == ["0", "1"]
        assert sum(lags.values()) == 100


def test_a_log_that_cannot_be_read_makes_it_unready_and_its_loss_and_return_are_logged_once(
    contacts: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with served(contacts) as (publisher, server), contacts.subscribe("cache", Gate()):
        scraped(server.address, ("tidings_consumergroup_lag", *KEY), lambda lag: lag == 0)
        log = publisher.pumps["contacts"].log
        real, attempts = log.bounds, []

        def broken() -> None:
            attempts.append(1)
            raise LogUnavailable(f"no answer, attempt {len(attempts)}")

        log.bounds = broken  # type: ignore[assignment, method-assign]
        assert complaint(server.address).startswith("stream 'contacts' cannot be read: no answer")
        assert scrape(server.address)["tidings_publisher_log_readable", "contacts"] == 0
        eventually(lambda: len(attempts) > 3)
        log.bounds = real  # type: ignore[method-assign]
        eventually(lambda: ready(server.address)[0])
        assert scrape(server.address)["tidings_publisher_log_readable", "contacts"] == 1
    told = [one for one in caplog.messages if one.startswith("stream 'contacts' can")]
    assert len(told) == 2
    assert told[0].startswith("stream 'contacts' cannot be read: no answer, attempt 1")
    assert told[1].startswith("stream 'contacts' can be read again after ")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_without_its_control_thread_does_not_live(contacts: Cluster) -> None:
    def end(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with connect(contacts.address) as own, served(own) as (publisher, server):
        assert get(server.address, "/health/live") == (200, "alive\n")
        publisher._changed.wait = end  # type: ignore[method-assign]
        assert eventually(lambda: get(server.address, "/health/live")[0] == 503)
        assert get(server.address, "/health/live")[1] == "thread tidings-control has ended\n"
        publisher.close(timeout=0)
        assert ready(server.address) == (False, "the publisher gives its flows away, to end\n")
