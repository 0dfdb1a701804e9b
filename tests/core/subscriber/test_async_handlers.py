"""Handlers with async methods, in a loop of the program's and without one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tidings.cluster import Cluster
from tidings.errors import InvalidOption
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.testing import eventually
from tidings.updates import Update


class Later(Handler):
    """Notes what it is told, and by which thread."""

    def __init__(self) -> None:
        self.objects: list[str] = []
        self.threads: set[str] = set()

    async def on_update(self, update: Update) -> None:
        await asyncio.sleep(0)
        self.objects.append(update.object)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    return stream


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        producer.publish_many([{"object": name} for name in objects]).result(10)


def test_they_are_awaited_in_the_loop_of_the_program(cluster: Cluster, stream: Stream) -> None:
    handler = Later()

    async def main() -> None:
        async with cluster.subscribe("cache", handler) as subscriber:
            publisher = await asyncio.to_thread(cluster.publisher)
            await asyncio.to_thread(publish, stream, "alice", "bob")
            async with asyncio.timeout(30):
                waiting = asyncio.create_task(subscriber.wait_closed())
                while len(handler.objects) < 2:
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.to_thread(publisher.close)

    asyncio.run(main())
    assert sorted(handler.objects) == ["alice", "bob"]
    assert handler.threads == {threading.current_thread().name}


def test_where_there_is_no_loop_they_have_one_of_their_own_which_ends_with_the_subscriber(
    cluster: Cluster, stream: Stream
) -> None:
    handler = Later()
    publish(stream, "alice", "bob")
    with cluster.publisher(), cluster.subscribe("cache", handler, workers=2):
        eventually(lambda: len(handler.objects) == 2)
        assert handler.threads == {"tidings-handler-loop"}
    assert "tidings-handler-loop" not in {thread.name for thread in threading.enumerate()}


def test_a_plain_with_in_a_coroutine_is_refused_with_the_right_form_and_leaves_nothing_behind(
    cluster: Cluster, stream: Stream
) -> None:
    async def main() -> None:
        with cluster.subscribe("cache", Later(), id="one"):
            pass

    publish(stream, "alice")
    with cluster.publisher():
        with pytest.raises(InvalidOption, match=r"write `async with cluster.subscribe\(...\)`"):
            asyncio.run(main())
        eventually(lambda: cluster.coordination.children("applications", "cache", "subscribers") == [])


def test_run_in_a_coroutine_is_refused_with_the_right_form(cluster: Cluster, stream: Stream) -> None:
    async def main() -> None:
        async with cluster.subscribe("cache", Later()) as subscriber:
            with pytest.raises(InvalidOption, match=r"`await subscriber.wait_closed\(\)` instead"):
                subscriber.run()

    asyncio.run(main())
