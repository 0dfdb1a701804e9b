"""Whether a subscriber is caught up, and how far it is behind."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.subscriber import subscriber as subscriber_module
from tidings.testing import eventually
from tidings.updates import Update


class Gate(Handler):
    """Processes nothing while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.objects: list[str] = []

    def on_update(self, update: Update) -> None:
        self.open.wait(60)
        self.objects.append(update.object)


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=4)
    cluster.create_application(
        "cache", ["contacts"], start="earliest", filter="kind = data and not object matches 'tmp/.*'"
    )
    return stream


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        producer.publish_many([{"object": name} for name in objects]).result(10)


def test_one_that_is_caught_up_has_processed_what_was_published_before_it_asked(
    cluster: Cluster, stream: Stream
) -> None:
    gate = Gate()
    with cluster.publisher(), cluster.subscribe("cache", gate) as subscriber:
        assert subscriber.caught_up()
        for number in range(5):
            publish(stream, f"alice-{number}", f"bob-{number}", f"tmp/{number}")
            assert subscriber.caught_up()
            assert len(gate.objects) == 2 * (number + 1)
        assert subscriber.lag() == 0
        gate.open.clear()
        publish(stream, *(f"o-{number}" for number in range(40)))
        assert not subscriber.caught_up(timeout=0.3)
        assert eventually(subscriber.lag) == 40
        gate.open.set()
        assert subscriber.caught_up()
        assert subscriber.lag() == 0
    assert len(gate.objects) == 50


def test_what_the_filter_leaves_out_holds_nobody_up(cluster: Cluster, stream: Stream) -> None:
    publish(stream, *(f"tmp/{number}" for number in range(100)))
    with cluster.publisher(token_interval=60), cluster.subscribe("cache", Gate()) as subscriber:
        assert subscriber.caught_up()
        publish(stream, *(f"tmp/{number}" for number in range(100)))
        assert subscriber.caught_up()


def test_nobody_is_caught_up_without_a_publisher_or_with_a_flow_that_has_failed(
    cluster: Cluster, stream: Stream
) -> None:
    class Failing(Gate):
        def on_update(self, update: Update) -> None:
            raise ValueError("never")

    with cluster.subscribe("cache", Failing(), retries=0) as subscriber:
        assert not subscriber.caught_up(timeout=0.3)
        assert subscriber.lag(timeout=0.3) is None
        with cluster.publisher():
            assert subscriber.caught_up()
            publish(stream, "alice")
            assert not subscriber.caught_up(timeout=1.0)
            assert subscriber.lag(timeout=0.3) is None


def test_each_of_two_subscribers_answers_for_its_own_flows(cluster: Cluster, stream: Stream) -> None:
    open_gate, shut_gate = Gate(), Gate()
    cluster.update_application("cache", balance="zookeeper")
    with (
        cluster.publisher(),
        cluster.subscribe("cache", open_gate) as one,
        cluster.subscribe("cache", shut_gate) as other,
    ):
        eventually(lambda: len(one.flows) == len(other.flows) == 2)
        shut_gate.open.clear()
        publish(stream, *(f"o-{number}" for number in range(40)))
        assert one.caught_up()
        assert not other.caught_up(timeout=0.3)
        shut_gate.open.set()
        assert other.caught_up()
    assert len(open_gate.objects) + len(shut_gate.objects) == 40


def test_who_would_block_an_event_loop_is_told_what_to_do_instead(cluster: Cluster, stream: Stream) -> None:
    async def main() -> None:
        async with cluster.subscribe("cache", Gate()) as subscriber:
            with pytest.raises(InvalidOption, match=r"`await asyncio.to_thread\(subscriber.caught_up\)` instead"):
                subscriber.caught_up()

    asyncio.run(main())


def test_a_subscriber_that_nobody_serves_says_so_once_and_that_somebody_does(
    cluster: Cluster, stream: Stream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "ALONE_S", 0.2)

    def told() -> list[str]:
        return [record.message for record in caplog.records if "application cache" in record.message]

    with caplog.at_level(logging.WARNING), cluster.subscribe("cache", Gate()) as subscriber:
        eventually(told)
        assert told() == [
            "application cache is not served: there is no publisher that does; start one with `tidings publisher`"
        ]
        with cluster.publisher():
            assert subscriber.caught_up()
            eventually(lambda: len(told()) == 2)
