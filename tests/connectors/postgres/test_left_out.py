"""Tables whose rows cannot become updates: the others go on without them, and who misses something is told."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, read_on
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.log_opening import create_log, open_log
from tidings.testing import eventually
from tidings_connectors.postgres import reader as reader_module
from tidings_connectors.postgres.log import PostgresLog

database = postgres_server.database

ID = {"name": "id", "type": "int"}


@pytest.fixture
def tables(database: Database) -> Database:
    database.execute(
        "CREATE TABLE item (id int PRIMARY KEY, shop text)",
        "CREATE TABLE note (id int PRIMARY KEY)",
        "CREATE TABLE nameless (id int PRIMARY KEY)",
    )
    return database


@pytest.mark.parametrize(
    "options",
    [
        {"shard": "shop"},
        {"object": "{table}/{shop}/{key}"},
        {"version": "shop"},
        {"payload": "avro", "schemas": {"public.item": {"type": "record", "name": "Item", "fields": [ID]}}},
    ],
)
def test_a_table_that_does_not_fit_is_left_out_and_the_others_go_on(
    tables: Database, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(create_log(tables.stream(**options))) as log, contextlib.closing(log.reader()) as reader:
        for table in "note", "nameless":
            assert f"rows of table public.{table} will be left out" in caplog.text
        for n in range(1, 4):
            tables.execute(f"INSERT INTO note VALUES ({n})", f"INSERT INTO item VALUES ({n}, '{n}')")
        with tables.transaction() as cursor:
            cursor.execute("DELETE FROM note")
            cursor.execute("INSERT INTO item VALUES (4, '4')")
            cursor.execute("TRUNCATE note")
        objects, losses, _ = read_on(log, reader, floors(log))
    assert [int(name[-1]) for name in objects] == [1, 2, 3, 4]
    assert losses == []
    assert caplog.text.count("rows of table public.note are left out") == 1
    assert "has no column 'shop'" in caplog.text or "has no schema for table public.note" in caplog.text


def test_a_table_that_fits_later_comes_back_and_what_was_missed_is_told_there(tables: Database) -> None:
    with contextlib.closing(create_log(tables.stream(shard="shop"))) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        tables.execute("INSERT INTO item VALUES (1, 'w')", "INSERT INTO note VALUES (1)", "INSERT INTO note VALUES (2)")
        first, losses, after = read_on(log, reader, start)
        assert (first, losses) == (["public.item/1"], [])
        tables.execute("INSERT INTO note VALUES (3)", "INSERT INTO item VALUES (2, 'w')")
        tables.execute("ALTER TABLE note ADD shop text", "INSERT INTO item VALUES (3, 'w')")
        with tables.transaction() as cursor:
            cursor.execute("INSERT INTO item VALUES (4, 'w')")
            cursor.execute("INSERT INTO note VALUES (4, 'w')")
        tables.execute("INSERT INTO note VALUES (5, 'w')")
        then, losses, upto = read_on(log, reader, after)
        back = ["public.item/4", "public.note/4", "loss", "public.note/5"]
        assert then == ["public.item/2", "public.item/3", *back]
        assert [set(lost) for lost in losses] == [{0, 1, 2, 3}]
        # Whoever comes by is told, in the same place; and who is told goes on.
        with contextlib.closing(log.reader()) as other:
            whole, again, _ = read_on(log, other, start, limit=1)
        assert whole == first + then
        assert again == losses
        # Who reads a range, and no more, reads what is in it.
        inside = [name for name in whole if name != "loss"]
        assert log.tail(start, 100)["object"].to_pylist() == inside
        (piece,) = log.slices(start, upto)
        assert pa.Table.from_batches(piece.read())["object"].to_pylist() == inside
        tables.execute("INSERT INTO note VALUES (6, 'w')")
        assert read_on(log, reader, upto)[:2] == (["public.note/6"], [])


def test_the_loss_is_told_however_small_the_bites_are(tables: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 1)  # a message at a time
    with contextlib.closing(create_log(tables.stream(shard="shop"))) as log, contextlib.closing(log.reader()) as reader:
        tables.execute(
            "INSERT INTO note VALUES (1)", "ALTER TABLE note ADD shop text", "INSERT INTO note VALUES (2, 'w')"
        )
        first, _, after = read_on(log, reader, floors(log), limit=1)
        assert first == ["public.note/2", "loss"]
        tables.execute("ALTER TABLE note DROP shop", "INSERT INTO note VALUES (3)", "ALTER TABLE note ADD shop text")
        with tables.transaction() as cursor:
            cursor.execute("INSERT INTO item VALUES (4, 'w')")
            cursor.execute("INSERT INTO note VALUES (4, 'w')")
        assert read_on(log, reader, after, limit=1)[0] == ["public.item/4", "public.note/4", "loss"]


def test_a_table_may_go_and_come_more_than_once(tables: Database) -> None:
    with contextlib.closing(create_log(tables.stream(shard="shop"))) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        for n in range(3):
            tables.execute(f"INSERT INTO note VALUES ({n})", "ALTER TABLE note ADD shop text")
            tables.execute(f"INSERT INTO note VALUES ({n + 10}, 'w')", "ALTER TABLE note DROP shop")
        told = ["public.note/10", "loss", "public.note/11", "loss", "public.note/12", "loss"]
        for limit in 100, 1:
            assert read_on(log, reader, start, limit)[0] == told
        assert isinstance(log, PostgresLog)
        _, _, upto = read_on(log, reader, start)
        log.confirm(upto)
        assert log._left_out.spans() == {}


def test_a_snapshot_leaves_it_out_too(tables: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables.execute("INSERT INTO item VALUES (1, 'w')", "INSERT INTO note VALUES (1)")
    stream = tables.stream(shard="shop", snapshot=True, snapshot_folder=str(tmp_path))
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        objects, losses, after = read_on(log, reader, floors(log))
        assert (objects, losses) == (["public.item/1"], [])
        assert "rows of table public.note are left out" in caplog.text
        assert "rows of table public.nameless are left out" not in caplog.text  # which has none
        tables.execute("ALTER TABLE note ADD shop text", "INSERT INTO note VALUES (2, 'w')")
        assert read_on(log, reader, after)[0] == ["public.note/2", "loss"]
    with contextlib.closing(open_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert read_on(log, reader, floors(log))[0] == ["public.item/1", "public.note/2"]


def test_with_a_snapshot_after_a_loss_the_rows_that_were_left_out_come_too(tables: Database, tmp_path: Path) -> None:
    stream = tables.stream(shard="shop", on_data_loss="snapshot", snapshot_folder=str(tmp_path))
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        tables.execute("INSERT INTO note VALUES (1)", "INSERT INTO item VALUES (1, 'w')")
        _, _, after = read_on(log, reader, floors(log))
        tables.execute("ALTER TABLE note ADD shop text", "INSERT INTO note VALUES (2, 'w')")
        before, losses, after = read_on(log, reader, after)
        assert len(losses) == 1
        rows = before + read_on(log, reader, after)[0]
    assert rows == ["public.note/2", "loss", "public.item/1", "public.note/1", "public.note/2"]


def test_a_subscriber_hears_of_the_table_that_is_back_once(cluster: Cluster, tables: Database) -> None:
    cluster.create_stream("shop", 4, tables.address(), options=tables.options() | {"shard": "shop"})
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        tables.execute("INSERT INTO note VALUES (1)", "INSERT INTO item VALUES (1, 'w')")
        eventually(lambda: "public.item/1" in copy.rows)
        assert copy.lost == []
        tables.execute("ALTER TABLE note ADD shop text", "INSERT INTO note VALUES (2, 'w')")
        eventually(lambda: sorted(shard for shard, _, _ in copy.lost) == [0, 1, 2, 3])
        tables.execute("INSERT INTO note VALUES (3, 'w')")
        eventually(lambda: "public.note/3" in copy.rows)
    assert len(copy.lost) == 4
    assert sorted(copy.rows) == ["public.note/3"]
