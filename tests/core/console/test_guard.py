"""What every request has to pass, and what every answer has."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from tests.support.console_client import Browser, ConsoleThread
from tests.support.console_scene import OPERATOR
from tidings.cluster import Cluster
from tidings.console.guard import CONTENT_SECURITY_POLICY, MAX_LOGGED, HostNames
from tidings.console.options import ConsoleOptions
from tidings.console.page_files import PAGES
from tidings.testing import eventually


def check_headers(headers: dict[str, str]) -> None:
    assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Server"] == "tidings"
    assert headers["Cache-Control"] in ("no-store", "no-cache")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/me", 200),
        ("GET", "/api/nothing", 404),
        ("GET", "/nothing.html", 404),
        ("GET", "/api/flows?state=lost", 400),
        ("GET", "/api/flows?page=x", 400),
        ("GET", "/api/flows?size=1001", 400),
        ("GET", "/api/flows/cache/contacts/x", 404),
        ("GET", "/api/flows/cache/contacts/99", 404),
        ("GET", "/api/streams/nothing", 404),
        ("GET", "/api/streams/nothing/records", 404),
        ("GET", "/api/streams/contacts/records?filter=(", 400),
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 200),
        ("GET", "/metrics", 200),
        ("POST", "/api/flows", 405),
        ("POST", "/api/actions/preview", 400),
        ("POST", "/api/actions/execute", 409),
        ("DELETE", "/api/me", 403),
        ("GET", "/%2e%2e/server.py", 404),
        ("GET", "/../server.py", 404),
        ("GET", "/..%2fserver.py", 404),
        ("GET", "/%00.html", 404),
    ],
)
def test_every_answer_has_the_headers(operator: Browser, method: str, path: str, status: int) -> None:
    reply = operator.request(method, path, b"{}" if method == "POST" else None)
    assert reply.status == status
    check_headers(reply.headers)
    if path.startswith("/api/"):
        assert reply.headers["Cache-Control"] == "no-store"
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
    if status >= 400:
        assert len(reply.error) > 5
        assert "Traceback" not in reply.error


def test_pages_are_files_that_browsers_keep_and_ask_for_again(served: ConsoleThread) -> None:
    stranger = served.browser()
    page = stranger.get("/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["Cache-Control"] == "no-cache"
    check_headers(page.headers)
    again = stranger.get("/", If_None_Match=page.headers["Etag"])
    assert (again.status, again.body) == (304, b"")
    check_headers(again.headers)
    scripts = [one.name for one in PAGES.glob("*.js")]
    assert stranger.get(f"/{scripts[0]}").headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_metrics_are_for_this_machine_and_not_for_those_behind_its_proxy(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, allowed_hosts=("console.example",)) as console:
        assert console.browser().get("/metrics").status == 200
        assert console.browser().get("/metrics", Host="console.example").status == 403
        assert console.browser().get("/health/ready", Host="console.example").status == 403
        assert console.browser().get("/api/me", Host="console.example").status == 401
    with ConsoleThread(scene, users, allowed_hosts=("console.example",), open_metrics=True) as console:
        assert console.browser().get("/health/live", Host="console.example").status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "", "a b", "127.0.0.1@x.example", "10.0.0.7", "[2001:db8::1]"),
        *("[::1", "[::1].evil.example", "[::1]evil.example", "localhost:80:80", "localhost:x"),
    ],
)
def test_a_console_of_this_machine_answers_to_no_other_name(served: ConsoleThread, host: str) -> None:
    reply = served.browser().get("/health/live", Host=host)
    assert reply.status in (400, 421)
    check_headers(reply.headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8090"])
def test_a_console_of_this_machine_has_this_machines_names(served: ConsoleThread, host: str) -> None:
    assert served.browser().get("/health/live", Host=host).status == 200


def test_a_console_for_others_is_called_by_its_address_or_as_it_was_told() -> None:
    names = HostNames(ConsoleOptions(Path("users"), "0.0.0.0", allowed_hosts=("Console.example",)))
    assert names.knows("10.0.0.7:8090")
    assert names.knows("console.example")
    assert names.knows("console.example:8443")
    assert not names.knows("rebound.example")


@pytest.mark.parametrize(
    "body",
    [b"x" * 70_000, b'{"action": "' + b"x" * 70_000 + b'"}'],
    ids=["noise", "JSON"],
)
def test_a_request_that_is_too_large_is_refused(operator: Browser, body: bytes) -> None:
    reply = operator.request("POST", "/api/actions/preview", body)
    assert reply.status == 413
    check_headers(reply.headers)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 50_000, b'{"action": NaN}', b'{"flows": 7}']
)
def test_a_request_that_makes_no_sense_is_refused(operator: Browser, body: bytes) -> None:
    assert operator.request("POST", "/api/actions/preview", body).status == 400


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    ],
    ids=["words", "a long header", "a long path", "two lengths", "TLS"],
)
def test_what_is_no_request_is_answered_shortly(served: ConsoleThread, raw: bytes) -> None:
    status, lines, body = exchange(served, raw)
    assert 400 <= status < 500
    check_headers(lines)
    assert b"Traceback" not in body


def exchange(served: ConsoleThread, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; the status, the headers and the body of the answer, after which nothing comes."""
    host, _, port = served.browser().place.rpartition(":")
    with socket.create_connection((host, int(port)), 10.0) as connection:
        connection.sendall(raw)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    return int(lines[0].split(" ")[1]), dict(line.split(": ", 1) for line in lines[1:]), body


