"""Who may do what in a cluster's tree, as it says there now: it may be closed, or its secret be replaced, while we run.

The rules are at `/<root>/access`: see `tidings.coordination.roles`. The first who makes something in a new tree, and
has the secret, closes it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from kazoo.exceptions import KazooException, NoAuthError, NodeExistsError, NoNodeError, RolledBackError
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from tidings.coordination.roles import ACCESS, AccessRules, top_places
from tidings.coordination.session import ZooKeeperSession
from tidings.coordination.values import decode, encode
from tidings.errors import CoordinationDenied, ForeignValue
from tidings.identity.credentials import Credentials

logger = logging.getLogger(__name__)


class GuardedSession(ZooKeeperSession):
    """A session that goes by the rights which a cluster's tree gives to each role."""

    denied: CoordinationDenied | None = None
    """Why the session has ended, if that is because the tree was closed, or its secret replaced."""
    _known_rules: AccessRules | None = None
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

    @property
    def is_there(self) -> bool:
        """Whether anything was ever made here."""
        with self.translating_errors():
            return self.wait(self._client.exists_async(self.root)) is not None

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

    def path(self, *parts: str) -> str:
        """The full path of a place in the cluster's tree."""
        return "/".join((self.root, *parts))

    def found(self, pending: Any) -> tuple[bytes, Any] | None:
        """The answer to a `get`: the raw value and its stat, or None if there is no such place."""
        try:
            answer: tuple[bytes, Any] = self.wait(pending)
        except NoNodeError:
            return None
        return answer

    def acl(self, *parts: str) -> list[ACL] | None:
        """The rights that a new node at this place has; None in a tree where everybody may do everything."""
        return self._rules.acl(parts) if self._rules else None

    def _find_rules(self) -> AccessRules | None:
        """Who may do what here; None if the tree is open to everybody, or is not there yet."""
        place = self.path(ACCESS)
        with self.translating_errors():
            try:
                found = None
                if self._known_rules is not None:
                    found = self.found(self._client.get_async(place, watch=self._on_rules))
                while found is None and self.wait(self._client.exists_async(place, watch=self._on_rules)) is not None:
                    found = self.found(self._client.get_async(place, watch=self._on_rules))
            except NoAuthError:
                raise self._unknown_to_it() from None
            if found is not None:
                record = decode(place, found[0]) or {}
                if not self.credentials.known_to(record):  # somebody else has made the tree, for themselves
                    raise self._unknown_to_it()
                return AccessRules(record, self.credentials)
        return None

    def _unknown_to_it(self) -> CoordinationDenied:
        cure = "give the secret of the cluster, an application's key, or TIDINGS_ZOOKEEPER_CREDENTIALS"
        if self.credentials.passwords:
            cure = "the secret, key or credentials given are of another cluster, were replaced, or are of another kind"
        return CoordinationDenied(
            f"the cluster at {self.address} does not know us ({self.credentials.role}): {cure}; see `tidings keys`"
        )

    def _close_new_tree(self) -> None:
        """Make the tree of a new cluster, whole or not at all; another process may be first."""
        operator = Credentials.of_secrets(self.credentials.secrets)
        if operator.role != self.credentials.role:
            other = GuardedSession(
                self.address, session_timeout=self.session_timeout, credentials=operator, tls=self._tls
            )
            with contextlib.closing(other):
                other._close_new_tree()
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
