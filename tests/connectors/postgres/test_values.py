"""What becomes of values, keys and tables of a PostgreSQL database."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, read_all
from tidings.log_opening import create_log
from tidings_connectors.postgres.log import PostgresLog

database, log = postgres_server.database, postgres_server.log


def changes(log: PostgresLog) -> list[dict[str, Any]]:
    with contextlib.closing(log.reader()) as reader:
        return read_all(reader, floors(log), log)[0]


def told(rows: list[dict[str, Any]]) -> list[tuple[str, str, Any]]:
    return [
        (row["attributes"]["operation"], row["object"], None if row["payload"] is None else json.loads(row["payload"]))
        for row in rows
    ]


VALUES = [
    ("int", "42", 42),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("smallint", "NULL", None),
    ("bool", "true", True),
    ("bool", "false", False),
    ("real", "1.5", 1.5),
    ("float8", "1e300", 1e300),
    ("float8", "0.1", 0.1),
    ("float8", "'NaN'", "NaN"),
    ("float8", "'-Infinity'", "-Infinity"),
    ("numeric(30, 10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    ("numeric", "'NaN'", "NaN"),
    ("text", "''", ""),
    ("text", "'𝄞 😀 naïve \"quoted\" \\ back'", '𝄞 😀 naïve "quoted" \\ back'),
    ("text", "E'line\\nbreak\\ttab\\x01'", "line\nbreak\ttab\x01"),
    ("varchar(10)", "NULL", None),
    ("bytea", "'\\xdeadbeef00'", "\\xdeadbeef00"),
    ("timestamptz", "'2026-01-31 23:30:00.123456+05:30'", "2026-01-31 18:00:00.123456+00"),
    ("timestamp", "'2026-01-31 23:30:00'", "2026-01-31 23:30:00"),
    ("timestamptz", "'infinity'", "infinity"),
    ("date", "'0044-03-15 BC'", "0044-03-15 BC"),
    ("interval", "'1 day 2 hours'", "1 day 02:00:00"),
    ("int[]", "'{1,NULL,3}'", "{1,NULL,3}"),
    ("text[]", "ARRAY['a,b', '\"c\"']", '{"a,b","\\"c\\""}'),
    ("mood", "'so so'", "so so"),
    ("jsonb", '\'{"a": [1, 2.50, null], "ü": "😀"}\'', {"a": [1, 2.5, None], "ü": "😀"}),
    ("json", "'  [1,\n 2]  '", [1, 2]),
    ("bit(5)", "B'10110'", "10110"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("inet", "'10.0.0.0/8'", "10.0.0.0/8"),
    ("positive", "7", "7"),
    ("positive[]", "'{7,NULL}'", "{7,NULL}"),
    ("flag", "true", "t"),
    ("document", "'{\"a\": 1}'", '{"a": 1}'),
    ("numbers", "'{1,2}'", "{1,2}"),
    ("later", "'2026-01-31'", "2026-01-31"),
    ("mood[]", "'{fine,\"so so\"}'", '{fine,"so so"}'),
    ("place", "ROW(1, 'a \"b\"', NULL)", '(1,"a ""b""",)'),
    ("place[]", "ARRAY[ROW(1, 'a', 'fine')::place]", '{"(1,a,fine)"}'),
    ("int4range", "'(1,5]'", "[2,6)"),
    ("tstzrange", "'[2026-01-31 12:00+00,)'", '["2026-01-31 12:00:00+00",)'),
    ("numeric", "'12345678901234567890.50'", "12345678901234567890.50"),
    ("date", "'infinity'", "infinity"),
    ("date", "'-infinity'", "-infinity"),
    ("date", "'20000-01-01'", "20000-01-01"),
    ("timestamp", "'4000-01-01 00:00:00 BC'", "4000-01-01 00:00:00 BC"),
    ("timestamptz", "'-infinity'", "-infinity"),
    ("timestamptz", "'200000-01-01 00:00:00+00'", "200000-01-01 00:00:00+00"),
    ("time", "'24:00:00'", "24:00:00"),
    ("timetz", "'12:00:00.5+05:30'", "12:00:00.5+05:30"),
    ("interval", "'-1 year -2 days 03:00:00.000001'", "-1 years -2 days +03:00:00.000001"),
    ("interval", "'178000000 years'", "178000000 years"),
    ("bytea[]", "ARRAY['\\x00'::bytea]", '{"\\\\x00"}'),
    ("jsonb", "'null'", None),
    ("jsonb[]", "ARRAY['1'::jsonb]", "{1}"),
    ("money", "'-1234.5'", "-$1,234.50"),
    ("tsvector", "'a fat cat:3B'", "'a' 'cat':3B 'fat'"),
    ("oid", "4294967295", 4294967295),
    ("pg_lsn", "'1/FF'", "1/FF"),
    ("point", "'(1,2.5)'", "(1,2.5)"),
    ("float8[]", "'{NaN,0.1}'", "{NaN,0.1}"),
    ("bool[]", "'{t,f}'", "{t,f}"),
    ("char(5)", "'a'", "a    "),
    ('"char"', "'x'", "x"),
    ("name", "'n'", "n"),
    ("inet", "'10.0.0.1'", "10.0.0.1"),
]

