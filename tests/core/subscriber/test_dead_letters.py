"""What becomes of an update at which a handler fails: its flow is parked, or goes on without it."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.scene import Scene, stop
from tidings.cluster import Cluster
from tidings.errors import InvalidName, InvalidOption, UnknownStream
from tidings.flow_history import FlowEvent, flow_history
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.positions import Position
from tidings.streams import Stream
from tidings.testing import eventually, held
from tidings.updates import Update, to_updates

FLOW = Flow("cache", "contacts", 0)


class Choosy(Handler):
    """Takes all but what is called poison."""

    def __init__(self) -> None:
        self.objects: list[str] = []

    def on_update(self, update: Update) -> None:
        if "poison" in update.object:
            raise ValueError(f"what is {update.object}?")
        self.objects.append(update.object)


class ChoosyInBatches:
    """The same, by batches: the rows before the poisonous one are processed, and come again."""

    def __init__(self) -> None:
        self.objects: list[str] = []
        self.sizes: list[int] = []

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.sizes.append(rows.num_rows)
        for name in rows["object"].to_pylist():
            if "poison" in name:
                raise ValueError(f"what is {name}?")
            self.objects.append(name)


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    return cluster.create_stream("contacts", shards=1)


@pytest.fixture
def letters(cluster: Cluster) -> Stream:
    return cluster.create_stream("letters", shards=2)


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        for number, name in enumerate(objects):
            producer.publish(name, version=number, payload=name.encode(), attributes={"region": "eu"}).result(10)


def kept(letters: Stream) -> list[Update]:
    with contextlib.closing(letters.log) as log:
        return sorted(to_updates(held(log)), key=lambda one: (one.version or 0, one.seq))


def events(cluster: Cluster, kind: str) -> list[FlowEvent]:
    return [event for event in flow_history(cluster, FLOW) if event.kind == kind]


def marker(cluster: Cluster) -> Position | None:
    (one,) = status(cluster, application="cache")
    return one.datamarker.position if one.datamarker else None


def test_an_update_that_is_skipped_is_left_out_once_and_told_with_its_position(
    cluster: Cluster, stream: Stream
) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest", on_failure="skip")
    publish(stream, "alice", "poison", "bob", "poison too", "carol")
    handler = Choosy()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", handler, retries=1, backoff=0.01):
        eventually(lambda: marker(cluster) == Position(4))
        newest, first = eventually(lambda: events(cluster, "put aside"))
        (one,) = status(cluster, application="cache")
        assert one.state == "running"
    assert handler.objects == ["alice", "bob", "carol"]
    assert first.reason == "at 1, on_update: ValueError: what is poison?"
    assert newest.reason == "at 3, on_update: ValueError: what is poison too?"


@pytest.mark.parametrize("make", [Choosy, ChoosyInBatches])
def test_an_update_is_kept_in_a_stream_with_where_it_was_and_why(
    cluster: Cluster, stream: Stream, letters: Stream, make: Callable[[], Choosy | ChoosyInBatches]
) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest", on_failure="stream:letters")
    publish(stream, "alice", "poison", "bob")
    handler = make()
    with (
        cluster.publisher(token_interval=0.2),
        cluster.subscribe("cache", handler, id="one", retries=0, backoff=0.01),
    ):
        eventually(lambda: marker(cluster) == Position(2))
    (letter,) = kept(letters)
    assert (letter.object, letter.version, letter.payload) == ("poison", 1, b"poison")
    told = dict(letter.attributes or {})
    assert told.pop("failed_at").startswith("20")
    method = "on_update" if make is Choosy else "on_batch"
    assert told == {
        "region": "eu",
        "failed_application": "cache",
        "failed_subscriber": "one",
        "failed_stream": "contacts",
        "failed_shard": "0",
        "failed_position": "1",
        "failed_reason": f"at 1, {method}: ValueError: what is poison?",
    }
    assert list(dict.fromkeys(handler.objects)) == ["alice", "bob"]


def test_batches_in_which_many_rows_are_poisonous_are_gone_through_row_by_row(
    cluster: Cluster, stream: Stream, letters: Stream
) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest", on_failure="stream:letters")
    names = [f"poison {number}" if number % 7 == 3 else f"good {number}" for number in range(60)]
    with stream.producer() as producer:
        producer.publish_many([{"object": name, "version": at} for at, name in enumerate(names)]).result(10)
    handler = ChoosyInBatches()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", handler, retries=0, backoff=0.01):
        eventually(lambda: marker(cluster) == Position(59))
    assert [letter.object for letter in kept(letters)] == [name for name in names if "poison" in name]
    assert list(dict.fromkeys(handler.objects)) == [name for name in names if "good" in name]
    assert 60 in handler.sizes
    assert 1 in handler.sizes


def test_nothing_is_passed_while_it_cannot_be_kept(
    cluster: Cluster, stream: Stream, letters: Stream, tmp_path: Path
) -> None:
    """The stream of dead letters is away: the flow comes to the update again and again, until it is back."""
    cluster.create_application("cache", ["contacts"], start="earliest", on_failure="stream:letters")
    place, away = tmp_path / "streams" / "letters", tmp_path / "away"
    shutil.move(place, away)
    publish(stream, "alice", "poison", "bob")
    handler = Choosy()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", handler, retries=0, backoff=0.01):
        told = eventually(lambda: [one.reason for one in status(cluster, application="cache") if one.reason])
        assert "the update at 1 could not be kept in stream 'letters'" in told[0]
        assert "bob" not in handler.objects
        shutil.move(away, place)
        eventually(lambda: marker(cluster) == Position(2))
    assert [letter.object for letter in kept(letters)] == ["poison"]


@pytest.mark.slow
def test_none_is_missing_when_publishers_are_killed_while_they_keep_them(scene: Scene) -> None:
    letters = scene.cluster.create_stream("letters", shards=2)
    scene.prepare(4, on_failure="stream:letters")
    poison = {f"o-{number}" for number in range(0, 600, 3)}
    heard: set[str] = set()

    class Third(Handler):
        def on_update(self, update: Update) -> None:
            if update.object in poison:
                raise ValueError("every third is poison")
            heard.add(update.object)

    def aside() -> set[str]:
        return {letter.object for letter in kept(letters)}

    def has_kept(count: int) -> bool:
        return len(aside()) >= count

    with scene.cluster.subscribe("cache", Third(), retries=0, backoff=0.01):
        for first in (0, 200, 400):
            sender, enough = scene.sender(f"p{first}"), len(aside()) + 5
            scene.publish(first, 200)
            eventually(functools.partial(has_kept, enough))
            stop(sender)
        scene.sender("last")
        eventually(lambda: len(heard) == 400 and aside() == poison, timeout=60)
        eventually(lambda: sum(scene.markers("cache", 4)) == 600 - 4, timeout=60)
    assert {dict(one.attributes or {})["failed_application"] for one in kept(letters)} == {"cache"}


def test_a_flow_that_is_parked_goes_on_when_its_application_is_told_to(
    cluster: Cluster, stream: Stream, letters: Stream
) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest")
    publish(stream, "alice", "poison", "bob")
    handler = Choosy()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", handler, retries=0, backoff=0.01):
        eventually(lambda: [one.state for one in status(cluster, application="cache")] == ["failed"])
        cluster.update_application("cache", on_failure="stream:letters")
        eventually(lambda: marker(cluster) == Position(2))
        assert [letter.object for letter in kept(letters)] == ["poison"]
        cluster.update_application("cache", on_failure="park")
        publish(stream, "poison again", "dave")
        eventually(lambda: [one.state for one in status(cluster, application="cache")] == ["failed"])
    assert "dave" not in handler.objects
    assert len(kept(letters)) == 1


def test_a_batch_at_which_a_handler_fails_names_the_row(cluster: Cluster, stream: Stream) -> None:
    cluster.create_application("cache", ["contacts"], start="earliest")
    with stream.producer() as producer:
        producer.publish_many([{"object": name} for name in ("alice", "poison", "bob")]).result(10)
    with cluster.publisher(), cluster.subscribe("cache", ChoosyInBatches(), retries=0, backoff=0.01):
        (reason,) = eventually(lambda: [one.reason for one in status(cluster, application="cache") if one.reason])
    assert "at 1, on_batch: ValueError: what is poison?" in reason


@pytest.mark.parametrize(
    ("on_failure", "error", "message"),
    [
        ("retry", InvalidOption, "on_failure is park, skip or stream:NAME, not 'retry'"),
        ("stream:", InvalidName, "is no name for a stream"),
        ("stream:nobody", UnknownStream, "nobody"),
        ("stream:contacts", InvalidOption, "cannot keep what its handler fails at in 'contacts', which it reads"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(
    cluster: Cluster, stream: Stream, on_failure: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cluster.create_application("cache", ["contacts"], on_failure=on_failure)
