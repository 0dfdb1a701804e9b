"""A flow being sent: where it stands, what may be done with it next, and every change of that.

```
IDLE --open--> OPENING --opened--> OPEN --token--> CLOSING --ack--> CLOSED_OFF --closed--> IDLE
                                     \\--parked--> PARKED --redefined--> CLOSED_OFF
```

A flow whose connection breaks is IDLE again, and stands at its datamarker. It is opened again after a pause that grows.
ENDED is the end: the ownership is over. A flow that is paused is OPEN, and does not ride.

All that is known of a flow being sent is in a `FlowSession`, and nobody else changes it. A session does no I/O: what
happens is told to it, and it returns *effects*, what is to be sent and written because of that, as data. `Outbox`
carries them out. Both under the session's lock, so that messages leave in the order of the changes that caused them.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidings.applications import PARK, SKIP, Application
from tidings.filters import EVERYTHING
from tidings.flows import NO_CONTROL, Flow, FlowControl
from tidings.positions import Position
from tidings.publisher.caravans import Caravan
from tidings.publisher.counters import FlowCounters
from tidings.publisher.holder_notes import HolderNotes
from tidings.wire.connection import Connection
from tidings.wire.protocol import Era, Message, era_of, failed_at, flow_message, pair, reason_of

WINDOW_BYTES = 8 * 2**20
PATIENCE_S = 10.0
TOKEN_INTERVAL_S = 5.0
FIRST_PAUSE_S = 0.1  # before a flow that failed is opened again; doubled with each further failure
LASTING_FAILURES = 3  # failures in a row that operators should know of


class SessionState(enum.Enum):
    """What a flow is doing."""

    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED_OFF = "closed off"
    PARKED = "parked"
    ENDED = "ended"


IDLE, OPENING, OPEN, CLOSING, CLOSED_OFF, PARKED, ENDED = SessionState


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How much may be on its way, how long a subscriber may be silent, and how often it is asked to acknowledge."""

    window_bytes: int = WINDOW_BYTES
    patience_s: float = PATIENCE_S
    token_interval_s: float = TOKEN_INTERVAL_S


class Send(NamedTuple):
    """An effect: a message to the subscriber, on the connection that the session had when it asked for it."""

    connection: Connection
    message: Message


class WriteMarker(NamedTuple):
    """An effect: a datamarker to be committed; `marker_written` tells the session once it is."""

    era: Era
    position: Position


class WriteHolder(NamedTuple):
    """An effect: what ZooKeeper is to say of the flow's holder, for operators to see."""

    record: dict[str, Any]


class PutAside(NamedTuple):
    """An effect: an update at which the handler fails is to be kept in a stream; `put_aside` tells once it is."""

    era: Era
    position: Position
    reason: str
    stream: str


class TellStanding(NamedTuple):
    """An effect: the subscriber has asked how far the flow is from the end of its log; `standing` tells it."""

    era: Era
    number: int


Effect = Send | WriteMarker | WriteHolder | PutAside | TellStanding
Effects = Sequence[Effect]
NOTHING: Effects = ()


class Ride:
    """The stay of a flow on a caravan, from the moment it gets on.

    Whatever makes a read that is under way unfit for the flow ends the ride: another opening, another filter, a full
    window. If the flow gets on again, even on the same caravan, that is another ride; so a read serves those flows, and
    only those, that are still on the ride on which it found them.
    """

    def __init__(self, caravan: Caravan) -> None:
        self.caravan = caravan


