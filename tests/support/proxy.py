"""A TCP proxy that can be cut: stands between a process and ZooKeeper, say, and parts them without harming either."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Proxy:
    """Listens on a port, by itself on a free one, and passes all on to `target`, until `cut`; and again after `heal`.

    After `freeze` the connections that are there stay, and nothing is passed on; after `mute`, no answer is.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        host, _, its_port = target.rpartition(":")
        self._target = (host, int(its_port))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.accepted = 0  # connections, ever
        self.withheld = 0  # pieces of what clients said and was not passed on
        self._cut = False
        self._asking, self._answering = threading.Event(), threading.Event()  # which way is open
        self._thaw()
        self._listener = socket.create_server(("127.0.0.1", port))
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
        self._asking.clear()
        self._answering.clear()

    def mute(self) -> None:
        """Pass on what clients say, and nothing that they are answered."""
        self._answering.clear()

    def heal(self) -> None:
        with self._lock:
            self._cut = False
        self._thaw()

    def _thaw(self) -> None:
        self._asking.set()
        self._answering.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cut()
        self._thaw()
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
            for way in ((client, server, self._asking), (server, client, self._answering)):
                threading.Thread(target=self._pass_on, args=way, name="proxy-pass", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_open: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_open is self._asking and not is_open.is_set():
                    self.withheld += 1
                is_open.wait()
                sink.sendall(data)
        with self._lock:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.discard(source)
        source.close()
