"""How long subscribers hear nothing when a database dies that has a replica, with a publisher at each.

Two MariaDB servers, one of which replicates the other. The primary is killed with -9 while rows are written; the time
is that from the kill to the first row that is heard of from the replica, and from the primary's return to its first.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from typing import NamedTuple

import tidings
from bench.report import Row, less_is_better
from tests.support.mysql_install import missing
from tests.support.mysql_server import PASSWORD, Server, follow, running
from tidings.flow_status import status
from tidings.testing import eventually

PATIENCE = 2.0  # seconds for which a publisher tries to read before it gives its flows up


class Rows(tidings.Handler):
    """Remembers the newest row that it has heard of."""

    def __init__(self) -> None:
        self.newest = 0

    def on_update(self, update: tidings.Update) -> None:
        self.newest = max(self.newest, int(update.object.rpartition("/")[2]))


class Measured(NamedTuple):
    over: float
    back: float


def fail_over() -> Measured:
    rows, written = Rows(), 0

    def heard(server: Server) -> float:
        """Write rows until one is heard of; how long that took."""
        nonlocal written
        began = time.perf_counter()
        with contextlib.closing(server.connect(database="bench")) as connection, connection.cursor() as cursor:
            before = rows.newest
            while rows.newest == before:
                written += 1
                cursor.execute("INSERT INTO items VALUES (%s)", (written,))
                time.sleep(0.01)
        return time.perf_counter() - began

    with (
        tempfile.TemporaryDirectory() as folder,
        tidings.embedded(folder) as cluster,
        running(1) as primary,
        running(2) as replica,
    ):
        follow(replica, primary)
        primary.sql("CREATE DATABASE bench", "CREATE TABLE bench.items (id INT PRIMARY KEY)")
        cluster.create_stream(
            "items",
            4,
            primary.address("bench"),
            options={"tables": ["bench.items"]},
            replicas={"east": replica.address("bench")},
        )
        cluster.create_application("cache", ["items"])
        with (
            cluster.subscribe("cache", rows),
            cluster.publisher(name="p", patience=PATIENCE, token_interval=0.5),
            cluster.publisher(name="p-east", replica="east", patience=PATIENCE, token_interval=0.5),
        ):
            owned = eventually(lambda: {one.owner for one in status(cluster)} == {"p"} and "p", 60)
            assert owned
            heard(primary)
            eventually(lambda: replica.seq() == primary.seq(), 30)
            primary.kill()
            replica.sql("STOP SLAVE", "RESET SLAVE ALL")
            over = heard(replica)
            primary.start()
            follow(primary, replica)
            began = time.perf_counter()
            eventually(lambda: {one.owner for one in status(cluster)} == {"p"}, 60)
            heard(replica)
            return Measured(over, time.perf_counter() - began)


def run(quick: bool) -> list[Row]:
    if problem := missing():
        raise SystemExit(f"replica-failover: {problem}")
    os.environ["MYSQL_PWD"] = PASSWORD
    found = [fail_over() for _ in range(1 if quick else 5)]
    over, back = (statistics.median(each) for each in zip(*found, strict=True))
    return [
        less_is_better(
            f"primary dies, replica takes over (patience {PATIENCE:g} s)", over, "s", "Wormhole: within", 60.0
        ),
        Row("primary returns, and has the flows again", back, "s"),
    ]
