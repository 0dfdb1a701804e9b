"""The pump: reads one stream's log for all its flows that this publisher owns, filters, and sends.

Each caravan reads in a thread of its own: one read, each application's filter once, rows to the subscribers that hold
the flows. A flow whose window is full leaves its caravan, so that nobody waits for it; `Allocation` lets it ride again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from tidings.applications import Application
from tidings.errors import DeliveryFailed, LogRestored, PositionsLost, TidingsError
from tidings.flows import Flow
from tidings.logs import Log, TailedLog
from tidings.positions import Position, Positions
from tidings.publisher.allocation import Allocation
from tidings.publisher.caravans import Caravan
from tidings.publisher.data_loss import Losses
from tidings.publisher.flow_session import Sending, State
from tidings.publisher.read_batch import Rows, Step, fresh, messages
from tidings.streams import StreamDefinition
from tidings.wire.connection import Connection

STEP_ROWS = 50_000
BULK_ROWS = 1_000_000  # a backlog that is worth a Spark job
BULK_LIMIT = 5_000_000  # rows in one
IDLE_WAIT = 0.005
RETRY = 1.0  # seconds after which a log is tried again that could not be read

logger = logging.getLogger(__name__)
Bulk = Callable[[Log, Positions, Positions, "list[Sending]"], None]
"""Sends what lies between two positions to flows, and returns when it is processed."""


class Pump:
    """The flows of one stream that this publisher owns, and what is read and sent for them."""

    def __init__(
        self,
        stream: StreamDefinition,
        log: Log,
        may_send: Callable[[], bool],
        tell: Callable[[Sending], None],
        *,
        window_bytes: int,
        step_rows: int = STEP_ROWS,
        bulk: Bulk | None = None,
        bulk_rows: int = BULK_ROWS,
    ) -> None:
        self.stream = stream
        self.lock = threading.RLock()
        self.flows: dict[Flow, Sending] = {}
        self.bytes_read = self.bytes_sent = 0
        self._log = log
        self._tailed = isinstance(log, TailedLog)
        self._may_send = may_send
        self._losses = Losses(log, tell)
        self._window = window_bytes
        self._step_rows = step_rows
        self._bulk = bulk if not self._tailed else None
        self._bulk_rows = bulk_rows
        self._trouble: tuple[float, str] | None = None
        self._stopped = threading.Event()
        self.allocation = Allocation(
            stream.name,
            log,
            self.flows,
            self.lock,
            window_bytes=window_bytes,
            run=self._run,
            on_trouble=self._note_trouble,
        )

    @property
    def log(self) -> Log:
        """The log that is read."""
        return self._log

    def close(self) -> None:
        """Stop all caravans."""
        self._stopped.set()
        self.allocation.close()
        self._log.close()

    def broken(self, patience: float) -> str | None:
        """Why the log cannot be read, if that has been so for so many seconds."""
        trouble = self._trouble
        return trouble[1] if trouble is not None and time.monotonic() - trouble[0] > patience else None

    def _note_trouble(self, error: TidingsError) -> None:
        known = self._trouble
        if known is None or known[1] != str(error):  # said once
            logger.warning("stream %r: %s", self.stream.name, error)
        self._trouble = (known[0] if known is not None else time.monotonic(), str(error))

    def _run(self, caravan: Caravan) -> None:
        try:
            while not self._stopped.is_set() and not caravan.closed:
                try:
                    busy = self._may_send() and time.monotonic() >= caravan.ready and self.step(caravan)
                except TidingsError as error:
                    self._note_trouble(error)
                    busy = False
                    self._stopped.wait(RETRY)
                except Exception:
                    logger.exception("a caravan failed, and tries again")
                    busy = False
                    self._stopped.wait(RETRY)
                if not busy:
                    self._stopped.wait(IDLE_WAIT)
        finally:
            caravan.reader.close()

    def step(self, caravan: Caravan) -> bool:
        """Read what comes next and send it to the flows of the caravan; False if there was nothing."""
        bounds = self._log.bounds()
        if bounds is caravan.idle_at:
            return False
        caravan.idle_at = None if self._tailed else bounds
        with self.lock:
            riding = [one for one in self.flows.values() if one.caravan is caravan and one.state is State.OPEN]
            for one in riding:
                if caravan.passed(one):  # it went back to its datamarker, or was left out of a read
                    one.caravan = None
            riding = [one for one in riding if one.caravan is caravan]
        if not riding:
            return False
        large = (
            self._bulk is not None
            and sum(bounds[one.flow.shard].head.seq - one.sent.seq for one in riding) >= self._bulk_rows
        )
        busy = self._send_in_bulk(caravan, riding) if large else self._read_and_send(caravan, riding)
        if busy:
            caravan.idle_at = None
        return busy

    def _read_and_send(self, caravan: Caravan, riding: list[Sending]) -> bool:
        stands = self._stands(riding)
        try:
            rows, upto = caravan.reader.read(Positions(stands), self._step_rows)
        except LogRestored as error:
            if self.stream.replicas:
                raise  # this one is not as far yet as the one that was read before
            self._losses.restored(riding, error.lost)
            return True
        except PositionsLost as error:
            self._losses.truncated(riding, error.lost)
            return True
        self._trouble = None
        with self.lock:
            self.bytes_read += rows.nbytes
        self.allocation.count(caravan, len(rows), rows.nbytes)
        served = {one: (one.turn, stands[one.flow.shard]) for one in riding}
        for step in Step.split(rows) if len(rows) else ():
            self._send(step, caravan, served)
        with self.lock:
            for one, (turn, sent) in served.items():
                if one.caravan is caravan and one.state is State.OPEN and one.turn == turn and one.sent >= sent:
                    one.sent = max(one.sent, upto[one.flow.shard])
            caravan.at |= upto
        return len(rows) > 0

    def _stands(self, riding: Iterable[Sending]) -> dict[int, Position]:
        """The place in each shard from which its flows are to be served."""
        stands: dict[int, Position] = {}
        with self.lock:
            for one in riding:
                stands[one.flow.shard] = min(stands.get(one.flow.shard, one.sent), one.sent)
        return stands

    def _send_in_bulk(self, caravan: Caravan, group: list[Sending]) -> bool:
        """Let Spark's executors send; what they do not manage is sent again from the datamarkers."""
        with self.lock:
            group = [
                one
                for one in group
                if one.caravan is caravan and not one.in_flight and one.application.mode == "reliable"
            ]
            begun = [(one, one.turn, one.sent) for one in group]
            caravan.bulk = bool(group)
        if not group:
            return False
        try:
            return self._sent_in_bulk(begun)
        finally:
            caravan.bulk = False

    def _sent_in_bulk(self, begun: list[tuple[Sending, int, Position]]) -> bool:
        assert self._bulk is not None
        group = [one for one, _, _ in begun]
        after = self._only(self._stands(group))
        upto = self._log.reach(after, BULK_LIMIT)
        try:
            self._bulk(self._log, after, upto, group)
        except DeliveryFailed as error:
            logger.warning("%s", error)
            with self.lock:
                for one, turn, _ in begun:
                    if one.turn == turn and one.state is State.OPEN:
                        one.fail(str(error))
            return True
        with self.lock:
            for one, turn, sent in begun:
                if (one.turn, one.sent) == (turn, sent) and one.state is State.OPEN:
                    one.sent = max(sent, upto[one.flow.shard])
        return True

    def _only(self, stands: dict[int, Position]) -> Positions:
        """Positions from which a read gives rows of these shards, and of no other."""
        heads = {shard: bounds.head for shard, bounds in self._log.bounds().items() if shard not in stands}
        return Positions({**heads, **stands})

    def _send(self, step: Step, caravan: Caravan, served: dict[Sending, tuple[int, Position]]) -> None:
        """Send each flow what it wants of a part of a read. One that cannot be served rides no more.

        `served` says in which turn each flow began to be served, and up to where it was; who is left out leaves it.
        """
        chosen: dict[Application, Rows] = {}
        for one in served:
            if one.application not in chosen:
                chosen[one.application] = np.flatnonzero(one.filter.mask(step.rows).to_numpy(zero_copy_only=False))
        young = {app: fresh(step, app) for app in chosen if app.mode == "realtime"}
        with self.lock:
            outgoing: dict[Connection, list[tuple[Sending, Rows]]] = defaultdict(list)
            for one, (turn, sent) in list(served.items()):
                start, end = step.after(one.flow.shard, one.sent)
                full = one.bytes_in_flight >= self._window and start < end
                # While the log was read the flow may have gone back to its datamarker, or got another filter.
                changed = one.turn != turn or one.sent < sent or one.application not in chosen
                if one.caravan is caravan and (full or changed or not self._may_send()):
                    one.caravan = None
                if one.caravan is not caravan or one.state is not State.OPEN or one.connection is None:
                    del served[one]  # nor does it get what comes later in this read, even if it gets on again
                    continue
                if start == end:
                    continue
                matching = chosen[one.application]
                wanted = matching[np.searchsorted(matching, start) : np.searchsorted(matching, end)]
                if one.application in young:
                    kept = wanted[young[one.application][wanted]]
                    if len(kept) < len(wanted):
                        one.connection.send(one.message("skipped", count=len(wanted) - len(kept)))
                    wanted = kept
                one.sent = step.position(end - 1)
                served[one] = (turn, one.sent)
                if len(wanted):
                    size = int(len(wanted) * step.row_bytes)
                    one.in_flight.append((one.sent, size))
                    one.bytes_in_flight += size
                    self.bytes_sent += size
                    outgoing[one.connection].append((one, wanted))
            for connection, parts in outgoing.items():
                for message, rows in messages(step, parts):
                    connection.send(message, rows)
