"""A subscriber whose port is reached by someone who says what no publisher says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.peer import speaking
from tidings.cluster import Cluster
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.testing import eventually
from tidings.updates import Update


class Notes(Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.objects: list[str] = []

    def on_update(self, update: Update) -> None:
        self.objects.append(update.object)


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    return stream


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        for name in objects:
            producer.publish(name).result(10)


@pytest.mark.parametrize("kind", ["close", "open", "token"])
def test_a_flow_that_cannot_be_is_refused_and_the_subscriber_keeps_watching(
    cluster: Cluster, stream: Stream, kind: str
) -> None:
    with cluster.subscribe("cache", Handler(), id="one") as subscriber:
        for name in ("..", "a\0b", "a\x01b", "\ud800", "x" * 200_000, 7, None):
            with speaking(subscriber.address) as peer:
                peer.say({"t": kind, "stream": name, "shard": 0, "epoch": 1, "turn": 1, "position": [0, 0]})
                assert "about a stream that cannot be" in peer.fault()
        for shard in (-1, 4096, 10**300, 1e300, True, "0", None):
            with speaking(subscriber.address) as peer:
                peer.say({"t": kind, "stream": "contacts", "shard": shard, "epoch": 1, "turn": 1, "position": [0, 0]})
                assert "about a shard that cannot be" in peer.fault()
        assert watches(cluster)


def test_nothing_is_kept_of_flows_that_were_never_here(cluster: Cluster, stream: Stream) -> None:
    with (
        cluster.subscribe("cache", Handler(), id="one") as subscriber,
        speaking(subscriber.address) as peer,
    ):
        for number in range(200):
            for kind in ("close", "open"):
                peer.say({"t": kind, "stream": f"s{number}", "shard": 0, "epoch": 1, "turn": 1})
                assert peer.hear()["t"] == "refused"
        assert not subscriber._held
        assert not subscriber._opening


def test_what_is_closed_before_zookeeper_has_answered_is_not_opened(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = {"stream": "contacts", "shard": 0, "epoch": 1, "turn": 1}
    cluster.coordination.write({"id": "one", "epoch": 1}, "flows", "cache", "contacts", "0", "subscriber")
    with cluster.subscribe("cache", Handler(), id="one") as subscriber, speaking(subscriber.address) as peer:
        client: Any = cluster.coordination.client
        waiting: list[Callable[[], None]] = []

        class Late:
            """An answer that comes when the test wants it."""

            def __init__(self, path: str) -> None:
                self._asked = get(path)

            def rawlink(self, callback: Callable[[Any], None]) -> None:
                waiting.append(lambda: self._asked.rawlink(callback))

        get = client.get_async
        with monkeypatch.context() as patch:
            patch.setattr(client, "get_async", lambda path, **more: get(path, **more) if more else Late(path))
            peer.say({"t": "open", **flow})
            peer.say({"t": "close", **flow})
            assert peer.hear()["reason"] == "the flow is not open"
        for answer in waiting:
            answer()
        assert peer.hear()["reason"] == "it was closed before it was opened"
        assert not subscriber.flows


def test_an_error_that_nobody_thought_of_in_one_flow_harms_that_one_alone_and_is_told_once(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.publisher(), cluster.subscribe("cache", Handler(), id="one", load_interval=0.05) as subscriber:
        eventually(lambda: len(subscriber.flows) == 2)
        review, reviewed = subscriber._review, []

        def review_badly(held: object) -> None:
            reviewed.append(held.flow.shard)  # type: ignore[attr-defined]
            if held.flow.shard == 0:  # type: ignore[attr-defined]
                raise RuntimeError("nobody thought of this")
            review(held)  # type: ignore[arg-type]

        monkeypatch.setattr(subscriber, "_review", review_badly)
        eventually(lambda: reviewed.count(1) > 5)
        assert watches(cluster)
    assert caplog.text.count("RuntimeError: nobody thought of this") == 1


def watches(cluster: Cluster) -> bool:
    """Whether the subscriber `one` puts back its registration, which is what its watch is for."""
    place = ("applications", "cache", "subscribers", "one")
    cluster.coordination.delete(*place)
    return bool(eventually(lambda: cluster.coordination.read(*place)))
