"""A session with ZooKeeper: who we are there, how long it lives, and whom we believe.

No kazoo error leaves it: callers see `CoordinationUnavailable` or `CoordinationDenied`. Nothing here blocks in a
listener of the session.
"""

from __future__ import annotations

import contextlib
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
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Auth, Connect
from kazoo.protocol.states import KazooState

from tidings.coordination.tls import NotingHandler, TlsHandler, ZooKeeperTls
from tidings.errors import CoordinationDenied, CoordinationUnavailable, InvalidName, InvalidOption
from tidings.hosts import is_loopback
from tidings.identity.credentials import ANONYMOUS, Credentials

DEFAULT_ROOT = "/tidings"
_ADDRESS = re.compile(r"(?P<hosts>[^/,\s]+:\d+(,[^/,\s]+:\d+)*)(?P<root>(/[^/\s]+)*)/?")

# By kazoo's own rule a server that was away for a minute would be tried again a minute after it is back, or later.
RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0}
REFUSED_TOLD_S = 1.0  # after which it is told that nobody listens, though one that starts is waited for

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
    if not match or not _is_known_to_kazoo(match["hosts"]) or {".", ".."} & set(match["root"].split("/")):
        raise InvalidOption(f"{address!r} is no ZooKeeper address: write host:port[,host:port…][/root]")
    return match["hosts"], match["root"] or DEFAULT_ROOT


def _is_known_to_kazoo(hosts: str) -> bool:
    try:
        collect_hosts(hosts)
    except ValueError:  # a port above 65535, say
        return False
    return True


class ZooKeeperSession:
    """A session with ZooKeeper.

    `timeout` is how long to wait for ZooKeeper at first, `refused_timeout` how long if nobody listens at its addresses:
    a server that starts would listen soon. Where the latter is not said, it is logged soon that nobody listens.
    `session_timeout` is how long ZooKeeper waits for this process before it lets go of what the process holds.
    `credentials` say who we are. Without any, only a ZooKeeper of this machine is connected to, unless `insecure` says
    that more is meant.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = 10.0,
        refused_timeout: float | None = None,
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
        handler = TlsHandler(tls) if tls else NotingHandler()
        self._client = KazooClient(
            hosts=self.hosts,
            timeout=session_timeout,
            connection_retry=RECONNECT,
            auth_data=[("digest", one) for one in credentials.passwords],
            handler=handler,
            use_ssl=tls is not None,
        )
        self._note_granted_timeout()
        self._take_early_refusals()
        self._away_since: float | None = None
        self.reconnects = self.expired = 0
        """How often ZooKeeper came back, and how often the session was over by then."""
        self._client.add_listener(self._tell_of_absence)
        started = self._client.start_async()
        soon = min(timeout, REFUSED_TOLD_S if refused_timeout is None else refused_timeout)
        started.wait(soon)
        if not self._client.connected and soon < timeout and (refused_timeout is None or not handler.refused):
            if handler.refused:
                logger.warning("%s: it is waited for, up to %g s", self._refusal("or start one"), timeout)
            started.wait(timeout - soon)
        if not self._client.connected:
            # A server that takes the connection and says nothing keeps kazoo for a session's time-out, but not us.
            threading.Thread(target=self._give_up, name="tidings-give-up", daemon=True).start()
            raise CoordinationUnavailable(self._no_answer(handler, timeout))
        try:
            self._begin()
        except BaseException:
            self._give_up()
            raise

    @property
    def client(self) -> KazooClient:
        """The kazoo client, for recipes; paths given to it start with `root`."""
        return self._client

    @property
    def away_seconds(self) -> float:
        """How long ZooKeeper has been away; 0 while it is there."""
        since = self._away_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def afterlife(self) -> float:
        """How many seconds ZooKeeper may take to notice that a process with a session like this one has died."""
        return 1.2 * self.session_timeout + 3.0

    def wait(self, pending: Any) -> Any:
        """The answer to what was asked of kazoo, which by itself waits for as long as ZooKeeper is away.

        After a session's time-out that is an error: whoever is to end must not wait for it.
        """
        return pending.get(timeout=self.session_timeout)

    def close(self) -> None:
        """End the session: what it holds is let go at once."""
        self._client.remove_listener(self._tell_of_absence)
        self._client.stop()
        self._client.close()

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

    def _refusal(self, start: str) -> str:
        told = f"no ZooKeeper answers at {self.hosts}: nobody listens there; check the address, "
        return f"{told}{start} with `tidings zookeeper`"

    def _no_answer(self, handler: NotingHandler, timeout: float) -> str:
        if handler.refused:
            return f"{self._refusal('start one')}, or wait for one that starts, by --timeout"
        told = f"no ZooKeeper answers at {self.hosts} within {timeout:g} s; check the address, or "
        if isinstance(handler, TlsHandler):
            return handler.trouble or f"{told}whether it wants a certificate of ours (TIDINGS_ZOOKEEPER_CERTIFICATE)"
        return f"{told}whether it speaks TLS (TIDINGS_ZOOKEEPER_AUTHORITY), or start one with `tidings zookeeper`"

    def _begin(self) -> None:
        """What is asked first."""

    def _give_up(self) -> None:
        with contextlib.suppress(KazooException):
            self.close()

    def _tell_of_absence(self, state: str) -> None:
        """Log once that ZooKeeper is away, and once that it is back."""
        if state == KazooState.CONNECTED:
            if self._away_since is not None:
                self.reconnects += 1
                logger.warning("ZooKeeper at %s is back after %.1f s", self.hosts, time.monotonic() - self._away_since)
            self._away_since = None
        elif self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("ZooKeeper at %s is away", self.hosts)
        if state == KazooState.LOST:
            self.expired += 1

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

    def _take_early_refusals(self) -> None:
        """Give a refusal to the request that it answers, though earlier ones are not answered yet.

        ZooKeeper answers in order, but for a request that it does not know: it refuses that at once. For kazoo 2.11 an
        answer that is not the next one is the end of its thread, and so of the session, for good.
        """
        connection = self._client._connection
        read = connection._read_response

        def reading(header: Any, buffer: bytes, offset: int) -> Any:
            pending = self._client._pending  # another one in each session
            asked = next((one for one in pending if one[2] == header.xid), None)
            if asked is None:
                raise ConnectionDropped(f"an answer to nothing that was asked ({header.xid})")
            if asked is not pending[0]:
                pending.remove(asked)
                pending.appendleft(asked)
            return read(header, buffer, offset)

        connection._read_response = reading

    def _forbidden(self) -> CoordinationDenied:
        return CoordinationDenied(
            f"ZooKeeper at {self.hosts} does not permit that below {self.root} to us ({self.credentials.role}); "
            "check the credentials"
        )

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn kazoo's errors into ours."""
        try:
            yield
        except (NoAuthError, AuthFailedError):
            raise self._forbidden() from None
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
