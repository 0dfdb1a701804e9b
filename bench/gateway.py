"""What a gateway costs: memory a connection, handshakes and notifications a second, and how long a notification takes.

Gateway, publisher and clients are processes of their own, all on this machine.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import resource
import secrets
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tidings
from bench.crowd import Crowd
from bench.flow_throughput import certify
from bench.processes import SPAWN, publish, running
from bench.report import Row, less_is_better, milliseconds, more_is_better
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.streams import Stream
from tidings.testing import eventually
from tidings_thialfi import service
from tidings_thialfi.protocol.stream_schema import notifications_of

SERVICE = "bench"
TOKEN = "of-the-proxy"
SHARDS = 8
SOCKETS = 2_000  # as many as the peer had
WARM_UP_SOCKETS = 50
PEER = "Centrifugo, another run"
PEER_SOCKET_KIB, PEER_PUSHES, PEER_MS = 58, 13_400, 2
HOOKS_AIM, TLS_AIM = 0.9, 0.6

CAPTION = (
    f"Centrifugo's figures are of another run, by hand, with {SOCKETS:,} clients on a machine like this one; ours were "
    "21 KiB, 9,400 1/s and 23 ms then. What we push is durable before, what it pushes is not. Clients run on the same "
    f"cores, and speak TLS there. Aims: with hooks {HOOKS_AIM} of the pushes without, with TLS and hooks {TLS_AIM}."
)


@dataclass(frozen=True)
class Measured:
    """What one crowd has found."""

    handshakes: float
    socket_kib: float
    trunk_kib: float
    pushes: float
    cpu_us: float
    """Of the gateway, for a push."""
    taken: list[float]
    """Seconds from published to heard, of single notifications."""
    durable: list[float]
    """Of these, until they were durable."""


def run(quick: bool) -> list[Row]:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500
    sockets, trunked = min(500 if quick else 10_000, allowed), 2_000 if quick else 10_000
    rounds, singles = (5, 50) if quick else (10, 200)
    with tempfile.TemporaryDirectory() as name, tidings.embedded(name) as cluster:
        folder = Path(name)
        cluster.create_stream("updates", 8)
        service.create(cluster, SERVICE, ["updates"], storage=name, shards=SHARDS)
        notifications = cluster.stream(notifications_of(SERVICE))
        certificate, key = certify(folder)
        trust = ssl.create_default_context(cafile=certificate)
        tls = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
        hooks = ["--hooks", "doorman"]

        def measure(options: list[str], crowd: Crowd, sockets: int, trunked: int = 0) -> Measured:
            with _gateway(folder, cluster, options) as (url, pid):
                eventually(lambda: [one.state for one in status(cluster)] == ["running"] * SHARDS, 60)
                found = asyncio.run(_measure(url, pid, crowd, notifications, sockets, trunked, rounds, singles))
                # What is acknowledged is not sent to the next gateway again.
                eventually(lambda: all(one.lag == 0 for one in status(cluster)), 60)
            return found

        stop = SPAWN.Event()
        sender = SPAWN.Process(target=publish, args=(cluster.address, {"token_interval": 1.0}, stop))
        with running(sender, stop=stop):
            measure([], Crowd(), 200)  # for the publisher to warm up
            bare = measure([], Crowd(), SOCKETS)
            guarded = measure(hooks, Crowd(signed=True), SOCKETS)
            both = measure([*tls, *hooks], Crowd(signed=True, tls=trust), SOCKETS)
            many = measure([], Crowd(), sockets, trunked)
    return [
        Row("clients at once, on sockets of their own", sockets, "clients"),
        Row("clients at once, on a trunk beside them", trunked, "clients"),
        Row("memory of a client on a socket", many.socket_kib, "KiB"),
        Row("memory of a client on a trunk", many.trunk_kib, "KiB"),
        Row("connect, hello, durable, granted", many.handshakes, "1/s"),
        Row("notifications of all clients, published to heard", many.pushes, "1/s"),
        Row("published to heard, p50", _ms(many, 50), "ms"),
        Row("published to heard, p99", _ms(many, 99), "ms"),
        less_is_better(f"{SOCKETS:,} sockets: memory of one", bare.socket_kib, "KiB", PEER, PEER_SOCKET_KIB),
        more_is_better(f"{SOCKETS:,} sockets: pushes", bare.pushes, "1/s", PEER, PEER_PUSHES),
        Row(f"{SOCKETS:,} sockets: CPU of the gateway for a push", bare.cpu_us, "µs"),
        less_is_better(f"{SOCKETS:,} sockets: published to heard, p50", _ms(bare, 50), "ms", PEER, PEER_MS),
        Row(f"{SOCKETS:,} sockets: of that until it is durable, p50", milliseconds(bare.durable, 50), "ms"),
        Row(f"{SOCKETS:,} sockets: published to heard, p99", _ms(bare, 99), "ms"),
        *_beside(bare, guarded, "hooks"),
        *_beside(bare, both, "TLS and hooks"),
    ]


def _beside(bare: Measured, more: Measured, name: str) -> Iterator[Row]:
    yield more_is_better(f"with {name}: pushes", more.pushes, "1/s", "without", bare.pushes)
    yield less_is_better(f"with {name}: published to heard, p50", _ms(more, 50), "ms", "without", _ms(bare, 50))
    yield less_is_better(f"with {name}: published to heard, p99", _ms(more, 99), "ms", "without", _ms(bare, 99))
    yield less_is_better(f"with {name}: CPU of the gateway for a push", more.cpu_us, "µs", "without", bare.cpu_us)
    yield less_is_better(f"with {name}: memory of a socket", more.socket_kib, "KiB", "without", bare.socket_kib)
    yield more_is_better(f"with {name}: connect, hello, granted", more.handshakes, "1/s", "without", bare.handshakes)


def _ms(measured: Measured, percentile: float) -> float:
    return milliseconds(measured.taken, percentile)


async def _measure(
    url: str, pid: int, crowd: Crowd, notifications: Stream, sockets: int, trunked: int, rounds: int, singles: int
) -> Measured:
    await crowd.connect(url, WARM_UP_SOCKETS)
    before, began = _memory(pid), time.perf_counter()
    await crowd.connect(url, sockets - WARM_UP_SOCKETS)
    handshakes = (sockets - WARM_UP_SOCKETS) / (time.perf_counter() - began)
    socket_kib = (_memory(pid) - before) / 1024 / (sockets - WARM_UP_SOCKETS)
    before = _memory(pid)
    if trunked:
        await crowd.connect_trunk(url, TOKEN, trunked)
    trunk_kib = (_memory(pid) - before) / 1024 / max(1, trunked)
    async with notifications.async_producer() as producer:
        rates, used = [], _cpu_s(pid)
        for number in range(rounds):
            crowd.forget()
            began = time.perf_counter()
            await producer.publish_many([_notice(client, f"all-{number}") for client in crowd.clients])
            await crowd.until(lambda: crowd.received >= len(crowd.clients))
            rates.append(crowd.received / (time.perf_counter() - began))
        cpu_us = (_cpu_s(pid) - used) * 1e6 / rounds / len(crowd.clients)
        crowd.forget()
        durable = []
        for number in range(singles):
            client = crowd.clients[number * 37 % len(crowd.clients)]
            began = time.perf_counter()
            await producer.publish_many([_notice(client, f"one-{number}")])
            durable.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
        await crowd.until(lambda: crowd.received >= singles)
    taken = crowd.taken
    await crowd.close()
    return Measured(handshakes, socket_kib, trunk_kib, max(rates), cpu_us, taken, durable)


def _notice(client: int, name: str) -> dict[str, object]:
    about = {"say": "notify", "object": name}
    return {"object": str(client), "version": int(time.time() * 1e6), "attributes": about}


def _cpu_s(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def _gateway(folder: Path, cluster: Cluster, options: list[str]) -> Iterator[tuple[str, int]]:
    """A gateway in a process of its own: where it is, and its id."""
    keys, trunks = folder / "keys", folder / "trunks"
    keys.write_text(f"k1 {base64.b64encode(secrets.token_bytes(32)).decode()}\n")
    trunks.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())", "gateway"]
    command += ["--service", SERVICE, "--keys", str(keys), "--trunk-tokens", str(trunks), "--listen", "127.0.0.1:0"]
    command += ["--zookeeper", cluster.address, "--max-per-address", "100000", "--max-connections", "100000"]
    for limit in ("--address-entries", "--total-entries"):  # all clients are at one address
        command += [limit, "100000000"]
    command += ["--resend", "3600", *options]  # nothing is acknowledged here
    path = os.pathsep.join(filter(None, (_doorman(folder), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"listens on (\S+);", line):
                break
        else:
            raise RuntimeError("the gateway did not start")
        yield f"http://{found[1]}", process.pid
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def _doorman(folder: Path) -> str:
    """Where hooks are installed as an application would install them: with an entry point."""
    about = folder / "packages" / "doorman-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: doorman\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tidings.gateway_hooks]\ndoorman = bench.doorman:Doorman\n")
    return str(about.parent)
