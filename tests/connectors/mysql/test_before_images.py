"""What a row was before it changed, as the binary log has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.connectors.mysql.test_losses import heard
from tests.support import mysql_server
from tests.support.mysql_server import Scene, heads, listed, needs_mariadb, places
from tidings.filters import parse
from tidings.updates import shard_of

password, server, scene = mysql_server.password, mysql_server.shared_server, mysql_server.scene
pytestmark = needs_mariadb

WANTED: dict[str, Any] = {"attributes": ["city"], "before": True}


@pytest.fixture
def people(scene: Scene) -> Scene:
    scene.sql("CREATE TABLE person (id INT PRIMARY KEY, city VARCHAR(20), good BOOL)")
    return scene


def told(scene: Scene, *statements: str) -> list[tuple[Any, ...]]:
    """What becomes of statements: object, operation, and the city, before and after."""
    log, plain = scene.log("person", **WANTED), scene.log("person")
    after = heads(log)
    scene.sql(*statements)
    table = log.tail(after, 100)
    rows = listed(table)
    assert listed(log.tail(after, 100)) == rows
    assert places(rows) == places(listed(plain.tail(after, 100)))
    rome = table.filter(parse("city = Rome or before.city = Rome").mask(table))
    assert {row["object"] for row in listed(rome)} >= {
        row["object"] for row in rows if "Rome" in (row["attributes"].get("before.city"), row["attributes"].get("city"))
    }
    return [
        (
            row["object"].rpartition(".")[2],
            row["attributes"]["operation"],
            row["attributes"].get("before.city"),
            row["attributes"].get("city"),
        )
        for row in rows
    ]


def test_updates_and_deletes_say_what_the_row_was(people: Scene) -> None:
    assert told(
        people,
        "INSERT INTO person VALUES (1, 'Rome', NULL), (2, NULL, NULL)",
        "UPDATE person SET city = 'Paris' WHERE id = 1",
        "UPDATE person SET city = 'Rome' WHERE id = 2",
        "UPDATE person SET good = TRUE WHERE id = 2",
        "UPDATE person SET id = 3, city = 'Oslo' WHERE id = 2",
        "REPLACE INTO person VALUES (3, 'Bern', NULL)",
        "DELETE FROM person WHERE id = 3",
        "TRUNCATE person",
    )[:-1] == [
        ("person/1", "insert", None, "Rome"),
        ("person/2", "insert", None, None),
        ("person/1", "update", "Rome", "Paris"),
        ("person/2", "update", None, "Rome"),
        ("person/2", "update", "Rome", "Rome"),
        ("person/2", "delete", "Rome", "Rome"),
        ("person/3", "update", None, "Oslo"),
        ("person/3", "update", "Oslo", "Bern"),
        ("person/3", "delete", "Bern", "Bern"),
        ("person", "truncate", None, None),
    ]


def test_what_a_session_logs_without_it_is_lost_and_told(people: Scene) -> None:
    log = people.log("person", **WANTED)
    people.sql("INSERT INTO person VALUES (1, 'Rome', NULL), (2, 'Oslo', NULL)")
    after = heads(log)
    people.sql(
        "SET SESSION binlog_row_image = 'MINIMAL'",
        "UPDATE person SET city = 'Paris' WHERE id = 1",
        "INSERT INTO person VALUES (3, 'Rome', NULL)",
        "DELETE FROM person WHERE id = 2",
    )
    people.sql("UPDATE person SET good = TRUE WHERE id = 1")
    rows, losses = heard(log, after)
    assert rows == [3, 1]
    assert len(losses) == 2
    assert all("what column 'city' of table" in reason and "binlog_row_image" in reason for _, reason in losses)


def test_a_value_that_was_no_text_is_not_told_and_what_mends_it_comes(people: Scene) -> None:
    people.sql("ALTER TABLE person MODIFY city VARCHAR(20) CHARACTER SET ujis")
    log = people.log("person", **WANTED)
    after = heads(log)
    people.sql(
        "INSERT INTO person VALUES (1, _ujis x'8FF5A1', NULL)",  # a character of users
        "UPDATE person SET city = 'Rome'",
    )
    rows, losses = heard(log, after)
    assert rows == [1]
    assert len(losses) == 1


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_a_row_that_goes_to_another_shard_ends_in_its_old_one_if_the_log_says_so(people: Scene, image: str) -> None:
    log = people.log("person", shard="city", shards=64)
    after = heads(log)
    people.sql(
        f"SET SESSION binlog_row_image = '{image}'",
        "INSERT INTO person VALUES (1, 'Rome', NULL), (2, NULL, NULL), (3, 'Bern', NULL)",
        "UPDATE person SET city = 'Paris' WHERE id IN (1, 2)",
        "UPDATE person SET good = TRUE WHERE id <> 2",
    )
    rows = [row for row in listed(log.tail(after, 1000)) if row["attributes"]["operation"] == "delete"]
    ended = [(row["object"].rpartition("/")[2], row["shard"]) for row in rows]
    if image == "FULL":
        assert ended == [("1", shard_of("Rome", 64)), ("2", shard_of(rows[1]["object"], 64))]
    else:
        assert ended == []