TYPES = [
    "CREATE TYPE mood AS ENUM ('fine', 'so so')",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE DOMAIN flag AS bool",
    "CREATE DOMAIN document AS jsonb",
    "CREATE DOMAIN numbers AS int[]",
    "CREATE DOMAIN someday AS date",
    "CREATE DOMAIN later AS someday",
    "CREATE TYPE place AS (n int, name text, how mood)",
]
"""What these kinds need."""


def test_values_of_every_kind_arrive_as_they_are(log: PostgresLog, database: Database) -> None:
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(VALUES))
    database.execute(
        *TYPES,
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})",
        f"INSERT INTO wide VALUES (1, {', '.join(text for _, text, _ in VALUES)})",
        "INSERT INTO wide (id) VALUES (2)",
    )
    (_, _, full), (_, _, empty) = told(changes(log))
    assert full == {"id": 1, **{f"c{n}": value for n, (_, _, value) in enumerate(VALUES)}}
    assert empty == {"id": 2, **{f"c{n}": None for n in range(len(VALUES))}}


ODD_SETTINGS = {
    "datestyle": "German",
    "timezone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
    "intervalstyle": "iso_8601",
    "search_path": "elsewhere",
    "quote_all_identifiers": "on",
    "client_min_messages": "log",
}


@pytest.mark.parametrize("whose", ["DATABASE", "ROLE"])
def test_values_do_not_depend_on_how_the_server_is_set_up(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", "right")
    rows: list[list[tuple[str, str, Any]]] = []
    role = f"tail_{database.name}"
    whom = {"DATABASE": database.name, "ROLE": role}[whose]
    database.execute(
        f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'right'",
        *(f"ALTER {whose} {whom} SET {name} = '{value}'" for name, value in ODD_SETTINGS.items()),
        "CREATE SCHEMA elsewhere",
        "CREATE TABLE public.t (at timestamptz PRIMARY KEY, raw bytea, f float8, i interval, m money, c regclass)",
    )
    with contextlib.closing(create_log(database.stream(user=role))) as log:
        database.execute(
            "CREATE TABLE elsewhere.other (id int)",
            "INSERT INTO public.t VALUES ('2026-01-31 12:00:00+00', '\\x00ff', 0.1234567890123456, "
            "'1 day 2 hours', 1234.5::numeric, 'elsewhere.other')",
        )
        rows.append(told(changes(log)))  # type: ignore[arg-type]
    stream = database.stream(user=role, slot=f"other_{database.name}", snapshot=True, snapshot_folder=str(tmp_path))
    with contextlib.closing(create_log(stream)) as log:
        rows.append(told(changes(log)))  # type: ignore[arg-type]
    database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    for ((_, name, row),) in rows:
        assert name == "public.t/2026-01-31 12:00:00+00"
        assert row == {
            "at": "2026-01-31 12:00:00+00",
            "raw": "\\x00ff",
            "f": 0.1234567890123456,
            "i": "1 day 02:00:00",
            "m": "$1,234.50",
            "c": "elsewhere.other",
        }


def test_times_are_those_of_the_commits(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    before = database.execute("SELECT clock_timestamp()")[0][0]
    database.execute("INSERT INTO t VALUES (1)")
    after = database.execute("SELECT clock_timestamp()")[0][0]
    (row,) = changes(log)
    assert before <= row["time"] <= after


def test_a_large_value_that_was_not_changed_is_left_out(log: PostgresLog, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, small text, large text)",
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 'a', repeat('x', 10000))",
        "UPDATE t SET small = 'b'",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET small = 'c'",
    )
    large = "x" * 10_000
    assert told(changes(log)) == [
        ("insert", "public.t/1", {"id": 1, "small": "a", "large": large}),
        ("update", "public.t/1", {"id": 1, "small": "b"}),
        ("update", "public.t/1", {"id": 1, "small": "c", "large": large}),
    ]


