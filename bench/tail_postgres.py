"""Tailing a PostgreSQL database, beside a bare psycopg2 loop that only reads the messages of the same log."""

from __future__ import annotations

import contextlib
import select
import time
import uuid

from psycopg2.extras import LogicalReplicationConnection

from bench.report import Row, more_is_better
from tests.support.postgres_server import Database, PostgresServer, floors
from tidings.log_opening import create_log
from tidings.logs import Log

ROUNDS = 5
STEP = 50_000  # rows that a publisher asks for at once
LARGE = "INSERT INTO item SELECT n, 'item number ' || n, n * 1.10, now() FROM generate_series(1, {rows}) n"
SMALL = """
DO $$ BEGIN FOR n IN 1..{rows} LOOP
    INSERT INTO item VALUES (n, 'item number ' || n, n * 1.10, now());
    COMMIT;
END LOOP; END $$
"""


def ours(log: Log, rows: int) -> float:
    """Rows a second, as canonical rows."""
    with contextlib.closing(log.reader()) as reader:
        start, after, count = time.perf_counter(), floors(log), 0
        while count < rows:
            read = reader.read(after, STEP)
            after = read.upto
            count += len(read.rows)
        return rows / (time.perf_counter() - start)


def bare(database: Database, rows: int) -> float:
    """Rows a second, as messages that nobody looks into."""
    connection = database.server.connect(database.name, LogicalReplicationConnection)
    with contextlib.closing(connection), connection.cursor() as cursor:
        start, count = time.perf_counter(), 0
        name = f"bare_{uuid.uuid4().hex}"
        cursor.execute("SELECT pg_copy_logical_replication_slot(%s, %s, true)", (database.options()["slot"], name))
        options = {"proto_version": "1", "publication_names": "everything"}
        cursor.start_replication(name, decode=False, options=options)
        while count < rows:
            message = cursor.read_message()
            if message is None:
                select.select([connection], [], [], 1.0)
            elif message.payload[0] == ord("I"):
                count += 1
        return rows / (time.perf_counter() - start)


def measure(server: PostgresServer, statement: str, rows: int, rounds: int) -> tuple[float, float]:
    """The best of each, taken in turns so that a busy machine is unfair to both alike."""
    database = server.database()
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric, changed timestamptz)")
    with contextlib.closing(create_log(database.stream(16))) as log:
        database.execute(statement.format(rows=rows))
        pairs = [(ours(log, rows), bare(database, rows)) for _ in range(rounds)]
    database.drop()
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def run(quick: bool) -> list[Row]:
    rounds = 3 if quick else ROUNDS
    large, small = (200_000, 50_000) if quick else (1_000_000, 200_000)
    server = PostgresServer(synchronous_commit="off")
    try:
        of_large = measure(server, LARGE, large, rounds)
        of_small = measure(server, SMALL, small, rounds)
    finally:
        server.close()
    peer = "bare psycopg2 loop over the same log"
    return [
        more_is_better(f"one transaction of {large:,} rows", of_large[0], "rows/s", peer, of_large[1]),
        more_is_better(f"{small:,} transactions of one row", of_small[0], "rows/s", peer, of_small[1]),
    ]
