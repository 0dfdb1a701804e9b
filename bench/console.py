"""The web console with very many flows: how soon its overview is there, what a page that is open costs, and a drain.

The flows are nodes in ZooKeeper that nobody runs; one of them changes its owner every second. The console is a process
of its own. The flows that are drained are real: two publishers, and a subscriber in a process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tidings
from bench.many_flows import LONGEST_S, Crowd, cpu_seconds, publisher, requests, until
from bench.report import Row
from tests.support.console_scene import OPERATOR, PASSWORD, make_flows, make_users
from tidings.coordination.values import encode
from tidings.flows import Flow

PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
LIVE_S = 30.0
TRIES = 50
CAPTION = "a page of flows is 100 of them; the budget of an answer is 2 s"


class Visitor:
    """Signs in, and asks."""

    def __init__(self, place: str) -> None:
        self._place = place
        answer = self._send("POST", "/api/sign-in", {"user": OPERATOR, "password": PASSWORD})
        self._cookie = str(answer[1]["Set-Cookie"]).partition(";")[0]
        self._csrf = str(self.get("/api/me")["csrf"])

    _cookie = _csrf = ""

    def get(self, path: str) -> Any:
        return json.loads(self._send("GET", path)[2])

    def post(self, path: str, body: Any) -> Any:
        return json.loads(self._send("POST", path, body)[2])

    def first_byte_s(self, path: str) -> tuple[float, int]:
        """Seconds until the first byte of an answer, and how many bytes it has."""
        began = time.monotonic()
        took, _, body = self._send("GET", path)
        return took - began, len(body)

    def live_bytes(self, seconds: float) -> int:
        """How many bytes a page gets that is open for so long."""
        count, until_ = 0, time.monotonic() + seconds
        with socket.create_connection(self._address, timeout=LONGEST_S) as page:
            page.sendall(f"GET /api/events HTTP/1.1\r\nHost: {self._place}\r\nCookie: {self._cookie}\r\n\r\n".encode())
            while (left := until_ - time.monotonic()) > 0:
                page.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    count += len(page.recv(65_536))
        return count

    @property
    def _address(self) -> tuple[str, int]:
        host, _, port = self._place.rpartition(":")
        return host, int(port)

    def _send(self, method: str, path: str, body: Any = None) -> tuple[float, Any, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=LONGEST_S)
        headers = {"Cookie": self._cookie, "X-Tidings-CSRF": self._csrf, "Content-Type": "application/json"}
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            took = time.monotonic()
            raw = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {raw[:200]!r}")
        return took, answer.headers, raw


@contextlib.contextmanager
def console(cluster: tidings.Cluster, users: Path) -> Iterator[tuple[int, Visitor]]:
    """A console in a process of its own, and one who is signed in."""
    options = ["console", "--listen", "127.0.0.1:0", "--users", str(users), "--zookeeper", cluster.address]
    with subprocess.Popen([*PROGRAM, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            place = next(found[1] for line in process.stderr if (found := re.search(r"listens on http://(\S+);", line)))
            draining = threading.Thread(target=process.stderr.read, daemon=True)
            draining.start()
            yield process.pid, Visitor(place)
        finally:
            process.terminate()
            process.wait(20)
            draining.join()


def change_owners(cluster: tidings.Cluster, shards: int, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(1.0):
        number += 1
        path = cluster.coordination.path(*Flow("many-0", "wide", number % shards).place, "owner")
        cluster.coordination.client.set(path, encode({"publisher": f"p{number % 7}", "host": "nowhere", "pid": 1}))


def look(quick: bool, folder: Path) -> list[Row]:
    applications, shards = (2, 500) if quick else (10, 1_000)
    flows, size = applications * shards, f"{applications * shards:,} flows"
    seconds = LIVE_S / 3 if quick else LIVE_S
    with tidings.embedded(folder / "cluster") as cluster:
        make_flows(cluster, applications, shards, folder)
        alone, since = requests(cluster), time.monotonic()
        time.sleep(5)
        others = (requests(cluster) - alone) / (time.monotonic() - since)
        with console(cluster, make_users(folder / "users.json")) as (pid, visitor):
            until(lambda: visitor.get("/api/overview")["counts"]["flows"] == flows, "all flows are known")
            timed = {
                path: [visitor.first_byte_s(path) for _ in range(TRIES)]
                for path in ("/api/overview", "/api/flows?sort=lag", "/api/map")
            }
            stop = threading.Event()
            changing = threading.Thread(target=change_owners, args=(cluster, shards, stop))
            changing.start()
            asked, busy, since = requests(cluster), cpu_seconds(pid), time.monotonic()
            live = visitor.live_bytes(seconds)
            lasted = time.monotonic() - since
            asked, busy = requests(cluster) - asked, cpu_seconds(pid) - busy
            stop.set()
            changing.join()
    rows = []
    for path, name in (("/api/overview", "overview"), ("/api/flows?sort=lag", "a page of flows"), ("/api/map", "map")):
        times = [took for took, _ in timed[path]]
        rows += [
            Row(f"{size}: {name}, time to first byte, p50", float(np.percentile(times, 50)) * 1000, "ms"),
            Row(f"{size}: {name}, time to first byte, p99", float(np.percentile(times, 99)) * 1000, "ms"),
            Row(f"{size}: {name}, size", timed[path][0][1] / 1000, "kB"),
        ]
    return [
        *rows,
        Row("a page that is open, one owner changing a second", live / lasted, "B/s"),
        Row("the same, requests to ZooKeeper", asked / lasted - others - 1.0, "1/s"),  # less the change itself
        Row("the same, the console's processor", 100 * busy / lasted, "% of a core"),
    ]


def drain(quick: bool, folder: Path) -> list[Row]:
    shards = 200 if quick else 2_000  # of which one publisher has half
    with tidings.embedded(folder / "cluster") as cluster:
        cluster.create_stream("bench", shards=shards)
        cluster.create_application("cache", ["bench"], start="earliest")
        crowd = Crowd(cluster.address, ["cache"], 1)
        try:
            with publisher(cluster, "a"):
                until(lambda: crowd.opened() == shards, "all flows are open")
                with publisher(cluster, "b"), console(cluster, make_users(folder / "users.json")) as (_, visitor):
                    until(lambda: shares(visitor)["b"] > shards / 4, "the second has its share")
                    moved = shares(visitor)["a"]
                    plan = visitor.post("/api/actions/preview", {"action": "drain", "parameters": {"publisher": "a"}})
                    began = time.monotonic()
                    visitor.post("/api/actions/execute", {"plan": plan["plan"]})
                    gone = until(lambda: shares(visitor)["a"] == 0, "it has given all away") - began
                    opened = until(lambda: crowd.opened() == shards, "all are open again") - began
        finally:
            crowd.end()
    return [
        Row(f"drain of a publisher with {moved:,} of {shards:,} flows, as the console sees it", gone, "s"),
        Row("the same, until all flows are open again", opened, "s"),
    ]


def shares(visitor: Visitor) -> dict[str, int]:
    """How many flows each publisher owns."""
    found = {one["name"]: int(one["flows"]) for one in visitor.get("/api/publishers")["items"]}
    return {"a": 0, "b": 0, **found}


def run(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        return [*look(quick, Path(one)), *drain(quick, Path(other))]
