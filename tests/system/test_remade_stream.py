"""A stream that is dropped with its updates and made again: those who read the old one are told, and skip nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.subscribers import Seen
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.log_opening import identity_of
from tidings.positions import Position
from tidings.streams import Stream
from tidings.testing import eventually


class Told(Seen):
    def __init__(self) -> None:
        super().__init__()
        self.lost: list[tuple[int, int, int]] = []

    def on_data_loss(self, flow: Flow, first: Position, last: Position) -> None:
        self.lost.append((flow.shard, first.seq, last.seq))

    def names(self) -> set[str]:
        return {update.object for update in self.updates}


def publish(stream: Stream, name: str, count: int) -> set[str]:
    names = [f"{name}-{number}" for number in range(count)]
    with stream.producer() as producer:
        producer.publish_many([{"object": one, "version": number} for number, one in enumerate(names)]).result()
    return set(names)


def marker(cluster: Cluster) -> dict[str, Any]:
    return cluster.coordination.read("flows", "app", "s", "0", "datamarker") or {}


def remade(cluster: Cluster) -> Stream:
    cluster.drop_stream("s", purge=True)
    return cluster.create_stream("s", 1)


@pytest.mark.parametrize("count", [5, 1000], ids=["shorter", "longer"])
@pytest.mark.parametrize("running", [False, True], ids=["while nobody sends", "while it is sent"])
def test_a_flow_of_a_stream_that_is_made_anew_hears_of_the_loss_and_of_each_new_update(
    cluster: Cluster, count: int, running: bool
) -> None:
    stream = cluster.create_stream("s", 1)
    cluster.create_application("app", ["s"], start="earliest")
    publish(stream, "old", 100)
    told = Told()
    with cluster.subscribe("app", told):
        with cluster.publisher(token_interval=0.1):
            eventually(lambda: marker(cluster).get("position") == 99)
            assert marker(cluster)["log"] == identity_of(stream.log, stream.definition)
            if running:
                stream = remade(cluster)
                new = publish(stream, "new", count)
                eventually(lambda: new <= told.names())
        if not running:
            stream = remade(cluster)
            new = publish(stream, "new", count)
            assert [one.lag for one in status(cluster)] == [count], "none of the new ones was processed"
        with cluster.publisher(token_interval=0.1):
            eventually(lambda: new <= told.names())
            eventually(lambda: marker(cluster)["position"] == count - 1)
    assert told.lost == [(0, 0, 99)]
    assert [update.object for update in told.updates if update.object in new] == [f"new-{n}" for n in range(count)]
    assert marker(cluster)["log"] == identity_of(stream.log, stream.definition)


def test_a_datamarker_that_does_not_say_of_which_log_it_is_is_taken_for_one_of_this_log(cluster: Cluster) -> None:
    stream = cluster.create_stream("s", 1)
    cluster.create_application("app", ["s"], start="earliest")
    publish(stream, "old", 100)
    told = Told()
    with cluster.subscribe("app", told):
        with cluster.publisher(token_interval=0.1):
            eventually(lambda: marker(cluster).get("position") == 99)
        before = {key: value for key, value in marker(cluster).items() if key not in ("log", "version")}
        cluster.coordination.write(before, "flows", "app", "s", "0", "datamarker")
        with cluster.publisher(token_interval=0.1):
            publish(stream, "new", 10)
            eventually(lambda: marker(cluster).get("position") == 109)
    assert (len(told.updates), told.lost) == (110, [])
    assert marker(cluster)["log"] == identity_of(stream.log, stream.definition)


def test_a_flow_whose_log_was_moved_as_it_is_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    stream = cluster.create_stream("s", 1)
    cluster.create_application("app", ["s"], start="earliest")
    publish(stream, "old", 100)
    told = Told()
    folder = tmp_path / "streams" / "s"
    with cluster.subscribe("app", told), cluster.publisher(token_interval=0.1):
        eventually(lambda: marker(cluster).get("position") == 99)
        shutil.copytree(folder, tmp_path / "copy")
        folder.rename(tmp_path / "before")
        (tmp_path / "copy").rename(folder)  # so that nobody sees a part of it, which would be an older one
        publish(cluster.stream("s"), "new", 10)
        eventually(lambda: marker(cluster).get("position") == 109)
    assert (len(told.updates), told.lost) == (110, [])
