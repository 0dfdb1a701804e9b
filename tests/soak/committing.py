"""A writer of a database in a process of its own: `python -m tests.soak.committing <place> <stream> <journal> <seed>`.

The place is `postgres:<port>/<database>` or `mariadb:<socket>/<database>`; there it changes rows of the table `item`,
a few in each transaction. What it does not know to be committed, since the server went away, it does not claim.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.soak import bodies
from tests.soak.journal import Follower, Journal, digest
from tidings.updates import MAX_PAYLOAD_BYTES

TABLE = "CREATE TABLE item (id INT PRIMARY KEY, n BIGINT, body {text})"
UPSERTS = {
    "postgres": "INSERT INTO item VALUES (%s, %s, %s) "
    "ON CONFLICT (id) DO UPDATE SET n = excluded.n, body = excluded.body",
    "mariadb": "INSERT INTO item VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE n = VALUES(n), body = VALUES(body)",
}
TEXTS = {"postgres": "TEXT", "mariadb": "LONGTEXT"}
SCHEMAS = {"postgres": "public"}  # in MariaDB it is the database
ROW_SPARE_BYTES = 100  # of a payload, for what is not the body
PATIENCE_S = 5


def connect(place: str) -> Any:
    kind, _, rest = place.partition(":")
    where, _, database = rest.rpartition("/")
    if kind == "postgres":
        import psycopg2

        address = {"host": "127.0.0.1", "port": int(where), "user": "admin", "connect_timeout": PATIENCE_S}
        return psycopg2.connect(**address, dbname=database)
    import pymysql

    times = {"connect_timeout": PATIENCE_S, "read_timeout": 30, "write_timeout": 30}
    return pymysql.connect(unix_socket=where, user="root", database=database, charset="utf8mb4", **times)


class Committing:
    """Changes rows one after the other, so that each has growing numbers."""

    def __init__(self, place: str, stream: str, file: Path, rows: int) -> None:
        self._place = place
        kind, database = place.partition(":")[0], place.rpartition("/")[2]
        self._upsert = UPSERTS[kind]
        self._prefix = f"{SCHEMAS.get(kind, database)}.item"
        self._stream = stream
        self._rows = rows
        self._connection: Any = None
        self._numbers: dict[int, int] = defaultdict(int)
        self._count = 0
        for what, _, *fields in Follower(file).lines():
            if what == "try":
                row = int(fields[1].rpartition("/")[2])
                self._numbers[row] = max(fields[2], self._numbers[row])
                self._count += 1
        self._journal = Journal(file)

    def commit(self, rng: random.Random) -> None:
        """One transaction; raises what the database's driver does if it cannot be known to be committed."""
        self._connection = self._connection or connect(self._place)
        changed = [self._change(row, rng) for row in rng.sample(range(self._rows), rng.randrange(1, 5))]
        tries = [
            (self._stream, f"{self._prefix}/{row}", number, _digest(body), len(body)) for row, number, body in changed
        ]
        self._journal.note_all("try", tries)
        try:
            with self._connection.cursor() as cursor:
                for values in changed:
                    cursor.execute(self._upsert, values)
            self._connection.commit()
        except Exception:
            self.close()
            raise
        self._journal.note_all("ack", [one[:3] for one in tries])

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def _change(self, row: int, rng: random.Random) -> tuple[int, int, str]:
        size = min(bodies.size(self._count, rng) or 0, MAX_PAYLOAD_BYTES + 1000)  # that one is too large for a payload
        if size == MAX_PAYLOAD_BYTES:
            size -= ROW_SPARE_BYTES
        self._count += 1
        self._numbers[row] += 1
        return row, self._numbers[row], bodies.text(size, rng)


def _digest(body: str) -> str | None:
    """Of a body that does not fit into a payload nothing comes."""
    return digest(body.encode() if len(body) < MAX_PAYLOAD_BYTES else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("place", "stream"):
        parser.add_argument(name)
    parser.add_argument("journal", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("--rate", type=float, default=2.5, help="transactions a second")
    parser.add_argument("--rows", type=int, default=60)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    rng = random.Random(f"{options.seed} {options.stream}")
    with contextlib.closing(Committing(options.place, options.stream, options.journal, options.rows)) as writer:
        while not stop.wait(rng.expovariate(options.rate)):
            try:
                writer.commit(rng)
            except Exception as error:  # noqa: BLE001 - the drivers' own, while their server is away
                print(error, flush=True)


if __name__ == "__main__":
    main()
