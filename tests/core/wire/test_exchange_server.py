"""A publisher's port, reached by someone who is not, or not yet, a subscriber."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.fuzz.mutations import make_batches
from tests.support.liar import metadata
from tidings.errors import InvalidOption
from tidings.identity.keys import application_key
from tidings.protocol_versions import PROTOCOL
from tidings.testing import eventually
from tidings.updates import SCHEMA
from tidings.wire import connection, exchange_server, strangers
from tidings.wire.bundles import messages_of
from tidings.wire.channel import open_channel
from tidings.wire.connection import Connection
from tidings.wire.exchange_server import ExchangeServer
from tidings.wire.flight_data import METHOD, _field, pack, pack_first, unpack
from tidings.wire.handshake import Parties, answer, new_nonce
from tidings.wire.protocol import MAX_ANSWER_BYTES, Message
from tidings.wire.security import OPEN, Security
from tidings.wire.strangers import MAX_STRANGERS, MAX_STRANGERS_OF_HOST, Strangers

SECRET = "the-secret-of-the-cluster"
KEY = application_key(SECRET, "cache")


class Heard:
    """Keeps what a server was told."""

    def __init__(self) -> None:
        self.messages: list[tuple[tuple[str, str], Message]] = []
        self.broken: list[tuple[tuple[str, str], str]] = []

    def on_message(self, connection: Connection, message: Message) -> None:
        self.messages.append((connection.key, message))

    def on_broken(self, connection: Connection, reason: str) -> None:
        self.broken.append((connection.key, reason))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(params=[None, SECRET], ids=["open", "keyed"])
def secret(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture
def server(heard: Heard, secret: str | None) -> Iterator[ExchangeServer]:
    security = Security(secret=secret)
    server = ExchangeServer("p1", "127.0.0.1:0", security, security.keys, patience_s=10.0)
    server.start(heard.on_message, heard.on_broken)
    yield server
    server.close()


class Caller:
    """One exchange with a server, in which anything can be said."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call: Any = channel.stream_stream(METHOD)(iter(self.outgoing.get, None))
        self._unheard: deque[Message] = deque()

    def say(self, raw: bytes) -> None:
        self.outgoing.put(raw)

    def hear(self) -> Message:
        while not self._unheard:
            self._unheard += messages_of(unpack(next(self.call)).message)
        return self._unheard.popleft()

    def introduce(self, parties: Parties, keys: list[str]) -> Message:
        """Go through the handshake; returns the welcome."""
        nonce = new_nonce()
        self.say(pack_first(parties.hello(nonce)))
        self.say(pack(answer(parties, keys, nonce, self.hear())))
        welcome = self.hear()
        assert self.hear() == {"t": "schema"}
        return welcome

    def fault(self) -> tuple[grpc.StatusCode, str]:
        """How the exchange has ended."""
        with contextlib.suppress(grpc.RpcError, StopIteration):
            while True:
                next(self.call)
        return self.call.code(), self.call.details()


@pytest.fixture
def calling(server: ExchangeServer) -> Iterator[Callable[[], Caller]]:
    with contextlib.ExitStack() as closing:

        def call() -> Caller:
            caller = Caller(closing.enter_context(open_channel(server.address, OPEN)))
            closing.callback(caller.outgoing.put, None)
            return caller

        yield call


def parties(server: ExchangeServer, **changes: Any) -> Parties:
    return Parties("cache", "r1", server.name, server.address)._replace(**changes)


def test_what_was_said_before_a_subscriber_came_reaches_it_first(
    server: ExchangeServer, heard: Heard, calling: Callable[[], Caller], secret: str | None
) -> None:
    connection = server.connection(("cache", "r1"))
    connection.send({"t": "one"})
    assert connection.waits
    caller = calling()
    assert caller.introduce(parties(server), [KEY] if secret else []) == {"t": "welcome", "patience": 10.0}
    connection.send({"t": "two"})
    assert [caller.hear()["t"], caller.hear()["t"]] == ["one", "two"]
    caller.say(pack({"t": "ack"}))
    eventually(lambda: heard.messages == [(("cache", "r1"), {"t": "ack"})])
    caller.outgoing.put(None)
    eventually(lambda: heard.broken == [(("cache", "r1"), "closed")])
    assert not server.connections()