HEADERS = ["Origin", "Content-Type", "Expect", "Cookie", "X-Tidings-CSRF", "Sec-Fetch-Site", "Accept", "Range", "Host"]
HEADERS += ["If-None-Match", "If-Modified-Since", "If-Range", "Accept-Encoding", "Content-Encoding"]
ODD_VALUES = [b"\xff", b"\xc3\xbc", b"http://[", b"//", b'"', b"; ;=", b"application/json; charset=zork", b"bytes=9-1"]
PLACES = [b"POST /api/sign-in", b"POST /api/sign-out", b"POST /nothing", b"GET /", b"GET /api/me", b"GET /metrics"]


@pytest.mark.parametrize("header", HEADERS)
def test_odd_headers_are_refused_without_a_word_in_the_log(
    operator: Browser, served: ConsoleThread, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    cookie = "; ".join(f"{name}={value}" for name, value in operator.cookies.items())
    usual = {"Host": operator.place, "Content-Type": "application/json", "Cookie": cookie, "Connection": "close"}
    for place in PLACES:
        for value in ODD_VALUES:
            sent = {name: one.encode() for name, one in {**usual, "Content-Length": "2"}.items()} | {header: value}
            lines = b"".join(b"%s: %s\r\n" % (name.encode(), one) for name, one in sent.items())
            status, headers, _ = exchange(served, b"%s HTTP/1.1\r\n%s\r\n{}" % (place, lines))
            assert status < 500, (place, value)
            assert status >= 400 or place.startswith(b"GET"), (place, value)
            check_headers(headers)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_what_strangers_cause_is_logged_so_often_and_no_more(
    scene: Cluster, users: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("no")

    with ConsoleThread(scene, users) as console:
        monkeypatch.setattr(HostNames, "own_origin", failing)
        browser = console.browser()
        replies = [browser.post("/api/sign-in") for _ in range(2 * MAX_LOGGED)]
    assert {(one.status, one.error) for one in replies} == {(500, "the console failed at that; see its log")}
    assert len([one for one in caplog.records if one.exc_info]) == MAX_LOGGED


def test_what_is_not_allowed_is_told_in_a_sentence(operator: Browser) -> None:
    assert operator.post("/api/flows").error == "method not allowed"


def test_who_sends_no_whole_request_is_cut_off(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, request_s=0.3) as console:
        host, _, port = console.browser().place.rpartition(":")
        with socket.create_connection((host, int(port)), 20.0) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            assert connection.recv(1) == b""


def test_connections_are_so_many_and_no_more(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, max_connections=3) as console:
        host, _, port = console.browser().place.rpartition(":")
        place = (host, int(port))
        held = [socket.create_connection(place, 20.0) for _ in range(3)]
        eventually(lambda: len(console.console._connections) == 3)
        with socket.create_connection(place, 20.0) as late:
            assert late.recv(1) == b""
        for one in held:
            one.close()
        eventually(lambda: not console.console._connections)
        assert console.browser().get("/health/live").status == 200


def test_pages_that_are_open_are_so_many_and_no_more(scene: Cluster, users: Path) -> None:
    with ConsoleThread(scene, users, max_live_per_user=1) as console:
        browser = console.browser(OPERATOR)
        with browser.events() as events:
            next(events)
            assert browser.get("/api/events").status == 429
        eventually(lambda: not console.console._live)
        with browser.events() as events:
            assert next(events)[0] == "map"


def test_numbers_that_json_has_not_are_null(operator: Browser) -> None:
    assert b"NaN" not in operator.get("/api/subscribers").body
