"""What a cluster keeps in ZooKeeper: a tree of values, with rights for each role.

```
/<root>/streams/<stream>        a stream's definition
/<root>/applications/<app>      an application's definition
/<root>/access                  who may do what: see `tidings.coordination.roles`
```

Values are small UTF-8 JSON with a `version` field, to be read by people in `zkCli`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from tidings.coordination.roles import ACCESS, AccessRules, top_places
from tidings.coordination.session import ZooKeeperSession
from tidings.errors import CoordinationDenied, ForeignValue
from tidings.identity.credentials import Credentials

VALUE_VERSION = 1

logger = logging.getLogger(__name__)


class Coordination(ZooKeeperSession):
    """A session, and a cluster's tree of JSON values in ZooKeeper."""

    denied: CoordinationDenied | None = None
    """Why the session has ended, if that is because the tree was closed, or its secret replaced."""
    _known_rules: AccessRules | None
    _stale = True
    _complaint = ""

    def _begin(self) -> None:
        self._client.add_listener(self._on_absence)
        self._stale = False
        self._known_rules = self._find_rules()

    @property
    def _rules(self) -> AccessRules | None:
        """Who may do what, as the tree says now: it may be closed, or its secret be replaced, while we run.

        If it says what makes no sense, which is told once, we go by what it said before.
        """
        if self._stale:
            self._stale = False
            try:
                self._known_rules, self._complaint = self._find_rules(), ""
            except BaseException as error:
                self._stale = True
                if not isinstance(error, ForeignValue):
                    raise
                if self._complaint != str(error):
                    logger.warning("the rights of roles stay as they are: %s", error)
                self._complaint = str(error)
        return self._known_rules

    def _on_absence(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._stale = True  # what was announced meanwhile was not heard

    def _on_rules(self, event: Any) -> None:
        self._stale = True

    @property
    def closed(self) -> bool:
        """Whether only those whom the cluster knows are let in; else everybody may do everything."""
        return self._rules is not None

    def ping(self) -> None:
        """Ask something of ZooKeeper's leader, and wait for the answer; end the session if we are not known any more.

        What we hold would stay ours, though we may not change it.
        """
        with self.translating_errors():
            self.wait(self._client.sync_async(self.root))
        self._stale = True  # who is not known any more is not told so by a watch
        try:
            self._rules  # noqa: B018 - which asks
        except CoordinationDenied as error:
            self.denied = error
            self._client.stop()
            raise

    def check_known(self) -> None:
        """Raise if the session has ended because we are not known any more."""
        if self.denied is not None:
            raise self.denied

    def found(self, pending: Any) -> tuple[bytes, Any] | None:
        """The answer to a `get`: the raw value and its stat, or None if there is no such place."""
        try:
            answer: tuple[bytes, Any] = self.wait(pending)
        except NoNodeError:
            return None
        return answer

    def path(self, *parts: str) -> str:
        """The full path of a place in the cluster's tree."""
        return "/".join((self.root, *parts))

    def read(self, *parts: str) -> dict[str, Any] | None:
        """The value at this place, or None if there is none."""
        return self._read(*parts)[0]

    def acl(self, *parts: str) -> list[ACL] | None:
        """The rights that a new node at this place has; None in a tree where everybody may do everything."""
        return self._rules.acl(parts) if self._rules else None

    def create(self, value: dict[str, Any], *parts: str, ephemeral: bool = False) -> bool:
        """Put a value where there is none; False, and nothing changed, if there is one.

        An ephemeral value goes away with the session.
        """
        return self._create(encode(value), parts, ephemeral=ephemeral)

    def claim(self, value: dict[str, Any], *parts: str, patience: float = 0.0, again: bool = False) -> bool:
        """Put an ephemeral value where only one may be; False if there is one that does not go.

        It may be that of a process which died a moment ago: so long a wait is `patience`. With `again`, what this very
        session has put there is ours: the connection may break between a deed and its answer.
        """
        deadline = time.monotonic() + patience
        while not self.create(value, *parts, ephemeral=True):
            gone = threading.Event()
            with self.translating_errors():
                there = self.wait(self._client.exists_async(self.path(*parts), watch=lambda _, gone=gone: gone.set()))
            ours = there is not None and there.owner_session_id == self._client.client_id[0]
            if ours and again:
                self.write(value, *parts)
            if ours:
                return again
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
        """Make a node, and those above it that are not there, each with its own rights."""
        with self.translating_errors():
            while True:
                try:
                    acl = self.acl(*parts)
                    self.wait(self._client.create_async(self.path(*parts), raw, acl, ephemeral=ephemeral))
                except NodeExistsError:
                    return False
                except NoNodeError:
                    if parts:
                        self._create(b"", parts[:-1])
                    else:  # what is above the root is not ours
                        self.wait(self._client.ensure_path_async(self.root.rpartition("/")[0]))
                else:
                    return True

    def _find_rules(self) -> AccessRules | None:
        """Who may do what here; None if the tree is open to everybody. A new tree is closed by who has the secret."""
        place = self.path(ACCESS)
        with self.translating_errors():
            try:
                found = self.found(self._client.get_async(place, watch=self._on_rules))
                if found is None and self.wait(self._client.exists_async(place, watch=self._on_rules)) is not None:
                    return self._find_rules()  # it was made this moment
            except NoAuthError:
                raise self._unknown_to_it() from None
            if found is not None:
                record = decode(place, found[0]) or {}
                if not self.credentials.known_to(record):  # somebody else has made the tree, for themselves
                    raise self._unknown_to_it()
                return AccessRules(record, self.credentials)
            if not self.credentials.passwords:
                return None
            if self.credentials.secrets and self.wait(self._client.exists_async(self.root)) is None:
                self._close_new_tree()
                return self._find_rules()
        return None

    def _unknown_to_it(self) -> CoordinationDenied:
        cure = "give the secret of the cluster, an application's key, or TIDINGS_ZOOKEEPER_CREDENTIALS"
        if self.credentials.passwords:
            cure = "what we show is another cluster's, was replaced, or is a secret where a key is meant, or a key"
        return CoordinationDenied(
            f"the cluster at {self.address} does not know us ({self.credentials.role}): {cure}; see `tidings keys`"
        )

    def _close_new_tree(self) -> None:
        """Make the tree of a new cluster, whole or not at all; another process may be first."""
        operator = Credentials.of_secrets(self.credentials.secrets)
        if operator.role != self.credentials.role:
            with contextlib.closing(self._as(operator)):
                return
        rules = AccessRules.of_secrets(operator)
        self.wait(self._client.ensure_path_async(self.root.rpartition("/")[0] or "/"))
        making = self._client.transaction()
        making.create(self.root, b"", rules.acl(()))
        for name in top_places():
            value = encode(rules.record()) if name == ACCESS else b""
            making.create(self.path(name), value, rules.acl((name,)))
        results = self.wait(making.commit_async())
        for result in results:
            if isinstance(result, KazooException) and not isinstance(result, NodeExistsError | RolledBackError):
                raise result

    def _as(self, credentials: Credentials) -> Coordination:
        return Coordination(self.address, session_timeout=self.session_timeout, credentials=credentials, tls=self._tls)

    def _read(self, *parts: str) -> tuple[dict[str, Any] | None, int]:
        with self.translating_errors():
            found = self.found(self._client.get_async(self.path(*parts)))
        return (None, -1) if found is None else (decode(self.path(*parts), found[0]), found[1].version)


def encode(value: dict[str, Any]) -> bytes:
    """A value as it is kept in ZooKeeper: JSON, with the version of its form."""
    return json.dumps({"version": VALUE_VERSION, **value}, ensure_ascii=False).encode()


def decode(path: str, raw: bytes) -> dict[str, Any] | None:
    """The value that `encode` wrote; None for a node that was made only to hold those below it."""
    if not raw:
        return None
    try:
        value: dict[str, Any] = json.loads(raw)
        del value["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ForeignValue(
            f"what ZooKeeper holds at {path} was not put there by tidings: mend it, or delete it"
        ) from None
    return value
