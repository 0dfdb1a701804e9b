"""A flow being sent, walked by hypothesis: whatever happens in whatever order, nothing is skipped and nothing leaks."""

from __future__ import annotations

import ast
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.places import ROOT
from tidings.applications import Application
from tidings.flows import Flow, FlowControl
from tidings.positions import START, Position
from tidings.publisher.caravans import Caravan
from tidings.publisher.flow_session import (
    CLOSED_OFF,
    CLOSING,
    IDLE,
    OPEN,
    PARKED,
    Effects,
    FlowSession,
    Ride,
    Send,
    SessionOptions,
    WriteHolder,
    WriteMarker,
)
from tidings.wire.connection import Connection
from tidings.wire.protocol import NO_ERA, Era, Message, era_of, flow_message

OPTIONS = SessionOptions(window_bytes=40, patience_s=10.0, token_interval_s=5.0)
ROW_BYTES = 10
FLOW = Flow("cache", "contacts", 0)
ALL = Application("cache", ("contacts",))
EVEN = replace(ALL, filter="kind = data")  # the model's own filter, which passes every second update


@dataclass(eq=False)
class Peer:
    """A subscriber's end of a connection: takes messages of its newest era only, in order, and answers."""

    name: str
    alive: bool = True
    full: bool = False
    incoming: deque[tuple[Message, list[int]]] = field(default_factory=deque)
    answers: deque[Message] = field(default_factory=deque)
    era: Era = NO_ERA
    open: bool = False
    parked: bool = False
    used: bool = False
    """Whether it was sent rows that it may be processing still."""
    at: int = -1
    """Up to where this era's rows have come; each part of it must go on there."""

    def send(self, message: Message) -> None:
        self.incoming.append((message, []))


@dataclass
class Reading:
    """A read that is under way: on which ride it began, for which filter, and what of it is not sent yet."""

    ride: Ride
    application: Application
    pieces: deque[list[int]]