def test_an_update_of_the_key_is_a_delete_and_an_update(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE t (a int, b text, c int, PRIMARY KEY (a, b))")
    with database.transaction() as cursor:
        cursor.execute("INSERT INTO t VALUES (1, 'x', 10), (2, 'y', 20), (3, 'z', 30)")
        cursor.execute("UPDATE t SET a = a + 100 WHERE a <> 2")
        cursor.execute("UPDATE t SET c = 21 WHERE a = 2")
    rows = changes(log)
    assert told(rows)[3:] == [
        ("delete", "public.t/1,x", {"a": 1, "b": "x"}),
        ("update", "public.t/101,x", {"a": 101, "b": "x", "c": 10}),
        ("delete", "public.t/3,z", {"a": 3, "b": "z"}),
        ("update", "public.t/103,z", {"a": 103, "b": "z", "c": 30}),
        ("update", "public.t/2,y", {"a": 2, "b": "y", "c": 21}),
    ]
    assert [row["index"] for row in rows] == list(range(8))
    assert len({row["seq"] for row in rows}) == 1


def test_an_update_of_the_key_with_a_full_identity_too(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t VALUES (1, NULL)", "UPDATE t SET b = 'new'", "UPDATE t SET a = 2")
    assert told(changes(log))[1:] == [
        ("update", "public.t/1", {"a": 1, "b": "new"}),
        ("delete", "public.t/1", {"a": 1, "b": "new"}),
        ("update", "public.t/2", {"a": 2, "b": "new"}),
    ]


@pytest.mark.parametrize(
    ("identity", "object", "payload"),
    [
        ("DEFAULT", "public.t/1", {"id": 1}),
        ("FULL", "public.t/1", {"id": 1, "code": "one", "note": "n"}),
        ("USING INDEX by_code", "public.t/one", {"code": "one"}),
    ],
)
def test_a_delete_tells_what_the_replica_identity_says(
    log: PostgresLog, database: Database, identity: str, object: str, payload: dict[str, Any]
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, note text)",
        "CREATE UNIQUE INDEX by_code ON t (code)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1, 'one', 'n')",
        "DELETE FROM t",
    )
    inserted, deleted = told(changes(log))
    assert inserted == ("insert", object, {"id": 1, "code": "one", "note": "n"})
    assert deleted == ("delete", object, payload)


def test_without_a_replica_identity_the_server_refuses_deletes_and_inserts_arrive(
    log: PostgresLog, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState):
        database.execute("DELETE FROM t")
    assert told(changes(log)) == [("insert", "public.t/1", {"id": 1})]


def test_a_table_without_a_key_is_one_object(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1), (1)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET a = 2", "DELETE FROM t")
    assert told(changes(log)) == [
        ("insert", "public.t", {"a": 1}),
        ("insert", "public.t", {"a": 1}),
        ("update", "public.t", {"a": 2}),
        ("update", "public.t", {"a": 2}),
        ("delete", "public.t", {"a": 2}),
        ("delete", "public.t", {"a": 2}),
    ]


def test_a_truncate_is_a_change_of_each_table(log: PostgresLog, database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)")
    with database.transaction() as cursor:
        cursor.execute("INSERT INTO a VALUES (1)")
        cursor.execute("TRUNCATE a CASCADE")
        cursor.execute("INSERT INTO a VALUES (2)")
    rows = changes(log)
    assert told(rows)[0] == ("insert", "public.a/1", {"id": 1})
    truncated = {("truncate", "public.a", None), ("truncate", "public.b", None)}
    assert set(told([row for row in rows if row["index"] in (1, 2)])) == truncated
    assert told(rows)[-1] == ("insert", "public.a/2", {"id": 2})
    assert sorted({row["index"] for row in rows}) == [0, 1, 2, 3]


def test_rows_before_and_after_a_change_of_the_table_are_read_by_their_own(
    log: PostgresLog, database: Database
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'old')")
    with database.transaction() as cursor:
        cursor.execute("INSERT INTO t VALUES (2, 'old')")
        cursor.execute("ALTER TABLE t ADD b int DEFAULT 5")
        cursor.execute("INSERT INTO t VALUES (3, 'new', 6)")
        cursor.execute("ALTER TABLE t DROP a")
        cursor.execute("INSERT INTO t VALUES (4, 7)")
    database.execute("ALTER TABLE t RENAME TO s", "ALTER TABLE s ALTER b TYPE text", "INSERT INTO s VALUES (5, 'x')")
    assert told(changes(log)) == [
        ("insert", "public.t/1", {"id": 1, "a": "old"}),
        ("insert", "public.t/2", {"id": 2, "a": "old"}),
        ("insert", "public.t/3", {"id": 3, "a": "new", "b": 6}),
        ("insert", "public.t/4", {"id": 4, "b": 7}),
        ("insert", "public.s/5", {"id": 5, "b": "x"}),
    ]


def test_several_tables_in_one_transaction_keep_their_order(log: PostgresLog, database: Database) -> None:
    database.execute('CREATE SCHEMA "Back Office"', 'CREATE TABLE "Back Office"."T 1" (id int PRIMARY KEY)')
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with database.transaction() as cursor:
        for n in range(5):
            cursor.execute(f"INSERT INTO t VALUES ({n})")
            cursor.execute(f'INSERT INTO "Back Office"."T 1" VALUES ({n})')
    rows = changes(log)
    assert [row["index"] for row in rows] == list(range(10))
    assert [row["object"] for row in rows[:4]] == [
        "public.t/0",
        "Back Office.T 1/0",
        "public.t/1",
        "Back Office.T 1/1",
    ]


def test_the_mapping_names_objects_versions_attributes_and_shards(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v bigint, shop text)")
    options: dict[str, Any] = {
        "object": "shop/{shop}/{key}",
        "version": "v",
        "attributes": ["shop"],
        "payload": "none",
        "shard": "shop",
    }
    with contextlib.closing(create_log(database.stream(16, **options))) as log:
        database.execute("INSERT INTO t SELECT n, n * 10, 'west' FROM generate_series(1, 20) n")
        rows = changes(log)  # type: ignore[arg-type]
    assert rows[4]["object"] == "shop/west/5"
    assert rows[4]["version"] == 50
    assert rows[4]["attributes"] == {"schema": "public", "table": "t", "operation": "insert", "shop": "west"}
    assert {row["payload"] for row in rows} == {None}
    assert len({row["shard"] for row in rows}) == 1


def test_a_publication_with_an_odd_name_is_found(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", 'CREATE PUBLICATION "it\'s, ""all""" FOR ALL TABLES')
    with contextlib.closing(create_log(database.stream(publication='it\'s, "all"'))) as log:
        database.execute("INSERT INTO t VALUES (1)")
        assert len(changes(log)) == 1  # type: ignore[arg-type]


def test_a_delete_of_which_the_log_tells_the_key_alone_comes_to_every_shard(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, shop text)")
    with contextlib.closing(create_log(database.stream(16, shard="shop"))) as log:
        database.execute("INSERT INTO t SELECT n, 'west' FROM generate_series(1, 20) n", "DELETE FROM t")
        rows = changes(log)  # type: ignore[arg-type]
    (west,) = {row["shard"] for row in rows if row["attributes"]["operation"] == "insert"}
    deleted = {(row["object"], row["shard"]) for row in rows if row["attributes"]["operation"] == "delete"}
    # The log tells the key alone, so it comes to all: nobody who has the row misses its end.
    assert deleted == {(f"public.t/{n}", shard) for n in range(1, 21) for shard in range(16)}
    assert ("public.t/1", west) in deleted


def test_a_delete_comes_to_the_shard_of_its_row_alone_if_the_log_tells_it(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, shop text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    with contextlib.closing(create_log(database.stream(16, shard="shop"))) as log:
        database.execute("INSERT INTO t SELECT n, 'west' FROM generate_series(1, 20) n", "DELETE FROM t")
        rows = changes(log)  # type: ignore[arg-type]
    assert len(rows) == 40
    assert len({row["shard"] for row in rows}) == 1


def test_a_truncate_comes_to_every_shard(log: PostgresLog, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)", "TRUNCATE t"
    )
    rows = changes(log)
    assert {row["shard"] for row in rows if row["attributes"]["operation"] == "truncate"} == {0, 1, 2, 3}
