"""How much of what was written everybody has seen in time, told while the soak runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tests.soak.checker import knows
from tests.soak.history import Audience, History, Write

CLIENTS = "clients"

Span = tuple[float, float]


class Share:
    """The share of writes that every subscriber and client which lived then had seen `within` so many seconds.

    Those count that are acknowledged from now on.
    """

    def __init__(self, history: History, audiences: Sequence[Audience], clients_of: str | None, within: float) -> None:
        self._history = history
        self._audiences = audiences
        self._clients_of = clients_of
        self._within = within
        self.judged = self.seen = 0
        self._read = len(history.acknowledged)
        self._waiting: list[Write] = []

    def judge(self, now: float, away: Mapping[str, Sequence[Span]]) -> None:
        """Judge the writes whose time is over.

        `away` says when an application, or the clients, had nobody who was alive: of writes that would have come to
        them then they are not asked.
        """
        self._waiting += self._history.acknowledged[self._read :]
        self._read = len(self._history.acknowledged)
        over = [write for write in self._waiting if self._end(write) <= now]
        self._waiting = [write for write in self._waiting if self._end(write) > now]
        self.judged += len(over)
        self.seen += sum(self._all_have(write, away) for write in over)

    @property
    def percent(self) -> float:
        return 100.0 * self.seen / self.judged if self.judged else 100.0

    def _end(self, write: Write) -> float:
        return (write.acknowledged or write.tried) + self._within

    def _all_have(self, write: Write, away: Mapping[str, Sequence[Span]]) -> bool:
        for one in self._audiences:
            if one.wants(write) and self._alive(write, away.get(one.application, ())):
                at = self._history.first.get((one.application, one.stream, write.object, write.number))
                if at is None or at > self._end(write):
                    return False
        if write.stream != self._clients_of or not self._alive(write, away.get(CLIENTS, ())):
            return True
        readers = (client for client, names in self._history.wanted.items() if write.object in names)
        return all(self._client_has(client, write) for client in readers)

    def _client_has(self, client: int, write: Write) -> bool:
        told = self._history.told.get(client, [])
        begin, end = (bisect_left(told, time, key=lambda one: one.time) for time in (write.tried, self._end(write)))
        return any(knows(one, write) for one in told[begin:end])

    def _alive(self, write: Write, spans: Sequence[Span]) -> bool:
        return not any(start <= self._end(write) and write.tried <= end for start, end in spans)
