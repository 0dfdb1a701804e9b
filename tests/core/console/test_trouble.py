"""Whatever fails around it, the console stays up, and says what it does not know."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import bad_nodes
from tests.support.console_client import ConsoleThread
from tests.support.console_scene import OPERATOR, make_users
from tests.support.proxy import Proxy
from tidings import plugins
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.flow_status import LogReading
from tidings.identity.credentials import Credentials, role_credentials
from tidings.logs import Log
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_users(tmp_path_factory.mktemp("users") / "users.json")


@pytest.fixture
def streams(cluster: Cluster) -> Cluster:
    """Two streams, which one application reads."""
    for name in ("quick", "slow"):
        cluster.create_stream(name, 2)
    cluster.create_application("cache", ["quick", "slow"], start="earliest")
    return cluster


def test_zookeeper_goes_away_and_comes_back(zookeeper: str, streams: Cluster, users: Path) -> None:
    root = streams.coordination.root
    with (
        Proxy(zookeeper) as proxy,
        Cluster(Coordination(f"{proxy.address}{root}", session_timeout=4.0)) as seen,
        ConsoleThread(seen, users) as console,
    ):
        browser = console.browser(OPERATOR)
        assert browser.get("/api/flows").json["total"] == 4
        with browser.events() as events:
            proxy.cut()
            reasons = (data for kind, data in events if kind == "away")  # at first, maybe, that a reading broke off
            told = next(data for data in reasons if "does not answer" in data["reason"])
            found = browser.get("/api/flows").json
            assert (found["total"], found["partial"]) == (4, True)  # what was known last
            assert "does not answer" in found["problems"][0]
            overview = browser.get("/api/overview").json
            assert (overview["health"], overview["reasons"][0]) == ("critical", told["reason"])
            assert browser.get("/health/ready").status == 503
            proxy.heal()
            assert next(data for kind, data in events if kind == "back") == {"reason": None}
        eventually(lambda: not browser.get("/api/flows").json["partial"])
        assert browser.get("/health/ready").status == 200


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The log of `slow` does not answer until this is set."""
    answers, look = threading.Event(), LogReading.look

    def looked(self: LogReading, log: Log, stream: StreamDefinition, stands: Any) -> None:
        if stream.name == "slow":
            answers.wait()
        look(self, log, stream, stands)

    monkeypatch.setattr(LogReading, "look", looked)
    yield answers
    answers.set()


def test_a_log_that_does_not_answer_holds_up_no_other(streams: Cluster, users: Path, stuck: threading.Event) -> None:
    with ConsoleThread(streams, users) as console:
        browser = console.browser(OPERATOR)
        with streams.stream("quick").producer() as producer:
            producer.publish("a")
        found = eventually(lambda: (now := browser.get("/api/streams").json)["items"][0]["updates"] == 1 and now)
        assert found["partial"]
        assert "not answered" in found["problems"][0]
        assert [one["updates"] for one in found["items"]] == [1, None]
        flows = browser.get("/api/flows").json["items"]
        assert [one["head"] for one in flows if one["stream"] == "slow"] == [None, None]
        stuck.set()
        eventually(lambda: not browser.get("/api/streams").json["partial"])


def test_a_log_that_is_gone_is_told_of(streams: Cluster, users: Path) -> None:
    streams.stream("slow").writable_log.destroy()
    with ConsoleThread(streams, users) as console:
        browser = console.browser(OPERATOR)
        found = eventually(lambda: (now := browser.get("/api/streams").json)["items"][1]["problem"] and now)
        assert found["partial"]
        assert found["items"][0]["problem"] is None
        assert browser.get("/api/overview").json["health"] != "ok"
        assert browser.get("/api/streams/slow/records").status == 400


def test_an_owner_that_makes_no_sense_is_nobody(streams: Cluster, users: Path) -> None:
    owner = {"version": 1, "publisher": {"a": 1}, "host": ["x"], "pid": "7"}
    bad_nodes.put(streams, {"flows/cache/quick/0/owner": json.dumps(owner).encode()})
    with ConsoleThread(streams, users) as console:
        browser = console.browser(OPERATOR)
        eventually(lambda: browser.get("/api/flows").json["total"] == 4)
        found = browser.get("/api/flows/cache/quick/0").json
        assert (found["owner"], found["host"], found["pid"]) == (None, None, None)
        assert browser.get("/api/map").status == 200


def test_a_plugin_that_fails_harms_nothing_else(streams: Cluster, users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(cluster: Cluster) -> list[dict[str, Any]]:
        raise RuntimeError("no")

    monkeypatch.setattr("tidings.console.plugin_answers.installed_names", lambda group: ["gc", "thialfi"])
    answers = {"gc": failing, "thialfi": lambda cluster: [{"service": cluster.address}, "noise"]}
    monkeypatch.setattr("tidings.console.plugin_answers.load", lambda group, name: answers[name])
    with ConsoleThread(streams, users) as console:
        browser = console.browser(OPERATOR)
        assert browser.get("/api/gc").json["problems"] == ["gc failed with RuntimeError"]
        assert browser.get("/api/thialfi").json["items"] == [{"service": streams.address}]


def test_the_group_of_plugins_is_known() -> None:
    assert "tidings.console" in plugins.GROUPS


def test_a_closed_cluster_is_only_looked_at_without_its_secret(zookeeper: str, users: Path, tmp_path: Path) -> None:
    secret, address = "s" * 43, f"{zookeeper}/{uuid.uuid4()}"
    known = Coordination(address, credentials=Credentials.of_secrets([secret]))
    with Cluster(known, logs=f"delta:{tmp_path}/streams") as own:
        own.create_stream("contacts", 1)
        with ConsoleThread(own, users) as console:
            assert not console.console.read_only
        viewer = Credentials.of_text(role_credentials(secret, "viewer"))
        with Cluster(Coordination(address, credentials=viewer)) as other, ConsoleThread(other, users) as console:
            browser = console.browser(OPERATOR)
            me = browser.get("/api/me").json
            assert (me["role"], me["read_only_reason"]) == ("viewer", "it has a viewer's credentials")
            assert browser.act("stop", ["a/b/0"]).status == 403
            assert browser.get("/api/overview").json["problems"] == []


def test_a_console_learns_what_its_credentials_allow_once_the_cluster_is_made(zookeeper: str, users: Path) -> None:
    secret, address = "s" * 43, f"{zookeeper}/{uuid.uuid4()}"
    viewer = Credentials.of_text(role_credentials(secret, "viewer"))
    with Cluster(Coordination(address, credentials=viewer)) as seen, ConsoleThread(seen, users) as console:
        browser = console.browser(OPERATOR)
        assert browser.get("/api/me").json["role"] == "operator"  # where nothing is, nobody is kept out
        with Cluster(Coordination(address, credentials=Credentials.of_secrets([secret]))) as own:
            own.coordination.create_path("streams")
            me = eventually(lambda: (now := browser.get("/api/me").json)["read_only"] and now)
            assert (me["role"], me["read_only_reason"]) == ("viewer", "it has a viewer's credentials")
            assert browser.act("stop", ["a/b/0"]).error == "this console is read-only"
