"""No two publishers, and no two subscribers of an application, have one name at a time."""

from __future__ import annotations

import logging

import pytest

from tests.support.proxy import Proxy
from tests.support.scene import Scene, stop
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.errors import PublisherExists, SubscriberExists
from tidings.handlers import Handler
from tidings.testing import eventually, make_updates
from tidings.updates import Update


class Heard(Handler):
    def __init__(self) -> None:
        self.objects: list[str] = []

    def on_update(self, update: Update) -> None:
        self.objects.append(update.object)


@pytest.fixture
def other(cluster: Cluster) -> Cluster:
    """The same cluster, seen through a session of its own."""
    return Cluster(Coordination(cluster.address, session_timeout=2))


def test_a_second_publisher_of_a_name_is_refused_and_the_first_goes_on(
    cluster: Cluster, other: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with other, cluster.publisher(name="p1"):
        for where in (cluster, other):
            with pytest.raises(PublisherExists, match="a publisher 'p1' is running already"):
                where.publisher(name="p1")
        assert cluster.coordination.children("publishers") == ["p1"]
        assert caplog.text.count("publishers/p1 is another process's; waits") == 1, "the other has a session of its own"
    with Cluster(Coordination(cluster.address)) as later, later.publisher(name="p1"):
        assert cluster.coordination.children("publishers") == ["p1"]


def test_a_second_subscriber_of_an_id_is_refused_through_another_session_too_and_the_first_goes_on(
    cluster: Cluster, other: Cluster
) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    first, second = Heard(), Heard()
    with other, cluster.publisher(name="p1"), cluster.subscribe("cache", first, id="one"):
        for where in (cluster, other):
            with pytest.raises(SubscriberExists, match="has a subscriber 'one' already"):
                where.subscribe("cache", second, id="one")
            with pytest.raises(PublisherExists):
                where.publisher(name="p1")
            stream.writable_log.append(make_updates(20))
            count = 20 + len(first.objects)
            eventually(lambda: len(first.objects) == count)  # noqa: B023
    assert second.objects == []


@pytest.mark.slow
def test_one_that_was_killed_may_come_back_under_its_name_at_once(scene: Scene) -> None:
    scene.prepare(2)
    scene.publisher("p1")
    victim = scene.recorder("cache", "r1")
    with scene.load():
        eventually(lambda: scene.delivered("r1") > 50)
        stop(victim)
        scene.recorder("cache", "r1")  # waits for the end of the dead one's session
        before = scene.delivered("r1")
        eventually(lambda: scene.delivered("r1") > before + 50)
    scene.finish("r1")


@pytest.mark.slow
def test_a_publisher_that_lost_its_session_waits_while_another_has_taken_its_name(
    scene: Scene, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare(2)
    with (
        Proxy(zookeeper) as proxy,
        Cluster(Coordination(f"{proxy.address}{scene.root}", session_timeout=2)) as cut_off,
        cut_off.publisher(name="p1", token_interval=0.5),
        scene.subscriber("cache", "r1"),
        scene.load(),
    ):
        eventually(lambda: scene.delivered("r1") > 50)
        proxy.cut()
        second = scene.publisher("p1")  # once the first one's session is over
        eventually(lambda: len(second.flows) == 2)
        with caplog.at_level(logging.INFO):
            proxy.heal()
            eventually(lambda: "a publisher 'p1' is running already" in caplog.text)
        before = scene.delivered("r1")
        eventually(lambda: scene.delivered("r1") > before + 50)
    scene.finish("r1", complete=False, timeout=0)


def test_a_session_lasts_as_long_as_zookeeper_grants_and_not_as_long_as_was_asked(cluster: Cluster) -> None:
    asked = 3600.0
    with Cluster(Coordination(cluster.address, session_timeout=asked)) as hopeful:
        assert 1 < hopeful.coordination.session_timeout < asked


def test_who_leaves_takes_away_its_own_record_and_not_that_of_who_came_after(cluster: Cluster, other: Cluster) -> None:
    with other:
        assert other.coordination.claim({"who": "other"}, "publishers", "p1")
        assert not cluster.coordination.release("publishers", "p1")
        assert cluster.coordination.read("publishers", "p1") == {"who": "other"}
        assert other.coordination.release("publishers", "p1")
        assert not other.coordination.release("publishers", "p1")
