"""Whoever asks a process for its health is answered, beside others who ask for nothing."""

from __future__ import annotations

import contextlib
import http.client
import socket

import pytest

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


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:9464", 200), ("127.0.0.1", 200), ("[::1]:9464", 200), ("rebound.example", 421)]
)
def test_on_loopback_it_is_called_by_names_of_this_machine_alone(host: str, status: int) -> None:
    with MetricsServer("127.0.0.1", 0, [], list) as server:
        place, _, port = server.address.rpartition(":")
        connection = http.client.HTTPConnection(place, int(port), timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Host": host})
            assert connection.getresponse().status == status
