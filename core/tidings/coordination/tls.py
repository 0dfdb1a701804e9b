"""TLS to ZooKeeper: its certificate is checked, and that it is the host which was asked for."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.coordination.polling import PollingHandler
from tidings.errors import InvalidOption
from tidings.identity.environment import file_in


@dataclass(frozen=True)
class ZooKeeperTls:
    """How ZooKeeper is known, by files in PEM.

    `authority` is the certificate that signed ZooKeeper's; `certificate` and `key` are ours, if ZooKeeper wants one.
    """

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidOption("TLS to ZooKeeper needs both a certificate and its key")
        self.context()

    def context(self) -> ssl.SSLContext:
        """What trusts ZooKeeper."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
        except (ssl.SSLError, OSError):
            raise InvalidOption(f"{str(self.authority)!r} is no certificate in PEM, for TLS to ZooKeeper") from None
        if self.certificate is not None and self.key is not None:
            try:
                # A key that is encrypted is refused, and its password not asked for.
                context.load_cert_chain(self.certificate, self.key, password="")
            except (ssl.SSLError, OSError):
                pair = f"{str(self.certificate)!r} and {str(self.key)!r}"
                raise InvalidOption(f"{pair} are no certificate in PEM with its key, for TLS to ZooKeeper") from None
        return context


def tls_of_environment() -> ZooKeeperTls | None:
    """How ZooKeeper is known, as the environment of this process says; None if by nothing."""
    names = ("TIDINGS_ZOOKEEPER_AUTHORITY", "TIDINGS_ZOOKEEPER_CERTIFICATE", "TIDINGS_ZOOKEEPER_KEY")
    authority, certificate, key = map(file_in, names)
    if authority is None and (certificate or key):
        raise InvalidOption("TLS to ZooKeeper needs TIDINGS_ZOOKEEPER_AUTHORITY, the certificate that signed its own")
    return ZooKeeperTls(authority, certificate, key) if authority else None


class NotingHandler(PollingHandler):
    """How kazoo connects, with a note of who refuses it: kazoo only tries again."""

    def __init__(self) -> None:
        super().__init__()
        self._refused: dict[Any, bool] = {}

    @property
    def refused(self) -> bool:
        """Whether nobody listens at any of the addresses, as far as they were tried."""
        return bool(self._refused) and all(self._refused.values())

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """A connection to a server."""
        try:
            made = self._connection(*args, **kwargs)
        except OSError as error:
            self._refused[kwargs["address"]] = isinstance(error, ConnectionRefusedError)
            raise
        self._refused[kwargs["address"]] = False
        return made

    def _connection(self, *args: Any, **kwargs: Any) -> Any:
        return super().create_connection(*args, **kwargs)


class TlsHandler(NotingHandler):
    """How kazoo connects by TLS. By itself it would trust every authority that the machine does, beside ours."""

    def __init__(self, tls: ZooKeeperTls) -> None:
        super().__init__()
        self._context = tls.context()
        self.trouble: str | None = None
        """Why a server was not to be trusted: kazoo only tries again."""

    def _connection(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """A connection to a server that is the one which was asked for."""
        address, name = kwargs["address"], kwargs["hostname"]
        plain = socket.create_connection(address, kwargs["timeout"])
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            secured = self._context.wrap_socket(plain, server_hostname=name)
        except OSError as error:
            plain.close()
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
            self.trouble = f"the ZooKeeper at {name}:{address[1]} is not to be trusted: {reason}"
            raise
        self.trouble = None
        return secured

    def select(self, *args: Any, **kwargs: Any) -> Any:
        """As `select`, and at once if an answer is here that TLS has read from the socket already."""
        ready = [one for one in args[0] if isinstance(one, ssl.SSLSocket) and one.pending()]
        return (ready, [], []) if ready else super().select(*args, **kwargs)
