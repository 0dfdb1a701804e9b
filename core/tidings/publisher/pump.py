"""The pump: reads one stream's log for all its flows that this publisher owns, filters, and sends.

Each caravan reads in a thread of its own: one read, each application's filter once, rows to the subscribers that hold
the flows. Backpressure is a matter of each flow: one whose window is full leaves its caravan, so that nobody waits for
it, and `Allocation` lets it ride again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from tidings.applications import Application
from tidings.errors import ENDING, DeliveryFailed, LogRestored, PositionsLost, TidingsError
from tidings.flows import Flow
from tidings.log_opening import containing_errors, identity_of
from tidings.logs import Log, Read, TailedLog, WritableLog
from tidings.outages import Outage
from tidings.positions import Bounds, Position, Positions
from tidings.publisher.allocation import Allocation
from tidings.publisher.bulk import BULK_LIMIT_ROWS, BULK_ROWS
from tidings.publisher.caravans import Caravan
from tidings.publisher.data_loss import DataLoss
from tidings.publisher.flow_session import FlowSession, Ride
from tidings.publisher.outbox import Outbox
from tidings.publisher.read_batch import Part, ReadBatch, Rows, fresh, messages
from tidings.retention import RetainedBy
from tidings.stream_definition import StreamDefinition
from tidings.wire.connection import Connection

READ_ROWS = 50_000
IDLE_WAIT_S = 0.005
RETRY_S = 1.0  # after which a log is tried again that could not be read

logger = logging.getLogger(__name__)
Rides = dict[FlowSession, Ride]
Bulk = Callable[[Log, Positions, Positions, "list[FlowSession]"], int]
"""Sends what lies between two positions to flows, and returns how many updates that were when they are processed."""
Serve = Callable[[Caravan, Rides, "str | None"], bool]


class LogTrouble(NamedTuple):
    """Why a log cannot be read, and since when nobody has read in it."""

    since: float
    reason: str
    caravan: Caravan | None = None
    """Who has met with it."""
    failing: bool = True
    """Whether it was so the last time. One that could be opened, and has not told anything yet, may fail again."""


def log_outage(stream: str) -> Outage:
    """The time in which the log of a stream cannot be read, whichever pump meets with it."""
    return Outage(f"stream {stream!r}", logger.warning, away="cannot be read", back="can be read again")


class Pump:
    """The flows of one stream that this publisher owns, and what is read and sent for them."""

    def __init__(
        self,
        stream: StreamDefinition,
        log: Log,
        may_send: Callable[[], bool],
        outbox: Outbox,
        *,
        read_rows: int = READ_ROWS,
        bulk: Bulk | None = None,
        bulk_rows: int = BULK_ROWS,
    ) -> None:
        self.stream = stream
        self.lock = threading.RLock()
        self.flows: dict[Flow, FlowSession] = {}
        self.updates_read = self.bytes_read = self.bytes_sent = self.updates_sent_in_bulk = 0
        self.held: Mapping[int, Bounds] = {}
        """What the log held when it was last looked at; nothing is known of shards that are missing."""
        self.retained: RetainedBy | None = None
        """How much the datastore keeps for the stream's sake, and for whom, as it was found last."""
        self._log = log
        self.tailed = log if isinstance(log, TailedLog) else None
        """The log, if it is a datastore's own."""
        self.dense = isinstance(log, WritableLog)
        """Whether the log tells how many updates lie between two positions."""
        self._may_send = may_send
        self._outbox = outbox
        self._data_loss = DataLoss(log, outbox)
        self._read_rows = read_rows
        self._bulk = bulk if self.tailed is None else None
        self._bulk_rows = bulk_rows
        self._trouble: LogTrouble | None = None
        self.outage = log_outage(stream.name)
        self._stopped = threading.Event()
        self.allocation = Allocation(
            stream.name,
            log,
            self.flows,
            self.lock,
            run=self._run,
            on_trouble=self._note_trouble,
        )

    @property
    def log(self) -> Log:
        """The log that is read."""
        return self._log

    @property
    def log_identity(self) -> str | None:
        """Which log it was when it was last looked at, if that can be told."""
        return identity_of(self._log, self.stream)

    def sessions(self) -> list[FlowSession]:
        """The flows that are being sent; those whose ownership has ended are left behind."""
        with self.lock:
            for one in [one for one in self.flows.values() if one.ended]:
                del self.flows[one.flow]
            return list(self.flows.values())

    def add(self, session: FlowSession) -> None:
        """Send one more flow."""
        with self.lock:
            self.flows[session.flow] = session

    def close(self) -> None:
        """Stop all caravans."""
        self._stopped.set()
        self.allocation.close()
        self._log.close()

    def gathers(self, session: FlowSession) -> bool:
        """Whether a snapshot is read for a flow, or taken just now: how long that takes is not for the flow to say."""
        return self.tailed is not None and self.tailed.aside(session.sent) is not None

    def look(self) -> Mapping[int, Bounds]:
        """What the log holds now."""
        self.held = self._log.bounds()
        return self.held

    def broken(self, patience: float) -> str | None:
        """Why the log cannot be read, if that has been so for so many seconds."""
        trouble = self._trouble
        if trouble is None or not trouble.failing or time.monotonic() - trouble.since <= patience:
            return None
        return trouble.reason

    @property
    def trouble(self) -> str | None:
        """Why the log could not be read, if nothing was read since."""
        trouble = self._trouble
        return None if trouble is None or (trouble.caravan and trouble.caravan.closed) else trouble.reason

    def suspect(self, reason: str) -> None:
        """It could not be read before, for this reason; that it could be opened does not say that it can be now."""
        self._trouble = LogTrouble(time.monotonic(), reason, failing=False)

    def _note_trouble(self, error: TidingsError, caravan: Caravan | None = None) -> None:
        known = self._trouble
        self.outage.begin(str(error))
        self._trouble = LogTrouble(time.monotonic() if known is None else known.since, str(error), caravan)

    def _end_trouble(self, trouble: LogTrouble, caravan: Caravan, after: Positions, read: Read) -> None:
        """A read has not failed. Trouble is over when who had it has come further, or to the end of the log."""
        further = any(read.upto[shard] > at for shard, at in after.items())
        if not further and any(at < self._log.bounds()[shard].head for shard, at in after.items()):
            self._trouble = trouble._replace(failing=False)
        else:
            self._settle(trouble, caravan)

    def _settle(self, trouble: LogTrouble, caravan: Caravan) -> None:
        """This caravan is not in trouble; what another has met with may last."""
        if trouble.caravan is None or trouble.caravan is caravan or trouble.caravan.closed:
            self._trouble = None
            self.outage.end()
        else:
            self._trouble = trouble._replace(since=time.monotonic())

    def _run(self, caravan: Caravan) -> None:
        try:
            while not self._stopped.is_set() and not caravan.closed:
                try:
                    busy = self._may_send() and time.monotonic() >= caravan.ready and self.step(caravan)
                except TidingsError as error:
                    self._note_trouble(error, caravan)
                    busy = False
                    self._stopped.wait(RETRY_S)
                except ENDING:
                    raise
                except BaseException:
                    logger.exception("a caravan failed, and tries again")
                    busy = False
                    self._stopped.wait(RETRY_S)
                if not busy:
                    self._stopped.wait(IDLE_WAIT_S)
        finally:
            caravan.reader.close()

    def step(self, caravan: Caravan) -> bool:
        """Read what comes next and send it to the flows of the caravan; False if there was nothing."""
        with containing_errors(self.stream.name):
            bounds, identity = self.look(), self.log_identity
        if bounds is caravan.idle_at:
            if self._trouble is not None:  # which was to ask for the bounds
                self._settle(self._trouble, caravan)
            return False
        caravan.idle_at = None if self.tailed is not None else bounds
        with self.lock:
            for one in self.flows.values():
                if one.caravan is caravan and caravan.passed(one):  # it went back to its datamarker
                    one.alight()
            rides = {one: one.ride for one in self.flows.values() if one.ride and one.ride.caravan is caravan}
        if not rides:
            return False
        if self._data_loss.made_anew(rides, identity, bounds):
            caravan.idle_at = None
            return True
        backlog = self._backlog(rides, bounds)
        rest = {one: ride for one, ride in rides.items() if one not in backlog}
        # What fails is tried again though the log does not change, and so is a flow that is not drained yet.
        again = True
        try:
            lines, busy = self._lines(rest), False
            for line in lines:
                busy |= self._serve(self._read_and_send, caravan, line, identity)
            if len(lines) > 1:
                with self.lock:
                    caravan.at |= self._stands(one for one, ride in rest.items() if one.ride is ride)
            busy |= bool(backlog) and self._serve(self._send_in_bulk, caravan, backlog, identity)
            again = busy or bool(backlog)
        finally:
            if again:
                caravan.idle_at = None
        return busy

    def _lines(self, rides: Rides) -> list[Rides]:
        """The flows that one read can serve: those that follow the log, and those that are aside for the same rows."""
        if self.tailed is None:
            return [rides] if rides else []
        lines: dict[str | None, Rides] = defaultdict(dict)
        with self.lock:
            for one, ride in rides.items():
                lines[self.tailed.aside(one.sent)][one] = ride
        return list(lines.values())

    def _serve(self, serve: Serve, caravan: Caravan, rides: Rides, identity: str | None) -> bool:
        """Serve these flows in that way, or tell them what is lost; False if there was nothing."""
        try:
            return serve(caravan, rides, identity)
        except PositionsLost as error:
            if self.log_identity != identity:
                return True  # it was made anew meanwhile, which the next step finds
            if not isinstance(error, LogRestored):
                self._data_loss.truncated(rides, error.lost, error.reason)
            elif self.stream.replicas:
                raise  # this one is not as far yet as the one that was read before
            else:
                self._data_loss.restored(rides, error.lost)
            return True

    def _backlog(self, rides: Rides, bounds: Mapping[int, Bounds]) -> Rides:
        """The flows before which so much lies that Spark's executors should send it; none if that is not worth it."""
        if self._bulk is None:
            return {}
        with self.lock:
            # Tasks know nothing of what is to be skipped, and go on after it.
            reliable = {
                one: ride
                for one, ride in rides.items()
                if one.application.mode == "reliable" and not one.control.paused and not one.skips_ahead
            }
            behind = sum(bounds[one.shard].head.seq - one.sent.seq for one in reliable)
        return reliable if behind >= self._bulk_rows else {}

    def _read_and_send(self, caravan: Caravan, rides: Rides, identity: str | None) -> bool:
        after = Positions(self._stands(rides))
        with containing_errors(self.stream.name):
            rows, upto = read = caravan.reader.read(after, self._read_rows)
            if self._trouble is not None:
                self._end_trouble(self._trouble, caravan, after, read)
        if self.log_identity != identity:
            return True  # it was made anew meanwhile, and these are perhaps other updates than those that come next
        with self.lock:
            self.updates_read += len(rows)
            self.bytes_read += rows.nbytes
        self.allocation.count(caravan, len(rows), rows.nbytes)
        for batch in ReadBatch.split(rows) if len(rows) else ():
            self._send(batch, rides)
        with self.lock:
            for one, ride in rides.items():
                if one.ride is ride:
                    one.advance(upto[one.shard])
            caravan.at |= upto
            if any(one.sent < upto[one.shard] for one, ride in rides.items() if one.ride is ride):  # by a detour
                caravan.at |= self._stands(one for one, ride in rides.items() if one.ride is ride)
        return len(rows) > 0

    def _stands(self, sessions: Iterable[FlowSession]) -> dict[int, Position]:
        """The place in each shard from which its flows are to be served."""
        stands: dict[int, Position] = {}
        with self.lock:
            for one in sessions:
                stands[one.shard] = min(stands.get(one.shard, one.sent), one.sent)
        return stands

    def _send_in_bulk(self, caravan: Caravan, rides: Rides, identity: str | None) -> bool:
        """Let Spark's executors send to flows that are drained; what fails is sent again from their datamarkers."""
        with self.lock:
            group = {one: ride for one, ride in rides.items() if one.ride is ride and one.drained}
            caravan.bulk = bool(group)
        if not group:
            return False
        try:
            self._run_bulk_job(group, identity)
        finally:
            caravan.bulk = False
        return True

    def _run_bulk_job(self, group: Rides, identity: str | None) -> None:
        assert self._bulk is not None
        after = self._only(self._stands(group))
        upto = self._log.reach(after, BULK_LIMIT_ROWS)
        try:
            self.updates_sent_in_bulk += self._bulk(self._log, after, upto, list(group))
            if self.log_identity != identity:
                raise DeliveryFailed(f"the log of stream {self.stream.name!r} was made anew during a large step")
        except DeliveryFailed as error:
            logger.warning("%s", error)
            with self.lock:
                for one, ride in group.items():
                    self._outbox.carry_out(one, one.abort_bulk(ride, str(error)))
            return
        with self.lock:
            for one, ride in group.items():
                if one.ride is ride:
                    one.advance(upto[one.shard])

    def _only(self, stands: dict[int, Position]) -> Positions:
        """Positions from which a read gives rows of these shards, and of no other."""
        heads = {shard: bounds.head for shard, bounds in self._log.bounds().items() if shard not in stands}
        return Positions({**heads, **stands})

    def _send(self, batch: ReadBatch, rides: Rides) -> None:
        """Send each flow what it wants of a part of a read.

        Who cannot be served is left out of `rides`: it does not get what comes later in this read either, even if it
        gets on again.
        """
        chosen: dict[Application, Rows] = {}
        for one in rides:
            if one.application not in chosen:
                chosen[one.application] = batch.wanted(one.filter)
        young = {app: fresh(batch, app) for app in chosen if app.mode == "realtime"}
        with self.lock:
            outgoing: dict[Connection, list[Part]] = defaultdict(list)
            skipped: dict[FlowSession, int] = {}
            passed: list[Part] = []
            allowed = self._may_send()
            for one, ride in list(rides.items()):
                start, end = batch.after(one.shard, one.sent)
                if one.detour is not None:
                    end = batch.after(one.shard, one.detour)[0]
                if not one.serves(ride, more=start < end, allowed=allowed) or one.connection is None:
                    del rides[one]
                    continue
                if start == end:
                    continue
                matching = chosen[one.application]
                wanted = matching[slice(*matching.searchsorted((start, end)))]
                if one.application in young:
                    kept = wanted[young[one.application][wanted]]
                    skipped[one] = len(wanted) - len(kept)
                    wanted = kept
                after = None if self.tailed is not None else one.unbroken_after
                if one.skips_ahead:
                    kept = np.setdiff1d(wanted, batch.rows_at(one.shard, one.skips), assume_unique=True)
                    if len(kept) < len(wanted):
                        skipped[one] = skipped.get(one, 0) + len(wanted) - len(kept)
                        wanted, after = kept, None
                part = Part(one, wanted, batch.position(end - 1), after)
                passed.append(part)
                if len(wanted):
                    outgoing[one.connection].append(part)
            ready = [(to, list(messages(batch, parts))) for to, parts in outgoing.items()]
            # All is built by now: a flow that was advanced for rows which could not be sent would lose them.
            for one, wanted, upto, _ in passed:
                size = int(batch.sizes[wanted].sum())
                self.bytes_sent += size
                one.counters.updates_sent += len(wanted)
                oldest = batch.time(int(wanted[0])) if len(wanted) else None
                self._outbox.carry_out(one, one.advance(upto, size, skipped.get(one, 0), oldest))
            for connection, built in ready:
                for message, rows in built:
                    connection.send(message, rows)
