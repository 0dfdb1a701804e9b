"""The pump: reads one stream's log for all its flows that this publisher owns, filters, and sends.

Each caravan reads in a thread of its own: one read, each application's filter once, rows to the subscribers that hold
the flows. A flow whose window is full leaves its caravan, so that nobody waits for it. Every now and then flows are
allocated anew: those that have room again get on a caravan, caravans that are near each other become one, and one whose
flows are far apart becomes several.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tidings.applications import Application
from tidings.caravans import AllocationPolicy, Caravan, Limits, Rider, assign
from tidings.delivery import Connection
from tidings.errors import DeliveryFailed, LogRestored, PluginBroken, PositionsLost, TidingsError
from tidings.flows import Flow
from tidings.logs import Log, TailedLog
from tidings.plugins import load
from tidings.positions import Position, Positions
from tidings.sending import Sending, State
from tidings.steps import Rows, Step, fresh, messages
from tidings.streams import StreamDefinition

STEP_ROWS = 50_000
BULK_ROWS = 1_000_000  # a backlog that is worth a Spark job
BULK_LIMIT = 5_000_000  # rows in one
IDLE_WAIT = 0.005
RETRY = 1.0  # seconds after which a log is tried again that could not be read
ALLOCATE = 0.25  # seconds between two allocations, if nothing happens
AT_MOST = 0.01  # the same, whatever happens
POLICY = "gaps"

logger = logging.getLogger(__name__)
Bulk = Callable[[Log, Positions, Positions, "list[Sending]"], None]
"""Sends what lies between two positions to flows, and returns when it is processed."""


@dataclass(frozen=True, slots=True)
class CaravanStatus:
    """What operators see of a caravan: how far it is from the head, its flows, and what it has read."""

    number: int
    behind: int
    flows: int
    rate: float
    rows_read: int
    bytes_read: int

    def to_json(self) -> dict[str, float]:
        """As it is kept in ZooKeeper."""
        return asdict(self)


class Pump:
    """The flows of one stream that this publisher owns, and the caravans that they ride on."""

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
        self.limits = Limits()
        self.bytes_read = self.bytes_sent = 0
        self._log = log
        self._tailed = isinstance(log, TailedLog)
        self._policy: AllocationPolicy = load("tidings.allocation", POLICY)
        self._may_send = may_send
        self._tell = tell
        self._window = window_bytes
        self._step_rows = step_rows
        self._bulk = bulk if not self._tailed else None
        self._bulk_rows = bulk_rows
        self._caravans: dict[Caravan, threading.Thread] = {}
        self._count = 0
        self._trouble: tuple[float, str] | None = None
        self._allocate_now = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._allocating, name="tidings-caravans", daemon=True)
        self._thread.start()

    @property
    def log(self) -> Log:
        """The log that is read."""
        return self._log

    def close(self) -> None:
        """Stop all caravans."""
        self._stopped.set()
        self._allocate_now.set()
        self._thread.join()
        for thread in self._caravans.values():
            thread.join()
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

    def control(self, policy: str, limits: Limits) -> None:
        """Go by this policy and these limits from now on."""
        self._policy = load("tidings.allocation", policy)
        self.limits = limits
        self._allocate_now.set()

    def wake(self) -> None:
        """A flow wants to ride: it was opened, or has room again."""
        self._allocate_now.set()

    def reallocate(self) -> None:
        """Leave all caravans, and begin again with new ones."""
        with self.lock:
            for one in self.flows.values():
                one.caravan = None
        self._allocate_now.set()

    def caravans(self) -> list[CaravanStatus]:
        """The caravans, the lead first."""
        heads = {shard: held.head for shard, held in self._log.bounds().items()}
        with self.lock:
            found = [
                CaravanStatus(
                    caravan.number,
                    max(self._behind(one, heads) for one in riding),
                    len(riding),
                    caravan.meter.rate,
                    caravan.meter.rows,
                    caravan.meter.bytes,
                )
                for caravan in self._caravans
                if (riding := [one for one in self.flows.values() if one.caravan is caravan])
            ]
        return sorted(found, key=lambda status: status.behind)

    # Who rides where

    def _allocating(self) -> None:
        while not self._stopped.is_set():
            try:
                self.allocate()
            except TidingsError as error:
                self._note_trouble(error)
            except Exception:  # a policy may be anybody's
                logger.exception("flows of stream %r cannot be allocated to caravans", self.stream.name)
            self._stopped.wait(AT_MOST)
            self._allocate_now.wait(ALLOCATE)
            self._allocate_now.clear()

    def allocate(self) -> None:
        """Let flows ride as the policy says."""
        if not any(one.state is State.OPEN for one in list(self.flows.values())):
            self._retire([])
            return
        heads = {shard: held.head for shard, held in self._log.bounds().items()}
        with self.lock:
            waiting = [one for one in self.flows.values() if self._waits(one)]
            riding = [
                one
                for one in self.flows.values()
                if one.state is State.OPEN and one.caravan is not None and not one.caravan.bulk
            ]
            riders = {Rider(one.flow, self._behind(one, heads)): one for one in (*riding, *waiting)}
            groups = [[riders[rider] for rider in group] for group in self._grouped(list(riders))]
            kept = [caravan for caravan in self._caravans if caravan.bulk]
            for caravan, group in assign(groups, [one for one in self._caravans if not one.bulk]):
                chosen = caravan or self._new()
                kept.append(chosen)
                for one in group:
                    if one.caravan is not chosen:
                        one.caravan = chosen
                        chosen.idle_at = None
        self._retire(kept)

    def _grouped(self, riders: list[Rider]) -> Sequence[Sequence[Rider]]:
        """What the policy says, if it makes sense."""
        groups = self._policy(riders, self.limits)
        if Counter(rider for group in groups for rider in group) != Counter(riders):
            raise PluginBroken("an allocation policy must put each flow into one group")
        if len(groups) > self.limits.caravans:
            raise PluginBroken(f"an allocation policy made {len(groups)} caravans; {self.limits.caravans} are allowed")
        return groups

    def _waits(self, one: Sending) -> bool:
        """Whether a flow wants to be read for, and nobody does."""
        return one.state is State.OPEN and one.caravan is None and one.bytes_in_flight <= self._window // 2

    def _behind(self, one: Sending, heads: Mapping[int, Position]) -> int:
        """About how many updates lie before a flow."""
        head = heads[one.flow.shard]
        if isinstance(self._log, TailedLog):
            return self._log.distance(one.sent, head) if one.sent < head else 0
        return max(0, head.seq - one.sent.seq)

    def _new(self) -> Caravan:
        self._count += 1
        caravan = Caravan(self._count, self._log.reader(), ordered=self._tailed)
        thread = threading.Thread(target=self._run, args=(caravan,), name=f"tidings-caravan-{self._count}", daemon=True)
        self._caravans[caravan] = thread
        thread.start()
        return caravan

    def _retire(self, kept: Iterable[Caravan]) -> None:
        """Let the caravans go that nobody rides on any more."""
        with self.lock:
            for caravan in self._caravans.keys() - set(kept):
                caravan.closed = True
                del self._caravans[caravan]

    # Reading and sending

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
            for one in riding:
                if one.flow.shard not in error.lost:
                    continue
                if self._tailed:
                    self._go_back(one, *error.lost[one.flow.shard])
                else:
                    self._park(one, "it stands after the end of the log, which was made anew or restored")
            return True
        except PositionsLost as error:
            for one in riding:
                if one.flow.shard in error.lost:
                    self._tell_loss(one, error.lost[one.flow.shard][1])
            return True
        self._trouble = None
        self._count_read(caravan, len(rows), rows.nbytes)
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

    def _count_read(self, caravan: Caravan, rows: int, size: int) -> None:
        with self.lock:
            self.bytes_read += size
            caravan.meter.count(rows, size)
            if self.limits.rate is None and self.limits.total_rate is None:
                return
            others = [one for one in self._caravans if one is not caravan]
            lead = max([caravan, *others], key=lambda one: sum(at.seq for at in one.at.values()))
            leading, trailing = self.limits.allowances(lead.meter.rate, len(others))
        caravan.hold_back(rows, leading if lead is caravan else trailing)

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

    def _tell_loss(self, one: Sending, last: Position) -> None:
        """Tell the subscriber that the log does not hold what comes after the flow's stand, up to `last`."""
        with self.lock:
            if one.state is not State.OPEN or one.connection is None or last <= one.sent:
                return
            first = Position(one.sent.seq, one.sent.index + 1) if self._tailed else Position(one.sent.seq + 1)
            logger.warning("flow %s: %s to %s are lost", one.flow, first, last)
            one.connection.send(one.message("loss", first=[first.seq, first.index], last=[last.seq, last.index]))
            one.sent = last
            one.lost = f"{first} to {last} were lost"
            self._tell(one)

    def _go_back(self, one: Sending, first: Position, last: Position) -> None:
        """Go on with the oldest that is held, after a datastore was restored from an older copy.

        What the flow was sent of the time since is lost there, and the subscriber is told so.
        """
        floor = self._log.bounds()[one.flow.shard].floor
        with self.lock:
            if one.state is not State.OPEN or one.connection is None or one.sent < first:
                return
            logger.error(
                "flow %s: %s to %s are lost in a restored log; it goes on after %s", one.flow, first, last, floor
            )
            one.connection.send(one.message("loss", first=[first.seq, first.index], last=[last.seq, last.index]))
            one.lost = f"{first} to {last} were lost when the log was restored"
            self._tell(one)
            one.marker = floor  # in ZooKeeper it is the old one, until the next is acknowledged
            one.fail(one.lost)

    def _park(self, one: Sending, reason: str) -> None:
        """Leave a flow alone that cannot go on: its datamarker goes back by an operator's word only."""
        with self.lock:
            if one.state is State.OPEN:
                logger.error("flow %s: %s", one.flow, reason)
                one.reason = reason
                one.enter(State.PARKED)
                self._tell(one)

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
