"""Ten thousand flows are shown within the time that an answer may take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.console_client import Browser, ConsoleThread
from tests.support.console_scene import OPERATOR, make_flows, make_users
from tidings.cluster import Cluster
from tidings.coordination.values import encode
from tidings.flows import Flow
from tidings.testing import eventually

APPLICATIONS, SHARDS = 10, 1000


@pytest.fixture(scope="module")
def many(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tidings.coordination.zookeeper import Coordination

    folder = tmp_path_factory.mktemp("many")
    with Cluster(Coordination(f"{zookeeper}/many-flows")) as cluster:
        make_flows(cluster, APPLICATIONS, SHARDS, folder)
        yield cluster


@pytest.fixture(scope="module")
def browser(many: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    users = make_users(tmp_path_factory.mktemp("users") / "users.json")
    with ConsoleThread(many, users, refresh_s=2.0) as console:
        browser = console.browser(OPERATOR)
        eventually(lambda: browser.get("/api/overview").json["counts"]["flows"] == APPLICATIONS * SHARDS)
        yield browser


def test_every_page_of_them_comes_in_time(browser: Browser) -> None:
    """What takes longer than the budget is no 200."""
    for query in ("size=100&page=99", "size=1000&sort=lag", "q=wide/99&sort=lag-seconds", "state=waiting&size=1"):
        reply = browser.get(f"/api/flows?{query}")
        assert (reply.status, reply.json["partial"]) == (200, False)
    assert browser.get("/api/flows?size=1").json["total"] == APPLICATIONS * SHARDS
    assert browser.get("/api/flows?application=many-3&publisher=p0&size=1").json["total"] == 143


def test_the_map_of_them_is_small(browser: Browser) -> None:
    reply = browser.get("/api/map")
    assert len(reply.body) < 60_000
    found = reply.json
    assert [len(row["owners"]) for row in found["rows"]] == [SHARDS] * APPLICATIONS
    assert [one["name"] for one in found["publishers"]] == [f"p{number}" for number in range(7)]


def test_of_a_change_only_the_change_is_told(browser: Browser, many: Cluster) -> None:
    flow = Flow("many-3", "wide", 77)
    with browser.events() as events:
        next(events)
        owner = encode({"publisher": "p6", "host": "elsewhere", "pid": 2})
        many.coordination.client.set(many.coordination.path(*flow.place, "owner"), owner)
        told = next(data for kind, data in events if kind == "map")
        assert told["changes"] == [[3, 77, 6, "w"]]


def test_all_of_them_are_previewed_at_once(browser: Browser) -> None:
    preview = browser.act("stop", [], application="many-9").json
    assert (preview["count"], preview["title"]) == (SHARDS, "Stop 1,000 flows")
