"""What a service sees of the subscriber, with a publisher in the same process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import certificates
from tests.support.certificates import Certificate
from tidings.cluster import Cluster
from tidings.datamarkers import Datamarker
from tidings.errors import (
    ApplicationExists,
    InvalidFilter,
    InvalidOption,
    SubscriberExists,
    UnknownApplication,
    UnknownStream,
)
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.handlers import Handler
from tidings.identity.keys import application_key
from tidings.streams import Stream
from tidings.testing import eventually
from tidings.updates import Update
from tidings.wire.security import OPEN, Security

certify = certificates.certify


class Notes(Handler):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.objects: list[str] = []
        self.markers: list[Datamarker] = []
        self.events: list[str] = []

    def on_update(self, update: Update) -> None:
        self.objects.append(update.object)

    def on_token(self, flow: Flow, datamarker: Datamarker) -> None:
        self.markers.append(datamarker)

    def on_shard_notice(self, flow: Flow) -> None:
        self.events.append(f"notice {flow.shard}")

    def on_flow_closed(self, flow: Flow) -> None:
        self.events.append(f"closed {flow.shard}")


@pytest.fixture
def stream(cluster: Cluster) -> Stream:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    return stream


def publish(stream: Stream, *objects: str) -> None:
    with stream.producer() as producer:
        for name in objects:
            producer.publish(name).result(10)


def test_a_service_subscribes_in_ten_lines(cluster: Cluster, stream: Stream) -> None:
    notes = Notes()
    publish(stream, "alice", "bob")
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", notes) as subscriber:
        eventually(lambda: sorted(notes.objects) == ["alice", "bob"])
        publish(stream, "carol")
        eventually(lambda: "carol" in notes.objects)
        eventually(lambda: notes.markers)
        assert [flow.shard for flow in subscriber.flows] == [0, 1]
    assert sorted(notes.events) == ["closed 0", "closed 1", "notice 0", "notice 1"]


def test_a_handler_that_takes_batches_gets_them_with_stream_shard_and_epoch(cluster: Cluster, stream: Stream) -> None:
    batches: list[pa.RecordBatch] = []

    class Batches(Handler):
        def on_batch(self, rows: pa.RecordBatch) -> None:
            batches.append(rows)

    publish(stream, "alice")
    with cluster.publisher(), cluster.subscribe("cache", Batches()):
        eventually(lambda: batches)
    assert batches[0]["object"].to_pylist() == ["alice"]
    assert batches[0].schema.metadata[b"stream"] == b"contacts"
    assert int(batches[0].schema.metadata[b"epoch"]) >= 1


def test_an_update_says_which_stream_it_is_from(cluster: Cluster, stream: Stream) -> None:
    other = cluster.create_stream("orders", shards=1)
    cluster.create_application("both", ["contacts", "orders"], start="earliest")
    seen: set[tuple[str | None, str]] = set()

    class Streams(Handler):
        def on_update(self, update: Update) -> None:
            seen.add((update.stream, update.object))

    publish(stream, "alice")
    publish(other, "1")
    with cluster.publisher(), cluster.subscribe("both", Streams()):
        eventually(lambda: len(seen) == 2)
    assert seen == {("contacts", "alice"), ("orders", "1")}


def test_an_update_that_fails_once_is_tried_again_and_those_before_it_are_not_repeated(
    cluster: Cluster, stream: Stream
) -> None:
    class Clumsy(Notes):
        failures = 1

        def on_update(self, update: Update) -> None:
            if update.object == "bad" and self.failures:
                self.failures -= 1
                raise RuntimeError("slipped")
            super().on_update(update)

    notes = Clumsy()
    publish(stream, "bad", "good", "better")
    with cluster.publisher(), cluster.subscribe("cache", notes, backoff=0.01):
        eventually(lambda: sorted(notes.objects) == ["bad", "better", "good"])


def test_a_callback_that_goes_on_raising_is_called_again_after_longer_and_longer_pauses(
    cluster: Cluster, stream: Stream
) -> None:
    called: list[float] = []

    class Failing(Handler):
        def on_update(self, update: Update) -> None:
            called.append(time.monotonic())
            raise RuntimeError("again")

    publish(stream, "bad")
    with cluster.publisher(), cluster.subscribe("cache", Failing(), retries=4, backoff=0.1):
        eventually(lambda: [one.reason for one in status(cluster) if one.state == "failed"])
    pauses = [later - earlier for earlier, later in itertools.pairwise(called)]
    assert len(pauses) == 4
    assert all(pause >= 0.05 * 2**number for number, pause in enumerate(pauses))


def test_a_publisher_that_cannot_be_reached_is_tried_ever_less_often(cluster: Cluster, stream: Stream) -> None:
    tried: list[float] = []

    def hang_up(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                listener.accept()[0].close()
                tried.append(time.monotonic())

    place = ("applications", "cache", "subscribers", "one")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
        record = {"address": f"127.0.0.1:{listener.getsockname()[1]}", "applications": ["cache"], "streams": []}
        cluster.coordination.create(record, "publishers", "gone", ephemeral=True)
        with cluster.subscribe("cache", Notes(), id="one"):
            eventually(lambda: (cluster.coordination.read(*place) or {})["unreachable"].get("gone"))
            assert (cluster.coordination.read(*place) or {})["tried"] == {"gone": record["address"]}
            eventually(lambda: len(tried) >= 6)
        listener.shutdown(socket.SHUT_RDWR)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert all(pause >= 0.05 * 2**number for number, pause in enumerate(pauses[:5]))


def test_flows_of_a_subscriber_that_never_comes_go_to_another(
    cluster: Cluster, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stream, "alice", "bob")
    record = {"capacity": 1.0, "pid": 0}
    cluster.coordination.create(record, "applications", "cache", "subscribers", "gone", ephemeral=True)
    with caplog.at_level(logging.INFO), cluster.publisher(patience=0.5):
        assert eventually(lambda: failing(cluster)).startswith("it has not connected for ")
        notes = Notes()
        with cluster.subscribe("cache", notes):
            eventually(lambda: sorted(set(notes.objects)) == ["alice", "bob"], timeout=30)
            eventually(lambda: not failing(cluster))
    assert caplog.text.count("cache/gone is away: it has not connected for ") == 1, "it is told once"


def test_what_a_subscriber_says_of_a_publisher_is_told_as_its_word_and_not_of_one_that_ran_elsewhere_before(
    cluster: Cluster, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stream, "alice")
    tree, place = cluster.coordination, ("applications", "cache", "subscribers", "gone")
    record = {"capacity": 1.0, "pid": 0, "unreachable": {"east": "it does not know our key"}}
    tree.create({**record, "tried": {"east": "127.0.0.1:1"}}, *place, ephemeral=True)
    with cluster.publisher(name="east", patience=0.5) as publisher:
        assert eventually(lambda: failing(cluster)).startswith("it has not connected for ")
        assert "it does not know our key" not in caplog.text
        here = {**record, "tried": {"east": publisher.address}}
        for said, where in ((here, f" at {publisher.address}"), (record, "")):  # the latter by a former release
            tree.write(said, *place)
            told = f"the subscriber says of publisher 'east'{where}: it does not know our key"
            eventually(lambda: failing(cluster) == told)  # noqa: B023
            assert f"subscriber cache/gone is away: {told}" in caplog.text


def test_a_reason_that_is_no_proper_text_harms_its_own_flow_alone(cluster: Cluster, stream: Stream) -> None:
    class Failing(Handler):
        def on_update(self, update: Update) -> None:
            raise ValueError("cannot load caf" + chr(0xDCE9) + chr(27) + "[31m")

    cluster.create_application("failing", ["contacts"], start="earliest")
    publish(stream, *(f"contacts/{n}" for n in range(8)))
    with (
        cluster.publisher(token_interval=0.2),
        cluster.subscribe("failing", Failing(), retries=0),
        cluster.subscribe("cache", Notes()),
    ):
        eventually(lambda: {one.state for one in status(cluster, application="failing")} == {"failed"}, timeout=30)
        eventually(lambda: all(one.lag == 0 for one in status(cluster, application="cache")), timeout=30)
        reasons = {one.reason for one in status(cluster, application="failing")}
    assert reasons == {r"at 0, on_update: ValueError: cannot load caf\udce9\x1b[31m"}


def test_a_second_subscriber_of_the_same_id_is_refused(cluster: Cluster, stream: Stream) -> None:
    with (
        cluster.subscribe("cache", Notes(), id="one"),
        pytest.raises(SubscriberExists, match="has a subscriber 'one' already"),
    ):
        cluster.subscribe("cache", Notes(), id="one")


def test_a_port_in_use_is_one_clear_sentence(cluster: Cluster, stream: Stream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidOption, match="listen"):
            cluster.publisher(listen=f"127.0.0.1:{taken.getsockname()[1]}")


def test_bad_applications_are_refused_by_name(cluster: Cluster, stream: Stream) -> None:
    with pytest.raises(UnknownApplication, match="no application 'cash'"):
        cluster.subscribe("cash", Notes())
    with pytest.raises(UnknownStream, match="no stream 'nothing'"):
        cluster.create_application("other", ["nothing"])
    with pytest.raises(InvalidFilter, match="column 8"):
        cluster.create_application("other", ["contacts"], filter="region ~ eu")
    with pytest.raises(ApplicationExists, match="with another definition"):
        cluster.create_application("cache", ["contacts"], start="latest")
    with pytest.raises(InvalidOption, match="mode"):
        cluster.create_application("other", ["contacts"], mode="casual")
    with pytest.raises(InvalidOption, match="start is earliest"):
        cluster.create_application("other", ["contacts"], start="yesterday")
    assert [one.name for one in cluster.applications()] == ["cache"]


def failing(cluster: Cluster) -> str:
    """Why the flows fail, as operators see it; empty while they do not."""
    found = {one.reason or "" for one in status(cluster) if one.state == "restarting"}
    return found.pop() if len(found) == 1 else ""


SECRET = "the-secret-of-the-cluster"


def keyed(secret: str, application: str = "cache") -> Security:
    return Security(application_key=application_key(secret, application))


def test_only_who_has_the_applications_key_is_let_in_and_operators_see_why_another_is_not(
    cluster: Cluster, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stream, "alice")
    other = keyed(SECRET, "other")
    reasons = {
        other: "it does not know our key: it has another secret, or the key is another application's",
        OPEN: "it wants a key of the application, and we have none: see `tidings keys show`",
    }
    with (
        caplog.at_level(logging.DEBUG),
        cluster.publisher(name="east", security=Security(secret=SECRET), patience=0.5) as publisher,
    ):
        for wrong, reason in reasons.items():
            notes = Notes()
            told = f"the subscriber says of publisher 'east' at {publisher.address}: {reason}"
            with cluster.subscribe("cache", notes, security=wrong):
                eventually(lambda: failing(cluster) == told)  # noqa: B023
            assert notes.objects == []
        with cluster.subscribe("cache", notes, security=keyed(SECRET)):
            eventually(lambda: notes.objects == ["alice"])
            eventually(lambda: all(one.state == "running" and one.reason is None for one in status(cluster)))
    assert SECRET not in caplog.text
    assert application_key(SECRET, "cache") not in caplog.text


@pytest.mark.parametrize("secret", [None, "another-secret-of-no-cluster"])
def test_a_publisher_that_cannot_prove_itself_gets_no_proof_and_gives_no_update(
    cluster: Cluster, stream: Stream, secret: str | None
) -> None:
    notes = Notes()
    publish(stream, "alice")
    with (
        cluster.subscribe("cache", notes, security=keyed(SECRET)),
        cluster.publisher(security=Security(secret=secret), patience=0.5),
    ):
        assert "secret" in eventually(lambda: failing(cluster))
    assert notes.objects == []


def test_a_secret_is_replaced_without_a_gap_and_the_expired_one_is_refused(cluster: Cluster, stream: Stream) -> None:
    notes = Notes()
    later = "a-later-secret-of-the-cluster"
    with cluster.publisher(security=Security(secret=later, accepted=(SECRET,)), patience=0.5):
        for number, secret in enumerate((SECRET, later)):
            publish(stream, f"o-{number}")
            with cluster.subscribe("cache", notes, security=keyed(secret)):
                eventually(lambda: f"o-{number}" in notes.objects)  # noqa: B023
    with cluster.publisher(security=Security(secret=later), patience=0.5):
        with cluster.subscribe("cache", notes, security=keyed(SECRET)):
            eventually(lambda: "it does not know our key" in failing(cluster))
        both = Security(application_key=application_key(SECRET, "cache"), accepted=(application_key(later, "cache"),))
        publish(stream, "o-3")
        with cluster.subscribe("cache", notes, security=both):
            eventually(lambda: "o-3" in notes.objects)


def test_updates_travel_over_tls_and_operators_see_why_they_do_not(
    cluster: Cluster, stream: Stream, certify: Callable[[str, str], Certificate]
) -> None:
    notes = Notes()
    publish(stream, "alice")
    mine, other = certify("mine", "IP:127.0.0.1"), certify("other", "IP:127.0.0.1")
    with cluster.publisher(security=Security(certificate=mine[0], key=mine[1]), patience=0.5):
        with cluster.subscribe("cache", notes):
            assert "perhaps it speaks TLS" in eventually(lambda: failing(cluster))
        with cluster.subscribe("cache", notes, security=Security(authority=other[0])):
            eventually(lambda: "is not signed by whom we trust" in failing(cluster))
        assert notes.objects == []
        with cluster.subscribe("cache", notes, security=Security(authority=mine[0])):
            eventually(lambda: notes.objects == ["alice"])


def test_a_certificate_for_another_host_is_refused_and_so_is_a_publisher_without_any(
    cluster: Cluster, stream: Stream, certify: Callable[[str, str], Certificate]
) -> None:
    elsewhere = certify("elsewhere", "DNS:elsewhere.example")
    trusting = Security(authority=elsewhere[0])
    serving = Security(certificate=elsewhere[0], key=elsewhere[1])
    with cluster.subscribe("cache", Notes(), security=trusting):
        with cluster.publisher(security=serving, patience=0.5):
            eventually(lambda: failing(cluster).endswith(": its certificate is not for its address"))
        with cluster.publisher(patience=0.5):
            eventually(lambda: failing(cluster).endswith(": it does not speak TLS, and we do"))


def test_a_publisher_can_want_certificates_of_subscribers(
    cluster: Cluster, stream: Stream, certify: Callable[[str, str], Certificate]
) -> None:
    notes = Notes()
    publish(stream, "alice")
    mine, theirs, other = (certify(name, "IP:127.0.0.1") for name in ("mine", "theirs", "other"))
    strict = Security(certificate=mine[0], key=mine[1], authority=theirs[0])
    with cluster.publisher(security=strict, patience=0.5):
        for wrong in (Security(authority=mine[0]), Security(authority=mine[0], certificate=other[0], key=other[1])):
            with cluster.subscribe("cache", notes, security=wrong):
                eventually(lambda: "certificate" in failing(cluster))
        assert notes.objects == []
        right = Security(authority=mine[0], certificate=theirs[0], key=theirs[1])
        with cluster.subscribe("cache", notes, security=right):
            eventually(lambda: notes.objects == ["alice"])


def test_a_certificate_that_would_not_be_used_is_refused(
    cluster: Cluster, stream: Stream, certify: Callable[[str, str], Certificate]
) -> None:
    certificate, key = certify("one", "IP:127.0.0.1")
    with pytest.raises(InvalidOption, match="needs a certificate of its own"):
        cluster.publisher(security=Security(authority=certificate))
    with pytest.raises(InvalidOption, match="whose authority it knows"):
        cluster.subscribe("cache", Notes(), security=Security(certificate=certificate, key=key))


def test_keys_and_files_are_taken_as_they_are_read(tmp_path: Path) -> None:
    old, new = application_key(SECRET, "cache"), application_key("a-later-secret-of-the-cluster", "cache")
    assert Security(application_key=f"{new}\r\n{old}\n").keys("cache") == [new, old]
    assert Security(secret=f" {SECRET}\n").keys("cache") == [old]
    with pytest.raises(InvalidOption, match=r"there is no file .*ca\.pem"):
        Security(authority=str(tmp_path / "ca.pem"))  # type: ignore[arg-type]


def test_a_certificate_needs_its_own_key(tmp_path: Path, certify: Callable[[str, str], Certificate]) -> None:
    mine, other = certify("mine", "IP:127.0.0.1"), certify("other", "IP:127.0.0.1")
    with pytest.raises(InvalidOption, match="both a certificate and its key"):
        Security(certificate=tmp_path / "certificate.pem")
    with pytest.raises(InvalidOption, match="are no certificate in PEM with its key"):
        Security(certificate=mine[0], key=other[1])


def test_with_one_worker_a_busy_flow_does_not_keep_the_others_waiting(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    names: dict[int, str] = {}
    for number in range(100):
        names.setdefault(stream.shard_of(f"o-{number}"), f"o-{number}")
    seen: list[int] = []
    published = threading.Event()

    class Slow(Handler):
        def on_update(self, update: Update) -> None:
            published.wait(60)
            time.sleep(0.02)
            seen.append(update.shard)

    with cluster.publisher(), cluster.subscribe("cache", Slow()) as subscriber:
        eventually(lambda: len(subscriber.flows) == 2)
        with stream.producer(linger=0) as producer:
            for _ in range(60):  # a message each, more or less
                producer.publish(names[0]).result(10)
            producer.publish(names[1]).result(10)
        published.set()
        eventually(lambda: 1 in seen)
        assert seen.count(0) < 60, "the busy flow had more to do"
