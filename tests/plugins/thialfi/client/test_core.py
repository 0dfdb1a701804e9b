"""The client's state machine: who it is, what state it keeps, and how much it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.thialfi.protocol.test_messages import services
from tests.support.driven_client import Driven, saved
from tests.support.places import ROOT
from tidings.errors import InvalidOption
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Fault, FromService, Grant, Notice


def test_hellos_have_fresh_nonces_and_growing_pauses_and_only_the_last_is_answered() -> None:
    driven = Driven()
    nonces = []
    for pause in (0, 1, 2, 4, 8, 16):
        (hello,) = driven.say(after=pause)
        assert hello.hello is not None
        nonces.append(hello.hello.nonce)
        assert driven.say() == []
        assert driven.core.wake(now=driven.now) - driven.now >= max(0.5, pause / 2)
    assert len(set(nonces)) == 6
    driven.hear(grant=Grant(nonces[0], "late", 1, False))
    token_of_late = driven.core.token
    assert token_of_late is None
    driven.hear(grant=Grant(nonces[-1], "token", 7, False))
    assert driven.core.token == "token"
    driven.hear(grant=Grant(nonces[-1], "repeated", 8, False))
    assert driven.core.token == "token"


def test_a_stale_token_is_replaced_and_the_client_stays_the_same() -> None:
    driven = Driven().granted().registered("alice")
    driven.now += 100
    driven.hear(stale=True)
    (hello,) = driven.say()
    assert hello.hello is not None
    assert hello.token == "token"
    driven.hear(grant=Grant(hello.hello.nonce, "newer", 7, True))
    (message,) = driven.say()
    assert (message.token, message.register, message.heartbeat) == ("newer", (), True)
    assert [event[0] for event in driven.events()] == ["write_state"]


def test_an_invalid_token_is_forgotten_and_everything_registered_anew() -> None:
    driven = Driven().granted().registered("alice")
    driven.now += 100
    driven.hear(invalid="not known")
    (hello,) = driven.say()
    assert hello.hello is not None
    assert hello.token is None
    driven.hear(notify=(Notice("alice", 3),))  # for a client that we are not any more
    driven.hear(grant=Grant(hello.hello.nonce, "newer", 8, False))
    (message,) = driven.say()
    assert [name for name, _ in message.register] == ["alice"]
    assert [event[0] for event in driven.events()] == ["write_state", "reissue_registrations"]


def test_what_is_said_of_an_old_token_takes_no_new_one_away() -> None:
    driven = Driven().granted().registered("alice")
    driven.now += 100
    driven.hear(invalid="not known", token="token")
    (hello,) = driven.say()
    assert hello.hello is not None
    driven.hear(grant=Grant(hello.hello.nonce, "newer", 8, False))
    driven.hear(invalid="not known", token="token")
    driven.hear(stale=True, token="token")
    assert driven.core.token == "newer"
    driven.hear(stale=True, token="newer")
    assert driven.core.token is None


def test_a_client_is_ready_once_it_has_a_token_and_at_once_if_it_kept_one() -> None:
    driven = Driven()
    assert driven.events() == []
    assert [event[0] for event in driven.granted().events()] == ["ready", "reissue_registrations", "write_state"]
    assert [event[0] for event in Driven(saved()).events()] == ["ready", "reissue_registrations"]


def test_who_is_not_let_in_is_told_so_of_each_object() -> None:
    driven = Driven()
    for name in ("alice", "bob"):
        driven.core.register(name, now=0)
    driven.say()
    driven.hear(error=Fault("denied", "you are not let in"))
    told = driven.events()
    assert ("error", "denied", "you are not let in", True) in told
    for name in ("alice", "bob"):
        assert ("registration_failure", name, False, "you are not let in") in told


@pytest.mark.parametrize("wrong", [None, 7, b"alice", ["alice"], ("alice", 3)])
def test_what_is_of_the_wrong_type_is_refused_where_the_mistake_is(wrong: Any) -> None:
    core = Driven().granted().registered("alice").core
    with pytest.raises(InvalidOption):
        core.acknowledge(wrong)
    with pytest.raises(InvalidOption):
        core.register(wrong, now=0)
    with pytest.raises(InvalidOption):
        core.unregister(wrong, now=0)
    with pytest.raises(InvalidOption):
        core.register("alice", "7", now=0)  # type: ignore[arg-type]  # that is the point


def test_the_page_says_how_fast_a_client_is() -> None:
    pace, page = Pace(), (ROOT / "docs" / "thialfi-protocol.md").read_text()
    assert f"{pace.rate:g} messages a second, {pace.burst} at once" in page


def test_a_service_that_refuses_each_token_it_grants_is_asked_ever_more_slowly() -> None:
    driven = Driven()
    hellos = 0
    for _ in range(600):
        for message in driven.say(after=1):
            if message.hello:
                hellos += 1
                driven.hear(grant=Grant(message.hello.nonce, "token", 7, True))
            else:
                driven.hear(stale=True)
    assert hellos < 30


def test_what_is_denied_for_good_ends_the_client() -> None:
    driven = Driven()
    driven.say()
    driven.hear(error=Fault("denied", "no"))
    assert driven.say(after=10_000) == []
    assert driven.core.wake(now=driven.now) == float("inf")
    assert ("error", "denied", "no", True) in driven.events()


def test_with_credentials_a_client_introduces_itself_on_each_channel() -> None:
    driven = Driven().granted().registered("alice")
    driven.core.disconnected()
    driven.core.connected(now=driven.now, introduce=True)
    (hello,) = driven.say()
    assert hello.hello is not None
    assert hello.token == "token"


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 255))
def test_broken_state_counts_as_none(junk: bytes, at: int, byte: int) -> None:
    whole = saved()
    damaged = bytearray(whole)
    damaged[at % len(whole)] ^= byte or 1
    for state in (junk, whole + junk if junk else b"", whole[: at % len(whole)], bytes(damaged)):
        (hello,) = Driven(state).say()
        assert hello.token is None
    (hello,) = Driven(whole, application="another").say()
    assert hello.token is None


def test_no_more_is_sent_than_the_bucket_lets_pass_and_nothing_is_forgotten() -> None:
    driven = Driven(pace=Pace(rate=1, burst=3)).granted()
    for n in range(1_000):
        driven.core.register(f"{n}" + "x" * 900, now=0)
    sent = driven.say()
    assert len(sent) == 2  # the hello was the first
    while len({name for message in sent for name, _ in message.register}) < 1_000:
        assert driven.core.wake(now=driven.now) > driven.now
        sent += driven.say(after=driven.core.wake(now=driven.now) - driven.now)
    assert len(sent) <= 3 + driven.now


def test_a_quiet_time_and_a_retry_are_obeyed() -> None:
    driven = Driven().granted()
    driven.core.register("alice", now=0)
    driven.hear(quiet=30.0)
    assert driven.say(after=29) == []
    assert driven.core.wake(now=driven.now) > driven.now
    assert driven.say(after=5) != []
    driven.hear(error=Fault("rate", "slow", 60.0))
    driven.core.register("bob", now=driven.now)
    assert driven.say(after=59) == []
    assert driven.say(after=8) != []
    assert ("error", "rate", "slow", False) in driven.events()


def test_heartbeats_come_as_often_as_the_service_wants() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(interval=10.0)
    beats = [message for _ in range(100) for message in driven.say(after=1)]
    assert 9 <= len(beats) <= 13
    assert all(message.heartbeat and message.digest == Digest.of(7, ["alice"]) for message in beats)


@given(st.lists(services, max_size=15), st.booleans())
def test_no_message_of_a_service_breaks_a_client(messages: list[FromService], resuming: bool) -> None:
    driven = Driven(saved() if resuming else None)
    for name in ("alice", "bob"):
        driven.core.register(name, now=0)
    for message in messages:
        for said in driven.say(after=0.3):
            if said.hello:
                driven.hear(grant=Grant(said.hello.nonce, "token", 7, True))
        driven.core.received(message, now=driven.now)
        driven.events()
    driven.core.wake(now=driven.now)
