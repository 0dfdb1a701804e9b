"""How many updates a second flow from the log to subscribers, 500 bytes each. The papers' figures are Wormhole's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pyarrow as pa

import tidings
from bench.processes import SPAWN, publish, running, subscribe
from bench.report import Row, more_is_better
from tidings.updates import from_rows, timed
from tidings.wire.security import OPEN, Security

PORTION = 50_000
SECRET = "the-secret-of-the-cluster"


def make_rows() -> pa.Table:
    payload = [os.urandom(500) for _ in range(PORTION)]
    return timed(from_rows({"object": f"object-{n}", "version": n, "payload": payload[n]} for n in range(PORTION)))


def drain(total: int, applications: int, each: bool, sending: Security = OPEN, receiving: Security = OPEN) -> float:
    """Updates a second, over all applications, from a log that holds `total` of them."""
    with tempfile.TemporaryDirectory() as folder, tidings.embedded(folder) as cluster:
        stream = cluster.create_stream("bench", shards=16)
        rows = make_rows()
        for _ in range(total // PORTION):
            stream.writable_log.append(rows)
        names = [f"application-{number}" for number in range(applications)]
        stop, ready, results = SPAWN.Event(), SPAWN.Event(), SPAWN.Queue()
        receivers = []
        for name in names:
            cluster.create_application(name, ["bench"], start="earliest")
            arguments = (cluster.address, name, each, total, ready, results, stop, receiving)
            receivers.append(SPAWN.Process(target=subscribe, args=arguments))
        sender = SPAWN.Process(target=publish, args=(cluster.address, {"security": sending}, stop))
        with running(*receivers, sender, stop=stop):
            found = [results.get(timeout=60) for _ in names]
    assert all(count >= total for count, _ in found)
    first = min(seen[0][1] for _, seen in found)
    last = max(seen[-1][1] for _, seen in found)
    return applications * total / float(max(1e-9, last - first))


def certify(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    certificate, key = folder / "own.pem", folder / "own.key"
    names = ["-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1", "-nodes"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", str(key), "-out", str(certificate), *names]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key


def run(quick: bool) -> list[Row]:
    total = 500_000 if quick else 3_000_000
    by_batch = drain(total, 1, each=False)
    by_update = drain(total // 10, 1, each=True)
    rows = [
        more_is_better("one subscriber, on_batch", by_batch, "updates/s", "Wormhole, 4 CPUs", 600_000),
        more_is_better("one subscriber, on_update", by_update, "updates/s", "Wormhole, 4 CPUs", 600_000),
    ]
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = certify(Path(folder))
        keyed = Security(secret=SECRET)
        both = Security(secret=SECRET, certificate=certificate, key=key)
        trusting = Security(secret=SECRET, authority=certificate)
        for name, sending, receiving in (("keys", keyed, keyed), ("keys and TLS", both, trusting)):
            rate = drain(total, 1, each=False, sending=sending, receiving=receiving)
            rows.append(more_is_better(f"one subscriber, on_batch, {name}", rate, "updates/s", "without", by_batch))
    for applications in (2,) if quick else (1, 5, 10, 20):
        rate = drain(max(PORTION, total // 5 // applications // PORTION * PORTION), applications, each=False)
        megabytes = rate * 500 / 1e6
        rows.append(
            more_is_better(f"publisher to {applications} applications", megabytes, "MB/s", "Wormhole, 32 CPUs", 350)
        )
    return rows
