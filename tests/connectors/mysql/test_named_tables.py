"""Tables and columns that the options of a stream name are looked for when it is made."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import PASSWORD, Scene, needs_mariadb
from tidings.errors import InvalidOptions
from tidings.log_checks import preflight

password, server, scene = mysql_server.password, mysql_server.shared_server, mysql_server.scene
pytestmark = needs_mariadb

USERS = "CREATE TABLE users (id INT PRIMARY KEY, region VARCHAR(9), revision BIGINT)"


def refused(scene: Scene, *tables: str, **options: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the options of a stream; it is the same for one that is only looked at."""
    with pytest.raises(InvalidOptions) as caught:
        scene.log(*tables, **options)
    with pytest.raises(InvalidOptions) as planned:
        preflight(scene.definition(*tables, **options))
    assert str(planned.value) == str(caught.value) == "; ".join(text for _, text in caught.value.problems)
    return list(caught.value.problems)


def test_a_table_that_is_not_there_is_refused_and_can_be_added_when_it_is(scene: Scene) -> None:
    scene.may_read()
    ((place, told),) = refused(scene, "items", "itmes")
    assert place == ("tables", 1)
    assert f"cannot watch table {scene.database}.itmes: there is none in MariaDB at 127.0.0.1:" in told
    assert told.endswith("correct its name, or make it first; one that comes later is added by `tidings apply`")
    scene.sql("CREATE TABLE itmes (id INT PRIMARY KEY)")
    scene.log("items", "itmes")


def test_a_view_is_refused(scene: Scene) -> None:
    scene.may_read()
    scene.sql("CREATE VIEW some AS SELECT id FROM items")
    ((_, told),) = refused(scene, "some")
    assert told.endswith("it is a view, whose changes are in no log: name the tables that it reads")


@pytest.mark.parametrize(
    ("options", "place", "word"),
    [
        ({"shard": "Region"}, ("shard",), "'Region', which table {0}.users does not have"),
        ({"object": "{table}/{region}/{nmae}"}, ("object",), "'nmae', which table {0}.users does not have"),
        ({"version": "rev"}, ("version",), "'rev', which table {0}.users does not have"),
        ({"attributes": ["region", "id", "name", "nmae"]}, ("attributes", 3), "'nmae', which none of the tables has"),
    ],
)
def test_a_column_that_a_table_does_not_have_is_refused(
    scene: Scene, options: dict[str, Any], place: tuple[str | int, ...], word: str
) -> None:
    scene.may_read()
    scene.sql(USERS)
    tables = ("users", "items") if "attributes" in options else ("users",)
    ((found, told),) = refused(scene, *tables, **options)
    assert found == place
    assert word.format(scene.database) in told
    assert "(columns: id, region, revision" in told


def test_columns_that_are_there_are_taken(scene: Scene) -> None:
    scene.may_read()
    scene.sql(USERS, "ALTER TABLE users ADD SYSTEM VERSIONING")
    scene.log("users", shard="region", object="{schema}/{region}/{key}", version="revision", attributes=["row_end"])


def test_each_table_needs_a_schema_for_avro(scene: Scene) -> None:
    scene.may_read()
    record = {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "int"}]}
    ((place, told),) = refused(scene, "items", payload="avro", schemas={f"{scene.database}.itmes": record})
    assert place == ("schemas",)
    assert f"no schema for table {scene.database}.items" in told


def test_what_may_not_be_seen_is_taken_and_told_with_the_statement_that_shows_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tidings_connectors"):
            scene.log("items", shard="nmae")
        return [record.getMessage() for record in caplog.records]

    (warning,) = told()
    hidden = f"may not see table {scene.database}.items, so nobody knows whether it is there, and has the columns"
    assert hidden in warning
    assert PASSWORD not in warning
    scene.server.sql("SET SESSION sql_log_bin = 0", warning[warning.rindex("GRANT ") :])
    ((place, _),) = refused(scene, "items", shard="nmae")
    assert place == ("shard",)


def test_a_column_that_may_not_be_seen_is_taken(scene: Scene) -> None:
    scene.sql(USERS)
    table = f"{scene.database}.users"
    scene.server.sql("SET SESSION sql_log_bin = 0", f"GRANT SELECT (id) ON {table} TO tidings")
    scene.log("users", shard="region")