def test_subscribers_are_asked_for_a_sign_of_life_whatever_their_publisher_does(heard: Heard) -> None:
    server = ExchangeServer("p1", "127.0.0.1:0", OPEN, OPEN.keys, patience_s=0.5)
    server.start(heard.on_message, heard.on_broken)
    with contextlib.closing(server), open_channel(server.address, OPEN) as channel:
        caller = Caller(channel)
        caller.introduce(parties(server), [])
        alarm = threading.Timer(20, caller.call.cancel)
        alarm.start()
        assert caller.hear() == {"t": "ping"}
        alarm.cancel()
        caller.say(pack({"t": "several", "messages": [{"t": "pong"}, {"t": "odd", "n": 1}, {"t": "odd", "n": 2}]}))
        eventually(lambda: [message.get("n") for _, message in heard.messages] == [1, 2])
        eventually(lambda: heard.broken)  # it says nothing more
        assert "has not answered" in heard.broken[0][1]


def test_a_subscriber_that_takes_nothing_is_sent_no_more_than_so_much_and_then_cut_off_whatever_it_says(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_QUEUED_BYTES", 2**20)
    server = ExchangeServer("p1", "127.0.0.1:0", OPEN, OPEN.keys, patience_s=0.5)
    server.start(heard.on_message, heard.on_broken)
    rows = make_batches(1)[0].set_column(9, SCHEMA.field("payload"), pa.array([bytes(4 * 2**20)], pa.binary()))
    with contextlib.closing(server), open_channel(server.address, OPEN) as channel:
        caller = Caller(channel)
        caller.introduce(parties(server), [])
        to = server.connection(("cache", "r1"))
        before = to.full
        for _ in range(8):
            to.send({"t": "batch"}, rows)
        assert (before, to.full) == (False, True)
        while not heard.broken:
            caller.say(pack({"t": "several", "messages": [{"t": "done"}]}))
            threading.Event().wait(0.05)  # it says something twenty times a second
        assert "it has taken nothing of what it is sent" in heard.broken[0][1]


def test_a_subscriber_that_comes_anew_takes_the_place_of_its_former_exchange(
    server: ExchangeServer, heard: Heard, calling: Callable[[], Caller], secret: str | None
) -> None:
    first, second = calling(), calling()
    first.introduce(parties(server), [KEY] if secret else [])
    second.introduce(parties(server), [KEY] if secret else [])
    assert first.fault()[0] is grpc.StatusCode.CANCELLED
    server.connection(("cache", "r1")).send({"t": "ping"})
    assert second.hear() == {"t": "ping"}
    eventually(lambda: heard.broken == [(("cache", "r1"), "closed")])


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff" * 50,
        pack({"t": "hello"}),
        b"".join(_field(1, b"\xff\xff")),
        pack_first({"t": "hello"}),
        pack_first({"t": "offer", "job": "job-1"}),
        pack_first({"t": "hello", "protocol": PROTOCOL + 1}),
        pack_first({"t": "hello", "protocol": PROTOCOL, "application": "a/../b", "subscriber": "r1"}),
        pack_first(Parties("cache", "r1", "p1", "a" * 1000).hello("0" * 32)),
        pack_first(Parties("cache", "r1", "p1", "127.0.0.1:1").hello("0")),
    ],
)
def test_a_hello_that_is_none_is_refused_in_a_sentence_and_nobody_hears_of_it(
    server: ExchangeServer, heard: Heard, calling: Callable[[], Caller], said: bytes
) -> None:
    caller = calling()
    caller.say(said)
    code, details = caller.fault()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details
    assert ".py" not in details
    assert (heard.messages, heard.broken, server.connections()) == ([], [], [])


@pytest.mark.parametrize("changes", [{"publisher": "p2"}, {"address": "10.0.0.7:7400"}])
def test_a_subscriber_that_means_another_is_refused_so_that_nobody_can_stand_between(
    server: ExchangeServer, calling: Callable[[], Caller], changes: dict[str, str]
) -> None:
    caller = calling()
    caller.say(pack_first(parties(server, **changes).hello(new_nonce())))
    code, details = caller.fault()
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "not who was asked for" in details


