"""Snapshots of a PostgreSQL's tables on demand, while everything runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import demanded_steps, postgres_server, snapshot_steps
from tests.support.demanded_steps import (
    KEYS,
    Gate,
    Store,
    a_lost_store_is_filled_while_rows_change,
    ask,
    changing,
    ended,
    placed,
)
from tests.support.postgres_server import Database, PostgresServer
from tidings.cluster import Cluster
from tidings.snapshots import plan_snapshot
from tidings.testing import eventually

database, own_server, small_chunks = postgres_server.database, postgres_server.own_server, snapshot_steps.small_chunks
gate, soon = demanded_steps.gate, demanded_steps.soon


class Items:
    """The table of a test."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
        database.execute(f"INSERT INTO item SELECT n, 'old' FROM generate_series(0, {KEYS - 1}) n")

    def put(self, key: int, name: str) -> None:
        insert = f"INSERT INTO item VALUES ({key}, '{name}')"
        self.database.execute(f"{insert} ON CONFLICT (id) DO UPDATE SET name = excluded.name")

    def delete(self, key: int) -> None:
        self.database.execute(f"DELETE FROM item WHERE id = {key}")

    def rows(self) -> dict[str, Any]:
        found = self.database.execute("SELECT id, name FROM item")
        return {f"public.item/{key}": {"id": key, "name": name} for key, name in found}


def tailed(cluster: Cluster, database: Database, folder: Path, **options: Any) -> None:
    given = {**database.options(), "snapshot_folder": str(folder), **options}
    cluster.create_stream("shop", 4, database.address(), options=given)


def test_a_lost_store_is_filled_while_rows_change_and_others_get_nothing_of_it(
    cluster: Cluster, database: Database, tmp_path: Path
) -> None:
    items = Items(database)
    tailed(cluster, database, tmp_path)
    _, cache = a_lost_store_is_filled_while_rows_change(cluster, "shop", items)
    cache.check_order()


def test_only_rows_of_the_tables_that_are_named_come(cluster: Cluster, database: Database, tmp_path: Path) -> None:
    items = Items(database)
    database.execute("CREATE TABLE customer (id int PRIMARY KEY)", "INSERT INTO customer VALUES (1), (2), (3)")
    tailed(cluster, database, tmp_path)
    cluster.create_application("cache", ["shop"], start="latest")
    cache = Store()
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        assert plan_snapshot(cluster, "shop").tables == ("public.customer", "public.item")
        ask(cluster, "shop", ["cache"], ["public.customer"])
        assert ended(cluster, "shop").ended == "complete"
        assert {update.object for update in cache.updates} == {f"public.customer/{key}" for key in (1, 2, 3)}
        items.put(1, "new")
        database.execute("DELETE FROM customer WHERE id = 2")
        eventually(lambda: set(cache.rows) == {"public.customer/1", "public.customer/3", "public.item/1"})
    cache.check_order()


PUBLISHER = """
import sys
import tidings
from tidings_connectors.cdc import snapshot

snapshot.CHUNK_ROWS = 1
with tidings.connect(sys.argv[1], session_timeout=4) as cluster, cluster.publisher(token_interval=0.2) as publisher:
    publisher.run()
"""


@pytest.mark.slow
def test_one_whose_publisher_is_killed_in_the_midst_begins_anew_with_another(
    cluster: Cluster, database: Database, tmp_path: Path
) -> None:
    items, cache, other = Items(database), Store(), Store()
    tailed(cluster, database, tmp_path)
    for name in ("cache", "other"):
        cluster.create_application(name, ["shop"], start="latest")

    def chunks() -> int:
        return len(list(tmp_path.rglob("*.parquet")))

    with cluster.subscribe("cache", cache), cluster.subscribe("other", other):
        with subprocess.Popen([sys.executable, "-c", PUBLISHER, cluster.address]) as publisher:
            try:
                ask(cluster, "shop", ["cache"])
                eventually(lambda: chunks() > 20 and placed(cluster, "shop"), timeout=60)
                items.put(1, "new")
            finally:
                publisher.send_signal(signal.SIGKILL)
        assert chunks() < KEYS
        items.delete(2)
        with cluster.publisher(token_interval=0.2), changing(items, 11):
            found = ended(cluster, "shop", timeout=60)
        assert (found.ended, found.attempt) == ("complete", 2)
        with cluster.publisher(token_interval=0.2):
            eventually(lambda: cache.rows == items.rows())
    assert other.operations["snapshot"] == 0
    assert not cache.lost


@pytest.mark.slow
def test_a_restart_of_the_server_and_an_altered_table_make_it_begin_anew(
    cluster: Cluster, own_server: PostgresServer, tmp_path: Path, gate: Gate
) -> None:
    database = own_server.database()
    items, cache = Items(database), Store()
    tailed(cluster, database, tmp_path)
    cluster.create_application("cache", ["shop"], start="latest")
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "shop", ["cache"])
        gate.wait_until_placed(cluster, "shop")
        items.put(1, "new")
        own_server.restart()
        database.execute("ALTER TABLE item ALTER id TYPE bigint, ADD extra text DEFAULT 'x'")
        items.delete(2)
        gate.open.set()
        found = ended(cluster, "shop", timeout=120)
        assert (found.ended, found.attempt > 1) == ("complete", True)
        rows = database.execute("SELECT id, name, extra FROM item")
        whole = {f"public.item/{key}": {"id": key, "name": name, "extra": extra} for key, name, extra in rows}
        eventually(lambda: cache.rows == whole)
    cache.check_order()


def test_a_table_is_not_altered_under_one_who_reads_it(
    cluster: Cluster, database: Database, tmp_path: Path, gate: Gate
) -> None:
    items, cache = Items(database), Store()
    tailed(cluster, database, tmp_path)
    cluster.create_application("cache", ["shop"], start="latest")
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "shop", ["cache"])
        gate.wait_until_placed(cluster, "shop")
        altered = threading.Thread(target=database.execute, args=("ALTER TABLE item ALTER id TYPE bigint",))
        altered.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE item%'"
        eventually(lambda: bool(database.execute(waiting)))
        gate.open.set()
        assert ended(cluster, "shop").ended == "complete"
        altered.join()
        eventually(lambda: cache.rows == items.rows())
    assert cache.operations["snapshot"] == KEYS
