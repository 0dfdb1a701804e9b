"""One who plays a database, and keeps all that is said to it: with a certificate over TLS, and else in clear."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from types import TracebackType

from tests.support.certificates import Certificate

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
MYSQL_TLS = 0x800
MYSQL_FLAGS = 0x1 | 0x200 | 0x8000 | 0x80000  # passwords of 20 bytes, protocol 4.1, and plugins for others


class FalseDatabase(ABC):
    """Listens on 127.0.0.1. `heard` is what came after the question for TLS: a name, a password, a query."""

    def __init__(self, certificate: Certificate | None = None) -> None:
        self._tls = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*certificate)
        self.heard = b""
        self.came = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._serving = threading.Thread(target=self._serve, name="false-database", daemon=True)

    def __enter__(self) -> FalseDatabase:
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._serving.join(10)

    @abstractmethod
    def _talk(self, peer: socket.socket) -> None:
        """Ask one who has come for the password, in clear."""

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.came += 1
            with peer, contextlib.suppress(OSError):
                peer.settimeout(5)
                self._talk(peer)

    def _wrapped(self, peer: socket.socket) -> socket.socket:
        assert self._tls is not None
        return self._tls.wrap_socket(peer, server_side=True)

    def _hear(self, peer: socket.socket) -> None:
        self.heard += peer.recv(65536)


class FalsePostgres(FalseDatabase):
    def _talk(self, peer: socket.socket) -> None:
        while (first := peer.recv(65536))[4:8] in (struct.pack("!i", SSL_REQUEST), struct.pack("!i", GSS_REQUEST)):
            if self._tls is None or first[4:8] == struct.pack("!i", GSS_REQUEST):
                peer.sendall(b"N")
            else:
                peer.sendall(b"S")
                peer = self._wrapped(peer)
        self.heard += first
        peer.sendall(b"R" + struct.pack("!ii", 8, 3))
        self._hear(peer)


class FalseMariadb(FalseDatabase):
    def _talk(self, peer: socket.socket) -> None:
        flags = MYSQL_FLAGS | (MYSQL_TLS if self._tls else 0)
        greeting = b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 1) + b"saltsalt\0" + struct.pack("<H", flags & 0xFFFF)
        greeting += struct.pack("<BHHB", 45, 2, flags >> 16, 21) + bytes(10) + b"saltsaltsalt\0mysql_native_password\0"
        peer.sendall(self._packet(0, greeting))
        if self._tls is not None:
            length = peer.recv(4)
            self.heard += peer.recv(length[0])
            peer = self._wrapped(peer)
        self._hear(peer)
        peer.sendall(self._packet(3 if self._tls else 2, b"\xfemysql_clear_password\0"))
        self._hear(peer)

    def _packet(self, number: int, body: bytes) -> bytes:
        return struct.pack("<I", len(body))[:3] + bytes([number]) + body
