"""Outages: something that this process needs is away, and comes back.

Each is logged once when it begins and once when it ends, with how long it took. In between only another reason is worth
a line, and few of those; and what comes and goes all the time, for the same reason, is told the first time.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable

MAX_REASONS = 3  # of one outage that are logged: one that is worded anew at every attempt must not fill the disk
SETTLED_S = 5.0  # an outage that is as short as this, so soon after the last, is part of that


_NUMBER = re.compile(r"\d+")


class Outage:
    """Whether one thing is away, and since when. Any thread may tell of it.

    >>> lines = []
    >>> outage = Outage("subscriber cache/a", lines.append, clock=iter([10.0, 11.0, 12.5]).__next__)
    >>> outage.begin("the connection broke")
    >>> outage.begin("the connection broke")
    >>> outage.end()
    >>> lines
    ['subscriber cache/a is away: the connection broke', 'subscriber cache/a is back after 2.5 s']
    """

    def __init__(
        self,
        what: str,
        log: Callable[[str], object],
        *,
        away: str = "is away",
        back: str = "is back",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._log = log
        self._away, self._back = away, back
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._ended = -math.inf
        self._told = False
        self._reasons: list[str] = []

    @property
    def seconds(self) -> float:
        """How long it has been away; 0 while it is there."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    def begin(self, reason: str) -> None:
        """It is away, for this reason; or still is."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since, self._told = now, False
                if now - self._ended > SETTLED_S:
                    self._reasons.clear()
            kind = _NUMBER.sub("#", reason)  # that another second has passed is no other reason
            known = kind in self._reasons
            news = len(self._reasons) < MAX_REASONS if not known else not self._told and now - self._since > SETTLED_S
            self._told |= news
            if news and not known:
                self._reasons.append(kind)
        if news:
            self._log(f"{self._what} {self._away}: {reason}")

    def end(self) -> None:
        """It is there."""
        with self._lock:
            if self._since is None:
                return
            self._ended = self._clock()
            lasted, self._since = self._ended - self._since, None
        if self._told:
            self._log(f"{self._what} {self._back} after {lasted:.1f} s")