@pytest.mark.parametrize("secret", [SECRET], indirect=True)
@pytest.mark.parametrize(
    "proof",
    [
        b"",
        b"\xff",
        json.dumps({"t": "proof", "proof": ""}).encode(),
        json.dumps({"t": "proof", "proof": 7}).encode(),
        json.dumps({"t": "proof", "proof": "0" * 64}).encode(),
        json.dumps({"t": "proof", "proof": "\ud800"}).encode(),
        json.dumps({"t": "done", "stream": "contacts"}).encode(),
    ],
)
def test_who_has_no_proof_is_not_let_in(
    server: ExchangeServer, heard: Heard, calling: Callable[[], Caller], proof: bytes
) -> None:
    server.connection(("cache", "r1")).send({"t": "secret"})
    caller = calling()
    caller.say(pack_first(parties(server).hello(new_nonce())))
    assert caller.hear()["t"] == "challenge"
    caller.say(metadata(proof))
    assert caller.fault()[0] in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
    assert server.connection(("cache", "r1")).waits
    assert not heard.messages


@pytest.mark.parametrize("secret", [SECRET], indirect=True)
def test_a_proof_is_good_for_its_own_exchange_and_side_alone(
    server: ExchangeServer, calling: Callable[[], Caller]
) -> None:
    nonce, mine = new_nonce(), parties(server)
    first = calling()
    first.say(pack_first(mine.hello(nonce)))
    challenged = first.hear()
    good = answer(mine, [KEY], nonce, challenged)
    for said in (good, {"t": "proof", "proof": challenged["proofs"][0]}):  # replayed, and reflected
        caller = calling()
        caller.say(pack_first(mine.hello(nonce)))
        caller.hear()
        caller.say(pack(said))
        assert caller.fault()[0] is grpc.StatusCode.UNAUTHENTICATED
    first.say(pack(good))
    assert first.hear()["t"] == "welcome"


@pytest.mark.parametrize("secret", [SECRET], indirect=True)
def test_the_key_of_one_application_opens_no_other(server: ExchangeServer, calling: Callable[[], Caller]) -> None:
    nonce, other = new_nonce(), parties(server, application="other")
    caller = calling()
    caller.say(pack_first(other.hello(nonce)))
    nonces = (nonce, caller.hear()["nonce"])
    caller.say(pack({"t": "proof", "proof": other.proof(KEY, "subscriber", nonces)}))
    assert caller.fault() == (
        grpc.StatusCode.UNAUTHENTICATED,
        "a key of application 'other' is needed, and this peer has none",
    )


def test_what_is_larger_than_an_answer_is_refused_before_it_is_in_memory(
    server: ExchangeServer, calling: Callable[[], Caller]
) -> None:
    caller = calling()
    caller.say(pack_first({"t": "x" * 20 * 2**20}))
    code, details = caller.fault()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"larger than max (20971541 vs. {MAX_ANSWER_BYTES})" in details, "by what its frame says, which comes first"


def test_rows_from_a_subscriber_end_its_exchange_unread(
    server: ExchangeServer, heard: Heard, calling: Callable[[], Caller], secret: str | None
) -> None:
    caller = calling()
    caller.introduce(parties(server), [KEY] if secret else [])
    caller.say(pack({"t": "ack"}) + b"".join(_field(1000, b"rows")))
    assert caller.fault()[0] is grpc.StatusCode.CANCELLED
    eventually(lambda: heard.broken == [(("cache", "r1"), "a subscriber that sends rows")])
    assert not heard.messages


def test_other_methods_of_flight_are_not_there(server: ExchangeServer) -> None:
    with flight.connect(f"grpc://{server.address}") as client:
        for call in (client.list_flights, client.list_actions):
            with pytest.raises(NotImplementedError):
                list(call())


