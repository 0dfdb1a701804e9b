"""What becomes of what is done to MariaDB's tables: statements, keys, new columns, and the mapping of rows."""

from __future__ import annotations

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import ITEMS, Scene, brief, drain, heads, ids, listed, needs_mariadb, now, places
from tidings.positions import Position, Positions

password, server, scene = mysql_server.password, mysql_server.shared_server, mysql_server.scene
pytestmark = needs_mariadb


def test_a_table_of_the_same_name_in_another_database_is_another(scene: Scene) -> None:
    other = Scene(scene.server)
    other.sql(ITEMS)
    log = scene.log("items", shards=1)
    after = heads(log)
    other.sql("INSERT INTO items VALUES (1, 'theirs')", "TRUNCATE items")
    scene.sql("INSERT INTO items VALUES (2, 'ours')")
    assert ids(listed(log.tail(after, 10))) == [2]


def test_what_is_rolled_back_is_not_seen_and_takes_no_number(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    connection = scene.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO items VALUES (1, 'never')")
        connection.rollback()
        cursor.execute("INSERT INTO items VALUES (2, 'kept')")
        cursor.execute("SAVEPOINT here")
        cursor.execute("INSERT INTO items VALUES (3, 'taken back')")
        cursor.execute("ROLLBACK TO SAVEPOINT here")
        cursor.execute("INSERT INTO items VALUES (4, 'kept')")
        connection.commit()
    connection.close()
    rows = listed(log.tail(after, 10))
    assert ids(rows) == [2, 4]
    assert places(rows) == [(after[0].seq, 0), (after[0].seq, 1)]


def test_what_is_undone_beside_a_table_without_transactions_is_not_seen(scene: Scene) -> None:
    scene.sql("CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM")
    log = scene.log("items", "plain")
    after = heads(log)
    scene.sql(
        "INSERT INTO items VALUES (1, 'kept')",
        "SAVEPOINT here",
        "INSERT INTO items VALUES (2, 'undone')",
        "INSERT INTO plain VALUES (3)",
        "ROLLBACK TO here",
        "INSERT INTO items VALUES (4, 'kept')",
        together=True,
    )
    rows = listed(log.tail(after, 10))
    assert ids(rows) == [3, 1, 4]
    assert places(rows)[1:] == [(after[0].seq + 1, 0), (after[0].seq + 1, 2)]


def test_columns_are_added_and_dropped_mid_stream(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    scene.sql(
        "INSERT INTO items VALUES (1, 'a')",
        "ALTER TABLE items ADD COLUMN age INT AFTER id",
        "INSERT INTO items VALUES (2, 20, 'b')",
        "ALTER TABLE items DROP COLUMN name",
        "INSERT INTO items VALUES (3, 30)",
        "ALTER TABLE items RENAME COLUMN age TO years",
        "UPDATE items SET years = 31 WHERE id = 3",
    )
    rows, _ = drain(log.reader(), after, now(log))
    assert [row["payload"] for row in rows] == [
        {"id": 1, "name": "a"},
        {"id": 2, "age": 20, "name": "b"},
        {"id": 3, "age": 30},
        {"id": 3, "years": 31},
    ]


def test_a_new_key_is_a_delete_of_the_old_object_and_an_update_of_the_new(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    scene.sql(
        "INSERT INTO items VALUES (1, 'a'), (5, 'e')", "UPDATE items SET id = id + 1, name = 'z' ORDER BY id DESC"
    )
    rows = listed(log.tail(after, 10))[2:]
    assert brief(rows) == [("items/5", "delete"), ("items/6", "update"), ("items/1", "delete"), ("items/2", "update")]
    assert [row["payload"] for row in rows[:2]] == [{"id": 5, "name": "e"}, {"id": 6, "name": "z"}]
    assert places(rows) == [(after[0].seq + 1, index) for index in range(4)]
    halfway = Positions({0: Position(after[0].seq + 1, 0), 1: Position(after[0].seq + 1, 0)})
    assert listed(log.tail(halfway, 10)) == rows[1:]


def test_keys_of_several_columns_and_of_a_prefix_are_in_their_order(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE pairs (a INT, b VARCHAR(9), c INT, PRIMARY KEY (b, a))",
        "CREATE TABLE words (n INT, word TEXT, PRIMARY KEY (word(5)))",
    )
    log = scene.log("pairs", "words")
    after = heads(log)
    scene.sql("INSERT INTO pairs VALUES (1, 'x,y', 3)", "INSERT INTO words VALUES (1, 'longish')")
    assert [name for name, _ in brief(listed(log.tail(after, 10)))] == ["pairs/x%2Cy,1", "words/longish"]


def test_a_table_without_a_key_is_one_object(scene: Scene) -> None:
    scene.sql("CREATE TABLE heap (n INT)")
    log = scene.log("heap")
    after = heads(log)
    scene.sql("INSERT INTO heap VALUES (1), (1)", "UPDATE heap SET n = 2 LIMIT 1", "DELETE FROM heap WHERE n = 2")
    rows = listed(log.tail(after, 10))
    assert brief(rows) == [("heap", "insert"), ("heap", "insert"), ("heap", "update"), ("heap", "delete")]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE .items",
        "TRUNCATE TABLE {database}./**/items",
        "/*!TRUNCATE*/ TABLE items",
        "TRUNCATE/*!*/items",
        "SET STATEMENT max_statement_time=10 FOR TRUNCATE items",
        "/*!50000 */ TRUNCATE items",
        "/*!999999 DROP TABLE others */ TRUNCATE items",
    ],
)
def test_a_truncated_table_is_told_however_that_is_spelt(scene: Scene, statement: str) -> None:
    log = scene.log("items")
    start = heads(log)
    scene.sql(statement.format(database=scene.database))
    rows, _ = drain(log.reader(), start, now(log))
    assert {row["attributes"]["operation"] for row in rows} == {"truncate"}


def test_a_truncated_table_is_one_update(scene: Scene) -> None:
    scene.sql("CREATE TABLE `odd ``name` (id INT PRIMARY KEY)")
    log = scene.log("items", "odd `name", shards=1, version="id", object="{table}:{id}", shard="id")
    after = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')", "TRUNCATE TABLE items", "INSERT INTO items VALUES (1, 'a')")
    scene.sql(f"truncate {scene.database}.items", "/* by hand */ TRUNCATE `odd ``name`")
    rows = listed(log.tail(after, 10))
    assert [row["attributes"]["operation"] for row in rows] == ["insert", "truncate", "insert", "truncate", "truncate"]
    assert rows[1]["object"] == f"{scene.database}.items"
    assert rows[1]["payload"] is None
    assert rows[4]["object"] == f"{scene.database}.odd `name"
    assert places(rows) == [(after[0].seq + number, 0) for number in range(5)]


def test_the_mapping_is_that_of_the_options(scene: Scene) -> None:
    scene.sql("CREATE TABLE users (id INT PRIMARY KEY, region VARCHAR(9), revision BIGINT)")
    log = scene.log(
        "users", shards=8, object="user/{id}", version="revision", attributes=["region"], shard="region", payload="none"
    )
    after = heads(log)
    scene.sql("INSERT INTO users VALUES (1, 'eu', 70), (2, 'eu', 71)")
    rows = listed(log.tail(after, 10))
    assert [(row["object"], row["version"], row["payload"]) for row in rows] == [
        ("user/1", 70, None),
        ("user/2", 71, None),
    ]
    assert len({row["shard"] for row in rows}) == 1
    assert rows[0]["attributes"]["region"] == "eu"
