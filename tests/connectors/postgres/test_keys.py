"""What names an object, where the replica identity does not say it: the key as it was then, and not as it is today."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.postgres.test_values import changes, told
from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, read_on
from tidings.errors import InvalidOption, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.log_reading import ends
from tidings.positions import Positions
from tidings.updates import shard_of
from tidings_connectors.postgres.log import PostgresLog

database, log = postgres_server.database, postgres_server.log


@contextlib.contextmanager
def full(database: Database, columns: str = "id int PRIMARY KEY, code text NOT NULL", **options: Any) -> Iterator[Any]:
    """A log that begins when there is a table with a full identity."""
    database.execute(f"CREATE TABLE t ({columns})", "ALTER TABLE t REPLICA IDENTITY FULL")
    with contextlib.closing(create_log(database.stream(**options))) as log:
        yield log


def insert(database: Database, first: int, last: int) -> None:
    database.execute(f"INSERT INTO t SELECT n, 'c' || n FROM generate_series({first}, {last}) n")


def test_rows_from_before_a_column_of_the_key_was_renamed_keep_their_names(database: Database) -> None:
    with full(database) as log:
        insert(database, 1, 100)
        database.execute("UPDATE t SET code = 'x' WHERE id = 1", "ALTER TABLE t RENAME id TO number")
        insert(database, 101, 201)
        database.execute("DELETE FROM t WHERE number = 7")
        rows = changes(log)
    names = [row["object"] for row in rows]
    assert names == [f"public.t/{n}" for n in [*range(1, 101), 1, *range(101, 202), 7]]
    assert all(row["shard"] == shard_of(row["object"], 4) for row in rows)
    assert told(rows)[0][2] == {"id": 1, "code": "c1"}
    assert told(rows)[-2][2] == {"number": 201, "code": "c201"}


def test_columns_that_come_and_go_do_not_change_which_is_the_key(database: Database) -> None:
    with full(database, "gone int, twice int GENERATED ALWAYS AS (2) STORED, a int, b int, PRIMARY KEY (b, a)") as log:
        database.execute("INSERT INTO t (a, b) VALUES (1, 2)", "ALTER TABLE t DROP gone", "ALTER TABLE t ADD c int")
        database.execute("INSERT INTO t (a, b) VALUES (3, 4)", "ALTER TABLE t RENAME c TO gone")
        database.execute("INSERT INTO t (a, b) VALUES (5, 6)")
        assert [row["object"] for row in changes(log)] == ["public.t/1,2", "public.t/3,4", "public.t/5,6"]
        # Of these only the places tell what a renamed column was called, and a column before it is gone.
        start = floors(log)
        database.execute(
            "ALTER TABLE t DROP twice", "ALTER TABLE t RENAME b TO d", "INSERT INTO t (a, d) VALUES (7, 8)"
        )
        with contextlib.closing(log.reader()) as reader:
            objects = read_on(log, reader, start)[0]
    assert set(objects) <= {"loss", "public.t/1,2", "public.t/3,4", "public.t/5,6", "public.t/7,8"}
    assert "loss" in objects


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)", "ALTER TABLE t DROP CONSTRAINT t_pkey"],
)
def test_rows_of_which_nobody_knows_the_key_any_more_are_a_loss(database: Database, change: str) -> None:
    with full(database) as log, contextlib.closing(log.reader()) as reader:
        insert(database, 1, 10)
        database.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)", change)
        insert(database, 11, 20)
        database.execute("INSERT INTO other VALUES (2)")
        objects, losses, after = read_on(log, reader, floors(log))
        assert [name for name in objects if name != "loss"] == ["public.other/1", "public.other/2"]
        assert {shard for lost in losses for shard in lost} == {0, 1, 2, 3}
        before = log.tail(floors(log), 100)
        with pytest.raises(PositionsLost, match="name it by the stream's option 'keys'"):
            log.tail(Positions({**floors(log), **ends(before)}), 100)
        # What is written from now on is named by the key of now.
        insert(database, 21, 22)
        named = ["public.t/c21", "public.t/c22"] if "ADD" in change else ["public.t", "public.t"]
        assert read_on(log, reader, after)[0] == named


def test_rows_of_a_table_that_is_gone_are_a_loss(database: Database) -> None:
    with full(database) as log, contextlib.closing(log.reader()) as reader:
        insert(database, 1, 10)
        database.execute("DROP TABLE t")
        assert read_on(log, reader, floors(log))[0] == ["loss"]


def test_a_stream_that_names_the_key_goes_by_that(database: Database) -> None:
    with full(database, keys={"public.t": ["id"]}) as log:
        insert(database, 1, 10)
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)")
        insert(database, 11, 20)
        database.execute("DELETE FROM t WHERE id = 1", "DROP TABLE t")
        assert [row["object"] for row in changes(log)] == [f"public.t/{n}" for n in [*range(1, 21), 1]]


def test_the_key_that_a_stream_names_is_that_of_its_snapshot_too(database: Database, tmp_path: Any) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, code text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    insert(database, 1, 2)
    named: dict[str, Any] = {"keys": {"public.t": ["code"]}, "snapshot": True, "snapshot_folder": str(tmp_path)}
    with contextlib.closing(create_log(database.stream(**named))) as log:
        insert(database, 3, 4)
        assert [row["object"] for row in changes(log)] == [f"public.t/c{n}" for n in range(1, 5)]  # type: ignore[arg-type]


def test_a_key_without_columns_is_refused(database: Database) -> None:
    with pytest.raises(InvalidOption, match=r"option 'keys\.public\.t'"):
        create_log(database.stream(keys={"public.t": []}))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"public.u": ["id"]}, r"names table 'public.u', which is not in publication .* \(tables: public.t\)"),
        ({"t": ["id"]}, "names table 't'"),
        ({"public.t": ["id", "nr"]}, r"names column 'nr' of table 'public.t', .* \(columns: id, code\)"),
    ],
)
def test_a_key_that_is_not_there_is_refused_before_anything_is_made(
    database: Database, keys: dict[str, list[str]], problem: str
) -> None:
    with pytest.raises(InvalidOption, match=problem), full(database, keys=keys):
        pass
    assert database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []


def test_a_key_of_a_table_that_is_gone_since_is_told_and_its_rows_are_read(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    named: dict[str, Any] = {"keys": {"public.t": ["code"]}}
    with full(database, **named):
        insert(database, 1, 2)
    database.execute("DROP TABLE t")
    with contextlib.closing(create_log(database.stream(**named))) as log:
        assert isinstance(log, PostgresLog)
        assert [row["object"] for row in changes(log)] == ["public.t/c1", "public.t/c2"]
    assert "option 'keys' names table 'public.t'" in caplog.text


def test_a_key_is_known_though_the_log_was_opened_since(database: Database) -> None:
    with full(database):
        insert(database, 1, 10)
        database.execute("ALTER TABLE t RENAME id TO number", "CREATE TABLE later (id int PRIMARY KEY)")
        database.execute("ALTER TABLE later REPLICA IDENTITY FULL", "INSERT INTO later VALUES (1)")
    with contextlib.closing(open_log(database.stream())) as log:
        assert isinstance(log, PostgresLog)
        names = [row["object"] for row in changes(log)]
    assert names == [*(f"public.t/{n}" for n in range(1, 11)), "public.later/1"]
