"""Ports and readiness: which port the embedded ZooKeeper can have, and whether it is the one that answers there."""

from __future__ import annotations

import errno
import posixpath
import re
import socket

from tidings.errors import EmbeddedFailed


class PortTaken(Exception):
    """Someone else listens on the port that was chosen."""


def usable_port(host: str, port: int) -> int:
    """`port`, if one can listen on it, or a free one if it is 0."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZooKeeper does
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken from None
        raise EmbeddedFailed(
            f"the embedded ZooKeeper cannot listen on {host}, port {port}: {error.strerror}; choose another host or "
            "port"
        ) from None


def data_folder(host: str, port: int, patience: float) -> bytes | None:
    """Which folder the server at the port serves: None if there is no server, or if it does not serve yet."""
    answer, match = b"", None
    try:
        with socket.create_connection((host, port), timeout=patience) as connection:
            connection.sendall(b"conf")
            while not match and (chunk := connection.recv(4096)):
                answer += chunk
                match = re.search(rb"^dataDir=(.*)\n", answer, re.MULTILINE)
    except TimeoutError:
        raise
    except OSError:
        return None
    return plain(match[1]) if match else None


def plain(path: bytes) -> bytes:
    """The path as far as it survives any locale of the JVM: what is not plain ASCII may come back as question marks."""
    return re.sub(rb"[^!->@-~]+", b"?", posixpath.normpath(path))
