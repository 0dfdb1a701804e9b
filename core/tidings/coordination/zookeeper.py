"""What a cluster keeps in ZooKeeper: a tree of values, with rights for each role.

```
/<root>/streams/<stream>        a stream's definition
/<root>/applications/<app>      an application's definition
/<root>/access                  who may do what: see `tidings.coordination.roles`
```

Values are those of `tidings.coordination.values`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnimplementedError,
)
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.retry import KazooRetry

from tidings.coordination.access import GuardedSession
from tidings.coordination.multi_read import MultiRead, SetWatches, Watch, split
from tidings.coordination.values import decode, encode
from tidings.errors import CoordinationDenied

logger = logging.getLogger(__name__)


class Node(NamedTuple):
    """A place in the tree as it was read: the raw value, and ZooKeeper's stat of it."""

    raw: bytes
    stat: Any


class Coordination(GuardedSession):
    """A session, and a cluster's tree of JSON values in ZooKeeper."""

    _reads_many = True  # until a server says that it is too old for that

    def read(self, *parts: str) -> dict[str, Any] | None:
        """The value at this place, or None if there is none."""
        return self._read(*parts)[0]

    def read_many(self, places: Sequence[Sequence[str]]) -> list[Node | CoordinationDenied | None]:
        """What is at each of these places, in few requests: None if it is not there, an error if we may not read it."""
        answers = self._ask_many([GetData(self.path(*place), None) for place in places])
        return [one if one is None or isinstance(one, CoordinationDenied) else Node(*one) for one in answers]

    def children_of_many(self, places: Sequence[Sequence[str]]) -> list[list[str] | CoordinationDenied | None]:
        """The names below each of these places, in few requests: None if one is not there, an error if forbidden."""
        answers = self._ask_many([GetChildren(self.path(*place), None) for place in places])
        return [sorted(one) if isinstance(one, list) else one for one in answers]

    def watch_many(self, there: Mapping[str, Watch], missing: Mapping[str, Watch]) -> list[tuple[list[str], Any]]:
        """Begin to watch and read nodes, by their paths, in few requests: paths, and the answers that are to come.

        Those answers are `MultiRead`'s. A watch is also called if one of `there` is not there, or one of `missing` is.
        """
        asked = []
        for part in split([GetData(path, None) for path in (*there, *missing)]):
            paths = [one.path for one in part]
            watches = ({path: kind[path] for path in paths if path in kind} for kind in (there, missing))
            self._call(SetWatches(self._client, *watches))
            if self._reads_many:
                asked.append((paths, self._call(MultiRead(part))))
            else:
                asked += [([one.path], self._listed(self._call(one))) for one in part]
        return asked

    def reads_one_by_one(self) -> None:
        """The server has said that it does not know `MultiRead`."""
        self._reads_many = False

    def _listed(self, pending: Any) -> Any:
        """One read's answer as `MultiRead` has it."""
        listed = self._client.handler.async_result()
        pending.rawlink(lambda one: listed.set([one.value if one.successful() else one.exception]))
        return listed

    def _ask_many(self, reads: Sequence[GetData | GetChildren]) -> list[Any]:
        """The answers to reads, all asked for before the first is waited for."""
        with self.translating_errors():
            found = None
            if self._reads_many:
                asked = [self._call(MultiRead(part)) for part in split(reads)]
                try:
                    found = [one for pending in asked for one in self.wait(pending)]
                except UnimplementedError:
                    self.reads_one_by_one()
            if found is None:  # ZooKeeper 3.5, which also hangs up on who has asked for that
                found = KazooRetry(max_tries=3)(self._ask_one_by_one, reads)
            answers = [None if isinstance(one, NoNodeError) else one for one in found]
            for one in answers:
                if isinstance(one, KazooException) and not isinstance(one, NoAuthError):
                    raise one
            return [self._forbidden() if isinstance(one, NoAuthError) else one for one in answers]

    def _ask_one_by_one(self, reads: Sequence[GetData | GetChildren]) -> list[Any]:
        return [self._answer(pending) for pending in [self._call(one) for one in reads]]

    def _call(self, request: Any) -> Any:
        """Send a request by itself; what is returned waits for the answer."""
        pending = self._client.handler.async_result()
        self._client._call(request, pending)
        return pending

    def _answer(self, pending: Any) -> Any:
        """The answer to one read, or the error that it has met and others have not."""
        try:
            return self.wait(pending)
        except (NoNodeError, NoAuthError) as error:
            return error

    def create(self, value: dict[str, Any], *parts: str, ephemeral: bool = False) -> bool:
        """Put a value where there is none; False, and nothing changed, if there is one.

        An ephemeral value goes away with the session.
        """
        return self._create(encode(value), parts, ephemeral=ephemeral)

    def append(self, value: dict[str, Any], *parts: str) -> str:
        """Put a value at a new place, whose name is the last of these and the next number; that name."""
        with self.translating_errors():
            while True:
                try:
                    making = self._client.create_async(
                        self.path(*parts), encode(value), self.acl(*parts), sequence=True
                    )
                    made: str = self.wait(making)
                except NoNodeError:
                    self._create(b"", parts[:-1])
                except NodeExistsError:  # by hand: let the number pass, which whatever is made next gets
                    passed = self._client.create_async(f"{self.path(*parts)}passed-", b"", sequence=True)
                    self.wait(self._client.delete_async(self.wait(passed)))
                else:
                    return made.rpartition("/")[2]

    def claim(self, value: dict[str, Any], *parts: str, patience: float = 0.0, again: bool = False) -> bool:
        """Put an ephemeral value where only one may be; False if there is one that does not go.

        It may be that of a process which died a moment ago: so long a wait is `patience`. With `again`, what this very
        session has put there is ours: the connection may break between a deed and its answer.
        """
        deadline, told = time.monotonic() + patience, not patience
        while not self.create(value, *parts, ephemeral=True):
            gone = threading.Event()
            with self.translating_errors():
                there = self.wait(self._client.exists_async(self.path(*parts), watch=lambda _, gone=gone: gone.set()))
            ours = there is not None and there.owner_session_id == self._client.client_id[0]
            if ours and again:
                self.write(value, *parts)
            if ours:
                return again
            if there is not None and not told:
                told = True
                what = "%s is another process's; waits %.0f s at most for the session of that one to end"
                logger.warning(what, "/".join(parts), patience)
            if there is not None and not gone.wait(max(0.0, deadline - time.monotonic())):
                return False
        return True

    def release(self, *parts: str) -> bool:
        """Take away what this session has claimed; False, and nothing changed, if it is another's or not there."""
        with self.translating_errors():
            there = self.wait(self._client.exists_async(self.path(*parts)))
            if there is None or there.owner_session_id != self._client.client_id[0]:
                return False
            with contextlib.suppress(NoNodeError):
                self.wait(self._client.delete_async(self.path(*parts)))
        return True

    def write(self, value: dict[str, Any], *parts: str) -> None:
        """Put a value, whether there is one or not."""
        if not self.create(value, *parts):
            with self.translating_errors():
                self.wait(self._client.set_async(self.path(*parts), encode(value)))

    def replace(self, value: dict[str, Any], before: dict[str, Any] | None, *parts: str) -> bool:
        """Put a value, if what is there is still `before`; False, and nothing changed, if it is not."""
        known, version = self._read(*parts)
        if known != before:
            return False
        with self.translating_errors():
            try:
                self.wait(self._client.set_async(self.path(*parts), encode(value), version))
            except (BadVersionError, NoNodeError):
                return False
        return True

    def create_path(self, *parts: str) -> None:
        """Make sure that there is a place, to put others below."""
        self._create(b"", parts)

    def clear(self, *parts: str) -> None:
        """Take the value away, and leave the place with all below it."""
        with self.translating_errors():
            self.wait(self._client.set_async(self.path(*parts), b""))

    def delete(self, *parts: str) -> bool:
        """Delete this place with all below it; False if it is not there."""
        with self.translating_errors():
            if self.wait(self._client.exists_async(self.path(*parts))) is None:
                return False
            while True:
                try:
                    self._client.delete(self.path(*parts), recursive=True)
                except NotEmptyError:
                    continue  # someone has put something there meanwhile
                return True

    def children(self, *parts: str) -> list[str]:
        """The names below this place; none if it is not there."""
        with self.translating_errors():
            try:
                return sorted(self.wait(self._client.get_children_async(self.path(*parts))))
            except NoNodeError:
                return []

    def _create(self, raw: bytes, parts: tuple[str, ...], *, ephemeral: bool = False) -> bool:
        """Make a node, and those above it that are not there, each with its own rights.

        A new tree is closed by the first who makes something in it and has the secret. Who only looks makes nothing.
        """
        with self.translating_errors():
            while True:
                try:
                    acl = self.acl(*parts)
                    self.wait(self._client.create_async(self.path(*parts), raw, acl, ephemeral=ephemeral))
                except NodeExistsError:
                    return False
                except NoNodeError:
                    if self.credentials.secrets and self._rules is None and not self.is_there:
                        self._close_new_tree()
                        self._stale = True
                    elif parts:
                        self._create(b"", parts[:-1])
                    else:  # what is above the root is not ours
                        self.wait(self._client.ensure_path_async(self.root.rpartition("/")[0]))
                else:
                    return True

    def _read(self, *parts: str) -> tuple[dict[str, Any] | None, int]:
        with self.translating_errors():
            found = self.found(self._client.get_async(self.path(*parts)))
        return (None, -1) if found is None else (decode(self.path(*parts), found[0]), found[1].version)
