"""Allocation: on which caravan each flow of a stream rides, in one publisher.

Every now and then flows are allocated anew, as the policy says: those that have room again get on a caravan, caravans
that are near each other become one, and one whose flows are far apart becomes several.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidings.allocation_policies import AllocationPolicy, Limits, Rider, default_policy, policy
from tidings.errors import ENDING, PluginBroken, TidingsError
from tidings.flows import Flow
from tidings.logs import Log, TailedLog
from tidings.positions import Position, Positions
from tidings.publisher.caravans import Caravan, assign
from tidings.publisher.flow_session import OPEN, FlowSession

INTERVAL_S = 0.25  # between two allocations, if nothing happens
LEAST_INTERVAL_S, LONGEST_INTERVAL_S = 0.01, 1.0  # whatever happens
PAUSE_RATIO, IDLE_RATIO = 9, 99  # of the time that an allocation takes
NAMED_RIDERS, NAMED_SHARDS = 50, 64  # of a caravan, in what operators see of it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CaravanStatus:
    """What operators see of a caravan: how far it is from the head, its flows, and what it has read.

    Of its flows and of where it is, only some are named: it is kept in ZooKeeper, and written every few seconds.
    """

    number: int
    behind: int
    flows: int
    rate: float
    rows_read: int
    bytes_read: int
    riders: tuple[str, ...] = ()
    at: Mapping[str, Any] = field(default_factory=dict)
    """Positions, by shard."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper."""
        return asdict(self)


