"""Whoever asks a process for its health is answered, beside others who ask for nothing."""

from __future__ import annotations

import contextlib
import http.client
import socket

from tidings.metrics import MAX_REQUESTS, MetricsServer


def test_half_requests_keep_nobody_from_an_answer() -> None:
    with MetricsServer("127.0.0.1", 0, [], list) as server, contextlib.ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        for _ in range(3 * MAX_REQUESTS):
            half = stack.enter_context(socket.create_connection((host, int(port))))
            half.sendall(b"GET /health/live HTTP/1.1\r\nX-Slow: ")
        for _ in range(5):
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            with contextlib.closing(connection):
                connection.request("GET", "/health/live")
                assert connection.getresponse().status == 200