class FlowSession:
    """A flow that this publisher owns, from taking it until the ownership ends. To be called with `lock` held.

    `lock` is the one that all flows of a stream share. `holder` is the subscriber that had the flow before, `skipped`
    how many updates a realtime application missed while nobody sent the flow, and `log_identity` tells in which log the
    datamarker is. `control` is what operators have said of it, and `history` what its subscribers have met with.
    `detour` is a place at which the flow leaves the log, for rows that are for its application alone.
    """

    def __init__(
        self,
        flow: Flow,
        epoch: int,
        application: Application,
        marker: Position,
        lock: threading.RLock,
        options: SessionOptions,
        *,
        holder: str | None = None,
        skipped: int = 0,
        log_identity: str | None = None,
        control: FlowControl = NO_CONTROL,
        history: Sequence[Mapping[str, Any]] = (),
        counters: FlowCounters | None = None,
        detour: Position | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.flow = flow
        self.shard = flow.shard
        self.lock = lock
        self.options = options
        self.epoch = epoch
        self.turn = 0
        self.application = application
        self.filter = application.parsed_filter()
        self.state = IDLE
        self.marker = marker
        """What is acknowledged and written: where the flow starts again after a fault."""
        self.log_identity = log_identity
        """In which log the flow stands; None if that is not known."""
        self.sent = marker
        """Up to where updates were sent, or left out by the filter."""
        self._detour = detour
        self._told = marker  # up to where the subscriber knows of what was sent
        self.holder = holder
        """The subscriber that ZooKeeper names for the flow."""
        self.connection: Connection | None = None
        self.ride: Ride | None = None
        """The ride on a caravan; only while OPEN, and none while there is no room for more."""
        self.bytes_in_flight = 0
        self.leaving = False
        """Whether the ownership is to be released once the flow is closed."""
        self.control = control
        """What operators have said of the flow."""
        self._notes = HolderNotes(epoch, history, wall_clock)
        self.counters = counters or FlowCounters()
        self.processed = marker
        """Up to where all is processed or left out, in whatever turn that was."""
        self.progressed = clock()
        """When that last moved."""
        self.behind_since: float | None = None
        """When somebody who looks at progress first saw that the log holds more; None if it does not."""
        self.held = holder is not None
        """Whether the subscriber that holds the flow was there when it was last looked for."""
        self.oldest_sent: float | None = None
        """The time of the oldest update that was sent and is not acknowledged, in seconds since 1970, if it has one."""
        self._oldest_since_token: float | None = None
        self._assigned = False  # the holder was named in this epoch
        # The holder may have been sent something: then nobody else gets the flow until that one has closed it.
        self._bound = holder is not None
        self._skipped = skipped
        self._in_flight: deque[tuple[Position, int]] = deque()
        self._tokens: deque[Position] = deque()  # what the subscriber was asked to acknowledge, and has not yet
        self._clock = clock
        self._since = self._token_time = clock()
        self._failures = 0  # in a row: the flow could not be opened, or broke off before anything was processed
        self._failing_since = 0.0
        self._refused_since: float | None = None  # each opening since then was refused, and nothing else went wrong
        self._reason = ""
        self._skips_late = False  # an update is to be skipped that was sent in this turn
        self._restored_in = 0  # the turn in which the log was restored last: what was acknowledged till then is void

    # What others ask

    @property
    def era(self) -> Era:
        """The newest era of the flow."""
        return Era(self.epoch, self.turn)

    @property
    def caravan(self) -> Caravan | None:
        """The caravan on which the flow rides."""
        return self.ride.caravan if self.ride is not None else None

    @property
    def ended(self) -> bool:
        """Whether the ownership is over."""
        return self.state is ENDED

    @property
    def releasable(self) -> bool:
        """Whether the flow can be given to another publisher now, as it is to be."""
        return self.leaving and self.state in (IDLE, PARKED)

    @property
    def calm(self) -> bool:
        """Whether `tick` has nothing to do, now or later, as long as nothing happens to the flow or to its holder."""
        if self.leaving or self._failures or self._notes.left is not None or self.control.paused:
            return False
        if self.state is OPEN:
            if self.sent is not self.marker and self.sent != self.marker:
                return False
        elif self.state not in (IDLE, PARKED):
            return False
        return self.holder is None or self._notes.reported == self.problem

    @property
    def locked_out(self) -> bool:
        """Whether the subscriber has refused each opening for so long that another epoch must be tried.

        It may believe in an era of this epoch that no owner has ever had, if somebody else has spoken with it. An epoch
        that ZooKeeper makes is newer than any of those. So this releases the flow, to take it again.
        """
        since = self._refused_since
        return self.state is IDLE and since is not None and self._clock() - since > self.options.patience_s

    @property
    def problem(self) -> str:
        """What operators should know of: why the flow is parked, or has failed again and again."""
        lasting = self._failures >= LASTING_FAILURES and self.state is not OPEN
        return self._notes.failure or (self._reason if lasting else "")

    @property
    def waits_for_ride(self) -> bool:
        """Whether the flow wants to be read for, and nobody does: it has half a window of room again."""
        if self.state is not OPEN or self.control.paused:
            return False
        full = self.connection is not None and self.connection.full
        return self.ride is None and not full and self.bytes_in_flight <= self.options.window_bytes // 2

    @property
    def skips(self) -> frozenset[Position]:
        """The positions of updates that are to be skipped, in the log in which the flow stands."""
        return self.control.skipped_in(self.log_identity)

    @property
    def skips_ahead(self) -> bool:
        """Whether an update is to be skipped that was not reached yet."""
        return any(position > self.sent for position in self.skips)

    @property
    def unbroken_after(self) -> int | None:
        """The seq after which the subscriber gets each update, if nothing was left out up to there, or will be."""
        if self._told != self.sent or self.application.mode != "reliable" or self.filter != EVERYTHING:
            return None
        return self.sent.seq if self.sent.index >= 0 else self.sent.seq - 1

    @property
    def detour(self) -> Position | None:
        """Where the flow is to leave the log, if it is not that far yet: what is in the log after it comes later."""
        return self._detour if self._detour is not None and self.sent < self._detour else None

    @property
    def drained(self) -> bool:
        """Whether all that was sent is processed."""
        return not self._in_flight

    @property
    def asked_since(self) -> float | None:
        """When the subscriber was last asked to acknowledge something, if it has not yet."""
        return self._token_time if self._tokens else None

    def wants_subscriber(self) -> bool:
        """Whether the flow is to be opened with a subscriber now; after failures, not before a pause."""
        if self.state is not IDLE or self.leaving:
            return False
        doubled = FIRST_PAUSE_S * 2 ** min(self._failures - 1, 16)
        pause = min(self.options.patience_s / 2, doubled) if self._failures else 0.0
        return self._clock() - self._since >= pause

    def keeps_holder(self, holder_lives: bool) -> bool:
        """Whether the holder must have the flow again, whoever should have it next."""
        given_up = self._failures > 0 and self._clock() - self._failing_since > self.options.patience_s
        return self._bound and holder_lives and not given_up

    # The subscriber comes and goes

    def assign(self, subscriber: str) -> WriteHolder | None:
        """The flow is to go to a subscriber: what ZooKeeper must say before it is opened there, if it does not yet.

        If that cannot be written, `unassign` must be called.
        """
        if self._assigned and self.holder == subscriber:
            return None
        if self.holder != subscriber:
            self._bound = False
        before, self.holder, self._assigned = self.holder, subscriber, True
        return WriteHolder(self._notes.assigned(subscriber, before))

    def unassign(self) -> None:
        """It is not certain what ZooKeeper says of the holder: it must be named again."""
        self._assigned, self._notes.reported = False, None

    def open(self, connection: Connection) -> Effects:
        """Begin another turn, on this connection."""
        if self.state is not IDLE:
            return NOTHING
        self.connection = connection
        self.turn += 1
        self._told = self.marker
        self._skips_late = False
        self._enter(OPENING)
        passes = {"passes": True} if self.application.on_failure != PARK else {}
        return [self._send("open", after=pair(self.marker), **passes)]

    def disconnected(self, connection: Connection, reason: str) -> Effects:
        """A connection has ended: what was on its way is gone, and the flow begins again at its datamarker."""
        if self.connection is connection and not self.ended:
            self._notes.leaves(self.holder, reason)
            self._fail(reason or self._reason or "the connection broke")
        return NOTHING

    def move(self) -> Effects:
        """Have the subscriber let go, at a token, so that another one can have the flow."""
        if self.state is not OPEN:
            return NOTHING
        self._enter(CLOSING)
        return [self._token()]

    def leave(self) -> Effects:
        """The flow is to go to another publisher, once its subscriber has acknowledged what was sent."""
        self.leaving = True
        return self.move()

    def end(self) -> Effects:
        """The ownership is over, from one moment to the next."""
        if self.ended:
            return NOTHING
        open_there = self.connection is not None and self.state is not IDLE
        self._enter(ENDED)
        return [self._send("close")] if open_there else NOTHING

    def redefine(self, application: Application) -> Effects:
        """The application has changed: its filter holds from the next read on, and a parked flow is tried again."""
        if application == self.application or self.ended:
            return NOTHING
        before, self.application = self.application, application
        self.filter = application.parsed_filter()
        self.alight()
        if self.state is PARKED:
            return self._close_off()
        passed = (one.on_failure != PARK for one in (before, application))
        return self.move() if len(set(passed)) > 1 else NOTHING  # the subscriber is told when it is opened

    def heed(self, control: FlowControl) -> Effects:
        """Operators have said something else of the flow; one that is parked is tried again without what is skipped."""
        if control == self.control or self.ended:
            return NOTHING
        known, self.control = self.skips, control
        skipped = self.skips - known
        self._skips_late |= any(self.marker < position <= self.sent for position in skipped)
        if control.paused:
            self.alight()
        return self._close_off() if skipped and self.state is PARKED else NOTHING

    # What the subscriber says

    def answered(self, connection: Connection, message: Message) -> Effects:
        """The subscriber has said something; ValueError if it cannot be true, which ends the connection."""
        if self.ended or self.connection is not connection or era_of(message) != self.era:
            return NOTHING
        match message["t"]:
            case "opened" if self.state is OPENING:
                return self._opened()
            case "refused":
                now = self._clock() if self._refused_since is None else self._refused_since
                since = now if self.state is OPENING else None
                self._fail(reason_of(message))
                self._refused_since = since
            case "done" if self.state in (OPEN, CLOSING):
                if self._processed(Position(*message["position"])):
                    self._failures = 0
            case "ack":
                return [self._acknowledged(Position(*message["position"]))]
            case "ask" if self.state in (OPEN, CLOSING) and type(message.get("number")) is int:
                return [TellStanding(self.era, message["number"])]
            case "parked" if self.state in (OPEN, CLOSING) and message.get("waits") is True:
                return self._failed(reason_of(message), failed_at(message))
            case "parked":
                self._park(reason_of(message), failed_at(message))
                if self._skips_late:  # what it failed at was perhaps on its way when it was to be skipped
                    return self._close_off()
            case "closed" if self.state is CLOSED_OFF:
                self._notes.leaves(self.holder, "")
                self._reset()
                self.holder, self._assigned, self._bound = None, False, False  # the flow may go elsewhere
        return NOTHING

    def put_aside(self, era: Era, position: Position, reason: str) -> Effects:
        """The update at this position is kept, or need not be: the flow goes on after it."""
        if era != self.era or self.state not in (OPEN, CLOSING):
            return NOTHING
        self.counters.put_aside += 1
        self._notes.put_aside(self.holder, reason)
        return [self._send("pass", position=pair(position)), self._report()]

    def not_put_aside(self, era: Era, reason: str) -> Effects:
        """It could not be kept: the flow begins again, and comes to it again, after a pause."""
        if era == self.era and self.state in (OPEN, CLOSING):
            self._fail(reason)
        return NOTHING

    def standing(self, asked: TellStanding, head: Position, lag: int | None) -> Effects:
        """The log ends here, and holds so many updates that are not processed, if it counts them."""
        if asked.era != self.era or self.state not in (OPEN, CLOSING):
            return NOTHING
        stands = {"processed": pair(self.processed), "head": pair(head), "lag": lag}
        return [self._send("standing", number=asked.number, **stands)]

    def to_be_written(self, write: WriteMarker) -> bool:
        """Whether a datamarker that was acknowledged is still to be committed."""
        return write.position > self.marker and write.era.turn > self._restored_in

    def marker_written(self, era: Era, position: Position) -> Effects:
        """The datamarker that was acknowledged in this era is committed."""
        if era.turn <= self._restored_in:
            return NOTHING
        self.marker, moved = max(self.marker, position), position > self.marker
        if moved:
            self.counters.datamarkers += 1
            self.oldest_sent = self._oldest_since_token
            self._progress(position)
        if self.state is IDLE:
            self.sent = self.marker  # the turn in which it was acknowledged was over before it was committed
        if era != self.era or self.ended:
            return NOTHING
        self._free(position)
        return self._close_off() if self.state is CLOSING and not self._tokens else NOTHING

    def write_failed(self) -> None:
        """It is not certain whether ZooKeeper took what was written: there will be another token, another report."""
        self._notes.reported = None

    # What is read and sent

    def board(self, caravan: Caravan) -> None:
        """Ride on a caravan from now on."""
        if self.state is OPEN and self.caravan is not caravan and not self.control.paused:
            self.alight()
            self.ride = self.ride or Ride(caravan)

    def alight(self) -> None:
        """Ride no more; not while a Spark job sends for the caravan, since nobody else may send meanwhile."""
        if self.ride is not None and not self.ride.caravan.bulk:
            self.ride = None

    def serves(self, ride: Ride, *, more: bool, allowed: bool) -> bool:
        """Whether the flow gets the next part of a read that began on this ride; if not, its ride is over.

        `more` says whether the part has anything for it: a full window does no harm where there is nothing to send.
        """
        stuffed = self.connection is not None and self.connection.full
        full = more and (stuffed or self.bytes_in_flight >= self.options.window_bytes)
        if self.ride is ride and (full or self.control.paused or not allowed):
            self.alight()
        return self.ride is ride

    def advance(self, upto: Position, size: int = 0, skipped: int = 0, oldest: float | None = None) -> Effects:
        """All up to here was sent, `size` bytes of it; so many rows were too old for realtime mode, or are skipped.

        `oldest` is the time of the first of those that were sent.
        """
        upto = min(upto, self.detour or upto)
        if self.state is not OPEN or upto <= self.sent:
            return NOTHING
        self.sent = upto
        if size:
            self._told = upto
            self._in_flight.append((upto, size))
            self.bytes_in_flight += size
            self.counters.bytes_sent += size
            self.oldest_sent = self.oldest_sent or oldest
            self._oldest_since_token = self._oldest_since_token or oldest
        elif not self._in_flight:
            self._progress(upto)
        self.counters.updates_skipped += skipped
        return [self._send("skipped", count=skipped)] if skipped else NOTHING

    def abort_bulk(self, ride: Ride, reason: str) -> Effects:
        """A Spark job that sent for the flow has failed: nobody knows what of it was processed."""
        if self.ride is ride:
            self._fail(reason)
        return NOTHING

    def pass_over(self, first: Position, last: Position, reason: str = "") -> Effects:
        """The log does not hold these: the subscriber is told, and the flow goes on after them."""
        if self.state is not OPEN or last <= self.sent:
            return NOTHING
        self.sent = self._told = last
        self.counters.losses += 1
        self._notes.lost(self.holder, f"{first} to {last} were lost{reason and f': {reason}'}")
        return [self._send("loss", first=pair(first), last=pair(last)), self._report()]

    def go_back(self, first: Position, last: Position, floor: Position) -> Effects:
        """The log was made anew or restored from an older copy: these are lost, and the flow begins again at `floor`.

        If its datamarker is before that, it begins there, and the next read tells what is missing in between. In
        ZooKeeper the datamarker is the old one until the next is acknowledged.
        """
        if self.state is not OPEN or self.sent < first:
            return NOTHING
        lost = f"{first} to {last} were lost when the log was made anew or restored"
        self._notes.lost(self.holder, lost)
        effects: Effects = [self._send("loss", first=pair(first), last=pair(last)), self._report()]
        self.marker, self._restored_in = min(self.marker, floor), self.turn
        self.counters.losses += 1
        self.processed, self.progressed = self.marker, self._clock()
        self.oldest_sent = self._oldest_since_token = None
        self._fail(lost)
        return effects

    def check_log(self, identity: str | None, floor: Position) -> Effects:
        """This is the log that is read now. If the flow stands in another, made anew since, it begins at `floor`.

        All that was in the other one is lost, whether the subscriber has it or not.
        """
        if self.state is not OPEN or identity is None or identity == self.log_identity:
            return NOTHING
        known, self.log_identity = self.log_identity, identity
        return NOTHING if known is None else self.go_back(Position(0), self.sent, floor)

    def park(self, reason: str) -> Effects:
        """Leave the flow alone, which cannot go on: its datamarker goes back by an operator's word only."""
        if self.state is not OPEN:
            return NOTHING
        self._park(reason)
        return [self._report()]

    # As time passes

    def tick(self, *, holder_lives: bool, allowed: bool) -> Effects:
        """Ask for an acknowledgement that is due, lose patience, and report what operators should know by now.

        `allowed` says whether this process may believe that it owns the flow.
        """
        if self.ended:
            return NOTHING
        self.held = holder_lives
        effects: list[Effect] = []
        now = self._clock()
        late = now - self._since > self.options.patience_s
        due = allowed and not self._tokens and now - self._token_time >= self.options.token_interval_s
        if self.control.paused:
            self.alight()  # a Spark job may have sent for it when it was paused
        if self.state is OPEN:
            if late:
                self._failures = 0  # it has held for a while, though there was nothing to send
            if self.leaving:
                effects += self.move()  # it was being opened when it was to leave
            elif due and self.sent > self.marker:
                effects.append(self._token())
        elif self.state in (OPENING, CLOSING, CLOSED_OFF):
            # A flow that moves waits for a holder that lives, however slow it is: nobody else may process the shard.
            waits = self.state is CLOSING and not self.leaving and holder_lives
            if late and not waits:
                self._fail(f"no answer while {self.state.value}")
            elif self.state is CLOSING and due:
                effects.append(self._token())  # ZooKeeper did not take the datamarker of the one before
        if self.problem != self._notes.reported and self.holder is not None:
            effects.append(self._report())
        if self._notes.left is not None and self.state is IDLE and late and not self.leaving:
            effects.append(WriteHolder(self._notes.report_left()))
        return effects

    def seen_behind(self, head: Position | None) -> None:
        """Somebody who looks at progress has seen that the log ends here, if that is known."""
        if head is None or self.processed >= head:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = self._clock()

    # The steps of which these consist

    def _enter(self, state: SessionState) -> None:
        self.state = state
        self._since = self._clock()
        if state is not OPEN:
            self.ride = None

    def _send(self, kind: str, **more: object) -> Send:
        assert self.connection is not None  # there is one in every state but IDLE
        return Send(self.connection, flow_message(kind, self.flow, self.era, **more))

    def _token(self) -> Send:
        self._tokens.append(self.sent)
        self._oldest_since_token = None
        self._token_time = self._clock()
        return self._send("token", position=pair(self.sent))

    def _report(self) -> WriteHolder:
        return WriteHolder(self._notes.report(self.holder, self.problem))

    def _opened(self) -> Effects:
        self._enter(OPEN)
        self._refused_since = None
        self._notes.opened()
        self._bound = True
        self._token_time = self._clock()
        skipped, self._skipped = self._skipped, 0
        return [self._send("skipped", count=skipped)] if skipped else NOTHING

    def _acknowledged(self, position: Position) -> WriteMarker:
        if not self._tokens or position != self._tokens[0]:
            raise ValueError(f"flow {self.flow}: it acknowledges what it was not asked")
        # Our own position, and not the one that came: equal is not the same, as in 7 and 7.0.
        return WriteMarker(self.era, self._tokens.popleft())

    def _processed(self, position: Position) -> bool:
        """Whether the flow is further than before."""
        if position > self.sent:
            raise ValueError(f"flow {self.flow}: it says that it did what it was not sent")
        before = self.processed
        self._free(position)
        self._progress(self.sent if self.drained else position)
        return self.processed > before

    def _failed(self, reason: str, at: Position | None) -> Effects:
        """The handler fails at an update, and the subscriber waits until that one is put aside."""
        in_bulk = self.ride is not None and self.ride.caravan.bulk  # which tells what it has sent when it has ended
        if at is None or at <= self.marker or (at > self.sent and not in_bulk):
            raise ValueError(f"flow {self.flow}: it fails at what it was not sent")
        policy = self.application.on_failure
        if policy == PARK:  # it was not when the flow was opened
            self._park(reason, at)
            return NOTHING
        self._progress(at.before)
        if policy == SKIP or at in self.skips:
            return self.put_aside(self.era, at, reason)
        assert self.application.dead_letters is not None
        return [PutAside(self.era, at, reason, self.application.dead_letters)]

    def _free(self, upto: Position) -> None:
        while self._in_flight and self._in_flight[0][0] <= upto:
            self.bytes_in_flight -= self._in_flight.popleft()[1]

    def _progress(self, upto: Position) -> None:
        if upto > self.processed:
            self.processed, self.progressed = upto, self._clock()

    def _park(self, reason: str, at: Position | None = None) -> None:
        self._reason = reason or "it failed"
        self._notes.failed(self.holder, self._reason, at)
        self.counters.failures += 1
        self._enter(PARKED)

    def _close_off(self) -> Effects:
        self._enter(CLOSED_OFF)
        return [self._send("close")]

    def _fail(self, reason: str) -> None:
        """Give up this turn, for another one later."""
        self._reason = reason
        self.counters.restarts += 1
        self._refused_since = None
        if not self._failures:
            self._failing_since = self._clock()
        self._failures += 1
        self._reset()

    def _reset(self) -> None:
        """The turn is over, and with it all that was not acknowledged."""
        self.connection = None
        self.sent = self.marker
        self._tokens.clear()
        self._in_flight.clear()
        self.bytes_in_flight = 0
        self._enter(IDLE)
