"""What a console tells Prometheus of flows: those above all that no publisher knows of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.console_client import ConsoleThread
from tests.support.console_scene import make_users
from tests.support.proxy import Proxy
from tests.support.scraping import Series, get, scrape, scraped
from tidings.cluster import Cluster
from tidings.console.cluster_view import STATES
from tidings.controls import stop
from tidings.coordination.zookeeper import Coordination
from tidings.flows import Flow
from tidings.testing import eventually

NOBODY = ("tidings_flows", "cache", "unassigned")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return make_users(tmp_path / "users.json")


@pytest.fixture
def streams(cluster: Cluster) -> Cluster:
    cluster.create_stream("contacts", 4)
    cluster.create_application("cache", ["contacts"])
    cluster.create_application("search", ["contacts"])
    return cluster


def flows(found: Series) -> Series:
    return {key[1:]: value for key, value in found.items() if key[0] == "tidings_flows"}


def test_flows_that_nobody_owns_are_counted_until_a_publisher_takes_them(streams: Cluster, users: Path) -> None:
    with ConsoleThread(streams, users) as console:
        place = console.browser().place
        found = flows(scraped(place, NOBODY, lambda count: count == 4))
        assert found.keys() == {(name, state) for name in ("cache", "search") for state in STATES}
        assert sum(found.values()) == found["cache", "unassigned"] + found["search", "unassigned"] == 8
        stop(streams, [Flow("search", "contacts", 0)])
        with streams.publisher(name="east-1"):
            found = flows(scraped(place, NOBODY, lambda count: count == 0))
            assert found["cache", "waiting"] == 4
            eventually(
                lambda: (now := flows(scrape(place)))["search", "stopped"] == 1 and now["search", "waiting"] == 3
            )


def test_what_was_known_of_flows_is_not_told_while_zookeeper_is_away(
    zookeeper: str, streams: Cluster, users: Path
) -> None:
    with (
        Proxy(zookeeper) as proxy,
        Cluster(Coordination(f"{proxy.address}{streams.coordination.root}", session_timeout=4.0)) as seen,
        ConsoleThread(seen, users) as console,
    ):
        place = console.browser().place
        scraped(place, NOBODY, lambda count: count == 4)
        proxy.cut()
        eventually(lambda: not flows(scrape(place)))
        assert "# TYPE tidings_flows gauge" in get(place, "/metrics")[1]
        proxy.heal()
        scraped(place, NOBODY, lambda count: count == 4)
