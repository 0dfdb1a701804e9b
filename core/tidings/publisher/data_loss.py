"""Data loss: what becomes of flows for which the log does not hold what comes next."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tidings.logs import Log, TailedLog
from tidings.positions import Bounds, Position
from tidings.publisher.flow_session import FlowSession
from tidings.publisher.outbox import Outbox

logger = logging.getLogger(__name__)
Lost = Mapping[int, tuple[Position, Position]]
"""For each shard, the first and the last position that are missing."""


class DataLoss:
    """Tells subscribers and operators what one log has lost."""

    def __init__(self, log: Log, outbox: Outbox) -> None:
        self._log = log
        self._tailed = isinstance(log, TailedLog)
        self._outbox = outbox

    def truncated(self, sessions: Iterable[FlowSession], lost: Lost, reason: str = "") -> None:
        """The log does not have updates that were not sent yet: the flows go on after them."""
        for one in sessions:
            if one.shard not in lost:
                continue
            begins, last = lost[one.shard]
            with one.lock:
                if one.detour is not None and one.detour < begins:
                    one.advance(one.detour)  # what is lost comes after the rows that it gets first
                    continue
                first = Position(one.sent.seq, one.sent.index + 1) if self._tailed else Position(one.sent.seq + 1)
                effects = one.pass_over(first, last, reason)
                self._outbox.carry_out(one, effects)
            if effects:
                logger.warning("flow %s: %s to %s are lost%s", one.flow, first, last, reason and f": {reason}")

    def made_anew(self, sessions: Iterable[FlowSession], identity: str | None, bounds: Mapping[int, Bounds]) -> bool:
        """Have the flows begin anew that stand in another log than this one; False if there are none."""
        found = False
        for one in sessions:
            with one.lock:
                last = one.sent
                effects = one.check_log(identity, bounds[one.shard].floor)
                self._outbox.carry_out(one, effects)
            if effects:
                logger.error("flow %s: the log was deleted and made anew; all up to %s is void", one.flow, last)
                found = True
        return found

    def restored(self, sessions: Iterable[FlowSession], lost: Lost) -> None:
        """The log ends before the place where the flows stand, since it was made anew or restored.

        A datastore's own log goes on with the oldest that it holds. In a log of ours that would repeat everything under
        old positions: its flows are parked.
        """
        floors = {shard: held.floor for shard, held in self._log.bounds().items()} if self._tailed else {}
        for one in sessions:
            if one.shard not in lost:
                continue
            first, last = lost[one.shard]
            with one.lock:
                if self._tailed:
                    effects = one.go_back(first, last, floors[one.shard])
                else:
                    effects = one.park("it stands after the end of the log, which was made anew or restored")
                self._outbox.carry_out(one, effects)
            if effects:
                logger.error("flow %s: the log was made anew or restored, and lacks %s to %s", one.flow, first, last)