class Allocation:
    """The caravans of one pump, which `lock` guards as it does the flows.

    `run` is called for each caravan in a thread of its own, and returns when the caravan is closed, or the pump.
    """

    def __init__(
        self,
        stream: str,
        log: Log,
        flows: Mapping[Flow, FlowSession],
        lock: threading.RLock,
        *,
        run: Callable[[Caravan], None],
        on_trouble: Callable[[TidingsError], None],
    ) -> None:
        self._stream = stream
        self._log = log
        self._tailed = log if isinstance(log, TailedLog) else None  # asked once: with a protocol that takes its time
        self._flows = flows
        self._lock = lock
        self._run = run
        self._on_trouble = on_trouble
        self._policy: AllocationPolicy = policy(default_policy())
        self._limits = Limits()
        self._complaint = ""
        self._caravans: dict[Caravan, threading.Thread] = {}
        self._count = 0
        self._allocated_at: object = None  # the bounds of the log when flows were allocated last
        self._now = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._allocating, name="tidings-caravans", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Allocate no more, and wait until nobody reads."""
        self._stopped.set()
        self._now.set()
        self._thread.join()
        for thread in self._caravans.values():
            thread.join()

    def control(self, name: str | None, limits: Limits) -> None:
        """Go by this policy and these limits from now on; without a name, by the default policy."""
        self._policy = policy(name or default_policy())
        self._limits = limits
        self._now.set()

    def wake(self) -> None:
        """A flow wants to ride: it was opened, or has room again."""
        self._now.set()

    def reallocate(self) -> None:
        """Have all flows leave their caravans, and allocate them anew."""
        with self._lock:
            for one in self._flows.values():
                one.alight()
        self._now.set()

    def count(self, caravan: Caravan, rows: int, size: int) -> None:
        """A caravan has read so much: hold it back if that is more than the limits allow."""
        with self._lock:
            caravan.meter.count(rows, size)
            if self._limits.rate is None and self._limits.total_rate is None:
                return
            others = [one for one in self._caravans if one is not caravan]
            lead = max([caravan, *others], key=lambda one: sum(at.seq for at in one.at.values()))
            leading, trailing = self._limits.allowances(lead.meter.rate, len(others))
        caravan.throttle(rows, leading if lead is caravan else trailing)

    def caravans(self) -> list[CaravanStatus]:
        """The caravans, the lead first."""
        heads = {shard: held.head for shard, held in self._log.bounds().items()}
        with self._lock:
            found = [
                CaravanStatus(
                    caravan.number,
                    max(self._behind(one, heads) for one in riding),
                    len(riding),
                    round(caravan.meter.rate, 1),
                    caravan.meter.rows,
                    caravan.meter.bytes,
                    tuple(str(one.flow) for one in riding[:NAMED_RIDERS]),
                    Positions(dict(itertools.islice(sorted(caravan.at.items()), NAMED_SHARDS))).to_json(),
                )
                for caravan in self._caravans
                if (riding := [one for one in self._flows.values() if one.caravan is caravan])
            ]
        return sorted(found, key=lambda status: status.behind)

    @property
    def caravan_count(self) -> int:
        """How many caravans there are."""
        return len(self._caravans)

    def _allocating(self) -> None:
        changed = True
        while not self._stopped.is_set():
            begun = time.monotonic()
            try:
                self._allocate(changed)
            except TidingsError as error:
                self._on_trouble(error)
            except ENDING:
                raise
            except BaseException:
                logger.exception("flows of stream %r cannot be allocated to caravans", self._stream)
            # With very many flows, which are opened one after the other, most of the time is for others.
            took = time.monotonic() - begun
            self._stopped.wait(min(LONGEST_INTERVAL_S, max(LEAST_INTERVAL_S, PAUSE_RATIO * took)))
            changed = self._now.wait(min(LONGEST_INTERVAL_S, max(INTERVAL_S, IDLE_RATIO * took)))
            self._now.clear()

    def _allocate(self, changed: bool) -> None:
        """Let flows ride as the policy says, if that may be otherwise than before."""
        flows = list(self._flows.values())
        if not any(one.state is OPEN for one in flows):
            self._retire([])
            return
        bounds = self._log.bounds()
        waits = any(one.ride is None and one.state is OPEN for one in flows)
        if len(self._caravans) == 1 and bounds is self._allocated_at and not waits and not changed:
            return  # there is nothing new to read, and nobody who is not where it was
        self._allocated_at = bounds
        heads = {shard: held.head for shard, held in bounds.items()}
        with self._lock:
            waiting = [one for one in self._flows.values() if one.waits_for_ride]
            riding = [one for one in self._flows.values() if one.caravan is not None and not one.caravan.bulk]
            riders = {Rider(one.flow, self._behind(one, heads), one.flow.shard): one for one in (*riding, *waiting)}
            groups = [[riders[rider] for rider in group] for group in self._grouped(riders)]
            kept = [caravan for caravan in self._caravans if caravan.bulk]
            for caravan, group in assign(groups, [one for one in self._caravans if not one.bulk]):
                chosen = caravan or self._new()
                kept.append(chosen)
                for one in group:
                    if one.caravan is not chosen:
                        one.board(chosen)
                        chosen.idle_at = None
        self._retire(kept)

    def _behind(self, one: FlowSession, heads: Mapping[int, Position]) -> int:
        """About how many updates lie before a flow."""
        head = heads[one.flow.shard]
        if self._tailed is not None:
            return self._tailed.distance(one.sent, head) if one.sent < head else 0
        return max(0, head.seq - one.sent.seq)

    def _grouped(self, riders: Mapping[Rider, FlowSession]) -> Sequence[Sequence[Rider]]:
        """What the policy says; if that makes no sense, flows stay where they are, and the others ride together."""
        try:
            groups = self._checked(list(riders))
        except Exception as error:  # noqa: BLE001 - a policy may be anybody's
            if self._complaint != repr(error):  # said once
                logger.warning("the allocation policy of stream %r makes no sense: %r", self._stream, error)
            self._complaint = repr(error)
            stays: dict[Caravan | None, list[Rider]] = {}
            for rider, one in riders.items():
                stays.setdefault(one.caravan, []).append(rider)
            return list(stays.values())
        self._complaint = ""
        return groups

    def _checked(self, riders: list[Rider]) -> Sequence[Sequence[Rider]]:
        groups = self._policy(riders, self._limits)
        if Counter(rider for group in groups for rider in group) != Counter(riders):
            raise PluginBroken("an allocation policy must put each flow into one group")
        if len(groups) > self._limits.caravans:
            raise PluginBroken(f"an allocation policy made {len(groups)} caravans; {self._limits.caravans} are allowed")
        return groups

    def _new(self) -> Caravan:
        self._count += 1
        caravan = Caravan(self._count, self._log.reader(), ordered=isinstance(self._log, TailedLog))
        thread = threading.Thread(target=self._run, args=(caravan,), name=f"tidings-caravan-{self._count}", daemon=True)
        self._caravans[caravan] = thread
        thread.start()
        return caravan

    def _retire(self, kept: Iterable[Caravan]) -> None:
        """Let the caravans go that nobody rides on any more."""
        with self._lock:
            for caravan in self._caravans.keys() - set(kept):
                caravan.closed = True
                del self._caravans[caravan]