def test_strangers_that_say_nothing_have_little_room_and_time_and_others_are_served(
    server: ExchangeServer,
    calling: Callable[[], Caller],
    secret: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = calling()
    served.introduce(parties(server), [KEY] if secret else [])
    silent = [calling() for _ in range(MAX_STRANGERS_OF_HOST)]
    eventually(lambda: len(server._strangers) == MAX_STRANGERS_OF_HOST)
    refused = calling()
    refused.say(pack_first(parties(server).hello(new_nonce())))
    assert "too many peers" in refused.fault()[1]
    server.connection(("cache", "r1")).send({"t": "ping"})
    assert served.hear() == {"t": "ping"}
    monkeypatch.setattr(strangers, "HANDSHAKE_S", -1.0)  # as if they had had their time
    calling().introduce(parties(server, subscriber="r2"), [KEY] if secret else [])
    assert {caller.fault()[0] for caller in silent} == {grpc.StatusCode.CANCELLED}


def test_junk_and_silence_on_the_socket_harm_nobody(
    server: ExchangeServer, calling: Callable[[], Caller], secret: str | None
) -> None:
    host, _, port = server.address.rpartition(":")
    with contextlib.ExitStack() as sockets:
        for number in range(200):
            one = sockets.enter_context(socket.create_connection((host, int(port)), timeout=5))
            if number % 2:
                one.sendall(b"GET / HTTP/1.1\r\n" if number % 4 == 1 else bytes(range(256)))
        calling().introduce(parties(server), [KEY] if secret else [])


def test_nobody_but_this_machine_is_let_in_without_a_secret() -> None:
    for place in ("0.0.0.0:0", "10.0.0.7:7400", "[::]:0"):
        with pytest.raises(InvalidOption, match="would get every update"):
            OPEN.check_place(place)
        Security(insecure=True).check_place(place)
        Security(secret=SECRET).check_place(place)
    for place in ("127.0.0.1:0", "127.0.0.2:7400", "localhost:0", "[::1]:0"):
        OPEN.check_place(place)


def test_a_server_that_closes_ends_the_exchanges_of_peers_that_do_not_read(
    server: ExchangeServer, calling: Callable[[], Caller], secret: str | None
) -> None:
    caller = calling()
    caller.introduce(parties(server), [KEY] if secret else [])
    for _ in range(100):
        server.connection(("cache", "r1")).send({"t": "x" * 1_000_000})
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()


def test_one_who_comes_from_elsewhere_is_heard_though_others_fill_all_the_room() -> None:
    there, sent_away = Strangers(), []
    for number in range(MAX_STRANGERS):
        peer = f"{number % 4}-{number}"
        assert there.enter(peer, f"host-{number % 4}", lambda peer=peer: sent_away.append(peer))  # type: ignore[misc]
    assert not there.enter("one more", "host-0", lambda: None), "a host that has its share gets no more"
    assert there.enter("elsewhere", "host-5", lambda: None)
    assert sent_away == ["0-0"], "the first of those that have most"
    there.leave("0-0", "host-0")
    there.leave("elsewhere", "host-5")
    assert len(there) == MAX_STRANGERS - 1


def test_the_subscribers_of_one_application_do_not_take_all_the_room(
    server: ExchangeServer, calling: Callable[[], Caller], secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_server, "MAX_EXCHANGES_OF_APPLICATION", 2)
    keys = [KEY] if secret else []
    there = [calling() for _ in range(2)]  # an exchange ends when nobody holds it any more
    for number, caller in enumerate(there):
        caller.introduce(parties(server, subscriber=f"r{number}"), keys)
    refused, nonce = calling(), new_nonce()
    third = parties(server, subscriber="r3")
    refused.say(pack_first(third.hello(nonce)))
    refused.say(pack(answer(third, keys, nonce, refused.hear())))
    assert "are here already" in refused.fault()[1]
    calling().introduce(parties(server, subscriber="r1"), keys)  # again
    other = [application_key(secret, "other")] if secret else []
    calling().introduce(parties(server, application="other"), other)


def test_nothing_is_decompressed(server: ExchangeServer) -> None:
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    options = [("grpc.default_compression_algorithm", 2)]
    with grpc.insecure_channel(server.address, options, compression=grpc.Compression.Gzip) as channel:
        call = channel.stream_stream(METHOD)(iter(outgoing.get, None))
        outgoing.put(pack_first({"t": "x" * 60_000}))
        with pytest.raises(grpc.RpcError):
            next(call)
        outgoing.put(None)
        assert call.code() is grpc.StatusCode.UNIMPLEMENTED
