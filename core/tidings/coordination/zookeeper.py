"""The ZooKeeper session of a cluster, and where things are in its tree.

```
/<root>/streams/<stream>        a stream's definition
/<root>/applications/<app>      an application's definition
/<root>/access                  who may do what: see `tidings.coordination.roles`
```

Values are small UTF-8 JSON with a `version` field, to be read by people in `zkCli`. Nothing here blocks in a session
listener, and no kazoo error leaves this module: callers see `CoordinationUnavailable` or `CoordinationDenied`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadArgumentsError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Auth, Connect
from kazoo.security import ACL

from tidings.coordination.roles import ACCESS, AccessRules, top_places
from tidings.coordination.tls import TlsHandler, ZooKeeperTls
from tidings.errors import CoordinationDenied, CoordinationUnavailable, ForeignValue, InvalidName, InvalidOption
from tidings.hosts import is_loopback
from tidings.identity.credentials import ANONYMOUS, Credentials

DEFAULT_ROOT = "/tidings"
VALUE_VERSION = 1
_ADDRESS = re.compile(r"(?P<hosts>[^/,\s]+:\d+(,[^/,\s]+:\d+)*)(?P<root>(/[^/\s]+)*)/?")

# By kazoo's own rule a server that was away for a minute would be tried again a minute after it is back, or later.
RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}

logger = logging.getLogger(__name__)


def _shows_no_password(record: logging.LogRecord) -> bool:
    return not any(isinstance(one, Auth) for one in record.args or ())


logging.getLogger("kazoo.client").addFilter(_shows_no_password)  # which it logs as it sends it


def split_address(address: str) -> tuple[str, str]:
    """A cluster's address as ZooKeeper's hosts and the root of the cluster's tree.

    >>> split_address("zk1:2181,zk2:2181/prod")
    ('zk1:2181,zk2:2181', '/prod')
    >>> split_address("127.0.0.1:2181")
    ('127.0.0.1:2181', '/tidings')
    """
    match = _ADDRESS.fullmatch(address)
    if "@" in (match["hosts"] if match else address):  # never shown: what is before it may be a password
        raise InvalidOption(
            "a ZooKeeper address has no '@', and no user and password before it: the command line takes them from "
            "TIDINGS_ZOOKEEPER_CREDENTIALS, and `connect` as its `credentials`"
        )
    if not match or not _is_known_to_kazoo(match["hosts"]):
        raise InvalidOption(f"{address!r} is no ZooKeeper address: write host:port[,host:port…][/root]")
    return match["hosts"], match["root"] or DEFAULT_ROOT


def _is_known_to_kazoo(hosts: str) -> bool:
    try:
        collect_hosts(hosts)
    except ValueError:  # a port above 65535, say
        return False
    return True


class Coordination:
    """A ZooKeeper session, seen as a tree of JSON values.

    `timeout` is how long to wait for ZooKeeper at first; `session_timeout` is how long ZooKeeper waits for this process
    before it lets go of what the process holds. `credentials` say who we are. Without any, only a ZooKeeper of this
    machine is connected to, unless `insecure` says that more is meant.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        session_timeout: float = 10.0,
        credentials: Credentials = ANONYMOUS,
        tls: ZooKeeperTls | None = None,
        insecure: bool = False,
    ) -> None:
        self.hosts, self.root = split_address(address)
        self.address = self.hosts + self.root
        self.credentials = credentials
        self._tls = tls
        self._check_place(insecure)
        self.session_timeout = session_timeout
        """Seconds; once a session is there, what ZooKeeper has granted, which may be less than was asked for."""
        handler = TlsHandler(tls) if tls else None
        self._client = KazooClient(
            hosts=self.hosts,
            timeout=session_timeout,
            connection_retry=RECONNECT,
            auth_data=[("digest", one) for one in credentials.passwords],
            handler=handler,
            use_ssl=tls is not None,
        )
        self._note_granted_timeout()
        self._client.start_async().wait(timeout)
        if not self._client.connected:
            # A server that takes the connection and says nothing keeps kazoo for a session's time-out, but not us.
            closing = threading.Thread(target=self._give_up, name="tidings-give-up", daemon=True)
            closing.start()
            closing.join(1.0)
            raise CoordinationUnavailable(
                (handler.trouble if handler else None)
                or f"no ZooKeeper answers at {self.hosts} within {timeout:g} s; "
                "check the address, or start one with `tidings zookeeper`"
            )
        try:
            self._rules = self._find_rules()
        except BaseException:
            self._give_up()
            raise

    @property
    def client(self) -> KazooClient:
        """The kazoo client, for recipes; paths given to it start with `root`."""
        return self._client

    @property
    def closed(self) -> bool:
        """Whether only those whom the cluster knows are let in; else everybody may do everything."""
        return self._rules is not None

    @property
    def afterlife(self) -> float:
        """How many seconds ZooKeeper may take to notice that a process with a session like this one has died."""
        return 1.2 * self.session_timeout + 3.0

    def ping(self) -> None:
        """Ask something of ZooKeeper's leader, and wait for the answer."""
        with self.translating_errors():
            self.wait(self._client.sync_async(self.root))

    def wait(self, pending: Any) -> Any:
        """The answer to what was asked of kazoo, which by itself waits for as long as ZooKeeper is away.

        After a session's time-out that is an error: whoever is to end must not wait for it.
        """
        return pending.get(timeout=self.session_timeout)

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
            while True:
                try:
                    self._client.delete(self.path(*parts), recursive=True)
                except NoNodeError:
                    return False
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

    def close(self) -> None:
        """End the session: what it holds is let go at once."""
        self._client.stop()
        self._client.close()

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

    def _check_place(self, insecure: bool) -> None:
        """Raise if we would believe whatever a ZooKeeper says that anybody may write to."""
        remote = [host for host, _ in collect_hosts(self.hosts)[0] if not is_loopback(host)]
        if not remote:
            return
        if not self.credentials.passwords:
            if not insecure:
                raise InvalidOption(
                    f"the ZooKeeper at {self.hosts} is on another machine, and we have no credentials for it: set "
                    "TIDINGS_SECRET or TIDINGS_ZOOKEEPER_CREDENTIALS (see `tidings keys`), or say that anybody may "
                    "change what is there by `tidings --insecure`"
                )
            logger.warning("INSECURE: whoever reaches the ZooKeeper at %s may change everything there", self.hosts)
        elif self._tls is None:
            logger.warning(
                "the password for the ZooKeeper at %s travels in clear: name TLS's authority in "
                "TIDINGS_ZOOKEEPER_AUTHORITY",
                self.hosts,
            )

    def _find_rules(self) -> AccessRules | None:
        """Who may do what here; None if the tree is open to everybody. A new tree is closed by who has the secret."""
        place = self.path(ACCESS)
        with self.translating_errors():
            try:
                found = self.found(self._client.get_async(place))
            except NoAuthError:
                raise CoordinationDenied(
                    f"the cluster at {self.address} does not know us ({self.credentials.role}): give the secret of the "
                    "cluster, an application's key, or TIDINGS_ZOOKEEPER_CREDENTIALS; see `tidings keys`"
                ) from None
            if found is not None:
                return AccessRules(decode(place, found[0]) or {}, self.credentials)
            if not self.credentials.passwords:
                return None
            if self.credentials.secrets and self.wait(self._client.exists_async(self.root)) is None:
                self._close_new_tree()
                return self._find_rules()
        return None

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

    def _give_up(self) -> None:
        with contextlib.suppress(KazooException):
            self.close()

    def _note_granted_timeout(self) -> None:
        """Note the session's time-out as ZooKeeper grants it, each time, before anyone hears of the connection.

        A lease counts on it: with the longer one that was asked for, a process would believe in a session that is over.
        kazoo 2.11 has no listener and no attribute that tells it, only what is read here, where it asks for a session.
        """
        connection = self._client._connection
        invoke = connection._invoke

        def noting(timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0:  # else the session has expired
                self.session_timeout = answer[0].time_out / 1000
            return answer

        connection._invoke = noting

    def _read(self, *parts: str) -> tuple[dict[str, Any] | None, int]:
        with self.translating_errors():
            found = self.found(self._client.get_async(self.path(*parts)))
        return (None, -1) if found is None else (decode(self.path(*parts), found[0]), found[1].version)

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn kazoo's errors into ours."""
        try:
            yield
        except (NoAuthError, AuthFailedError):
            raise CoordinationDenied(
                f"ZooKeeper at {self.hosts} does not permit that below {self.root} to us ({self.credentials.role}); "
                "check the credentials"
            ) from None
        except BadArgumentsError:
            raise InvalidName(
                f"ZooKeeper at {self.hosts} does not take such a name; use printable characters"
            ) from None
        except (
            ConnectionLoss,
            ConnectionClosedError,
            OperationTimeoutError,
            SessionExpiredError,
            KazooTimeoutError,
        ) as error:
            raise CoordinationUnavailable(
                f"the session with ZooKeeper at {self.hosts} broke off ({type(error).__name__})"
            ) from None


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
