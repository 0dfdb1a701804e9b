"""The rows that were there before the log."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from tests.connectors.postgres.test_values import TYPES, VALUES, told
from tests.support import postgres_server, snapshot_steps
from tests.support.postgres_server import Database, floors, places, read_all
from tests.support.snapshot_steps import kill_midway, noted
from tidings.errors import InvalidOption, LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually
from tidings_connectors.cdc import snapshot
from tidings_connectors.postgres.connections import PostgresServer
from tidings_connectors.postgres.log import PostgresLog

database, small_chunks = postgres_server.database, snapshot_steps.small_chunks


@pytest.fixture
def items(database: Database) -> Database:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO item SELECT n, 'first' FROM generate_series(1, 1000) n")
    return database


def with_snapshot(database: Database, folder: Path, **options: Any) -> StreamDefinition:
    return database.stream(snapshot=True, snapshot_folder=str(folder), **options)


def whole(stream: StreamDefinition, limit: int = 10_000, make: bool = True) -> list[dict[str, Any]]:
    opened = (create_log if make else open_log)(stream)
    rows: list[dict[str, Any]] = []
    with contextlib.closing(opened) as log, contextlib.closing(log.reader()) as reader:
        assert isinstance(log, PostgresLog)
        assert log._snapshot is not None
        after, complete = floors(log), False
        while not complete:
            complete = log._snapshot.note().complete
            more, after = read_all(reader, after, log, limit)
            rows += more
    return rows


def replayed(rows: list[dict[str, Any]]) -> dict[int, str]:
    """What someone has who applies the updates one after the other."""
    state: dict[int, str] = {}
    for row in rows:
        key = int(row["object"].rpartition("/")[2])
        if row["attributes"]["operation"] == "delete":
            state.pop(key, None)
        else:
            state[key] = json.loads(row["payload"])["name"]
    return state


def test_the_rows_that_are_there_come_before_the_log(items: Database, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path)
    create_log(stream).close()
    items.execute("UPDATE item SET name = 'second' WHERE id <= 3", "DELETE FROM item WHERE id = 4")
    rows = whole(stream)
    assert [row["attributes"]["operation"] for row in rows] == ["snapshot"] * 1000 + ["update"] * 3 + ["delete"]
    assert sorted(int(row["object"].rpartition("/")[2]) for row in rows[:1000]) == list(range(1, 1001))
    assert [row["index"] for row in rows[:1000]] == list(range(1000))
    assert places(rows) == sorted(set(places(rows)))
    assert replayed(rows) == dict(items.execute("SELECT id, name FROM item"))
    assert whole(stream, limit=33, make=False) == rows
    with contextlib.closing(open_log(stream)) as log:
        assert log.tail(floors(log), 10_000).to_pylist(maps_as_pydicts="strict") == rows
        stands = Positions({shard: Position(rows[0]["seq"], 200 * shard) for shard in range(4)})
        expected = [row for row in rows if row["seq"] > rows[0]["seq"] or row["index"] > 200 * row["shard"]]
        assert log.tail(stands, 10_000).to_pylist(maps_as_pydicts="strict") == expected
        (piece,) = log.slices(floors(log), log.reach(floors(log), None))
        assert pa.Table.from_batches(piece.read()).to_pylist(maps_as_pydicts="strict") == rows


def test_values_are_those_that_the_log_would_have(database: Database, tmp_path: Path) -> None:
    database.execute(*TYPES, 'CREATE SCHEMA "Größe \\ 1"')
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(VALUES))
    tables = {"wide": f"id char(5) PRIMARY KEY, {columns}, twice int GENERATED ALWAYS AS (2) STORED"}
    rows = {"wide": ", ".join(text for _, text, _ in VALUES)}
    for n, (kind, text, _) in enumerate(VALUES):
        name = f'"Größe \\ 1"."T ""{n}"" %s"'
        tables[name], rows[name] = f'id char(5) PRIMARY KEY, "ß ""c"" \\ %s" {kind}', text
    keys = {"day": ("later", "'2026-01-31'"), "number": ("positive", "7"), "moody": ("mood", "'fine'")}
    for name, (kind, text) in keys.items():
        tables[name], rows[name] = f"id char(5), part {kind}, PRIMARY KEY (part, id)", text
    with contextlib.closing(create_log(database.stream())) as log, contextlib.closing(log.reader()) as reader:
        with database.transaction() as cursor:
            for name, form in tables.items():
                cursor.execute(f"CREATE TABLE {name} ({form})")
                cursor.execute(f"INSERT INTO {name} VALUES ('a', {rows[name]})")
                if name not in keys:
                    cursor.execute(f"INSERT INTO {name} (id) VALUES ('b')")
        of_log, _ = read_all(reader, floors(log), log)
    of_snapshot = whole(with_snapshot(database, tmp_path, slot=f"other_{database.name}"))
    assert sorted((row["object"], row["shard"], row["payload"]) for row in of_snapshot) == sorted(
        (row["object"], row["shard"], row["payload"]) for row in of_log
    )


def test_domains_are_read_though_no_other_column_is_of_their_types(database: Database, tmp_path: Path) -> None:
    database.execute(
        *TYPES,
        "CREATE TABLE t (id positive PRIMARY KEY, f flag, d document, n numbers, l later)",
        "INSERT INTO t VALUES (7, true, '{\"a\": 1}', '{1,2}', '2026-01-31'), (8, NULL, NULL, NULL, NULL)",
    )
    assert told(whole(with_snapshot(database, tmp_path))) == [
        ("snapshot", "public.t/7", {"id": "7", "f": "t", "d": '{"a": 1}', "n": "{1,2}", "l": "2026-01-31"}),
        ("snapshot", "public.t/8", {"id": "8", "f": None, "d": None, "n": None, "l": None}),
    ]


def test_nothing_is_missed_or_doubled_while_others_write(items: Database, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path)
    stopped = threading.Event()

    def write() -> None:
        with contextlib.closing(items.server.connect(items.name)) as connection, connection.cursor() as cursor:
            for number in range(1_000_000):
                if stopped.is_set():
                    break
                key = number * 7 % 1000 + 1
                cursor.execute("UPDATE item SET name = %s WHERE id = %s", (f"number {number}", key))
                cursor.execute("DELETE FROM item WHERE id = %s", ((key * 3) % 1000 + 1,))
                cursor.execute("INSERT INTO item VALUES (%s, 'new')", (number + 2000,))
                connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        eventually(lambda: items.execute("SELECT count(*) FROM item WHERE id >= 2000")[0][0] > 50)
        create_log(stream).close()
        held = items.execute("SELECT count(*) FROM item WHERE id >= 2000")[0][0]
        eventually(lambda: items.execute("SELECT count(*) FROM item WHERE id >= 2000")[0][0] > held + 50)
    finally:
        stopped.set()
        writer.join()
    rows = whole(stream, limit=500)
    assert places(rows) == sorted(set(places(rows)))
    assert replayed(rows) == dict(items.execute("SELECT id, name FROM item"))


@pytest.mark.slow
def test_one_that_was_killed_goes_on_with_the_remaining_keys(items: Database, tmp_path: Path) -> None:
    items.execute("INSERT INTO item SELECT n, 'first' FROM generate_series(1001, 20000) n")
    stream = with_snapshot(items, tmp_path)
    note = tmp_path / items.options()["slot"] / "note.json"
    for _ in range(2):
        chunks = kill_midway(stream, note)
        items.execute("UPDATE item SET name = 'later' WHERE id % 7 = 0", "DELETE FROM item WHERE id % 1000 = 11")
        items.execute("INSERT INTO item SELECT max(id) + 1, 'new' FROM item")
    assert chunks < 200
    rows = whole(stream, limit=777, make=False)
    runs = noted(note)["runs"]
    assert len({run["seq"] for run in runs}) == 3
    assert places(rows) == sorted(set(places(rows)))
    keys = [row["object"] for row in rows if row["attributes"]["operation"] == "snapshot"]
    assert len(keys) == len(set(keys))
    assert replayed(rows) == dict(items.execute("SELECT id, name FROM item"))


def test_tables_of_every_form_are_read(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE keyless (a int)",
        "INSERT INTO keyless VALUES (1), (1), (2)",
        "CREATE TABLE nothing ()",
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
        "CREATE TABLE parted (id int, part int, PRIMARY KEY (part, id)) PARTITION BY LIST (part)",
        "CREATE TABLE part_1 PARTITION OF parted FOR VALUES IN (1)",
        "INSERT INTO parted VALUES (1, 1), (2, 1)",
        'CREATE TABLE "odd % one" ("a%s" text PRIMARY KEY, twice int GENERATED ALWAYS AS (2) STORED)',
        "INSERT INTO \"odd % one\" VALUES ('100%'), ('it''s \\')",
    )
    rows = whole(with_snapshot(database, tmp_path))
    assert sorted((name, json.dumps(payload)) for _, name, payload in told(rows)) == [
        ("public.child/2", '{"id": 2}'),
        ("public.keyless", '{"a": 1}'),
        ("public.keyless", '{"a": 1}'),
        ("public.keyless", '{"a": 2}'),
        ("public.odd % one/100%", '{"a%s": "100%"}'),
        ("public.odd % one/it's \\", '{"a%s": "it\'s \\\\"}'),
        ("public.parent/1", '{"id": 1}'),
        ("public.part_1/1,1", '{"id": 1, "part": 1}'),
        ("public.part_1/2,1", '{"id": 2, "part": 1}'),
    ]


def test_a_publication_of_some_rows_and_columns_is_honoured(items: Database, tmp_path: Path) -> None:
    items.execute("ALTER TABLE item ADD secret text DEFAULT 'x'")
    if items.execute("SELECT current_setting('server_version_num')::int")[0][0] >= 150_000:
        items.execute("CREATE PUBLICATION few FOR TABLE item (id, name) WHERE (id > 700)")
        rows = whole(with_snapshot(items, tmp_path, publication="few"))
        assert [told([row])[0][2] for row in rows] == [{"id": n, "name": "first"} for n in range(701, 1001)]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_rows_that_are_large_are_cut_into_smaller_pieces(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(snapshot, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr("tidings_connectors.postgres.snapshot.FETCH_BYTES", 4_000)
    database.execute(f"CREATE TABLE large (id int {key}, body text)")
    database.execute("INSERT INTO large SELECT n, repeat('x', 4000) FROM generate_series(1, 10) n")
    with contextlib.closing(create_log(with_snapshot(database, tmp_path))) as log:
        assert isinstance(log, PostgresLog)
        assert log._snapshot is not None
        (run,) = log._snapshot.note().runs
        assert [chunk.rows for chunk in run.chunks] == [3, 3, 3, 1]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_large_rows_are_not_fetched_many_at_once(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    fetched: list[int] = []

    class Counting(psycopg2.extensions.cursor):  # type: ignore[misc]  # psycopg2 has no types
        def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = super().fetchmany(size)
            fetched.append(sum(len(text or "") for row in rows for text in row))
            return rows

    connect = PostgresServer.connect

    def counting(server: PostgresServer) -> Any:
        connection = connect(server)
        connection.cursor_factory = Counting
        return connection

    monkeypatch.setattr(PostgresServer, "connect", counting)
    monkeypatch.setattr("tidings_connectors.postgres.snapshot.FETCH_BYTES", 10_000)
    database.execute(f"CREATE TABLE large (id int {key}, body text)")
    database.execute("INSERT INTO large SELECT n, repeat('x', 9000) FROM generate_series(1, 20) n")
    assert len(whole(with_snapshot(database, tmp_path))) == 20
    assert sum(fetched) > 20 * 9000
    assert max(fetched) < 2 * 9010


def test_what_all_have_passed_is_deleted_and_then_lost(items: Database, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path)
    with contextlib.closing(create_log(stream)) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        items.execute("INSERT INTO item VALUES (5000, 'x')")
        rows, upto = read_all(reader, start, log)
        log.confirm(Positions({**upto, 1: Position(rows[10]["seq"], 10)}))  # type: ignore[attr-defined]
        assert len(list(tmp_path.rglob("*.parquet"))) == 10
        eventually(lambda: not log.confirm(upto) and not list(tmp_path.rglob("*.parquet")))  # type: ignore[attr-defined]
        eventually(lambda: log.bounds()[0].floor == upto[0])
        with pytest.raises(PositionsLost) as caught:
            reader.read(start, 10)
        assert caught.value.lost[0] == (Position(rows[0]["seq"], 0), upto[0])
    open_log(stream).close()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_slot_that_was_dropped_means_a_new_snapshot(items: Database, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path)
    first = whole(stream)
    items.execute(f"SELECT pg_drop_replication_slot('{items.options()['slot']}')", "DELETE FROM item WHERE id > 10")
    second = whole(stream)
    assert len(second) == 10
    assert min(places(second)) > max(places(first))


def test_a_role_that_may_not_read_a_table_or_all_of_it_is_told_before_anything_is_made(
    items: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"tail_{items.name}"
    monkeypatch.setenv("PGPASSWORD", "right")
    items.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'right'")
    stream = with_snapshot(items, tmp_path, user=role)
    try:
        with pytest.raises(LogUnavailable, match=r"may not read table public\.item") as caught:
            create_log(stream)
        assert items.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{items.options()['slot']}'") == []
        items.execute(str(caught.value).rpartition(": ")[2])
        items.execute("ALTER TABLE item ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON item USING (id < 10)")
        with pytest.raises(LogUnavailable, match=r"a policy of table public\.item may hide rows") as caught:
            create_log(stream)
        items.execute(str(caught.value).rpartition(": ")[2])
        assert len(whole(stream)) == 1000
    finally:
        items.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_snapshot_needs_a_folder(database: Database) -> None:
    with pytest.raises(InvalidOption, match="a snapshot needs the option 'snapshot_folder'"):
        create_log(database.stream(snapshot=True))


def test_tables_whose_names_look_alike_are_told_apart(database: Database, tmp_path: Path) -> None:
    database.execute('CREATE SCHEMA "a.b"', "CREATE SCHEMA a")
    tables = '"a.b".c', 'a."b.c"', '"a.b"."c/1"', '"a.b"."d""/1"'
    for number, table in enumerate(tables):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)")
        database.execute(f"INSERT INTO {table} VALUES (1, 'first {number}')")
    stream = with_snapshot(database, tmp_path)
    create_log(stream).close()
    for number, table in enumerate(tables):
        database.execute(f"UPDATE {table} SET name = 'second {number}'")
    found = {(json.loads(row["payload"])["name"], row["object"]) for row in whole(stream)}
    names = ['"a.b".c/1', "a.b.c/1", '"a.b"."c/1"/1', '"a.b"."d""/1"/1']
    assert found == {(f"{when} {number}", name) for when in ("first", "second") for number, name in enumerate(names)}