class Sends(RuleBasedStateMachine):
    """One publisher's session with a flow, subscribers, a log, and the ZooKeeper that markers are committed to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.epoch = 0
        self.head = -1
        self.floor = -1
        self.processed: set[int] = set()  # or left out by the filter, or told to be lost
        self.told: set[int] = set()  # lost, as the subscriber was told
        self.peers: list[Peer] = []
        self.writes: deque[WriteMarker] = deque()
        self.written: deque[tuple[WriteMarker, bool]] = deque()
        self.committed = -1
        self.holder: str | None = None
        self.reported = ""  # what is wrong with the flow, as operators see it in ZooKeeper
        self.read: Reading | None = None
        self.caravans: list[Caravan] = []
        self.control = FlowControl()
        self.omitted: set[int] = set()  # which an operator has skipped

    @initialize(skipped=st.integers(0, 2), holder=st.none() | st.just("a"))
    def begin(self, skipped: int, holder: str | None) -> None:
        self.take(START, holder, skipped)

    def take(self, marker: Position, holder: str | None, skipped: int = 0) -> None:
        self.epoch += 1
        self.reported = ""  # what the owner before has said stands until the flow is assigned anew
        self.session = FlowSession(
            FLOW,
            self.epoch,
            ALL,
            marker,
            threading.RLock(),
            OPTIONS,
            holder=holder,
            skipped=skipped,
            control=self.control,
            clock=lambda: self.now,
        )

    def do(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send(connection, message):
                    cast(Peer, connection).send(message)
                case WriteMarker():
                    self.writes.append(effect)
                case WriteHolder(record):
                    assert record["epoch"] == self.epoch
                    self.holder = record["id"]
                    self.reported = record.get("parked") or record.get("trouble") or ""

    @property
    def peer(self) -> Peer | None:
        return cast(Peer | None, self.session.connection)

    @rule(rounds=st.integers(1, 3), heard=st.booleans())
    def go_on(self, rounds: int, heard: bool) -> None:
        """Time passes without a fault: what can happen next does. Random steps alone would seldom get this far."""
        for _ in range(rounds):
            self.append(3)
            if self.rides():
                reading = self.read_on(parts=2, rows=2)
                while reading.pieces:
                    self.send_piece(reading, allowed=True)
            if heard:
                self.deliver()
            self.tick(6.0, lives=True, allowed=True)
            if heard:
                self.deliver()

    def rides(self) -> bool:
        """Whether the flow rides, once all has happened that has to happen for it."""
        if self.session.wants_subscriber():
            self.place("a", taken=True, again=True)
        self.deliver()
        self.board()
        assert self.session.ride is None or not self.control.paused, "a paused flow is not read for"
        return self.session.ride is not None

    def deliver(self) -> None:
        peer = self.peer
        while peer is not None and peer.alive and (peer.incoming or peer.answers):
            if peer.incoming:
                self.take_in(peer, park=False)
            else:
                self.do(self.session.answered(cast(Connection, peer), peer.answers.popleft()))

    # The log

    @rule(rows=st.integers(1, 6))
    def append(self, rows: int) -> None:
        self.head += rows

    @precondition(lambda self: self.head > self.session.sent.seq)
    @rule(rows=st.integers(1, 4))
    def truncate(self, rows: int) -> None:
        """The log lets go of updates that were not sent, and the next read finds that out."""
        self.floor = max(self.floor, min(self.head, self.session.sent.seq + rows))
        self.do(self.session.pass_over(Position(self.session.sent.seq + 1), Position(self.floor)))

    @precondition(lambda self: self.session.sent.seq >= 1)
    @rule(back=st.integers(1, 3))
    def restore(self, back: int) -> None:
        """The log is restored from an older copy: from now on its positions mean other updates."""
        first = max(0, self.session.sent.seq + 1 - back)
        floor = Position(max(-1, first - 2))
        if self.session.state is OPEN:
            self.do(self.session.go_back(Position(first), self.session.sent, floor))
            self.processed = {seq for seq in self.processed if seq <= floor.seq}
            self.omitted = {seq for seq in self.omitted if seq <= floor.seq}
            self.told = {seq for seq in self.told if seq <= floor.seq}
            self.committed = min(self.committed, floor.seq)  # what lies after that is of another history
            self.floor, self.head = floor.seq, max(floor.seq, first - 1)

    # The subscriber

    @precondition(lambda self: self.session.wants_subscriber())
    @rule(subscriber=st.sampled_from(["a", "b"]), taken=st.booleans(), again=st.booleans())
    def place(self, subscriber: str, taken: bool, again: bool) -> None:
        if self.session.keeps_holder(True) and self.session.holder is not None:
            subscriber = self.session.holder
        effect = self.session.assign(subscriber)
        if effect is not None:
            if not taken:
                self.session.unassign()
                return
            self.do([effect])
        assert self.holder == subscriber, "it is opened where ZooKeeper says"
        elsewhere = [peer for peer in self.peers if peer.alive and peer.used and peer.name != subscriber]
        patient = self.now - self.session._failing_since <= OPTIONS.patience_s or not self.session._failures
        assert not (elsewhere and patient), "nobody else gets it before who has it has closed it"
        for peer in elsewhere:
            peer.open = peer.used = False  # ZooKeeper names another
        alive = [peer for peer in self.peers if peer.alive and peer.name == subscriber]
        peer = alive[-1] if alive and again else Peer(subscriber)
        if peer not in self.peers:
            self.peers.append(peer)
        self.do(self.session.open(cast(Connection, peer)))

    @precondition(lambda self: any(peer.alive and peer.incoming for peer in self.peers))
    @rule(data=st.data(), park=st.sampled_from([False, False, False, True]))
    def hear(self, data: st.DataObject, park: bool) -> None:
        """A subscriber takes in the next message."""
        self.take_in(data.draw(st.sampled_from([one for one in self.peers if one.alive and one.incoming])), park)

    def take_in(self, peer: Peer, park: bool) -> None:
        message, seqs = peer.incoming.popleft()
        if message["t"] == "batch":
            self.hear_batch(peer, message, seqs, park)
            return
        era = era_of(message)
        if message["t"] == "open" and era > peer.era:
            peer.era, peer.open, peer.parked, peer.at = era, True, False, message["after"][0]
            peer.answers.append(flow_message("opened", FLOW, era))
        elif not peer.open or era != peer.era:
            peer.answers.append(flow_message("refused", FLOW, era, reason="that era is over"))
        elif message["t"] == "close":
            peer.open = peer.used = False
            peer.answers.append(flow_message("closed", FLOW, era))
        elif not peer.parked and message["t"] == "token":
            peer.answers.append(flow_message("ack", FLOW, era, position=message["position"]))
        elif not peer.parked and message["t"] == "loss":
            (first, _), (last, _) = message["first"], message["last"]
            if first == peer.at + 1:  # the other kind of loss is of what was sent already
                peer.at = last
            self.told |= set(range(first, last + 1))

    def hear_batch(self, peer: Peer, message: Message, seqs: list[int], park: bool) -> None:
        era, after, upto = Era(*message["era"]), message["after"], message["upto"]
        if not peer.open or era != peer.era:
            peer.answers.append(flow_message("refused", FLOW, era, reason="that era is over"))
        elif peer.parked:
            return
        elif park:
            peer.parked = True
            at = seqs[-1]  # it has processed the others, and has not told so
            self.processed |= set(seqs[:-1])
            peer.answers.append(flow_message("parked", FLOW, era, reason="the handler failed", at=[at, 0]))
        else:
            assert after >= peer.at, "what comes is in order"
            self.processed |= set(seqs)
            peer.at = upto
            peer.answers.append(flow_message("done", FLOW, era, position=[upto, 0]))

    @precondition(lambda self: self.peer is not None and self.peer.alive)
    @rule(count=st.integers(1, 4))
    def deliver_some(self, count: int) -> None:
        """The subscriber takes in some of what was sent, and its answers come."""
        peer = self.peer
        assert peer is not None
        for _ in range(min(count, len(peer.incoming))):
            self.take_in(peer, park=False)
        while peer.answers:
            self.do(self.session.answered(cast(Connection, peer), peer.answers.popleft()))

    @precondition(lambda self: any(peer.alive and peer.answers for peer in self.peers))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """The next answer reaches the publisher."""
        peer = data.draw(st.sampled_from([one for one in self.peers if one.alive and one.answers]))
        self.do(self.session.answered(cast(Connection, peer), peer.answers.popleft()))

    @precondition(lambda self: any(peer.alive for peer in self.peers))
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        """A subscriber is gone: a new turn is on another connection."""
        self.lose(data.draw(st.sampled_from([one for one in self.peers if one.alive])))

    def disconnect_all(self) -> None:
        for peer in self.peers:
            self.lose(peer)

    def lose(self, peer: Peer) -> None:
        peer.alive = False
        self.do(self.session.disconnected(cast(Connection, peer), "the connection broke"))

    # Reading

    @precondition(lambda self: self.session.waits_for_ride)
    @rule()
    def board(self) -> None:
        if self.session.waits_for_ride:
            self.session.board(Caravan(1, cast(Any, None), ordered=False))

    @precondition(lambda self: self.session.ride is not None)
    @rule(parts=st.integers(1, 3), rows=st.integers(1, 3))
    def begin_read(self, parts: int, rows: int) -> None:
        """A caravan reads what comes next; the parts of that are sent one after the other."""
        self.read = self.read_on(parts, rows)

    def read_on(self, parts: int, rows: int) -> Reading:
        assert self.session.ride is not None
        if self.session.sent.seq < self.floor:
            self.truncate(0)
        start = self.session.sent.seq + 1
        seqs = list(range(start, min(self.head + 1, start + parts * rows)))
        pieces = deque(seqs[at : at + rows] for at in range(0, len(seqs), rows))
        return Reading(self.session.ride, self.session.application, pieces)

    @precondition(lambda self: self.read is not None)
    @rule(allowed=st.sampled_from([True, True, True, False]))
    def send(self, allowed: bool) -> None:
        """The next part of a read, however long ago that was."""
        assert self.read is not None
        if not self.read.pieces or not self.send_piece(self.read, allowed):
            self.read = None

    def send_piece(self, reading: Reading, allowed: bool) -> bool:
        """Send a part, if the flow is still on the ride on which its read began."""
        piece = [seq for seq in reading.pieces.popleft() if seq > self.session.sent.seq]
        if not self.session.serves(reading.ride, more=bool(piece), allowed=allowed):
            return False
        assert self.session.application is reading.application, "it is filtered by what holds when it is sent"
        if piece:
            assert piece[0] == self.session.sent.seq + 1, "nothing is left out between two parts"
            assert not self.control.paused, "nothing of a paused flow is sent"
            chosen = [seq for seq in piece if self.session.application is ALL or seq % 2 == 0]
            wanted = [seq for seq in chosen if Position(seq) not in self.session.control.skip]
            assert len(wanted) == len(chosen) or self.session.skips_ahead
            after, upto = self.session.sent.seq, piece[-1]
            assert self.peer is not None
            self.processed |= set(piece) - set(chosen)
            self.omitted |= set(chosen) - set(wanted)
            self.do(self.session.advance(Position(upto), ROW_BYTES * len(wanted), len(chosen) - len(wanted)))
            if wanted:
                message = {"t": "batch", "era": self.session.era, "after": after, "upto": upto}
                self.peer.incoming.append((message, wanted))
                self.peer.used = True
        return True

    def read_and_send(self) -> None:
        """What a caravan does: append something, read it, and send it in two parts, if there is room for them."""
        self.append(4)
        reading = self.read_on(parts=2, rows=2)
        while reading.pieces and self.send_piece(reading, allowed=True):
            pass

    @rule()
    def outrun(self) -> None:
        """The subscriber is slow: nothing is answered, and the flow is read for until its window is full."""
        riding = self.rides()
        while riding and self.session.bytes_in_flight < 2 * OPTIONS.window_bytes:
            self.read_and_send()
            riding = self.session.ride is not None

    @rule(subscriber=st.sampled_from(["a", "b"]))
    def fail(self, subscriber: str) -> None:
        """The turn fails though the subscriber lives and has something to do; another should have the flow next."""
        if not self.rides():
            return
        self.read_and_send()
        self.fail_in_bulk()
        self.tick(6.0, lives=True, allowed=True)
        if self.session.wants_subscriber():
            self.place(subscriber, taken=True, again=True)

    @rule(cause=st.sampled_from(["disconnected", "redefined", "refused a part"]))
    def outlive(self, cause: str) -> None:
        """A read begins, the flow's ride ends and another begins, and only then the read's parts are sent."""
        if not self.rides():
            return
        self.append(4)
        reading = self.read_on(parts=2, rows=2)
        if cause == "disconnected":
            self.disconnect_all()
        elif cause == "redefined":
            self.do(self.session.redefine(EVEN if self.session.application is ALL else ALL))
        elif reading.pieces:
            assert not self.send_piece(reading, allowed=False)
        self.tick(6.0, lives=True, allowed=True)
        if self.session.wants_subscriber():
            self.place("a", taken=True, again=False)
        self.deliver()
        self.board()
        self.read = reading

    @rule(close=st.booleans(), early=st.booleans(), restored=st.sampled_from([0, 0, 1, 3]), reopened=st.booleans())
    def acknowledge_late(self, close: bool, early: bool, restored: int, reopened: bool) -> None:
        """A token is answered while more is on its way; meanwhile the log is restored, or the turn is over."""
        if not self.rides():
            return
        for _ in range(2):
            if self.session.ride is not None:
                self.append(2)
                reading = self.read_on(parts=1, rows=2)
                while reading.pieces:
                    self.send_piece(reading, allowed=True)
            self.tick(6.0, lives=True, allowed=True)
        if close:
            self.move()
        peer = self.peer
        while peer is not None and peer.incoming and not any(one["t"] == "ack" for one in peer.answers):
            self.take_in(peer, park=False)
        while peer is not None and peer.answers:
            self.do(self.session.answered(cast(Connection, peer), peer.answers.popleft()))
        while early and self.writes:
            self.write(taken=True)
        if restored and self.session.sent.seq >= 1:
            self.restore(restored)
        if reopened:
            self.disconnect_all()
            self.tick(6.0, lives=True, allowed=True)
            self.go_on(1, heard=False)
        while self.writes:
            self.write(taken=True)
        while self.written:
            self.hear_of_write(answered=True)
        assert self.session.state is not CLOSED_OFF or self.session.marker == self.session.sent, "it moves at a token"

    @precondition(lambda self: self.session.ride is not None)
    @rule()
    def fail_in_bulk(self) -> None:
        if self.session.ride is not None:
            self.do(self.session.abort_bulk(self.session.ride, "the job failed"))

    @precondition(lambda self: self.session.ride is not None)
    @rule()
    def change_caravan(self) -> None:
        self.session.alight()

    # The owner

    @rule(application=st.sampled_from([ALL, EVEN]))
    def redefine(self, application: Application) -> None:
        self.do(self.session.redefine(application))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        """An operator pauses the flow, or has it go on."""
        self.heed(replace(self.control, paused=paused))

    @rule(back=st.integers(-3, 3))
    def skip(self, back: int) -> None:
        """An operator skips an update near to where the flow stands, sent or not; or the one that it failed at."""
        parked = self.session.state is PARKED
        at = (
            self.session._notes.failed_at
            if parked and self.session._notes.failed_at
            else Position(self.session.sent.seq + back)
        )
        if at.seq >= 0 and at not in self.control.skip:
            self.heed(replace(self.control, skip=self.control.skip | {at}))
            assert not parked or self.session.state is CLOSED_OFF, "a flow that failed is tried again"

    def heed(self, control: FlowControl) -> None:
        self.control = control
        self.do(self.session.heed(control))

    @rule()
    def poison(self) -> None:
        """The subscriber fails at what it is sent, and that is skipped: the flow comes past it."""
        self.heed(replace(self.control, paused=False))
        if not self.rides():
            return
        self.read_and_send()
        peer = self.peer
        while peer is not None and peer.incoming and not peer.parked:
            self.take_in(peer, park=True)
        while peer is not None and peer.answers:
            self.do(self.session.answered(cast(Connection, peer), peer.answers.popleft()))
        if self.session.state is PARKED:
            at = self.session._notes.failed_at
            assert at is not None
            self.skip(0)
            self.deliver()
            self.go_on(1, heard=True)
            if self.session.state is OPEN and self.session.sent >= at:
                assert at.seq in self.omitted | self.processed | self.told

    @precondition(lambda self: self.session.state is OPEN)
    @rule()
    def move(self) -> None:
        self.do(self.session.move())

    @precondition(lambda self: self.session.state is OPEN)
    @rule()
    def park(self) -> None:
        self.do(self.session.park("it stands after the end of the log"))

    @rule(seconds=st.sampled_from([0.05, 1.0, 6.0, 11.0]), lives=st.booleans(), allowed=st.booleans())
    def tick(self, seconds: float, lives: bool, allowed: bool) -> None:
        self.now += seconds
        self.do(self.session.tick(holder_lives=lives, allowed=allowed))
        held = self.session.holder is not None
        assert not held or self.reported == self.session.problem, "what makes no progress says why"

    @precondition(lambda self: self.writes)
    @rule(taken=st.sampled_from([True, True, True, False]))
    def write(self, taken: bool) -> None:
        """ZooKeeper commits a datamarker, or does not; the answer comes later."""
        effect = self.writes.popleft()
        if not self.session.to_be_written(effect):
            return
        if taken:
            self.committed = effect.position.seq
            assert set(range(effect.position.seq + 1)) <= self.processed | self.told | self.omitted
        self.written.append((effect, taken))

    @precondition(lambda self: self.written)
    @rule(answered=st.sampled_from([True, True, True, False]))
    def hear_of_write(self, answered: bool) -> None:
        """ZooKeeper's answer comes, or never does."""
        effect, taken = self.written.popleft()
        if taken and answered:
            self.do(self.session.marker_written(*effect))
        else:
            self.session.write_failed()

    @rule(leave=st.booleans())
    @precondition(lambda self: len(self.peers) > 2)
    def end(self, leave: bool) -> None:
        """The ownership ends, by leaving or at once; another epoch begins where the datamarker is."""
        if leave:
            self.do(self.session.leave())
            if not self.session.releasable:
                return
        self.do(self.session.end())
        assert self.session.tick(holder_lives=True, allowed=True) == ()
        assert self.session.ride is None
        self.read = None
        self.writes.clear()
        self.written.clear()
        self.peers.clear()
        self.take(Position(self.committed), self.holder)

    # What always holds

    @invariant()
    def a_calm_flow_has_nothing_to_do_however_long_nothing_happens(self) -> None:
        if not self.session.calm:
            return
        held, now = self.session.held, self.now
        self.now += 1_000.0
        assert not self.session.tick(holder_lives=held, allowed=True)
        self.now = now
        assert self.session.calm

    @invariant()
    def the_window_is_what_is_in_flight(self) -> None:
        if hasattr(self, "session"):
            in_flight = self.session._in_flight
            assert self.session.bytes_in_flight == sum(size for _, size in in_flight)
            assert self.session.state in (OPEN, CLOSING, CLOSED_OFF, PARKED) or not in_flight
            assert self.session.bytes_in_flight <= OPTIONS.window_bytes + 3 * ROW_BYTES

    @invariant()
    def a_flow_that_is_not_open_anywhere_stands_at_its_datamarker_and_rides_only_while_it_is_open(self) -> None:
        if hasattr(self, "session"):
            assert self.session.state is not IDLE or self.session.sent == self.session.marker
            assert self.session.ride is None or self.session.state is OPEN
            assert (self.session.connection is None) == (self.session.state is IDLE)

    @invariant()
    def all_before_the_datamarker_was_processed_or_left_out_or_told_to_be_lost(self) -> None:
        if hasattr(self, "session"):
            assert set(range(self.session.marker.seq + 1)) <= self.processed | self.told | self.omitted
            assert self.omitted <= {position.seq for position in self.control.skip}, "what is skipped, and no more"

    @invariant()
    def a_window_whose_rows_are_all_processed_is_empty(self) -> None:
        peer = self.peer if hasattr(self, "session") and self.session.state is OPEN else None
        if peer is not None and not peer.incoming and not peer.answers and not peer.parked:
            assert self.session.bytes_in_flight == 0


