"""What is lost and comes back is told once each, by those who need it, with how long; and is seen in metrics."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy
from tests.support.scene import STREAM, Scene
from tests.support.scene_fixture import scene
from tests.support.scraping import complaint, ready, scrape, scraped
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.handlers import Handler
from tidings.metrics import MetricsServer
from tidings.publisher.metrics import serve as serve_publisher
from tidings.publisher.publisher import Publisher
from tidings.subscriber.metrics import serve as serve_subscriber
from tidings.testing import eventually, make_updates

__all__ = ["scene"]
own_server = postgres_server.own_server
KEY = ("cache", STREAM)


@contextlib.contextmanager
def watched(publisher: Publisher) -> Iterator[MetricsServer]:
    with serve_publisher(("127.0.0.1", 0), publisher.coordination, [publisher], progress_timeout=1.0) as server:
        yield server


def lines(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    """What was logged of one thing."""
    return [one for one in caplog.messages if one.startswith(beginning)]


def test_a_subscriber_that_is_stopped_makes_its_publisher_unready_and_is_told_to_be_away_and_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare(shards=1)
    publisher = scene.publisher("east", patience=1.0)
    process = scene.recorder("cache", "one", "--session-timeout", "30")
    with watched(publisher) as server:
        at = server.address
        scene.stream.writable_log.append(make_updates(10))
        scraped(at, ("tidings_publisher_written_datamarkers_total", *KEY), lambda count: count > 0)
        process.send_signal(signal.SIGSTOP)
        scene.stream.writable_log.append(make_updates(10, seed=1))
        assert f"flow cache/{STREAM}/0 has work, and has made no progress for " in complaint(at)
        eventually(lambda: lines(caplog, "subscriber cache/one is away: it has not answered for "))
        scraped(at, ("tidings_publisher_broken_exchanges_total", "cache"), lambda count: count > 0)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: ready(at)[0])
        assert scrape(at)["tidings_publisher_exchanges", "cache"] == 1
        eventually(lambda: len(lines(caplog, "subscriber cache/one is ")) == 2)
        assert lines(caplog, "subscriber cache/one is ")[1].startswith("subscriber cache/one is back after ")


def test_a_publisher_that_is_killed_and_started_again_is_told_to_be_away_and_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare(shards=1)
    process = scene.sender("east")
    with (
        scene.cluster.subscribe("cache", Handler()) as subscriber,
        serve_subscriber(("127.0.0.1", 0), scene.cluster.coordination, [subscriber], progress_timeout=1.0) as server,
    ):
        at = server.address
        scraped(at, ("tidings_subscriber_exchanges", "cache"), lambda count: count == 1)
        process.kill()
        found = scraped(at, ("tidings_subscriber_unreachable_publishers", "cache"), lambda count: count == 1)
        assert found["tidings_subscriber_exchanges", "cache"] == 0
        assert complaint(at).startswith("publisher east cannot be reached: ")
        scene.sender("east")
        scraped(at, ("tidings_subscriber_exchanges", "cache"), lambda count: count == 1)
        assert ready(at)[0]
    told = lines(caplog, "publisher east is ")
    assert len(told) == 2
    assert told[0].startswith("publisher east is away: ")
    assert told[1].startswith("publisher east is back after ")


def test_without_zookeeper_for_longer_than_the_session_lives_nobody_is_ready(scene: Scene) -> None:
    scene.prepare(shards=1)
    with (
        Proxy(scene.address.partition("/")[0]) as proxy,
        Cluster(Coordination(proxy.address + scene.root, session_timeout=2)) as own,
        own.publisher() as publisher,
        own.subscribe("cache", Handler()) as subscriber,
        watched(publisher) as server,
        serve_subscriber(("127.0.0.1", 0), own.coordination, [subscriber]) as other,
    ):
        scraped(server.address, ("tidings_publisher_flows", "cache", "running", STREAM), lambda count: count == 1)
        proxy.cut()
        assert f"ZooKeeper at {proxy.address} is away for " in complaint(server.address)
        assert f"ZooKeeper at {proxy.address} is away for " in complaint(other.address)
        found = scrape(server.address)
        assert found["tidings_zookeeper_connected",] == 0
        assert found["tidings_zookeeper_away_seconds",] > own.coordination.session_timeout
        eventually(lambda: not scene.children("publishers"))  # ZooKeeper ends sessions a while after their time
        proxy.heal()
        for one in (server, other):
            eventually(lambda at=one.address: ready(at)[0])  # type: ignore[misc]
        found = scrape(server.address)
        assert found["tidings_zookeeper_connected",] == 1
        assert found["tidings_zookeeper_away_seconds",] == 0
        assert found["tidings_zookeeper_reconnects_total",] == 1
        assert found["tidings_zookeeper_expired_sessions_total",] == 1


@pytest.mark.slow
def test_a_database_that_is_killed_and_started_again_is_told_to_be_unreadable_and_readable(
    cluster: Cluster, own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    database = own_server.database()
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    cluster.create_stream("shop", 2, database.address(), options=database.options())
    cluster.create_application("cache", ["shop"])
    with (
        cluster.publisher(token_interval=0.2) as publisher,
        cluster.subscribe("cache", Handler()),
        watched(publisher) as server,
    ):
        at = server.address
        scraped(at, ("tidings_publisher_flows", "cache", "running", "shop"), lambda count: count == 2)
        database.execute("INSERT INTO item SELECT generate_series(1, 100)")
        scraped(at, ("tidings_publisher_sent_updates_total", "cache", "shop"), lambda count: count == 100)
        assert ("tidings_consumergroup_lag", "cache", "shop") not in scrape(at) or scrape(at)[
            "tidings_consumergroup_lag", "cache", "shop"
        ] == 0, "a database does not count what lies between"
        own_server.kill()
        assert complaint(at).startswith("stream 'shop' cannot be read: ")
        found = scraped(at, ("tidings_publisher_log_readable", "shop"), lambda value: value == 0)
        assert found["tidings_publisher_flows", "cache", "failed", "shop"] == 2
        own_server.start()
        database.execute("INSERT INTO item SELECT generate_series(101, 200)")
        scraped(at, ("tidings_publisher_log_readable", "shop"), lambda value: value == 1, timeout=60)
        eventually(lambda: ready(at)[0])
    told = lines(caplog, "stream 'shop' can")
    assert told[-1].startswith("stream 'shop' can be read again after ")
    assert 2 <= len(told) <= 4, told
    assert len([one for one in told if "again" in one]) == 1
