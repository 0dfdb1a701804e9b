"""What a row was before it changed: who holds a copy of some rows hears of one that leaves them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.connectors.postgres.test_preflight import cure, refused
from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, places, read_all, read_on
from tidings.cluster import Cluster
from tidings.log_opening import create_log, open_log
from tidings.testing import eventually
from tidings.updates import SCHEMA, shard_of

database = postgres_server.database

ROME = "city = Rome or before.city = Rome or operation = truncate"
WANTED: dict[str, Any] = {"attributes": ["city"], "before": True}


class InRome(tidings.Handler):
    """A copy of the rows of Rome."""

    def __init__(self) -> None:
        self.rows: set[str] = set()
        self.heard: set[str] = set()

    def on_update(self, update: tidings.Update) -> None:
        assert update.attributes is not None
        self.heard.add(update.object)
        if update.attributes["operation"] == "truncate":
            self.rows.clear()
        elif update.attributes["operation"] == "delete" or update.attributes["city"] != "Rome":
            self.rows.discard(update.object)
        else:
            self.rows.add(update.object)


@pytest.fixture
def people(database: Database) -> Database:
    database.execute(
        "CREATE TABLE person (id int PRIMARY KEY, city text, good bool, notes text)",
        "ALTER TABLE person REPLICA IDENTITY FULL",
    )
    return database


def told(database: Database, *statements: str, **options: Any) -> list[tuple[str, str, str | None, str | None]]:
    """What becomes of statements: object, operation, and the city, before and after."""
    stream = database.stream(1, **{**WANTED, **options})
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        database.execute(*statements)
        rows, _ = read_all(reader, start, log)
        with contextlib.closing(log.reader()) as other:
            again, _ = read_all(other, start, log, limit=1)
    assert again == rows
    attributes = [row["attributes"] for row in rows]
    return [
        (row["object"].removeprefix("public."), one["operation"], one.get("before.city"), one.get("city"))
        for row, one in zip(rows, attributes, strict=True)
    ]


def test_updates_and_deletes_say_what_the_row_was(people: Database) -> None:
    assert told(
        people,
        "INSERT INTO person VALUES (1, 'Rome'), (2, NULL), (3, 'Oslo')",
        "UPDATE person SET city = 'Paris' WHERE id = 1",
        "UPDATE person SET city = 'Rome' WHERE id = 2",
        "UPDATE person SET good = true",
        "DELETE FROM person WHERE id = 2",
        "TRUNCATE person",
    ) == [
        ("person/1", "insert", None, "Rome"),
        ("person/2", "insert", None, None),
        ("person/3", "insert", None, "Oslo"),
        ("person/1", "update", "Rome", "Paris"),
        ("person/2", "update", None, "Rome"),
        ("person/3", "update", "Oslo", "Oslo"),
        ("person/1", "update", "Paris", "Paris"),
        ("person/2", "update", "Rome", "Rome"),
        ("person/2", "delete", "Rome", "Rome"),
        ("person", "truncate", None, None),
    ]


def test_a_row_with_a_new_key_is_ended_with_what_it_was_and_the_new_one_was_nothing(people: Database) -> None:
    assert told(
        people,
        "INSERT INTO person VALUES (1, 'Rome'), (2, 'Oslo')",
        "UPDATE person SET id = id + 10, city = 'Paris'",
        "UPDATE person SET city = 'Bern' WHERE id = 11",
    )[2:] == [
        ("person/1", "delete", "Rome", "Rome"),
        ("person/11", "update", None, "Paris"),
        ("person/2", "delete", "Oslo", "Oslo"),
        ("person/12", "update", None, "Paris"),
        ("person/11", "update", "Paris", "Bern"),
    ]


def test_large_values_and_others_than_text_are_as_they_are_afterwards(people: Database) -> None:
    people.execute("ALTER TABLE person ALTER notes SET STORAGE EXTERNAL")
    stream = people.stream(attributes=["good", "notes"], before=True)
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        people.execute("INSERT INTO person VALUES (1, 'Rome', true, repeat('x', 100000))")
        people.execute("UPDATE person SET good = false", "UPDATE person SET notes = 'y'")
        rows, _ = read_all(reader, floors(log), log)
    large = "x" * 100_000
    asked = ("before.good", "good", "before.notes", "notes")
    assert [tuple(row["attributes"].get(name) for name in asked) for row in rows] == [
        (None, "true", None, large),
        ("true", "false", large, large),
        ("false", "false", large, "y"),
    ]


def test_rows_of_a_snapshot_were_nothing_before(people: Database, tmp_path: Path) -> None:
    people.execute("INSERT INTO person VALUES (1, 'Rome')")
    options = {"payload": "none", "snapshot": True, "snapshot_folder": str(tmp_path)}
    assert told(people, "UPDATE person SET city = 'Oslo'", **options) == [
        ("person/1", "snapshot", None, "Rome"),
        ("person/1", "update", "Rome", "Oslo"),
    ]


def test_a_column_of_the_identity_needs_no_more_than_that(database: Database) -> None:
    database.execute(
        "CREATE TABLE person (id int, city text NOT NULL, good bool, UNIQUE (id, city), PRIMARY KEY (id))",
        "ALTER TABLE person REPLICA IDENTITY USING INDEX person_id_city_key",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    assert told(
        database,
        "INSERT INTO person VALUES (1, 'Rome')",
        "UPDATE person SET good = true",
        "UPDATE person SET city = 'Oslo'",
        "DELETE FROM person",
    ) == [
        ("person/1,Rome", "insert", None, "Rome"),
        ("person/1,Rome", "update", "Rome", "Rome"),
        ("person/1,Rome", "delete", "Rome", "Rome"),
        ("person/1,Oslo", "update", None, "Oslo"),
        ("person/1,Oslo", "delete", "Oslo", "Oslo"),
    ]


@pytest.mark.parametrize("root", [True, False], ids=["for its partitions", "each by itself"])
def test_partitions_need_it_too_and_the_sentence_says_so(database: Database, root: bool) -> None:
    database.execute(
        "CREATE TABLE person (id int, city text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF person FOR VALUES FROM (0) TO (100)",
        "DROP PUBLICATION everything",
        f"CREATE PUBLICATION everything FOR TABLE person WITH (publish_via_partition_root = {root})",
    )
    asked = "person" if root else "low"
    statement = cure(refused(database.stream(**WANTED)), "ALTER TABLE")
    assert statement == f'ALTER TABLE "public"."{asked}" REPLICA IDENTITY FULL'
    database.execute(statement)
    if root:
        assert cure(refused(database.stream(**WANTED)), "ALTER TABLE") == statement
        database.execute("ALTER TABLE low REPLICA IDENTITY FULL")
    keys = {"keys": {f"public.{asked}": ["id"]}}
    changes = "INSERT INTO person VALUES (1, 'Rome')", "UPDATE person SET city = 'Oslo'", "DELETE FROM person"
    assert told(database, *changes, **keys)[1:] == [
        (f"{asked}/1", "update", "Rome", "Oslo"),
        (f"{asked}/1", "delete", "Oslo", "Oslo"),
    ]


def test_a_new_partition_without_it_has_the_table_left_out_until_it_has(database: Database) -> None:
    database.execute(
        "CREATE TABLE person (id int, city text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF person FOR VALUES FROM (0) TO (100)",
        "ALTER TABLE person REPLICA IDENTITY FULL",
        "ALTER TABLE low REPLICA IDENTITY FULL",
        "DROP PUBLICATION everything",
        "CREATE PUBLICATION everything FOR TABLE person WITH (publish_via_partition_root)",
    )
    stream = database.stream(**WANTED, keys={"public.person": ["id"]})
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        database.execute("INSERT INTO person VALUES (1, 'Rome')")
        first, losses, after = read_on(log, reader, floors(log))
        assert (first, losses) == (["public.person/1"], [])
        database.execute(
            "CREATE TABLE high PARTITION OF person FOR VALUES FROM (100) TO (200)",
            "INSERT INTO person VALUES (101, 'Rome')",
            "UPDATE person SET city = 'Oslo' WHERE id = 101",
        )
        then, losses, after = read_on(log, reader, after)
        assert (then, losses) == ([], [])
        database.execute("ALTER TABLE high REPLICA IDENTITY FULL", "UPDATE person SET city = 'Bern' WHERE id = 101")
        then, losses, _ = read_on(log, reader, after)
        assert then == ["public.person/101", "loss"]
        assert len(losses) == 1
        # One who comes now reads with what the partition is today; the log still says which update lacks an old row.
        with contextlib.closing(log.reader()) as other:
            whole, again, _ = read_on(log, other, floors(log))
    assert [name for name in whole if name != "loss"] == ["public.person/1", "public.person/101", "public.person/101"]
    assert len(again) == 1


def test_a_table_that_does_not_log_it_is_refused_and_later_left_out(
    people: Database, caplog: pytest.LogCaptureFixture
) -> None:
    people.execute("ALTER TABLE person REPLICA IDENTITY DEFAULT", "CREATE TABLE note (id int PRIMARY KEY)")
    sentence = refused(people.stream(**WANTED))
    assert "table public.person does not log what column 'city' was before" in sentence
    people.execute(cure(sentence, "ALTER TABLE"))
    with contextlib.closing(create_log(people.stream(**WANTED))) as log, contextlib.closing(log.reader()) as reader:
        people.execute("INSERT INTO person VALUES (1, 'Rome')", "ALTER TABLE person REPLICA IDENTITY DEFAULT")
        people.execute("UPDATE person SET city = 'Oslo'", "INSERT INTO note VALUES (7)")
        first, losses, after = read_on(log, reader, floors(log))
        assert (first, losses) == (["public.person/1", "public.note/7"], [])
        assert "rows of table public.person are left out" in caplog.text
        people.execute("ALTER TABLE person REPLICA IDENTITY FULL", "UPDATE person SET city = 'Paris'")
        then, losses, _ = read_on(log, reader, after)
        assert then == ["public.person/1", "loss"]
        assert len(losses) == 1
        with contextlib.closing(open_log(people.stream(**WANTED))) as other:
            assert [row["object"] for row in other.tail(floors(log), 10).to_pylist()] == [*first, "public.person/1"]


def test_the_rows_and_their_places_are_the_same_with_it_and_without(people: Database) -> None:
    with contextlib.closing(create_log(people.stream())) as log:
        start = floors(log)
        people.execute("INSERT INTO person SELECT n, 'Rome' FROM generate_series(1, 20) n")
        with people.transaction() as cursor:
            cursor.execute("UPDATE person SET city = 'Oslo' WHERE id % 2 = 0")
            cursor.execute("UPDATE person SET id = id + 100 WHERE id % 3 = 0")
            cursor.execute("TRUNCATE person")
        with contextlib.closing(open_log(people.stream(**WANTED))) as other:
            plain, more = log.tail(start, 1000), other.tail(start, 1000)
    assert places(more.to_pylist()) == places(plain.to_pylist())
    others = [name for name in SCHEMA.names if name != "attributes"]
    assert more.select(others) == plain.select(others)


def test_an_application_that_holds_the_rows_of_rome_hears_of_those_that_leave(
    cluster: Cluster, people: Database
) -> None:
    cluster.create_stream("shop", 2, people.address(), options=people.options() | WANTED)
    cluster.create_application("rome", ["shop"], filter=ROME, start="earliest")
    rome = InRome()
    with cluster.subscribe("rome", rome), cluster.publisher():
        people.execute("INSERT INTO person SELECT n, 'Rome' FROM generate_series(1, 4) n")
        people.execute("INSERT INTO person SELECT n, 'Oslo' FROM generate_series(5, 8) n")
        people.execute("UPDATE person SET city = 'Paris' WHERE id IN (1, 5)", "DELETE FROM person WHERE id IN (2, 6)")
        people.execute("UPDATE person SET city = 'Rome' WHERE id = 7", "UPDATE person SET id = 33 WHERE id = 3")
        eventually(lambda: rome.rows == {"public.person/4", "public.person/7", "public.person/33"})
        assert not rome.heard & {"public.person/5", "public.person/6", "public.person/8"}
        people.execute("TRUNCATE person")
        eventually(lambda: not rome.rows)


def shards_after(database: Database, *statements: str, **options: Any) -> tuple[dict[str, set[int]], list[Any]]:
    """In which shards the objects are for one who applies all updates, shard by shard; and the ends."""
    stream = database.stream(64, **{"shard": "city", **options})
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        database.execute(*statements)
        rows, _ = read_all(reader, start, log)
        with contextlib.closing(log.reader()) as other:
            assert read_all(other, start, log, limit=1)[0] == rows
    found: dict[str, set[int]] = {}
    for row in rows:
        there = found.setdefault(row["object"], set())
        (there.discard if row["attributes"]["operation"] == "delete" else there.add)(row["shard"])
    assert len({(row["shard"], row["seq"], row["index"]) for row in rows}) == len(rows)
    ends = [row for row in rows if row["attributes"]["operation"] == "delete"]
    updates = {(row["seq"], row["index"]) for row in rows if row["attributes"]["operation"] == "update"}
    assert all((row["seq"], row["index"]) in updates for row in ends)
    return found, ends


MOVES = (
    "INSERT INTO person VALUES (1, 'Rome'), (2, NULL), (3, 'Oslo'), (4, 'Bern')",
    "UPDATE person SET city = 'Paris' WHERE id IN (1, 2)",
    "UPDATE person SET city = NULL WHERE id = 3",
    "UPDATE person SET good = true",
)
AT = {
    f"public.person/{n}": {shard_of(where, 64)}
    for n, where in enumerate(["Paris", "Paris", "public.person/3", "Bern"], 1)
}


def test_a_row_that_goes_to_another_shard_ends_in_its_old_one(people: Database) -> None:
    found, ends = shards_after(people, *MOVES)
    assert found == AT
    assert [json.loads(row["payload"]) for row in ends] == [
        {"id": 1, "city": "Rome"},
        {"id": 2, "city": None},
        {"id": 3, "city": "Oslo"},
    ]
    assert all(set(row["attributes"]) == {"schema", "table", "operation"} for row in ends)


def test_of_a_row_that_goes_to_another_shard_filters_hear_what_it_was(people: Database) -> None:
    found, ends = shards_after(people, *MOVES, **WANTED)
    assert found == AT
    assert [row["attributes"].get("before.city") for row in ends] == ["Rome", None, "Oslo"]


def test_where_the_log_does_not_say_what_it_was_nothing_is_made_up(people: Database) -> None:
    people.execute("ALTER TABLE person REPLICA IDENTITY DEFAULT")
    found, ends = shards_after(people, *MOVES)
    assert ends == []
    assert all(AT[name] <= shards for name, shards in found.items())
