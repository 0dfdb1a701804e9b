"""What the tests of the console share: a cluster in which something runs, and a console of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console_client import Browser, ConsoleThread
from tests.support.console_scene import OPERATOR, VIEWER, Slow, make_users
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.testing import eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console")


@pytest.fixture(scope="module")
def scene(zookeeper: str, folder: Path) -> Iterator[Cluster]:
    """A cluster with a stream, two applications, of which one has a subscriber, and a publisher `east-1`."""
    with (
        Cluster(Coordination(f"{zookeeper}/{uuid.uuid4()}"), logs=f"delta:{folder}/streams") as cluster,
        cluster.create_stream("contacts", 4).producer() as producer,
    ):
        cluster.create_application("cache", ["contacts"], start="earliest")
        cluster.create_application("idle", ["contacts"], start="earliest")
        for number in range(20):
            producer.publish(f"contacts/{number}", version=number, payload=b'{"number": %d}' % number)
        producer.publish("<script>alert(1)</script>", version=1, attributes={"<b>": "<i>"}, payload=b"<img src=x>")
        producer.publish("bytes", version=1, payload=bytes(range(256))).result()
        with (
            cluster.publisher(name="east-1", token_interval=0.2),
            cluster.subscribe("cache", Slow(0.0)),
        ):
            yield cluster


@pytest.fixture(scope="module")
def users(folder: Path) -> Path:
    return make_users(folder / "users.json")


@pytest.fixture(scope="module")
def served(scene: Cluster, users: Path) -> Iterator[ConsoleThread]:
    with ConsoleThread(scene, users) as console:
        yield console


@pytest.fixture(scope="module")
def operator(served: ConsoleThread) -> Browser:
    browser = served.browser(OPERATOR)
    eventually(lambda: browser.get("/api/overview").json["states"]["running"] == 4)
    return browser


@pytest.fixture(scope="module")
def viewer(served: ConsoleThread) -> Browser:
    return served.browser(VIEWER)
