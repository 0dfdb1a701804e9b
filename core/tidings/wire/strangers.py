"""Peers that have not said who they are yet: they have little time, and there is room for few.

Who has had its time goes when another comes. When there is still no room, a host that has many of them gives way, so
that one who comes from elsewhere is heard though others fill all the room again and again.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

HANDSHAKE_S = 10.0
MAX_STRANGERS = 256
MAX_STRANGERS_OF_HOST = 64


class _Stranger(NamedTuple):
    since: float
    send_away: Callable[[], object]


class Strangers:
    """Who is there and unknown, by the host that it comes from, in the order in which they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._there: dict[str, dict[object, _Stranger]] = defaultdict(dict)

    def __len__(self) -> int:
        return sum(map(len, self._there.values()))

    def enter(self, peer: object, host: str, send_away: Callable[[], object]) -> bool:
        """Whether there is room for a peer; others may be sent away for it."""
        with self._lock:
            leaving = self._expired()
            room = self._make_room(host, leaving)
            if room:
                self._there[host][peer] = _Stranger(self._clock(), send_away)
        for one in leaving:
            one.send_away()
        return room

    def leave(self, peer: object, host: str) -> None:
        """A peer has gone, or is known now."""
        with self._lock:
            self._take(host, peer)

    def _expired(self) -> list[_Stranger]:
        old = self._clock() - HANDSHAKE_S
        late = [(host, peer) for host, those in self._there.items() for peer, one in those.items() if one.since < old]
        return [one for place in late if (one := self._take(*place)) is not None]

    def _make_room(self, host: str, leaving: list[_Stranger]) -> bool:
        mine = len(self._there.get(host, ()))
        if mine >= MAX_STRANGERS_OF_HOST:
            return False
        if len(self) < MAX_STRANGERS:
            return True
        crowd = max(self._there, key=lambda one: len(self._there[one]))
        if len(self._there[crowd]) <= mine + 1:
            return False
        first = self._take(crowd, next(iter(self._there[crowd])))
        leaving += [first] if first is not None else []
        return True

    def _take(self, host: str, peer: object) -> _Stranger | None:
        one = self._there.get(host, {}).pop(peer, None)
        if host in self._there and not self._there[host]:
            del self._there[host]
        return one
