"""A console in a thread, and browsers that speak to it over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.console_scene import OPERATOR, PASSWORD
from tidings.cluster import Cluster
from tidings.console.options import ConsoleOptions
from tidings.console.server import Console

PATIENCE = 30.0


@dataclass(frozen=True)
class Reply:
    """What the console answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        found: str = self.json["error"]
        return found


@dataclass
class Browser:
    """Sends what a browser would, unless it is told otherwise."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str | None = None

    @property
    def place(self) -> str:
        return urlsplit(self.url).netloc

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Reply:
        """Send a request; a header that is None is left out."""
        sent: dict[str, str | None] = {"Host": self.place, "Origin": self.url if method == "POST" else None}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            sent |= {"Content-Type": "application/json", "X-Tidings-CSRF": self.csrf}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.place, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            reply = Reply(answer.status, dict(answer.getheaders()), answer.read())
        if cookie := reply.headers.get("Set-Cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
        return reply

    def get(self, path: str, **headers: str | None) -> Reply:
        return self.request("GET", path, None, **headers)

    def post(self, path: str, body: Any = None, **headers: str | None) -> Reply:
        return self.request("POST", path, json.dumps({} if body is None else body).encode(), **headers)

    def sign_in(self, user: str = OPERATOR, password: str = PASSWORD, **headers: str | None) -> Reply:
        reply = self.post("/api/sign-in", {"user": user, "password": password}, **headers)
        if reply.status == 200:
            self.csrf = self.get("/api/me").json["csrf"]
        return reply

    def act(self, action: str, flows: list[str], **parameters: Any) -> Reply:
        """Preview an action."""
        return self.post("/api/actions/preview", {"action": action, "flows": flows, "parameters": parameters})

    def execute(self, preview: Reply) -> Reply:
        return self.post("/api/actions/execute", {"plan": preview.json["plan"]})

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[tuple[str, Any]]]:
        """What happens, as it happens: kinds and data."""
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection(self.place, timeout=PATIENCE)
        connection.request("GET", "/api/events", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        try:
            yield _events(answer)
        finally:
            # Closing waits for what is under way, which never ends by itself.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    kind = ""
    for raw in answer:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


class ConsoleThread:
    """A console that runs in a thread. A context manager."""

    def __init__(self, cluster: Cluster, users: Path, **options: Any) -> None:
        settings = {"port": 0, "refresh_s": 0.2, "idle_refresh_s": 0.5, **options}
        self.console = Console(cluster, ConsoleOptions(users, **settings))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self.console.run(self._stop, self._ready.set))
        finally:
            self._ready.set()

    @property
    def url(self) -> str:
        return self.console.address

    def browser(self, user: str | None = None) -> Browser:
        """A browser of its own, signed in if a user is named."""
        made = Browser(self.url)
        if user is not None:
            assert made.sign_in(user).status == 200
        return made

    def __enter__(self) -> ConsoleThread:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        assert self.console.address
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._loop.close()
