"""Who is signed in: sessions, in memory; and how often one may try to sign in.

A session is known by a random id, which the browser alone has, in a cookie; it ends after a time without a request,
after a longer time whatever happens, at sign-out, and when its user is removed or gets another role or password.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidings.console.users import User, Users

ID_BYTES = 32
MAX_SOURCES = 10_000  # whose failures are remembered


@dataclass(slots=True)
class SignedIn:
    """One sign-in of a user, in one browser."""

    user: User
    csrf: str
    began: float
    seen: float
    live: int = 0
    """How many streams of events it has open."""
    key: str = field(default="", repr=False)


class SignIns:
    """The sessions there are. `clock` is monotonic."""

    def __init__(
        self,
        users: Users,
        *,
        idle_s: float,
        absolute_s: float,
        most: int,
        most_per_user: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        self._most = most
        self._most_per_user = most_per_user
        self._clock = clock
        self._sessions: dict[str, SignedIn] = {}

    def begin(self, user: User) -> SignedIn:
        """Sign a user in; if it has too many sessions, or there are too many, the oldest ends."""
        self._sweep()
        mine = [one for one in self._sessions.values() if one.user.name == user.name]
        if len(mine) >= self._most_per_user:
            self.end(min(mine, key=lambda one: one.seen))
        if len(self._sessions) >= self._most:
            self.end(min(self._sessions.values(), key=lambda one: one.seen))
        now = self._clock()
        made = SignedIn(user, secrets.token_urlsafe(ID_BYTES), now, now, key=secrets.token_urlsafe(ID_BYTES))
        self._sessions[made.key] = made
        return made

    def find(self, key: str | None, *, touch: bool = True) -> SignedIn | None:
        """The session of this id, if it is still good; a request that somebody makes keeps it from idling."""
        # A look-up by a hash of 256 random bits tells nothing by the time it takes.
        found = self._sessions.get(key or "")
        if found is None:
            return None
        if not self.good(found):
            self.end(found)
            return None
        if touch:
            found.seen = self._clock()
        return found

    def good(self, session: SignedIn) -> bool:
        """Whether it has not ended: by time, by sign-out, or because the user is not the same any more."""
        now = self._clock()
        return (
            session.key in self._sessions
            and now - session.seen < self._idle_s
            and now - session.began < self._absolute_s
            and self._users.get(session.user.name) == session.user
        )

    def left_s(self, session: SignedIn) -> float:
        """After how many seconds it ends, if nothing is asked for meanwhile."""
        now = self._clock()
        return max(0.0, min(session.seen + self._idle_s, session.began + self._absolute_s) - now)

    def left_open_s(self, session: SignedIn) -> float:
        """After how many seconds a page that is open has to ask again; by then it ends, or would seem to idle."""
        return max(0.0, min(self._idle_s / 2, session.began + self._absolute_s - self._clock()))

    def end(self, session: SignedIn) -> None:
        """Sign out."""
        self._sessions.pop(session.key, None)

    def count(self) -> int:
        """How many there are."""
        return len(self._sessions)

    def _sweep(self) -> None:
        for one in [one for one in self._sessions.values() if not self.good(one)]:
            self.end(one)


def same_token(session: SignedIn, token: str | None) -> bool:
    """Whether a request carries the session's own token, which pages of others cannot read."""
    return hmac.compare_digest(session.csrf.encode(), (token or "").encode(errors="replace"))


class FailureLimit:
    """How often one may fail within a time.

    >>> limit = FailureLimit(most=2, within_s=60.0, clock=iter([0.0, 0.0, 1.0, 1.0, 2.0, 61.0]).__next__)
    >>> limit.failed("10.0.0.7"); limit.wait_s("10.0.0.7"); limit.failed("10.0.0.7"); limit.wait_s("10.0.0.7")
    0.0
    59.0
    """

    def __init__(self, most: int, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._within_s = within_s
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}

    def wait_s(self, source: str) -> float:
        """How long this one has to wait; 0 if it may try."""
        times, now = self._failures.get(source), self._clock()
        while times and times[0] <= now - self._within_s:
            times.popleft()
        if times is not None and not times:
            del self._failures[source]
        return times[0] + self._within_s - now if times and len(times) >= self._most else 0.0

    def failed(self, source: str) -> None:
        """Count a try; one that succeeds is taken back by `succeeded`."""
        if source not in self._failures and len(self._failures) >= MAX_SOURCES:
            del self._failures[next(iter(self._failures))]
        self._failures.setdefault(source, deque(maxlen=self._most)).append(self._clock())

    def not_tried(self, source: str) -> None:
        """Take one back whose password nobody has looked at."""
        if times := self._failures.get(source):
            times.pop()

    def succeeded(self, source: str) -> None:
        """Forget its failures."""
        self._failures.pop(source, None)
