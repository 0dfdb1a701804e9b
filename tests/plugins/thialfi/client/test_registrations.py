"""The client's state machine: registrations, their numbers, and how a difference to the service is mended."""

from __future__ import annotations

import pytest

from tests.support.driven_client import Driven, saved
from tidings.errors import InvalidOption
from tidings_thialfi.client import registrations
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, Failure, Notice, Status


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


def test_what_is_repeated_asks_for_the_digest() -> None:
    driven = Driven().granted()
    driven.core.register("alice", now=0)
    assert [message.heartbeat for message in driven.say()] == [False]
    (again,) = driven.say(after=6)
    assert (again.heartbeat, [name for name, _ in again.register]) == (True, ["alice"])


def test_to_unregister_from_what_was_never_registered_is_answered_too() -> None:
    gone = ("registration_status_changed", "bob", False)
    driven = Driven().granted()
    driven.core.unregister("bob", now=0)
    ((name, number),) = driven.say()[0].unregister
    driven.hear(status=(Status(name, False, number),))
    assert gone in driven.events()

    early = Driven()
    early.core.unregister("bob", now=0)
    assert gone in early.granted().events()  # a new client is registered for nothing

    synced = Driven().granted().registered("alice")
    synced.core.unregister("bob", now=0)
    synced.core._registrations.begin_sync()
    synced.hear(digest=Digest.of(7, ["alice"]), seen=synced.core._registrations.largest)
    assert gone in synced.events()

    resumed = Driven(saved())
    resumed.events()
    resumed.core.register("alice", now=0)
    resumed.core.unregister("bob", now=0)
    resumed.say(after=2)
    resumed.hear(digest=Digest.of(7, ["alice"]), seen=5)
    assert gone in resumed.events()


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


def test_a_client_registers_for_so_many_objects_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrations, "MAX_REGISTRATIONS", 3)
    driven = Driven().registered("a", "b", "c", "a")
    with pytest.raises(InvalidOption, match="at most"):
        driven.core.register("d", now=0)


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
