"""How far flows are from the end of their log, for subscribers that ask (`Subscriber.caught_up`, `Subscriber.lag`)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidings.log_opening import containing_errors
from tidings.logs import WritableLog
from tidings.positions import Bounds
from tidings.publisher.flow_session import Effects, FlowSession, TellStanding
from tidings.publisher.gathering import GatheringThread
from tidings.publisher.pump import Pump

logger = logging.getLogger(__name__)


class _Question(NamedTuple):
    session: FlowSession
    effect: TellStanding


class Standings:
    """Answers for one publisher, in a thread of its own: each log is looked at once for all that have asked meanwhile.

    It is looked at after they asked, so that what they have published themselves before that is counted.
    """

    def __init__(self, pumps: Mapping[str, Pump], carry_out: Callable[[FlowSession, Effects], None]) -> None:
        self._pumps = pumps
        self._carry_out = carry_out
        self._asked = GatheringThread[_Question]("tidings-standings", self._answer)

    def put(self, session: FlowSession, effect: TellStanding) -> None:
        """Have a subscriber told where its flow stands. With the session's lock held."""
        self._asked.put(_Question(session, effect))

    def close(self) -> None:
        """End."""
        self._asked.close()

    def _answer(self, asked: list[_Question]) -> None:
        by_stream: dict[str, dict[FlowSession, TellStanding]] = defaultdict(dict)
        for session, effect in asked:
            by_stream[session.flow.stream][session] = effect  # of one who asks very often, the last question counts
        for stream, questions in by_stream.items():
            pump = self._pumps.get(stream)
            if pump is None:
                continue
            try:
                with containing_errors(stream):
                    bounds = pump.log.bounds()
            except Exception as error:  # noqa: BLE001 - a log may be anybody's; operators hear of it by others
                logger.debug("where flows of stream %s stand cannot be told: %s", stream, error)
                continue
            dense = isinstance(pump.log, WritableLog)
            for session, effect in questions.items():
                with session.lock:
                    self._carry_out(session, self._standing(session, effect, bounds.get(session.shard), dense))

    @staticmethod
    def _standing(session: FlowSession, effect: TellStanding, held: Bounds | None, dense: bool) -> Effects:
        if held is None:
            return ()
        lag = None
        if session.processed >= held.head:
            lag = 0
        elif dense:
            lag = held.head.seq - max(held.floor.seq, session.processed.seq - (session.processed.index < 0))
        return session.standing(effect, held.head, lag)
