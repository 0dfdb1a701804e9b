"""The client's state machine: what its listener is told, and what is acknowledged."""

from __future__ import annotations

from tests.support.driven_client import Driven, saved
from tidings_thialfi.client.pace import Pace
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, Fault, Notice


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
    driven.core.redeliver(event, now=driven.now)
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
    driven.core.redeliver(event, now=driven.now)
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


def test_notices_for_what_is_not_registered_again_are_not_kept_for_ever() -> None:
    driven = Driven(saved(), pace=Pace(held=5))
    for n in range(100):
        driven.hear(notify=(Notice(f"object-{n}", 1),))
    assert len(driven.core._resuming._held) == 5
    driven.events()
    driven.say(after=2)
    driven.hear(digest=Digest(), seen=0)
    assert driven.core._resuming._held == {}


def test_acknowledgements_are_gathered_while_the_listener_has_more_to_be_told() -> None:
    driven = Driven().granted().registered(*(f"o{n}" for n in range(50)))
    driven.hear(notify=tuple(Notice(f"o{n}", 1) for n in range(50)))
    for left in range(49, -1, -1):
        event = driven.core.next_event()
        assert event is not None
        assert event.handle is not None
        driven.core.acknowledge(event.handle)
        said = driven.say()
        assert len(said) == (left == 0)
    assert len(said[0].acknowledge) == 50


def test_a_listener_that_takes_its_time_holds_up_no_acknowledgement() -> None:
    driven = Driven().granted().registered("alice", "bob")
    driven.hear(notify=(Notice("alice", 1), Notice("bob", 1)))
    event = driven.core.next_event()
    assert event is not None
    assert event.handle is not None
    driven.core.acknowledge(event.handle)
    assert driven.say() == []
    pause = driven.core.wake(now=driven.now) - driven.now
    assert 0 < pause < 1
    assert driven.say(after=pause)[0].acknowledge == (Ack("alice", 1),)
