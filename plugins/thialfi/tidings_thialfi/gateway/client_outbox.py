"""What one client is to hear: notifications until it acknowledges them, answers until they are sent. No I/O here.

Only so many bytes of notifications are under way to a client, the window; its acknowledgements open it again. The rest
waits here, so many bytes of it for each client and for all of them. What is beyond that is not kept: of notifications
the stage is asked again, and an answer that is missing is asked for by the client, or shown to be needless by a digest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Ack, Failure, FromService, Notice, Status

ENTRY_BYTES = 256  # what an entry takes here beside its name and payload
PARCEL_BYTES = 128 * 2**10  # of what is taken out at once

Key = tuple[str, bool]


class Budget:
    """Bytes that all outboxes of a gateway may hold together."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most


@dataclass(slots=True)
class Pending:
    """A notification that is not acknowledged, and when it was last sent, if it was."""

    notice: Notice
    cost: int
    sent: float | None = None
    under_way: bool = False
    """Whether it takes room in the window."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is to be sent next; so many of its notifications were sent before."""

    message: FromService
    again: int


class ClientOutbox:
    """Holds up to `most` bytes, of which `window` bytes may be under way without an acknowledgement.

    >>> outbox = ClientOutbox(most=1000, window=300, shared=Budget(1000))
    >>> for name in ("alice", "bob", "carol", "dave"):
    ...     outbox.notify(Notice(name, 1))
    >>> [one.name for one in outbox.next(now=0.0).message.notify], outbox.next(now=0.0), outbox.more_than_kept
    (['alice'], None, True)
    >>> outbox.acknowledge(Ack("alice", 1))
    >>> [one.name for one in outbox.next(now=0.0).message.notify]
    ['bob']
    """

    __slots__ = ("_digest", "_held", "_most", "_reports", "_shared", "_under_way", "_unsent", "_window",
                 "more_than_kept", "pending", "pumped_later")  # fmt: skip

    def __init__(self, most: int, window: int, shared: Budget) -> None:
        self._most, self._window, self._shared = most, window, shared
        self._held = self._under_way = 0
        self.pending: dict[Key, Pending] = {}
        self._unsent: dict[Key, None] = {}
        self._reports: dict[tuple[type, str], Status | Failure] = {}
        self._digest: tuple[Digest, int] | None = None
        self.more_than_kept = False
        """Whether something is pending that is not kept here, and must be asked for again."""
        self.pumped_later = False
        """Whether the channel will call when there is room for more."""

    def notify(self, notice: Notice) -> None:
        """Take in a notification, unless this version of the object or a later one is here already."""
        key = (notice.name, notice.unknown)
        known = self.pending.get(key)
        if known is not None:
            if known.notice.version >= notice.version:
                return
            self._drop(key)
        cost = _cost(notice)
        if self._charge(cost):
            self.pending[key] = Pending(notice, cost)
            self._unsent[key] = None
        else:
            self.more_than_kept = True

    def acknowledge(self, ack: Ack) -> None:
        """The client has heard of this version."""
        known = self.pending.get((ack.name, ack.unknown))
        if known is not None and known.notice.version <= ack.version:
            self._drop((ack.name, ack.unknown))

    def report(self, entry: Status | Failure) -> None:
        """Take in an answer to an operation. The newest about an object counts."""
        key = (type(entry), entry.name)
        known = self._reports.get(key)
        if self._charge(_cost(entry)) if known is None else known.number <= entry.number:
            self._reports[key] = entry
        if isinstance(entry, Status) and not entry.registered:
            for unknown in (False, True):
                self._drop((entry.name, unknown))

    def tell_digest(self, digest: Digest, seen: int) -> None:
        """The client is to know this digest."""
        self._digest = digest, seen

    def next(self, now: float) -> Parcel | None:
        """What is to be sent now, as much as the window and one parcel hold; None if that is nothing."""
        reports, size = self._next_reports()
        notices, again = [], 0
        while self._unsent and size < PARCEL_BYTES:
            key = next(iter(self._unsent))
            one = self.pending[key]
            if self._under_way and self._under_way + one.cost > self._window:
                break
            del self._unsent[key]
            again += one.sent is not None
            one.sent, one.under_way = now, True
            self._under_way += one.cost
            notices.append(one.notice)
            size += one.cost
        (digest, seen), self._digest = self._digest or (None, None), None
        if not (reports or notices or digest):
            return None
        statuses = tuple(one for one in reports if isinstance(one, Status))
        failures = tuple(one for one in reports if isinstance(one, Failure))
        message = FromService(digest=digest, seen=seen, notify=tuple(notices), status=statuses, failed=failures)
        return Parcel(message, again)

    def withhold(self, notice: Notice) -> None:
        """This was not sent after all. It takes no room in the window, and is tried again as if it had been."""
        known = self.pending.get((notice.name, notice.unknown))
        if known is not None and known.notice is notice:
            self._leave_window(known)

    def repeat(self, now: float, resend: float) -> bool:
        """Have sent again what was sent so long ago; whether there is any. It makes room for what was never sent."""
        due = [key for key, one in self.pending.items() if one.sent is not None and now - one.sent >= resend]
        for key in due:
            if self.more_than_kept:  # the stage is asked again, and says of what the client still wants to hear
                self._drop(key)
            else:
                self._leave_window(self.pending[key])
                self._unsent[key] = None
        return bool(due)

    def exhausted(self) -> bool:
        """Whether all is acknowledged that was kept, and the stage is to be asked for the rest; true once."""
        if not self.more_than_kept or self.pending:
            return False
        self.more_than_kept = False
        return True

    def oldest(self, now: float) -> float:
        """When the oldest of what is under way was sent."""
        return min((one.sent for one in self.pending.values() if one.under_way and one.sent is not None), default=now)

    def clear(self) -> None:
        """The client is gone."""
        self._shared.left += self._held
        self._held = self._under_way = 0
        self.pending, self._unsent, self._reports, self._digest = {}, {}, {}, None

    def _next_reports(self) -> tuple[list[Status | Failure], int]:
        found: list[Status | Failure] = []
        size = 0
        while self._reports and size < PARCEL_BYTES:
            entry = self._reports.pop(next(iter(self._reports)))
            size += _cost(entry)
            found.append(entry)
        self._release(size)
        return found, size

    def _charge(self, cost: int) -> bool:
        if self._held + cost > self._most or cost > self._shared.left:
            return False
        self._held += cost
        self._shared.left -= cost
        return True

    def _release(self, cost: int) -> None:
        self._held -= cost
        self._shared.left += cost

    def _drop(self, key: Key) -> None:
        if (one := self.pending.pop(key, None)) is not None:
            self._unsent.pop(key, None)
            self._leave_window(one)
            self._release(one.cost)

    def _leave_window(self, one: Pending) -> None:
        if one.under_way:
            one.under_way = False
            self._under_way -= one.cost


def _cost(entry: Notice | Status | Failure) -> int:
    return ENTRY_BYTES + len(entry.name.encode()) + len(getattr(entry, "payload", None) or b"")
