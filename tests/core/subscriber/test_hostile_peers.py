"""A subscriber whose port is reached by someone who says what no publisher says."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.peer import speaking
from tests.support.scene import STREAM, Scene
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.testing import eventually
from tidings.updates import SCHEMA, Update


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


FORGED = pa.RecordBatch.from_pylist(
    [{"shard": 0, "seq": seq, "index": 0, "object": f"forged-{seq}", "kind": "data", "range": 1} for seq in range(2)],
    schema=SCHEMA,
)
OBJECT = SCHEMA.get_field_index("object")


def lying(kind: pa.DataType) -> pa.RecordBatch:
    """Two rows, of whose objects the first is said to be of a gigabyte."""
    offsets, said = pa.py_buffer(struct.pack("<iii", 0, 2**30, 3)), pa.py_buffer(b"abc")
    return FORGED.set_column(OBJECT, "object", pa.Array.from_buffers(kind, 2, [None, offsets, said]))


def beyond() -> pa.RecordBatch:
    """Two rows whose objects are places in a dictionary that is not so long."""
    places = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(b"\xff\xff\xff\x7f" * 2)])
    objects = pa.DictionaryArray.from_arrays(places, pa.array(["a"]), safe=False)
    return FORGED.set_column(OBJECT, "object", objects)


LIES: dict[str, tuple[Callable[[], pa.RecordBatch], str]] = {
    "offsets that lie": (lambda: lying(pa.string()), "rows that are broken"),
    "bytes for text": (lambda: lying(pa.binary()), "rows of another schema"),
    "a dictionary that is too short": (beyond, "rows of another schema"),
    "a column less": (lambda: FORGED.drop_columns(["time"]), "rows of another schema"),
}


@pytest.mark.parametrize("lie", LIES)  # by name: to print such rows is to read wild memory
def test_rows_that_lie_are_refused_and_the_subscriber_lives(scene: Scene, lie: str) -> None:
    make, reason = LIES[lie]
    scene.prepare(2)
    flow = {"stream": STREAM, "shard": 0, "epoch": 1, "turn": 1}
    scene.cluster.coordination.write({"id": "r1", "epoch": 1}, *Flow("cache", STREAM, 0).place, "subscriber")
    process = scene.recorder("cache", "r1")
    record = scene.cluster.coordination.read("applications", "cache", "subscribers", "r1")
    assert record is not None
    with speaking(record["address"], schema=make().schema) as peer:
        peer.say({"t": "open", **flow})
        assert peer.hear()["t"] == "opened"
        peer.say({"t": "batch", "stream": STREAM, "parts": [[0, 1, 1, 2, 1, 0, -1]]}, make())
        fault = peer.fault()
        assert reason in fault
        assert "offset" not in fault.lower(), "Arrow's own words tell of our memory"
    with speaking(record["address"]) as peer:
        peer.say({"t": "ping"})
        assert peer.hear() == {"t": "pong"}
    assert process.poll() is None
    assert not scene.delivered("r1")


def test_rows_that_are_right_are_taken(cluster: Cluster, stream: Stream) -> None:
    notes = Notes()
    cluster.coordination.write({"id": "one", "epoch": 1}, *Flow("cache", "contacts", 0).place, "subscriber")
    with cluster.subscribe("cache", notes, id="one") as subscriber, speaking(subscriber.address) as peer:
        peer.say({"t": "open", "stream": "contacts", "shard": 0, "epoch": 1, "turn": 1})
        assert peer.hear()["t"] == "opened"
        peer.say({"t": "batch", "stream": "contacts", "parts": [[0, 1, 1, 2, 1, 0, -1]]}, FORGED)
        assert peer.hear()["t"] == "done"
    assert notes.objects == ["forged-0", "forged-1"]


@pytest.mark.parametrize(
    "said", [b"", b"\xff", b"{}", b"[]", b"null", b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
)
def test_a_hello_that_is_none_is_refused_in_a_sentence(cluster: Cluster, stream: Stream, said: bytes) -> None:
    with cluster.subscribe("cache", Handler()) as subscriber, speaking(subscriber.address, hello=said) as peer:
        fault = peer.fault()
    assert "this is another application's subscriber, or another protocol's" in fault
    assert "Traceback" not in fault
    assert ".py" not in fault


@pytest.mark.parametrize(
    "said",
    [
        b"\xff",
        b"[]",
        b'{"t": "open"}',
        b'{"t": "odd"}',
        b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"t": "batch", "stream": "contacts", "parts": 7}',
        b'{"t": "close", "stream": "contacts", "shard": 0, "epoch": {}, "turn": 1}',
    ],
)
def test_a_message_that_is_none_is_refused_in_a_sentence(cluster: Cluster, stream: Stream, said: bytes) -> None:
    with cluster.subscribe("cache", Handler()) as subscriber, speaking(subscriber.address) as peer:
        peer.say(said)
        fault = peer.fault()
    assert "a message that makes no sense" in fault
    assert "Traceback" not in fault
    assert ".py" not in fault


def test_a_flow_that_somebody_opened_in_a_turn_without_end_is_its_owners_again(
    cluster: Cluster, stream: Stream
) -> None:
    notes = Notes()
    place = Flow("cache", "contacts", 0).place
    with (
        cluster.publisher(token_interval=0.2, patience=1.0),
        cluster.subscribe("cache", notes, id="one") as subscriber,
    ):
        eventually(lambda: len(subscriber.flows) == 2)
        holder = cluster.coordination.read(*place, "subscriber")
        assert holder is not None
        with speaking(subscriber.address) as peer:
            said = {"stream": "contacts", "shard": 0, "epoch": holder["epoch"], "turn": 2**62}
            peer.say({"t": "open", **said})
            assert peer.hear()["t"] == "opened"
        publish(stream, *(f"o-{number}" for number in range(8)))
        eventually(lambda: len(set(notes.objects)) == 8)
        eventually(lambda: len(subscriber.flows) == 2)
        after = cluster.coordination.read(*place, "subscriber")
        assert after is not None
        assert after["epoch"] > holder["epoch"], "a turn without end can only be passed by another epoch"
        with speaking(subscriber.address) as peer:
            peer.say({"t": "open", **said})
            assert peer.hear()["t"] == "refused"
            peer.say({"t": "batch", "stream": "contacts", "parts": [[0, said["epoch"], 2**62, 2, 1, 0, -1]]}, FORGED)
            assert peer.hear()["t"] == "refused"
    assert not any(name.startswith("forged") for name in notes.objects)


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
