"""A subscriber that finds a publisher which says what no publisher says."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.owner import owning
from tests.support.scene import STREAM, Scene
from tidings.cluster import Cluster
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.streams import Stream
from tidings.subscriber.dialer import Reply
from tidings.testing import eventually
from tidings.updates import SCHEMA, Update
from tidings.wire.flight_data import _field, pack
from tidings.wire.protocol import Era


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
    with cluster.subscribe("cache", Handler(), id="one"), owning(cluster.coordination, "cache") as owner:
        wrong: list[tuple[Any, Any, str]] = [
            (name, 0, "about a stream that cannot be") for name in ("..", "a\0b", "\ud800", "x" * 200_000, 7, None)
        ]
        wrong += [("contacts", shard, "about a shard that cannot be") for shard in (-1, 4096, 10**300, True, "0", None)]
        for number, (stream_name, shard, reason) in enumerate(wrong):
            eventually(lambda: owner.exchanges == number + 1)  # noqa: B023
            owner.write(
                pack({"t": kind, "stream": stream_name, "shard": shard, "epoch": 1, "turn": 1, "position": [0, 0]})
            )
            assert reason in owner.fault()
        assert watches(cluster)


def test_nothing_is_kept_of_flows_that_were_never_here(cluster: Cluster, stream: Stream) -> None:
    with (
        cluster.subscribe("cache", Handler(), id="one") as subscriber,
        owning(cluster.coordination, "cache") as owner,
    ):
        for number in range(200):
            for kind in ("close", "open"):
                owner.write(pack({"t": kind, "stream": f"s{number}", "shard": 0, "epoch": 1, "turn": 1}))
        eventually(lambda: len(owner.answers) == 400)
        assert {one["t"] for one in owner.answers} == {"refused"}
        assert not subscriber._held
        assert not subscriber._opening


def test_what_is_closed_before_zookeeper_has_answered_is_not_opened(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.coordination.write({"id": "one", "epoch": 1}, "flows", "cache", "contacts", "0", "subscriber")
    with (
        cluster.subscribe("cache", Handler(), id="one") as subscriber,
        owning(cluster.coordination, "cache") as owner,
    ):
        eventually(lambda: owner.exchanges)
        ask = cluster.coordination.watch_many
        waiting: list[Callable[[], None]] = []

        class Late:
            """An answer that comes when the test wants it."""

            def __init__(self, asked: Any) -> None:
                self._asked = asked

            def rawlink(self, callback: Callable[[Any], None]) -> None:
                waiting.append(lambda: self._asked.rawlink(callback))

        with monkeypatch.context() as patch:
            patch.setattr(
                cluster.coordination,
                "watch_many",
                lambda *kinds: [(paths, Late(asked)) for paths, asked in ask(*kinds)],
            )
            owner.say("open", Era(1, 1))
            owner.say("close", Era(1, 1))
            assert owner.heard(["refused"], Era(1, 1))["reason"] == "the flow is not open"
        assert len(waiting) == 1
        for answer in waiting:
            answer()
        assert owner.heard(["refused"], Era(1, 1))["reason"] == "it was closed before it was opened"
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
    "bytes for text": (lambda: lying(pa.binary()), "rows that are broken"),
    "a dictionary that is too short": (beyond, "rows that are broken"),
    "a column less": (lambda: FORGED.drop_columns(["time"]), "rows that are broken"),
}


@pytest.mark.parametrize("lie", LIES)  # by name: to print such rows is to read wild memory
def test_rows_that_lie_are_refused_and_the_subscriber_lives(scene: Scene, lie: str) -> None:
    make, reason = LIES[lie]
    scene.prepare(2)
    scene.cluster.coordination.write({"id": "r1", "epoch": 1}, *Flow("cache", STREAM, 0).place, "subscriber")
    process = scene.recorder("cache", "r1")
    with owning(scene.cluster.coordination, "cache") as owner:
        assert owner.open(Era(1, 1))["t"] == "opened"
        owner.write(pack({"t": "batch", "stream": STREAM, "parts": [[0, 1, 1, 2, 1, 0, -1]]}, make()))
        fault = owner.fault()
        assert reason in fault
        assert "offset" not in fault.lower(), "Arrow's own words tell of our memory"
        eventually(lambda: owner.exchanges == 2)
        owner.write(pack({"t": "ping"}))
        eventually(lambda: owner.answers == [{"t": "pong"}])
    assert process.poll() is None
    assert not scene.delivered("r1")


def test_rows_of_another_schema_are_refused_before_any_comes(cluster: Cluster, stream: Stream) -> None:
    other = pa.schema([("object", pa.string())])
    whole = memoryview(other.serialize())
    said = b"".join((*_field(2, whole[8:]), *_field(3, b'{"t": "schema"}')))
    with cluster.subscribe("cache", Handler()), owning(cluster.coordination, "cache", schema=said) as owner:
        assert "rows of another schema" in owner.fault()


def test_rows_that_are_compressed_are_refused_before_they_are_read(cluster: Cluster, stream: Stream) -> None:
    bomb = pa.RecordBatch.from_pylist(
        [{"shard": 0, "seq": 0, "index": 0, "object": "o", "kind": "data", "range": 1, "payload": bytes(2**26)}],
        schema=SCHEMA,
    )
    squeezed = bomb.serialize  # pyarrow compresses only what it writes to a stream
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(bomb)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message()
    assert message.body.size < 100_000 < squeezed().size
    said = b"".join(
        (
            *_field(3, b'{"t": "batch"}'),
            *_field(2, memoryview(message.metadata)),
            *_field(1000, memoryview(message.body)),
        )
    )
    with cluster.subscribe("cache", Handler()), owning(cluster.coordination, "cache") as owner:
        owner.write(said)
        assert "rows that are compressed" in owner.fault()


def test_rows_that_are_right_are_taken(cluster: Cluster, stream: Stream) -> None:
    notes = Notes()
    cluster.coordination.write({"id": "one", "epoch": 1}, *Flow("cache", "contacts", 0).place, "subscriber")
    with cluster.subscribe("cache", notes, id="one"), owning(cluster.coordination, "cache") as owner:
        assert owner.open(Era(1, 1))["t"] == "opened"
        owner.write(pack({"t": "batch", "stream": "contacts", "parts": [[0, 1, 1, 2, 1, 0, -1]]}, FORGED))
        owner.heard(["done"], Era(1, 1))
    assert notes.objects == ["forged-0", "forged-1"]


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b"null",
        b'{"t": "challenge"}',
        b'{"t": "challenge", "nonce": "0", "proofs": []}',
        b'{"t": "challenge", "nonce": "00000000000000000000000000000000", "proofs": 7}',
        b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_challenge_that_is_none_is_told_in_a_sentence(cluster: Cluster, stream: Stream, said: bytes) -> None:
    options = {"challenged": lambda message: b"".join(_field(3, said))}
    with cluster.subscribe("cache", Handler()), owning(cluster.coordination, "cache", **options) as owner:
        fault = owner.fault()
    assert "Traceback" not in fault
    assert ".py" not in fault
    assert owner.exchanges == 0


@pytest.mark.parametrize(
    "said",
    [
        b"\xff",
        b"[]",
        b'{"t": "open"}',
        b'{"t": "odd"}',
        b'{"t": "several", "messages": 7}',
        b'{"t": "several", "messages": [{"t": "ping"}, {"t": "open"}]}',
        b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"t": "batch", "stream": "contacts", "parts": 7}',
        b'{"t": "close", "stream": "contacts", "shard": 0, "epoch": {}, "turn": 1}',
        b'{"t": "fetch", "publisher": 7, "address": "127.0.0.1:1"}',
        b'{"t": "fetch", "publisher": "job-1", "address": "unix:/run/docker.sock"}',
    ],
)
def test_a_message_that_is_none_ends_the_exchange_with_a_sentence(
    cluster: Cluster, stream: Stream, said: bytes
) -> None:
    with cluster.subscribe("cache", Handler()), owning(cluster.coordination, "cache") as owner:
        owner.write(b"".join(_field(3, said)))
        fault = owner.fault()
        assert "Traceback" not in fault
        assert ".py" not in fault
        eventually(lambda: owner.exchanges == 2)


@pytest.mark.parametrize("kind", ["open", "close", "token", "loss", "skipped", "fetch"])
def test_a_task_has_rows_to_send_and_nothing_else_to_say(cluster: Cluster, stream: Stream, kind: str) -> None:
    with cluster.subscribe("cache", Handler()) as subscriber, pytest.raises(ValueError, match="more than rows"):
        subscriber.on_messages([{"t": kind, "stream": "contacts", "shard": 0}], None, Reply(parent=Reply()))


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
        era = Era(holder["epoch"], 2**62)
        with owning(cluster.coordination, "cache") as owner:
            assert owner.open(era)["t"] == "opened"
        publish(stream, *(f"o-{number}" for number in range(8)))
        eventually(lambda: len(set(notes.objects)) == 8)
        eventually(lambda: len(subscriber.flows) == 2)
        after = cluster.coordination.read(*place, "subscriber")
        assert after is not None
        assert after["epoch"] > holder["epoch"], "a turn without end can only be passed by another epoch"
        with owning(cluster.coordination, "cache") as owner:
            assert owner.open(era)["t"] == "refused"
            owner.write(pack({"t": "batch", "stream": "contacts", "parts": [[0, *era, 2, 1, 0, -1]]}, FORGED))
            owner.heard(["refused"], era)
    assert not any(name.startswith("forged") for name in notes.objects)


def test_nobody_speaks_of_a_flow_but_who_has_opened_it(cluster: Cluster, stream: Stream) -> None:
    notes = Notes()
    place = Flow("cache", "contacts", 0).place
    with (
        cluster.publisher(token_interval=0.2) as publisher,
        cluster.subscribe("cache", notes, id="one") as subscriber,
        owning(cluster.coordination, "cache") as owner,
    ):
        eventually(lambda: len(subscriber.flows) == 2)
        holder = cluster.coordination.read(*place, "subscriber")
        assert holder is not None
        session = next(one for one in publisher._assignment.sessions() if one.flow.shard == 0)
        for said in ("close", "token"):
            owner.say(said, session.era, position=[7, 0])
            owner.heard(["refused"], session.era)
        owner.write(pack({"t": "batch", "stream": "contacts", "parts": [[0, *session.era, 2, 1, 0, -1]]}, FORGED))
        owner.heard(["refused"], session.era)
        assert len(subscriber.flows) == 2
        publish(stream, *(f"o-{number}" for number in range(8)))
        eventually(lambda: len(set(notes.objects)) == 8)
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
