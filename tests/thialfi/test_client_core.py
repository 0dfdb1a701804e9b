"""The client's state machine, driven by hand: one behaviour at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InvalidOption
from tidings_thialfi import client_registrations
from tidings_thialfi.client_core import ClientCore, Pace
from tidings_thialfi.digests import Digest
from tidings_thialfi.messages import (
    Ack,
    Failure,
    Fault,
    FromClient,
    FromService,
    Grant,
    Notice,
    Status,
    encode,
    parse_client,
)

from .test_messages import services


class Driven:
    """A core, driven by hand."""

    def __init__(self, state: bytes | None = None, pace: Pace | None = None, application: str = "web") -> None:
        self.now = 0.0
        self.core = ClientCore(application, rng=random.Random(1), pace=pace)
        self.core.start(state, now=self.now, wall=1_000.0)
        self.core.connected(now=self.now)

    def say(self, after: float = 0.0) -> list[FromClient]:
        self.now += after
        said = self.core.messages(now=self.now)
        for message in said:
            parse_client(encode(message))
        return said

    def hear(self, **parts: Any) -> None:
        self.core.received(FromService(**parts), now=self.now)

    def events(self) -> list[tuple[Any, ...]]:
        found = []
        while event := self.core.next_event():
            found.append((event.method, *event.arguments))
            if event.handle is not None:
                self.core.acknowledge(event.handle)
            self.core.told(event, now=self.now)
        return found

    def granted(self, client: int = 7, again: bool = False, token: str = "token") -> Driven:
        (hello,) = self.say()
        assert hello.hello is not None
        self.hear(grant=Grant(hello.hello.nonce, token, client, again))
        return self

    def registered(self, *names: str) -> Driven:
        for name in names:
            self.core.register(name, now=self.now)
        for message in self.say():
            self.hear(status=tuple(Status(name, True, number) for name, number in message.register))
        self.events()
        return self


def saved(*names: str) -> bytes:
    """The state of a client with number 7 that ran before."""
    driven = Driven().granted()
    return next(event[1] for event in driven.events() if event[0] == "write_state")


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
    assert driven.core.token is None
    driven.hear(grant=Grant(nonces[-1], "token", 7, False))
    assert driven.core.token == "token"
    driven.hear(grant=Grant(nonces[-1], "repeated", 8, False))
    assert driven.core.token == "token"


def test_calls_before_the_grant_are_sent_together_after_it() -> None:
    driven = Driven()
    for name in ("alice", "bob", "carol"):
        driven.core.register(name, now=0)
    driven.core.unregister("bob", now=0)
    driven.granted()
    (message,) = driven.say()
    assert [name for name, _ in message.register] == ["alice", "carol"]
    assert message.digest == Digest.of(7, ["alice", "carol"])
    numbers = [number for _, number in message.register]
    assert min(numbers) > 1_000 * 10**6  # they begin at the time in microseconds


def test_an_operation_is_repeated_until_it_is_answered() -> None:
    driven = Driven().granted()
    driven.core.register("alice", now=0)
    (first,) = driven.say()
    assert driven.say() == []
    assert driven.say(after=2.4) == []
    (second,) = driven.say(after=2.7)
    assert second.register == first.register
    driven.hear(status=(Status("alice", True, first.register[0][1] - 1),))  # of an earlier operation
    assert driven.say(after=10)[0].register == first.register
    driven.hear(status=(Status("alice", True, first.register[0][1]),))
    assert driven.say(after=60) == []
    assert ("registration_status_changed", "alice", True) in driven.events()


def test_an_earlier_run_with_its_clock_ahead_does_not_have_the_last_word() -> None:
    driven = Driven().granted()
    driven.core.register("alice", now=0)
    driven.say()
    driven.hear(status=(Status("alice", False, 2**60),))
    ((name, number),) = driven.say()[0].register
    assert (name, number) == ("alice", 2**60 + 1)


def test_a_service_that_has_seen_a_larger_number_is_spoken_to_above_it() -> None:
    driven = Driven().granted()
    driven.core.register("alice", now=0)
    driven.say()
    driven.hear(digest=Digest(), seen=2**60)
    assert driven.say()[0].register == (("alice", 2**60 + 1),)


def test_when_numbers_run_out_the_client_becomes_another() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(digest=Digest(), seen=2**63 - 1)
    assert driven.core.token is None
    driven.now += 100
    driven.granted(client=8)
    ((_, number),) = driven.say()[0].register
    assert number < 2**40


def test_a_difference_is_mended_by_a_sync_only_when_nothing_explains_it() -> None:
    driven = Driven().granted().registered("alice", "bob")
    largest = driven.core._registrations.largest
    driven.hear(digest=Digest(), seen=largest - 1)
    assert driven.say() == []
    driven.core.register("carol", now=driven.now)
    driven.say()
    driven.hear(digest=Digest(), seen=largest + 1, sync=True)
    assert driven.say() == []  # carol is on its way
    driven.hear(status=(Status("carol", True, largest + 1),))
    driven.hear(digest=Digest(), seen=largest + 1)
    (message,) = driven.say()
    assert message.sync is not None
    assert (message.sync.number, set(message.sync.objects)) == (largest + 2, {"alice", "bob", "carol"})
    driven.hear(sync=True)
    assert driven.say() == []  # it is under way
    (again,) = driven.say(after=60)
    assert again.sync is not None
    assert again.sync.number > message.sync.number
    driven.hear(digest=Digest.of(7, ["alice", "bob", "carol"]), seen=again.sync.number)
    assert driven.say(after=600) == []


def test_a_service_that_has_forgotten_what_it_answered_is_sent_everything_again() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(digest=Digest(), seen=0)  # it may be late
    assert driven.say() == []
    (beat,) = driven.say(after=31)
    assert beat.heartbeat
    driven.hear(digest=Digest(), seen=0)
    (message,) = driven.say()
    assert message.sync is not None
    assert message.sync.objects == ("alice",)


def test_a_digest_that_is_late_changes_nothing() -> None:
    driven = Driven().granted().registered("alice")
    for _ in range(5):
        driven.hear(digest=Digest(), seen=0)
        driven.hear(digest=Digest.of(7, ["alice"]), seen=driven.core._registrations.largest)
        assert not any(message.sync for message in driven.say(after=31))


def test_a_large_sync_comes_in_parts_that_each_fit() -> None:
    driven = Driven(pace=Pace(rate=1000, burst=1000)).granted()
    names = [f"{n:05}" + "é" * 300 for n in range(2_000)]
    for name in names:
        driven.core.register(name, now=0)
    operations = driven.say()
    assert sorted(name for message in operations for name, _ in message.register) == names
    driven.hear(digest=Digest.of(7, names), seen=driven.core._registrations.largest)
    driven.hear(digest=Digest(), seen=driven.core._registrations.largest)
    parts = [message.sync for message in driven.say(after=1) if message.sync]
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.parts for part in parts} == {len(parts)}
    assert sorted(name for part in parts for name in part.objects) == names


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


def test_a_version_is_told_once_and_acknowledged_each_time() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(notify=(Notice("alice", 5, payload=b"p"), Notice("alice", 5), Notice("alice", 4)))
    assert driven.events() == [("notify", "alice", 5, b"p")]
    assert driven.say()[0].acknowledge == (Ack("alice", 5),)
    driven.hear(notify=(Notice("alice", 5),))
    assert driven.events() == []
    assert driven.say()[0].acknowledge == (Ack("alice", 5),)


def test_nothing_is_acknowledged_before_it_is_told_nor_if_the_listener_fails() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(notify=(Notice("alice", 5),))
    driven.hear(notify=(Notice("alice", 5),))
    assert driven.say() == []
    event = driven.core.next_event()
    assert event is not None
    driven.core.tell_again(event, now=driven.now)
    assert driven.say() == []
    assert driven.core.next_event() is None
    assert driven.core.wake(now=driven.now) <= driven.now + 1
    driven.say(after=1.1)
    assert driven.events() == [("notify", "alice", 5, None)]
    assert driven.say()[0].acknowledge == (Ack("alice", 5),)


def test_what_failed_is_not_told_once_something_newer_is_there() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(notify=(Notice("alice", 5),))
    event = driven.core.next_event()
    assert event is not None
    driven.core.tell_again(event, now=driven.now)
    driven.hear(notify=(Notice("alice", 6),))
    driven.say(after=10)
    assert driven.events() == [("notify", "alice", 6, None)]
    driven.say(after=400)
    assert driven.events() == []


def test_an_unknown_version_is_told_when_its_number_is_new() -> None:
    driven = Driven().granted().registered("alice")
    for number, told in ((3, True), (3, False), (2, False), (4, True)):
        driven.hear(notify=(Notice("alice", number, unknown=True),))
        assert bool(driven.events()) == told
        assert driven.say()[0].acknowledge == (Ack("alice", number, True),)


def test_an_object_that_is_not_wanted_is_neither_told_nor_acknowledged() -> None:
    driven = Driven().granted().registered("alice")
    driven.hear(notify=(Notice("bob", 5),))
    assert driven.events() == []
    assert driven.say() == []


def test_a_listener_that_never_comes_costs_no_more_than_the_objects() -> None:
    driven = Driven().granted().registered("alice", "bob")
    for version in range(10_000):
        driven.hear(notify=(Notice("alice", version), Notice("bob", version, unknown=True)))
        driven.hear(error=Fault("rate", "slow", 0), all=True)
    assert len(driven.events()) == 4
    assert len(driven.say()[0].acknowledge) == 2


def test_a_refused_registration_is_not_intended_any_more() -> None:
    driven = Driven().granted()
    driven.core.register("eve", now=0)
    ((_, number),) = driven.say()[0].register
    driven.hear(failed=(Failure("eve", number - 1, False, "late"),))
    assert "eve" in driven.core._registrations.intended
    driven.hear(failed=(Failure("eve", number, True, "busy"),))
    assert ("registration_failure", "eve", True, "busy") in driven.events()
    assert driven.core._registrations.digest == Digest()
    assert driven.say(after=500) == []


def test_after_a_restart_the_digest_alone_is_sent_once_the_application_has_registered() -> None:
    driven = Driven(saved())
    (early,) = driven.say()
    assert (early.token, early.digest, early.hello) == ("token", None, None)
    driven.hear(digest=Digest.of(7, ["alice", "bob"]), seen=5, notify=(Notice("alice", 9),))
    driven.events()
    for name in ("alice", "bob"):
        driven.core.register(name, 3, now=driven.now)
    assert ("notify", "alice", 9, None) in driven.events()
    (message,) = driven.say(after=0.1)
    assert message.acknowledge == (Ack("alice", 9),)
    (message,) = driven.say(after=1)
    assert (message.heartbeat, message.digest, message.register, message.sync) == (
        True, Digest.of(7, ["alice", "bob"]), (), None,
    )  # fmt: skip
    told = driven.events()
    assert ("registration_status_changed", "bob", True) in told


def test_after_a_restart_a_difference_leads_to_a_sync_above_all_numbers() -> None:
    driven = Driven(saved())
    driven.events()
    driven.core.register("alice", now=0)
    driven.hear(digest=Digest.of(7, ["alice", "bob"]), seen=2**50)
    (message,) = driven.say(after=1.1)
    assert message.sync is not None
    assert (message.sync.objects, message.sync.number) == (("alice",), 2**50 + 1)


def test_a_service_without_a_digest_is_sent_a_sync_in_the_end() -> None:
    driven = Driven(saved())
    driven.events()
    driven.core.register("alice", now=0)
    assert not any(message.sync for _ in range(30) for message in driven.say(after=1))
    assert [message.sync.objects for _ in range(5) for message in driven.say(after=1) if message.sync] == [("alice",)]


def test_notices_for_what_is_not_registered_again_are_not_kept_for_ever() -> None:
    driven = Driven(saved(), pace=Pace(held=5))
    for n in range(100):
        driven.hear(notify=(Notice(f"object-{n}", 1),))
    assert len(driven.core._resuming._held) == 5
    driven.events()
    driven.say(after=2)
    driven.hear(digest=Digest(), seen=0)
    assert driven.core._resuming._held == {}


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


def test_a_client_registers_for_so_many_objects_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_registrations, "MAX_REGISTRATIONS", 3)
    driven = Driven().registered("a", "b", "c", "a")
    with pytest.raises(InvalidOption, match="at most"):
        driven.core.register("d", now=0)


def test_with_credentials_a_client_introduces_itself_on_each_channel() -> None:
    driven = Driven().granted().registered("alice")
    driven.core.disconnected()
    driven.core.connected(now=driven.now, introduce=True)
    (hello,) = driven.say()
    assert hello.hello is not None
    assert hello.token == "token"


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
