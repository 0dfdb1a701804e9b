"""Tail a PostgreSQL database: from CREATE PUBLICATION to a cache that forgets what changed.

    python examples/tail_postgres.py postgresql://postgres@127.0.0.1:5432/postgres

The server needs `wal_level = logical`; a password comes from PGPASSWORD. The example makes a table, a publication and a
replication slot there, and drops them in the end.
"""

import contextlib
import sys
import tempfile
import threading

import psycopg2

import tidings

TABLE = "CREATE TABLE tidings_item (id int PRIMARY KEY, name text, price numeric)"
PUBLICATION = "CREATE PUBLICATION tidings_example FOR TABLE tidings_item"
CLEAN_UP = [
    "DROP PUBLICATION IF EXISTS tidings_example",
    "DROP TABLE IF EXISTS tidings_item",
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'tidings_example'",
]


class Invalidator(tidings.Handler):
    """Forgets the cached copy of each row that has changed, whoever changed it."""

    def __init__(self, cache: dict[str, str]) -> None:
        self.cache = cache
        self.empty = threading.Event()

    def on_update(self, update: tidings.Update) -> None:
        attributes, payload = update.attributes or {}, update.payload or b""
        print(f"{update.object}: {attributes['operation']}, {payload.decode()}")
        self.cache.pop(update.object, None)
        if not self.cache:
            self.empty.set()


address = sys.argv[1]
with contextlib.closing(psycopg2.connect(address)) as connection, contextlib.ExitStack() as ending:
    connection.autocommit = True
    database = connection.cursor()
    for statement in [
        *CLEAN_UP,
        TABLE,
        "INSERT INTO tidings_item VALUES (1, 'pen', 2.50), (2, 'ink', 7.00)",
        PUBLICATION,
    ]:
        database.execute(statement)
    ending.callback(lambda: [database.execute(statement) for statement in CLEAN_UP])

    cluster = ending.enter_context(tidings.embedded(ending.enter_context(tempfile.TemporaryDirectory())))
    options = {"publication": "tidings_example", "slot": "tidings_example"}
    cluster.create_stream("shop", shards=4, log=f"postgres:{address}", options=options)
    cluster.create_application("cache", ["shop"], filter="operation IN ('update', 'delete')", start="earliest")

    invalidator = Invalidator({"public.tidings_item/1": "pen, 2.50", "public.tidings_item/2": "ink, 7.00"})
    with cluster.subscribe("cache", invalidator), cluster.publisher(streams=["shop"]):
        database.execute("UPDATE tidings_item SET price = 2.75 WHERE id = 1")
        database.execute("DELETE FROM tidings_item WHERE id = 2")
        invalidator.empty.wait(60)
    print("the cache is empty" if not invalidator.cache else f"still cached: {invalidator.cache}")
