"""The pump: reads one stream's log once for all its flows, filters, and sends.

The *head reader* serves the flows that keep up: one read, each application's filter once, rows to the subscribers that
hold the flows. A flow whose window is full is detached, so that nobody waits for it; the *catch-up reader* serves it
from the log on its own until it is near the head again.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.applications import Application
from tidings.delivery import Connection
from tidings.errors import DeliveryFailed, LogRestored, PositionsLost, TidingsError
from tidings.flows import Flow
from tidings.logs import Log, TailedLog
from tidings.positions import Bounds, Position, Positions
from tidings.sending import Sending, State
from tidings.streams import StreamDefinition

STEP_ROWS = 50_000
BULK_ROWS = 1_000_000  # a backlog that is worth a Spark job
BULK_LIMIT = 5_000_000  # rows in one
MESSAGE_BYTES = 4 * 2**20
LARGE_BATCH = 4096  # rows; smaller ones are gathered before they are sent
IDLE_WAIT = 0.005

logger = logging.getLogger(__name__)
Rows = npt.NDArray[np.int64]
Bulk = Callable[[Log, Positions, Positions, "list[Sending]"], None]
"""Sends what lies between two positions to flows, and returns when it is processed."""


@dataclass(frozen=True)
class Step:
    """Rows of one read, or a part of them, in the order of their shards."""

    rows: pa.Table
    shards: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int64]
    indexes: npt.NDArray[np.int32]
    row_bytes: float

    @classmethod
    def split(cls, rows: pa.Table) -> Iterator[Step]:
        """The rows of one read. A log that keeps its rows in the order of their shards has them sent without a copy."""
        batches = rows.to_batches()
        if len(rows) < LARGE_BATCH * len(batches):
            yield cls.of(rows)
        else:
            yield from (cls.of(pa.Table.from_batches([batch])) for batch in batches)

    @classmethod
    def of(cls, rows: pa.Table) -> Step:
        """The rows, brought into order."""
        shards = rows["shard"].to_numpy()
        if np.any(np.diff(shards) < 0):
            order = np.argsort(shards, kind="stable")
            rows, shards = rows.combine_chunks().take(order), shards[order]
        row_bytes = rows.nbytes / max(1, len(rows))
        return cls(rows.combine_chunks(), shards, rows["seq"].to_numpy(), rows["index"].to_numpy(), row_bytes)

    def after(self, shard: int, position: Position) -> tuple[int, int]:
        """Where the rows of a shard after a position begin and end."""
        first, end = np.searchsorted(self.shards, [shard, shard + 1])
        seqs = self.seqs[first:end]
        start = first + int(np.searchsorted(seqs, position.seq, "left"))
        while start < end and self.position(start) <= position:
            start += 1
        return int(start), int(end)

    def position(self, row: int) -> Position:
        """The position of a row."""
        return Position(int(self.seqs[row]), int(self.indexes[row]))

    def ends(self) -> dict[int, Position]:
        """The last position of each shard."""
        last = np.flatnonzero(np.diff(self.shards, append=-1))
        return {int(self.shards[row]): self.position(int(row)) for row in last}


class Pump:
    """The flows of one stream that this publisher owns, and the two readers that serve them."""

    def __init__(
        self,
        stream: StreamDefinition,
        log: Log,
        may_send: Callable[[], bool],
        on_parked: Callable[[Sending], None],
        *,
        window_bytes: int,
        step_rows: int = STEP_ROWS,
        bulk: Bulk | None = None,
        bulk_rows: int = BULK_ROWS,
    ) -> None:
        self.stream = stream
        self.lock = threading.RLock()
        self.flows: dict[Flow, Sending] = {}
        self._log = log
        self._may_send = may_send
        self._on_parked = on_parked
        self._window = window_bytes
        self._step_rows = step_rows
        self._bulk = bulk
        self._bulk_rows = bulk_rows
        self._nothing_new: Mapping[int, Bounds] | None = None
        """The bounds of the log at which the head reader found nothing; looked up again when a flow joins it."""
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"tidings-{name}", daemon=True)
            for name, work in (("head", self.head_step), ("catch-up", self.catch_up_step))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def log(self) -> Log:
        """The log that is read."""
        return self._log

    def close(self) -> None:
        """Stop both readers."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._log.close()

    def _run(self, work: Callable[[], bool]) -> None:
        while not self._stopped.is_set():
            try:
                busy = self._may_send() and work()
            except TidingsError as error:
                logger.warning("%s", error)
                busy = False
                self._stopped.wait(1.0)
            except Exception:
                logger.exception("a reader failed, and tries again")
                busy = False
                self._stopped.wait(1.0)
            if not busy:
                self._stopped.wait(IDLE_WAIT)

    def head_step(self) -> bool:
        """Read what is new and send it to the flows that keep up; False if there was nothing."""
        bounds = self._log.bounds()
        if bounds is self._nothing_new:
            return False
        self._nothing_new = bounds
        with self.lock:
            riding = [one for one in self.flows.values() if one.state is State.OPEN and one.attached]
        busy = bool(riding) and self._read_and_send(riding)
        if busy:
            self._nothing_new = None
        return busy

    def catch_up_step(self) -> bool:
        """Bring detached flows that have room a little further; False if there was nothing to do.

        Flows that are about as far behind share a read; the one that was served least lately says how far that is.
        """
        with self.lock:
            behind = [
                one
                for one in self.flows.values()
                if one.state is State.OPEN and not one.attached and one.bytes_in_flight <= self._window // 2
            ]
        if not behind:
            return False
        heads = {shard: bounds.head.seq for shard, bounds in self._log.bounds().items()}
        eldest = min(behind, key=lambda one: one.served)
        distance = heads[eldest.flow.shard] - eldest.sent.seq
        group = [one for one in behind if abs(heads[one.flow.shard] - one.sent.seq - distance) <= self._step_rows]
        for one in group:
            one.served = time.monotonic()
        large = self._bulk is not None and sum(heads[one.flow.shard] - one.sent.seq for one in group) >= self._bulk_rows
        busy = self._send_in_bulk(group) if large else self._read_and_send(group)
        with self.lock:
            for one in group:
                near = heads[one.flow.shard] - one.sent.seq <= self._step_rows // 4
                one.attached = one.state is State.OPEN and near and one.bytes_in_flight < self._window
            self._nothing_new = None
        return busy

    def _read_and_send(self, group: list[Sending]) -> bool:
        stands: dict[int, Position] = {}
        with self.lock:
            for one in group:
                stands[one.flow.shard] = min(stands.get(one.flow.shard, one.sent), one.sent)
        try:
            rows = self._log.tail(self._only(stands), self._step_rows)
        except LogRestored as error:
            for one in group:
                if one.flow.shard in error.lost:
                    self._park(one, "it stands after the end of the log, which was made anew or restored")
            return True
        except PositionsLost as error:
            for one in group:
                if one.flow.shard in error.lost:
                    self._tell_loss(one, error.lost[one.flow.shard][1])
            return True
        if len(rows) == 0:
            return False
        for step in Step.split(rows):
            self._send(step, group, stands)
            stands |= step.ends()  # a flow that was left out of this step must not get the next one
        return True

    def _send_in_bulk(self, group: list[Sending]) -> bool:
        """Let Spark's executors send; what they do not manage is sent again from the datamarkers."""
        assert self._bulk is not None
        with self.lock:
            group = [one for one in group if not one.in_flight and one.application.mode == "reliable"]
            begun = [(one, one.turn, one.sent) for one in group]
        if not group:
            return False
        stands: dict[int, Position] = {}
        for one, _, sent in begun:
            stands[one.flow.shard] = min(stands.get(one.flow.shard, sent), sent)
        after = self._only(stands)
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

    def _tell_loss(self, one: Sending, last: Position) -> None:
        """Tell the subscriber that the log does not hold what comes after the flow's stand, up to `last`."""
        with self.lock:
            if one.state is not State.OPEN or one.connection is None or last <= one.sent:
                return
            dense = not isinstance(self._log, TailedLog)
            first = Position(one.sent.seq + 1) if dense else Position(one.sent.seq, one.sent.index + 1)
            logger.warning("flow %s: %s to %s are lost", one.flow, first, last)
            one.connection.send(one.message("loss", first=[first.seq, first.index], last=[last.seq, last.index]))
            one.sent = last

    def _park(self, one: Sending, reason: str) -> None:
        """Leave a flow alone that cannot go on: its datamarker goes back by an operator's word only."""
        with self.lock:
            if one.state is State.OPEN:
                logger.error("flow %s: %s", one.flow, reason)
                one.reason = reason
                one.enter(State.PARKED)
                self._on_parked(one)

    def _only(self, stands: dict[int, Position]) -> Positions:
        """Positions from which a read gives rows of these shards, and of no other."""
        heads = {shard: bounds.head for shard, bounds in self._log.bounds().items() if shard not in stands}
        return Positions({**heads, **stands})

    def _send(self, step: Step, sendings: Iterable[Sending], begun: Mapping[int, Position]) -> None:
        """Send each flow what it wants of a read; `begun` says after which position the read began in each shard."""
        chosen: dict[Application, Rows] = {}
        for one in sendings:
            if one.application not in chosen:
                chosen[one.application] = np.flatnonzero(one.filter.mask(step.rows).to_numpy(zero_copy_only=False))
        fresh = {app: _fresh(step, app) for app in chosen if app.mode == "realtime"}
        with self.lock:
            outgoing: dict[Connection, list[tuple[Sending, Rows]]] = defaultdict(list)
            for one in sendings:
                if one.state is not State.OPEN or one.connection is None or not self._may_send():
                    continue
                if one.sent < begun[one.flow.shard] or one.application not in chosen:
                    continue  # while the log was read the flow went back to its datamarker, or got another filter
                start, end = step.after(one.flow.shard, one.sent)
                if start == end:
                    continue
                if one.bytes_in_flight >= self._window:
                    one.attached = False
                    continue
                matching = chosen[one.application]
                wanted = matching[np.searchsorted(matching, start) : np.searchsorted(matching, end)]
                if one.application in fresh:
                    young = wanted[fresh[one.application][wanted]]
                    if len(young) < len(wanted):
                        one.connection.send(one.message("skipped", count=len(wanted) - len(young)))
                    wanted = young
                one.sent = step.position(end - 1)
                if len(wanted):
                    size = int(len(wanted) * step.row_bytes)
                    one.in_flight.append((one.sent, size))
                    one.bytes_in_flight += size
                    outgoing[one.connection].append((one, wanted))
            for connection, parts in outgoing.items():
                for message, rows in _messages(step, parts):
                    connection.send(message, rows)


