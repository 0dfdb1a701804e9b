"""What a gateway costs: memory a connection, handshakes and notifications a second, and how long a notification takes.

Gateway, publisher and clients are processes of their own, all on this machine. The paper is Thialfi's, whose median is
of the whole way, between machines, with its matching.
"""

from __future__ import annotations

import asyncio
import base64
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tidings
from bench.crowd import Crowd
from bench.processes import SPAWN, publish, running
from bench.report import Row, milliseconds
from tidings.streams import Stream
from tidings_thialfi import service
from tidings_thialfi.protocol.stream_schema import notifications_of

SERVICE = "bench"
TOKEN = "of-the-proxy"


def run(quick: bool) -> list[Row]:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500
    sockets = min(2_000 if quick else 10_000, allowed)
    trunked = 2_000 if quick else 10_000
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        cluster.create_stream("updates", 8)
        service.create(cluster, SERVICE, ["updates"], storage=folder, shards=8)
        notifications = cluster.stream(notifications_of(SERVICE))
        stop = SPAWN.Event()
        sender = SPAWN.Process(target=publish, args=(cluster.address, {}, stop))
        with running(sender, stop=stop), _gateway(Path(folder), cluster.address) as (url, pid):
            return asyncio.run(_measure(url, pid, notifications, sockets, trunked, 3 if quick else 5))


async def _measure(url: str, pid: int, notifications: Stream, sockets: int, trunked: int, rounds: int) -> list[Row]:
    crowd = Crowd()
    await crowd.connect(url, 50)
    before, began = _memory(pid), time.perf_counter()
    await crowd.connect(url, sockets - 50)
    handshakes = (sockets - 50) / (time.perf_counter() - began)
    socket_bytes = (_memory(pid) - before) / (sockets - 50)
    before = _memory(pid)
    await crowd.connect_trunk(url, TOKEN, trunked)
    trunk_bytes = (_memory(pid) - before) / trunked
    async with notifications.async_producer() as producer:
        rates = []
        for number in range(rounds):
            crowd.forget()
            began = time.perf_counter()
            await producer.publish_many([_notice(client, f"all-{number}") for client in crowd.clients])
            await crowd.until(lambda: crowd.received >= len(crowd.clients))
            rates.append(crowd.received / (time.perf_counter() - began))
        crowd.forget()
        for number in range(200):
            client = crowd.clients[number * 37 % len(crowd.clients)]
            await producer.publish_many([_notice(client, f"one-{number}")])
            await asyncio.sleep(0.02)
        await crowd.until(lambda: crowd.received >= 200)
    await crowd.close()
    return [
        Row("clients at once, on sockets of their own", sockets, "clients"),
        Row("clients at once, on a trunk beside them", trunked, "clients"),
        Row("memory of a client on a socket", socket_bytes / 1024, "KiB"),
        Row("memory of a client on a trunk", trunk_bytes / 1024, "KiB"),
        Row("connect, hello, durable, granted", handshakes, "1/s"),
        Row("notifications of all clients, published to heard", max(rates), "1/s"),
        Row("published to heard, p50", milliseconds(crowd.taken, 50), "ms"),
        Row("published to heard, p99", milliseconds(crowd.taken, 99), "ms"),
    ]


def _notice(client: int, name: str) -> dict[str, object]:
    about = {"say": "notify", "object": name}
    return {"object": str(client), "version": int(time.time() * 1e6), "attributes": about}


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def _gateway(folder: Path, zookeeper: str) -> Iterator[tuple[str, int]]:
    keys, trunks = folder / "keys", folder / "trunks"
    keys.write_text(f"k1 {base64.b64encode(secrets.token_bytes(32)).decode()}\n")
    trunks.write_text(f"{TOKEN}\n")
    command = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())", "gateway"]
    command += ["--service", SERVICE, "--keys", str(keys), "--trunk-tokens", str(trunks), "--listen", "127.0.0.1:0"]
    command += ["--zookeeper", zookeeper, "--max-per-address", "100000", "--max-connections", "100000"]
    for limit in ("--address-entries", "--total-entries"):  # all clients are at one address
        command += [limit, "100000000"]
    command += ["--resend", "3600"]  # nothing is acknowledged here
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
