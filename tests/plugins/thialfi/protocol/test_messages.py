"""Messages: what is written is read alike, and nothing that anybody may send does more than be refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings_thialfi.protocol.constants import MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import (
    Ack,
    BadMessage,
    Failure,
    Fault,
    FromClient,
    FromService,
    Grant,
    Hello,
    Notice,
    Status,
    SyncPart,
    encode,
    parse_client,
    parse_service,
    split,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
numbers = st.integers(0, 2**63 - 1)
sequences = st.integers(0, 2**62 - 1)
opaques = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
digests = st.builds(Digest, numbers, st.integers(0, 2**64 - 1))
seconds = st.one_of(st.integers(0, 86_400), st.floats(0, 86_400))


def some(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(entries, max_size=4).map(tuple)


def maybe(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), value)


@st.composite
def syncs(draw: st.DrawFn) -> SyncPart:
    parts = draw(st.integers(1, 16_384))
    return SyncPart(draw(sequences), draw(st.integers(0, parts - 1)), parts, draw(some(names)))


clients = st.builds(
    FromClient,
    opaques,
    maybe(digests),
    maybe(st.builds(Hello, opaques, names, maybe(texts))),
    some(st.tuples(names, sequences)),
    some(st.tuples(names, sequences)),
    some(st.builds(Ack, names, numbers, st.booleans())),
    maybe(syncs()),
    st.booleans(),
)
services = st.builds(
    FromService,
    maybe(st.builds(Grant, opaques, opaques, numbers, st.booleans())),
    st.booleans(),
    maybe(texts),
    maybe(digests),
    numbers,
    some(
        st.one_of(
            st.builds(Notice, names, numbers, st.just(True)),
            st.builds(Notice, names, numbers, st.just(False), maybe(st.binary(max_size=60))),
        )
    ),
    some(st.builds(Status, names, st.booleans(), numbers)),
    some(st.builds(Failure, names, numbers, st.booleans(), texts)),
    st.booleans(),
    st.booleans(),
    maybe(seconds),
    maybe(seconds),
    maybe(st.builds(Fault, opaques, texts, maybe(seconds))),
    maybe(opaques),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("1"), st.just("unknown")),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
CLIENT_PARTS = ("token", "digest", "hello", "register", "unregister", "acknowledge", "sync", "heartbeat")
SERVICE_PARTS = (
    "grant", "stale", "invalid", "digest", "seen", "notify", "status", "failed", "sync", "all", "interval", "quiet",
    "error", "token",
)  # fmt: skip


def refused(text: str | bytes) -> bool:
    """Both parsers take it, or raise `BadMessage`; whether both raised."""
    errors = []
    for parse in (parse_client, parse_service):
        try:
            parse(text)
        except BadMessage as error:
            errors.append(error)
    assert all(error.code in ("malformed", "version", "large") and len(str(error)) < 200 for error in errors)
    return len(errors) == 2


@given(clients)
def test_what_a_client_says_is_read_as_it_was_meant(message: FromClient) -> None:
    assert parse_client(encode(message)) == message
    assert parse_client(encode(message).encode()) == message


@given(services)
def test_what_the_service_says_is_read_as_it_was_meant(message: FromService) -> None:
    assert parse_service(encode(message)) == message


@given(st.one_of(st.binary(), st.text()))
def test_anything_at_all_is_refused(text: str | bytes) -> None:
    assert refused(text)


@given(st.dictionaries(st.sampled_from(CLIENT_PARTS + SERVICE_PARTS), values))
def test_parts_of_any_type_are_taken_or_refused(parts: dict[str, Any]) -> None:
    refused(json.dumps({"v": "1.0", **parts}))


@given(st.one_of(clients, services), st.data())
def test_a_message_with_any_value_replaced_is_taken_or_refused(message: Any, data: st.DataObject) -> None:
    value = json.loads(encode(message))
    place, key = value, data.draw(st.sampled_from(sorted(value)))
    while isinstance(place[key], list | dict) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(values)
    refused(json.dumps(value))


def test_a_fuzzer_over_bytes_finds_nothing_but_bad_messages() -> None:
    rng = random.Random(42)
    seeds = [
        encode(
            FromClient("t", Digest(3, 9), Hello("n", "a", "c"), (("alice", 1),), (("bob", 2),), (Ack("c", 3, True),))
        ),
        encode(FromClient("t", sync=SyncPart(3, 0, 2, ("alice", "bob")), heartbeat=True)),
        encode(FromService(Grant("n", "t", 7, True), True, "no", Digest(3, 9), 5, (Notice("c", 7, payload=b"p"),))),
        encode(FromService(status=(Status("a", True, 3),), failed=(Failure("e", 4, False, "no"),), quiet=5)),
        encode(FromService(error=Fault("rate", "slow", 5.5), interval=20, sync=True, all=True)),
    ]
    for _ in range(30_000):
        text = bytearray(rng.choice(seeds).encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            match rng.randrange(4):
                case 0:
                    text[at] = rng.randrange(256)
                case 1:
                    del text[at : at + rng.randint(1, 9)]
                case 2:
                    text[at:at] = rng.choice(
                        [b"[", b"]", b"{", b"}", b'"', b"\\u", b"1e999", b"null", b"-", b"NaN", b","]
                    )
                case _:
                    text[at:at] = text[rng.randrange(len(text)) :][: rng.randint(1, 30)]
            text = text or bytearray(b"{}")
        refused(bytes(text))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        '{"a":' * 10_000,
        '{"v":"1.0","token":"t","news":' + "[" * 9 + "]" * 9 + "}",
        '{"v":"1.0","token":"t","news":' + "[" * 500 + "]" * 500 + "}",
        '{"v":"1.0","token":"t","news":' + "9" * 5_000 + "}",
        '{"v":"1.0","token":"t","token":"t"}',
        '{"v":"1.0","token":"t","quiet":NaN}',
        "null",
        "[]",
        '"v"',
        "{}",
        '{"v":1.0,"token":"t"}',
        '{"v":"1","token":"t"}',
        '{"v":"1.0.0","token":"t"}',
        '{"v":"\u0661.0","token":"t"}',
        "\ufeff{}",
        "\ud800",
        b"\xff\xfe",
    ],
)
def test_what_is_no_message_is_malformed(text: str | bytes) -> None:
    for parse in (parse_client, parse_service):
        with pytest.raises(BadMessage) as raised:
            parse(text)
        assert raised.value.code == "malformed"


@pytest.mark.parametrize(
    "part",
    [
        {"register": [["alice", 5]]},
        {"register": [["alice", "05"]]},
        {"register": [["alice", "-5"]]},
        {"register": [["alice", "\u0665"]]},
        {"register": [["alice", str(2**62)]]},
        {"unregister": [["alice", str(2**62)]]},
        {"sync": {"number": str(2**62), "part": 0, "parts": 1, "objects": []}},
        {"acknowledge": [["alice", str(2**63)]]},
        {"register": [["alice"]]},
        {"register": [["alice", "5", "6"]]},
        {"register": [["", "5"]]},
        {"register": [["é" * 513, "5"]]},
        {"register": [["\ud800", "5"]]},
        {"register": {"alice": "5"}},
        {"register": [["a", "1"]] * 4_097},
        {"acknowledge": [["alice", "5", "known"]]},
        {"digest": ["1", str(2**64)]},
        {"digest": "12"},
        {"sync": {"number": "5", "part": 1, "parts": 1, "objects": []}},
        {"sync": {"number": "5", "part": 0, "parts": 0, "objects": []}},
        {"sync": {"number": "5", "part": True, "parts": 2, "objects": []}},
        {"sync": {"number": "5", "part": 0, "parts": 20_000, "objects": []}},
        {"sync": {"number": "5", "part": 0, "parts": 1}},
        {"heartbeat": 1},
        {"token": ""},
        {"token": "with blank"},
        {"token": "é"},
        {"token": "t" * 1_025},
        {"hello": {"nonce": "n"}},
        {"hello": {"nonce": "n" * 65, "application": "a"}},
        {"hello": {"nonce": "n", "application": "a" * 257}},
        {"hello": {"nonce": "n", "application": "a", "credentials": 7}},
    ],
)
def test_a_client_that_breaks_a_rule_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BadMessage) as raised:
        parse_client(json.dumps({"v": "1.0", "token": "t", **part}))
    assert raised.value.code == "malformed"


@pytest.mark.parametrize(
    "part",
    [
        {"grant": {"nonce": "n", "token": "t", "client": 7, "again": False}},
        {"grant": {"nonce": "n", "token": "t", "client": "7"}},
        {"digest": ["1", "2"]},
        {"notify": [["carol", "7", "no base64!"]]},
        {"notify": [["carol", "7", "cGF5bG9hZA"]]},
        {"notify": [["carol", "7", None]]},
        {"status": [["alice", 1, "5"]]},
        {"failed": [["eve", "4", False]]},
        {"interval": -1},
        {"interval": True},
        {"interval": "60"},
        {"quiet": 1e9},
        {"error": {"code": "rate"}},
        {"error": {"code": "rate", "message": "x", "retry": "5"}},
        {"invalid": "x" * 1_025},
        {"stale": "yes"},
    ],
)
def test_a_service_that_breaks_a_rule_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BadMessage) as raised:
        parse_service(json.dumps({"v": "1.0", **part}))
    assert raised.value.code == "malformed"


def test_only_a_hello_goes_without_a_token() -> None:
    hello = {"nonce": "n", "application": "a"}
    assert parse_client(json.dumps({"v": "1.0", "hello": hello})).token is None
    with pytest.raises(BadMessage, match="token"):
        parse_client('{"v": "1.0", "heartbeat": true}')


def test_another_minor_version_is_understood_and_another_major_one_refused() -> None:
    assert parse_client('{"v": "1.99", "token": "t", "heartbeat": true, "news": {"of": ["1.99"]}}').heartbeat
    for parse in (parse_client, parse_service):
        with pytest.raises(BadMessage) as raised:
            parse('{"v": "2.0", "token": {"is": "something else"}}')
        assert raised.value.code == "version"


def test_a_message_is_as_large_as_it_may_be_and_no_larger() -> None:
    frame = '{"v":"1.0","token":"t","news":""}'
    filled = frame[:-2] + "é" * ((MAX_MESSAGE_BYTES - len(frame)) // 2) + frame[-2:]
    filled += " " * (MAX_MESSAGE_BYTES - len(filled.encode()))
    parse_client(filled)
    for text in (filled + " ", filled.encode() + b" ", "x" * 10**6):
        with pytest.raises(BadMessage) as raised:
            parse_client(text)
        assert raised.value.code == "large"
    with pytest.raises(BadMessage) as raised:
        encode(FromClient("t", register=tuple(("x" * 1_000, n) for n in range(70))))
    assert raised.value.code == "large"


def test_the_largest_notice_fits() -> None:
    notice = Notice("\x00" * 1_024, 2**63 - 1, payload=b"x" * MAX_PAYLOAD_BYTES)
    (only,) = split(FromService(digest=Digest(9, 9), seen=9, notify=(notice,)))
    assert parse_service(encode(only)).notify == (notice,)
    with pytest.raises(BadMessage):
        parse_service(encode(FromService(notify=(Notice("x", 1, payload=b"x" * (MAX_PAYLOAD_BYTES + 1)),))))


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=3).map(lambda name: (name * 400)[:240]), sequences), max_size=400),
    st.lists(st.builds(Ack, names, numbers, st.booleans()), max_size=50),
    st.sampled_from(["", "x" * 8_000]),
)
def test_a_message_that_is_split_says_the_same(
    operations: list[tuple[str, int]], acks: list[Ack], credentials: str
) -> None:
    whole = FromClient(
        "t", Digest(1, 2), Hello("n", "a", credentials), tuple(operations), (), tuple(acks), heartbeat=True
    )
    parts = [parse_client(encode(part)) for part in split(whole)]
    assert [one for part in parts for one in part.register] == operations
    assert [one for part in parts for one in part.acknowledge] == acks
    assert [part.hello for part in parts] == [whole.hello] + [None] * (len(parts) - 1)
    assert {part.token for part in parts} == {"t"}


def test_more_entries_than_a_list_may_have_are_split() -> None:
    acks = tuple(Ack("a", n % 10) for n in range(5_000))
    assert [len(part.acknowledge) for part in split(FromClient("t", acknowledge=acks))] == [4_096, 904]


def test_no_secret_is_shown() -> None:
    shown = repr(FromClient("secret", hello=Hello("n", "a", "secret")))
    shown += repr(FromService(grant=Grant("n", "secret", 7, False), notify=(Notice("a", 1, payload=b"secret"),)))
    for part in ({"token": "secret é"}, {"hello": {"nonce": "n", "application": 7, "credentials": "secret"}}):
        with pytest.raises(BadMessage) as raised:
            parse_client(json.dumps({"v": "1.0", **part}))
        shown += str(raised.value)
    assert "secret" not in shown
