"""Losses: what becomes of flows for which the log does not hold what comes next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from tidings.logs import Log, TailedLog
from tidings.positions import Position
from tidings.publisher.flow_session import Sending, State

logger = logging.getLogger(__name__)
Lost = Mapping[int, tuple[Position, Position]]
"""For each shard, the first and the last position that are missing."""


class Losses:
    """Tells subscribers what is lost, and by `tell` operators."""

    def __init__(self, log: Log, tell: Callable[[Sending], None]) -> None:
        self._log = log
        self._tailed = isinstance(log, TailedLog)
        self._tell = tell

    def truncated(self, riding: Iterable[Sending], lost: Lost) -> None:
        """The log has let go of updates that were not sent yet: the flows go on after them."""
        for one in riding:
            if one.shard in lost:
                self._pass_over(one, lost[one.shard][1])

    def restored(self, riding: Iterable[Sending], lost: Lost) -> None:
        """The log ends before the place where the flows stand, since it was made anew or restored."""
        for one in riding:
            if one.shard not in lost:
                continue
            if self._tailed:
                self._go_back(one, *lost[one.shard])
            else:
                self._park(one, "it stands after the end of the log, which was made anew or restored")

    def _pass_over(self, one: Sending, last: Position) -> None:
        """Go on after `last`; the subscriber is told that it does not get what comes before."""
        with one.lock:
            if one.state is not State.OPEN or one.connection is None or last <= one.sent:
                return
            first = Position(one.sent.seq, one.sent.index + 1) if self._tailed else Position(one.sent.seq + 1)
            logger.warning("flow %s: %s to %s are lost", one.flow, first, last)
            one.send_loss(first, last)
            one.sent = last
            one.lost = f"{first} to {last} were lost"
            self._tell(one)

    def _go_back(self, one: Sending, first: Position, last: Position) -> None:
        """Go on with the oldest that is held, after a datastore was restored from an older copy.

        What the flow was sent of the time since is lost there, and the subscriber is told so.
        """
        floor = self._log.bounds()[one.shard].floor
        with one.lock:
            if one.state is not State.OPEN or one.connection is None or one.sent < first:
                return
            logger.error("flow %s: the log was restored, %s to %s are lost", one.flow, first, last)
            one.send_loss(first, last)
            one.lost = f"{first} to {last} were lost when the log was restored"
            self._tell(one)
            one.marker = floor  # in ZooKeeper it is the old one, until the next is acknowledged
            one.fail(one.lost)

    def _park(self, one: Sending, reason: str) -> None:
        """Leave a flow alone that cannot go on: its datamarker goes back by an operator's word only."""
        with one.lock:
            if one.state is State.OPEN:
                logger.error("flow %s: %s", one.flow, reason)
                one.reason = reason
                one.enter(State.PARKED)
                self._tell(one)