TestSends = Sends.TestCase
TestSends.settings = settings(max_examples=200, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        pytest.param("ack", (4, 0), id="acknowledges less than it was asked"),
        pytest.param("ack", (6, 0), id="acknowledges more than it was asked"),
        pytest.param("done", (6, 0), id="did what it was not sent"),
    ],
)
def test_what_a_subscriber_cannot_have_done_is_an_error_and_changes_nothing(
    kind: str, position: tuple[int, int]
) -> None:
    session = FlowSession(FLOW, 1, ALL, START, threading.RLock(), OPTIONS)
    peer = cast(Connection, Peer("a"))
    session.open(peer)
    session.answered(peer, flow_message("opened", FLOW, session.era))
    session.advance(Position(5), ROW_BYTES)
    session.move()
    with pytest.raises(ValueError, match="what it was not"):
        session.answered(peer, flow_message(kind, FLOW, session.era, position=position))
    assert (session.marker, session.bytes_in_flight) == (START, ROW_BYTES)
    assert session.answered(peer, flow_message("ack", FLOW, session.era, position=(5, 0)))


def test_nobody_but_the_session_changes_how_a_flow_being_sent_stands() -> None:
    """Each line that would sets one of its attributes, or reaches for a private one."""
    owned = vars(FlowSession(FLOW, 1, ALL, START, threading.RLock(), OPTIONS)).keys()
    found = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for file in (ROOT / "core" / "tidings" / "publisher").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in owned and ast.unparse(node.value) != "self"
        if not isinstance(node.ctx, ast.Load) or node.attr.startswith("_")
    ]
    assert found == []
