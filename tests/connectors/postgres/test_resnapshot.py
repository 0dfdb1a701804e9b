"""All rows once more, after something was lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import postgres_server, snapshot_steps
from tests.support.postgres_server import Database, PostgresServer, floors, places, read_all
from tests.support.snapshot_steps import read_past
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogRestored, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.postgres.log import PostgresLog

database, own_server = postgres_server.database, postgres_server.own_server
small_chunks = snapshot_steps.small_chunks


def again(folder: Path, **options: Any) -> dict[str, Any]:
    return {"on_data_loss": "snapshot", "snapshot_folder": str(folder), **options}


def slot_of(database: Database) -> str:
    return str(database.options()["slot"])


def dropped(database: Database) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('{slot_of(database)}')")


def made_anew(database: Database) -> None:
    dropped(database)
    database.execute(
        "INSERT INTO item VALUES (3000, 'between')",
        f"SELECT pg_create_logical_replication_slot('{slot_of(database)}', 'pgoutput')",
    )


def removed(database: Database) -> None:
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot_of(database)}'"

    def lost() -> bool:
        database.execute("UPDATE item SET name = name || '.' WHERE id = 1", "SELECT pg_switch_wal()", "CHECKPOINT")
        return database.execute(status) == [("lost",)]

    eventually(lost)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [dropped, made_anew, removed])
def test_a_copy_is_whole_again_after_a_loss(
    cluster: Cluster, own_server: PostgresServer, tmp_path: Path, damage: Callable[[Database], None]
) -> None:
    database = own_server.database()
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    cluster.create_stream("shop", 4, database.address(), options=database.options() | again(tmp_path))
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()

    def same() -> bool:
        rows = database.execute("SELECT id, name FROM item")
        return copy.rows == {f"public.item/{key}": {"id": key, "name": name} for key, name in rows}

    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        database.execute("INSERT INTO item SELECT n, 'item ' || n FROM generate_series(1, 1000) n")
        eventually(same)
    assert copy.lost == []
    database.execute("DELETE FROM item WHERE id > 900", "UPDATE item SET name = 'x' WHERE id < 10")
    damage(database)
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        eventually(same, timeout=60)
        assert sorted(shard for shard, _, _ in copy.lost) == [0, 1, 2, 3]
        database.execute("INSERT INTO item VALUES (5000, 'after')", "DELETE FROM item WHERE id = 20")
        eventually(same)
        eventually(lambda: not list(tmp_path.rglob("*.parquet")))  # when all flows have passed them
    assert len(copy.lost) == 4


@pytest.mark.slow
def test_without_a_snapshot_a_lost_slot_is_told_once_and_the_flows_go_on(
    cluster: Cluster, own_server: PostgresServer
) -> None:
    database = own_server.database()
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)", "INSERT INTO item VALUES (1, 'one')")
    cluster.create_stream("shop", 4, database.address(), options=database.options())
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        database.execute("INSERT INTO item VALUES (2, 'two')")
        eventually(lambda: "public.item/2" in copy.rows)
    removed(database)
    for number in 3, 4:  # and so does a publisher that comes later
        with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
            eventually(lambda: sorted(shard for shard, _, _ in copy.lost) == [0, 1, 2, 3])
            database.execute(f"INSERT INTO item VALUES ({number}, 'new')")
            eventually(lambda: f"public.item/{number}" in copy.rows)  # noqa: B023
    assert len(copy.lost) == 4


@pytest.fixture
def stream(database: Database, tmp_path: Path) -> StreamDefinition:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    return database.stream(**again(tmp_path))


def test_the_loss_ends_where_the_rows_begin(database: Database, stream: StreamDefinition) -> None:
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        database.execute("INSERT INTO item SELECT n, 'x' FROM generate_series(1, 250) n")
        rows, after = read_all(reader, floors(log), log)
        assert [row["attributes"]["operation"] for row in rows] == ["insert"] * 250
    made_anew(database)
    with contextlib.closing(open_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        loss = read_past(log, reader, after, PositionsLost)
        floor = log.bounds()[0].floor
        assert loss.lost == {shard: (Position(at.seq, at.index + 1), floor) for shard, at in after.items()}
        database.execute("DELETE FROM item WHERE id = 7")
        rest, _ = read_all(reader, floors(log), log)
        operations = [row["attributes"]["operation"] for row in rest]
        assert operations == ["snapshot"] * 251 + ["delete"]
        assert places(rest) == sorted(set(places(rest)))
        # Who comes later to the same loss finds that it was cared for.
        with contextlib.closing(log.reader()) as late, pytest.raises(PositionsLost):
            late.read(after, 10)
        assert read_all(reader, floors(log), log)[0] == rest


def test_a_restored_server_is_read_as_it_is_now(database: Database, stream: StreamDefinition) -> None:
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        database.execute("INSERT INTO item VALUES (1, 'a')")
        ahead = Positions({shard: Position(log.bounds()[0].head.seq + 2**40, -1) for shard in range(4)})
        read_past(log, reader, ahead, LogRestored)
        rows, _ = read_all(reader, floors(log), log)
        assert [row["attributes"]["operation"] for row in rows] == ["insert", "snapshot"]


def test_an_empty_database_is_a_snapshot_too(database: Database, stream: StreamDefinition) -> None:
    with contextlib.closing(create_log(stream)) as log:
        after = floors(log)
    made_anew(database)
    database.execute("DELETE FROM item")
    with contextlib.closing(open_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        read_past(log, reader, after, PositionsLost)
        rows, _ = read_all(reader, floors(log), log)
        assert [row["attributes"]["operation"] for row in rows] == ["delete"]


def test_a_snapshot_after_a_loss_needs_a_folder(database: Database) -> None:
    with pytest.raises(InvalidOption, match="a snapshot needs the option 'snapshot_folder'"):
        create_log(database.stream(on_data_loss="snapshot"))