def _fresh(step: Step, application: Application) -> npt.NDArray[np.bool_]:
    """Which rows are young enough for a realtime application."""
    if application.max_age is None:
        return np.ones(len(step.rows), bool)
    oldest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=application.max_age)
    young = pc.fill_null(pc.greater_equal(step.rows["time"], pa.scalar(oldest, pa.timestamp("us", "UTC"))), True)
    mask: npt.NDArray[np.bool_] = young.to_numpy()
    return mask


def _messages(step: Step, parts: list[tuple[Sending, Rows]]) -> Iterator[tuple[dict[str, object], pa.RecordBatch]]:
    """Batches of a size that travels well: each with rows of one flow or several, one after the other."""
    most = max(1, int(MESSAGE_BYTES / max(1.0, step.row_bytes)))
    gathered: list[tuple[Sending, Rows, Position]] = []
    count = 0
    for one, rows in parts:
        for start in range(0, len(rows), most):
            piece = rows[start : start + most]
            last = start + most >= len(rows)
            gathered.append((one, piece, one.sent if last else step.position(int(piece[-1]))))
            count += len(piece)
            if count >= most:
                yield _message(step, gathered)
                gathered, count = [], 0
    if gathered:
        yield _message(step, gathered)


def _message(step: Step, parts: list[tuple[Sending, Rows, Position]]) -> tuple[dict[str, object], pa.RecordBatch]:
    indices = np.concatenate([rows for _, rows, _ in parts])
    first, count = int(indices[0]), len(indices)
    if int(indices[-1]) - first + 1 == count and bool(np.all(np.diff(indices) == 1)):
        table = step.rows.slice(first, count)  # nothing is copied
    else:
        table = step.rows.take(indices).combine_chunks()
    about = [[one.flow.shard, one.epoch, one.turn, len(rows), upto.seq, upto.index] for one, rows, upto in parts]
    return {"t": "batch", "stream": parts[0][0].flow.stream, "parts": about}, table.to_batches()[0]
