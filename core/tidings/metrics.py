"""What Prometheus and a load balancer ask of a process: `/metrics`, `/health/live` and `/health/ready`.

Nothing is served unless a server is made, and then on loopback unless another address is named.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidings.errors import InvalidOption
from tidings.hosts import is_loopback
from tidings.texts import printable

LOOPBACK = "127.0.0.1"
PROGRESS_TIMEOUT_S = 60.0  # after which what has work and makes no progress is not ready
MAX_REASONS = 20  # of one kind that are told
MAX_REQUESTS, REQUEST_S = 32, 10.0  # at a time, and for how long each
ROOM_S = 1.0  # for one that is cut off to make room for another

_ADDRESS = re.compile(r"(?:(?P<host>[^:\s]+|\[[0-9A-Fa-f:.]+\])?:)?(?P<port>\d{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Where to listen.

    >>> parse_address("9464"), parse_address("0.0.0.0:9464"), parse_address("[::1]:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464), ('::1', 9464))
    """
    match = _ADDRESS.fullmatch(text)
    if not match or int(match["port"]) > 65_535:
        raise InvalidOption(f"{text!r} is no address to listen at: write a port, or host:port, as in 127.0.0.1:9464")
    return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])


class Build(Collector):
    """Says which tidings this is."""

    def collect(self) -> list[InfoMetricFamily]:
        """One series, whose label is the version."""
        return [InfoMetricFamily("tidings", "The framework.", {"version": version("tidings")})]


Reasons = Callable[[], Sequence[str]]
"""Says what is wrong, a reason a line; nothing if nothing is."""


def brief(reasons: Sequence[str], what: str) -> list[str]:
    """So many of the reasons as somebody reads, and how many more there are.

    >>> brief(["a", "b"], "flows"), brief([str(number) for number in range(22)], "flows")[-1]
    (['a', 'b'], 'and 2 more flows')
    """
    more = len(reasons) - MAX_REASONS
    return [*reasons[:MAX_REASONS], *([f"and {more:,} more {what}"] if more > 0 else [])]


class ReadyGauge(Collector):
    """Says whether the process is ready, for those who alert on metrics alone."""

    def __init__(self, unready: Reasons) -> None:
        self._unready = unready

    def collect(self) -> list[GaugeMetricFamily]:
        """One series: 1 or 0."""
        about = "1 while the process is ready; /health/ready says why it is not."
        return [GaugeMetricFamily("tidings_ready", about, value=not self._unready())]


class MetricsServer:
    """Serves what the collectors say. A context manager; `close` ends it.

    `unready` says why the process is not ready, and `dead` why it never will be, unless it is started anew.
    """

    def __init__(
        self, host: str, port: int, collectors: Sequence[Collector], unready: Reasons, *, dead: Reasons = list
    ) -> None:
        registry = CollectorRegistry()
        for collector in (Build(), ReadyGauge(unready), *collectors):
            registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            self._server = _MetricsHttpServer((host, port), registry, unready, dead)
        except OSError as error:
            raise InvalidOption(f"nothing can be served at {host}:{port}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="tidings-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def encoder_for(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """How to write metrics for who accepts this, and what that is called; plain text for who makes no sense.

    >>> encoder_for("text/plain; version")[1] == encoder_for("")[1]
    True
    """
    try:
        return choose_encoder(accept)
    except Exception:  # noqa: BLE001 - it is parsed as it comes, and may be anything
        return choose_encoder("")


class _MetricsHttpServer(ThreadingHTTPServer):
    """Serves so many requests at a time, each for so long, and no more."""

    daemon_threads = True
    request_queue_size = 128  # of connections that wait to be accepted: five, as it is by itself, are soon taken

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, unready: Reasons, dead: Reasons) -> None:
        self.registry = registry
        self.unready, self.dead = unready, dead
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._room = threading.BoundedSemaphore(MAX_REQUESTS)
        self._unread: dict[socket.socket, None] = {}  # those of which not all has come yet, the oldest first
        super().__init__(address, _MetricsRequestHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own. If there is no room, the oldest of which not all has come yet gives way."""
        if not self._room.acquire(blocking=False):
            if oldest := next(iter(list(self._unread)), None):
                _cut_off(oldest)
            if not self._room.acquire(timeout=ROOM_S):
                self.shutdown_request(request)
                return
        self._unread[request] = None
        super().process_request(request, client_address)

    def is_called(self, host: str) -> bool:
        """Whether a browser may call it by this name: where it listens on loopback, no page of others can reach it."""
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        return not is_loopback(str(self.server_address[0])) or is_loopback(name.strip("[]").lower())

    def note_read(self, request: Any) -> None:
        """All of a request has come."""
        self._unread.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it, and cut off who sends it too slowly."""
        late = threading.Timer(REQUEST_S, _cut_off, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self.note_read(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away in the midst of an answer is no event."""


def _cut_off(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsRequestHandler(BaseHTTPRequestHandler):
    server: _MetricsHttpServer
    timeout = 10  # seconds; a client that says nothing does not keep a thread

    def do_GET(self) -> None:
        self.server.note_read(self.connection)
        if not self.server.is_called(self.headers.get("Host", "localhost")):
            self._respond(421, "this is served to this machine alone, by its own names")
            return
        match self.path.partition("?")[0]:
            case "/metrics":
                encode, kind = encoder_for(self.headers.get("Accept", ""))
                self._answer(200, kind, encode(self.server.registry))
            case "/health/live":
                self._judge(self.server.dead(), "alive")
            case "/health/ready":
                self._judge(self.server.unready(), "ready")
            case _:
                self._respond(404, "there are /metrics, /health/live and /health/ready")

    do_HEAD = do_GET  # noqa: N815 - likewise

    def _judge(self, reasons: Sequence[str], well: str) -> None:
        self._respond(503 if reasons else 200, "\n".join(map(printable, reasons)) or well)

    def _respond(self, code: int, text: str) -> None:
        self._answer(code, "text/plain; charset=utf-8", f"{text}\n".encode())

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "tidings"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: each scrape would be a line."""
