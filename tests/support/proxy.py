"""A TCP proxy that can be cut: stands between a process and ZooKeeper, say, and parts them without harming either."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Proxy:
    """Listens on a port of its own and passes everything on to `target`, until `cut`; and again after `heal`.

    After `freeze` the connections that are there stay, and nothing is passed on.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.accepted = 0  # connections, ever
        self.withheld = 0  # pieces of what clients said and was not passed on
        self._cut = False
        self._thawed = threading.Event()
        self._thawed.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Drop all connections, and every new one at once."""
        with self._lock:
            self._cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Pass nothing on, and tell nobody."""
        self._thawed.clear()

    def heal(self) -> None:
        with self._lock:
            self._cut = False
        self._thawed.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cut()
        self._thawed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else `accept` does not notice
        self._listener.close()
        self._accepting.join(timeout=5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                server = None
                if not self._cut:
                    with contextlib.suppress(OSError):
                        server = socket.create_connection(self._target, timeout=5)
                if server is None:
                    client.close()
                    continue
                server.settimeout(None)
                self._open |= {client, server}
                self.accepted += 1
            for source, sink in ((client, server), (server, client)):
                ends = (source, sink, source is client)
                threading.Thread(target=self._pass_on, args=ends, name="proxy-pass", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and not self._thawed.is_set():
                    self.withheld += 1
                self._thawed.wait()
                sink.sendall(data)
        with self._lock:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.discard(source)
        source.close()
