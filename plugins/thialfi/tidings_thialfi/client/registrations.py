"""A client's registrations: what the application intends, what the service has confirmed, and what lies between.

Every operation has a number, larger than all before it, and is outstanding until the service has answered it or has
shown, by a digest, that its registrations are the intended ones. If they differ and no operation is outstanding that
could explain it, all intended objects are sent again, under one number: a sync.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tidings.errors import InvalidOption
from tidings_thialfi.protocol.constants import MAX_ENTRIES, MAX_OBJECT_BYTES, MAX_SEQUENCE
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.protocol.messages import Failure, Status, SyncPart

MAX_REGISTRATIONS = 100_000  # of the longest names, they fit into the parts of one sync
_PART_BYTES = 56 * 1024  # leaves room for the token
_REPEATS_BEFORE_SYNC = 3  # of operations, while the digests differ

Changes = list[tuple[str, bool]]


class Verdict(Enum):
    """What comes of comparing digests."""

    AGREE = "the service has what is intended"
    DIFFER = "it has something else, and nothing outstanding explains that"
    OPEN = "it may come to agree when what is outstanding is done"
    BEHIND = "it has not seen what it has answered: the digest is late, or the service has forgotten"


@dataclass(frozen=True, slots=True)
class Operation:
    """A registration, or an unregistration, that the service has not answered."""

    number: int
    register: bool


class Registrations:
    """Begins with numbers above `number`. If `resuming`, the service may have the registrations of an earlier run.

    >>> mine = Registrations(100)
    >>> mine.register("alice")
    >>> mine.outstanding
    {'alice': Operation(number=101, register=True)}
    >>> mine.status(Status("alice", True, 101))
    [('alice', True)]
    >>> mine.outstanding
    {}
    """

    def __init__(self, number: int, *, resuming: bool = False) -> None:
        self._first = self.largest = number
        self.resuming = resuming
        self.client: int | None = None
        self.digest = Digest()
        self.intended: dict[str, int] = {}  # and the number under which the service was told so
        self.outstanding: dict[str, Operation] = {}
        self.unsent: dict[str, None] = {}  # which of them are to be sent, or sent again
        self.sync: int | None = None
        self.parts: deque[SyncPart] = deque()
        self._synced = 0
        self._taken = 0  # the largest number that the service has acted upon
        self._confirmed: set[str] = set()
        self._left: set[str] = set()  # unregistered from, and no operation says so

    def register(self, name: str) -> None:
        """Intend to be registered."""
        if name in self.intended:
            return
        if len(self.intended) >= MAX_REGISTRATIONS:
            raise InvalidOption(f"a client registers for at most {MAX_REGISTRATIONS:,} objects: use several clients")
        check_name(name)
        self.intended[name] = 0
        if self.client is not None:
            self.digest = self.digest.plus(self.client, name)
        if not self.resuming:
            self._operate(name)

    def unregister(self, name: str) -> None:
        """Intend not to be registered. Whether it was or not, the application is told that it is not any more."""
        check_name(name)
        self._forget(name)
        if self.resuming:
            self._left.add(name)
        else:
            self._operate(name)

    def adopt(self, client: int, *, fresh: bool) -> Changes:
        """Go by this client number. If it is `fresh`, the service has nothing of it: register for everything anew."""
        changes: Changes = []
        if client != self.client:
            self.client = client
            self.digest = Digest.of(client, self.intended)
        if fresh:
            changes = [(name, False) for name in self._given_up()]
            self.outstanding.clear()
            self._left.clear()
            self._confirmed.clear()
            self._end_sync()
            self.resuming = False
            for name in self.intended:
                self._operate(name)
        self.repeat()
        return changes

    def repeat(self) -> None:
        """Send everything that is outstanding once more."""
        self.unsent = dict.fromkeys(self.outstanding)

    def status(self, status: Status) -> Changes:
        """The service says whether it has a registration; what that changed for the application."""
        name, operation = status.name, self.outstanding.get(status.name)
        self.largest = max(self.largest, status.number)
        if operation is not None:
            if status.number < operation.number:
                return []
            if status.registered == operation.register:
                del self.outstanding[name]
                self.unsent.pop(name, None)
                self._taken = max(self._taken, status.number)
                return self._confirm(name, status.registered, always=True)
        elif name not in self.intended:
            return []
        elif status.registered:
            return self._confirm(name, True) if status.number >= self._number(name) else []
        elif status.number <= self._number(name):
            return []
        # An operation of an earlier run has the last word, because the clock was ahead then. Speak again, above it.
        self._operate(name)
        return []

    def failed(self, failure: Failure) -> bool:
        """The service refused a registration; whether that was the latest of the object."""
        if failure.name not in self.intended or failure.number < self._number(failure.name):
            return False
        self._forget(failure.name)
        self.outstanding.pop(failure.name, None)
        self.unsent.pop(failure.name, None)
        self._confirmed.discard(failure.name)
        return True

    def compare(self, digest: Digest, seen: int, attempts: int = 0) -> Verdict:
        """Compare digests, of the time when the service had seen this number; operations were sent so often."""
        if seen > self.largest:
            self.largest = seen
            for name in self.outstanding:  # they may have been taken for older than what the service has
                self._operate(name)
            if self.sync is not None:
                self.begin_sync()
        if self.resuming:
            return Verdict.AGREE if digest == self.digest else Verdict.DIFFER
        late = seen < self._expected()
        if digest == self.digest and not late:
            self._taken = seen
            return Verdict.AGREE
        if (
            digest == self.digest
            or self.sync is not None
            or (self.outstanding and (late or attempts < _REPEATS_BEFORE_SYNC))
        ):
            return Verdict.OPEN
        return Verdict.BEHIND if late else Verdict.DIFFER

    def agree(self) -> Changes:
        """The service has what is intended: nothing is outstanding any more."""
        gone = (self._confirmed - self.intended.keys()).union(self._given_up())
        self.outstanding.clear()
        self.unsent.clear()
        self._left.clear()
        self._end_sync()
        self.resuming = False
        new = [name for name in self.intended if name not in self._confirmed]
        self._confirmed = set(self.intended)
        return [(name, False) for name in sorted(gone)] + [(name, True) for name in new]

    def begin_sync(self) -> None:
        """Send all that is intended, under a new number, which stands for all outstanding operations too."""
        self.resuming = False
        self._left = set(self._given_up())
        self.outstanding.clear()
        self.unsent.clear()
        self.largest += 1
        self.sync = self._synced = self.largest
        chunks = list(_chunks(self.intended))
        self.parts = deque(SyncPart(self.sync, at, len(chunks), tuple(some)) for at, some in enumerate(chunks))

    @property
    def exhausted(self) -> bool:
        """Whether there are hardly any numbers left, which only a fault can bring about."""
        return self.largest > MAX_SEQUENCE - 2**40

    def count_anew(self) -> None:
        """Begin with the first number again, for another client."""
        self.largest, self._synced, self._taken = self._first, 0, 0

    def _expected(self) -> int:
        """The largest number that the service has to have seen; it may never see those that a gateway refused."""
        return max(self._taken, self._synced, max((one.number for one in self.outstanding.values()), default=0))

    def _operate(self, name: str) -> None:
        self.largest += 1
        register = name in self.intended
        if register:
            self.intended[name] = self.largest
        self.outstanding[name] = Operation(self.largest, register)
        self.unsent[name] = None

    def _confirm(self, name: str, registered: bool, *, always: bool = False) -> Changes:
        known = name in self._confirmed
        (self._confirmed.add if registered else self._confirmed.discard)(name)
        return [(name, registered)] if always or known != registered else []

    def _number(self, name: str) -> int:
        return max(self.intended[name], self._synced)

    def _forget(self, name: str) -> bool:
        if self.intended.pop(name, None) is None:
            return False
        if self.client is not None:
            self.digest = self.digest.minus(self.client, name)
        return True

    def _given_up(self) -> list[str]:
        """What the application has unregistered from, without an answer to that yet."""
        outstanding = {name for name, one in self.outstanding.items() if not one.register}
        return sorted(name for name in self._left | outstanding if name not in self.intended)

    def _end_sync(self) -> None:
        self.sync = None
        self.parts.clear()


def check_name(name: str) -> None:
    """Refuse what is no name of an object, where the application can see it."""
    if not isinstance(name, str):
        raise InvalidOption(f"an object's name is text, and not {name!r:.40}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidOption(f"object {name[:32]!r} is not valid UTF-8") from None
    if not 1 <= size <= MAX_OBJECT_BYTES:
        raise InvalidOption(f"object {name[:32]!r} has {size:,} bytes; it may have 1 to {MAX_OBJECT_BYTES:,}")


def _chunks(names: dict[str, int]) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for name in names:
        cost = len(json.dumps(name, ensure_ascii=False).encode()) + 1
        if some and (size + cost > _PART_BYTES or len(some) == MAX_ENTRIES):
            yield some
            some, size = [], 0
        some.append(name)
        size += cost
    yield some
