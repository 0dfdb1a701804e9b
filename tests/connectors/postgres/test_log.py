"""Reading the log of a PostgreSQL database: order, positions, resuming, several readers."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from psycopg2.extras import LogicalReplicationConnection
from pyspark.sql import SparkSession

from tests.support import postgres_server
from tests.support.postgres_server import Database, floors, places, read_all
from tests.support.read_all import read_apart
from tidings.errors import InvalidOption, InvalidPosition, LogRestored, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.logs import TailedLog
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.testing import eventually, held
from tidings.updates import shard_of
from tidings_connectors.cdc import base
from tidings_connectors.postgres.log import PostgresLog

database, log = postgres_server.database, postgres_server.log


@pytest.fixture
def items(database: Database) -> Database:
    database.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
    return database


def insert(items: Database, first: int, last: int) -> None:
    items.execute(f"INSERT INTO item SELECT n, 'item ' || n FROM generate_series({first}, {last}) n")


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["object"].rpartition("/")[2]) for row in rows]


@contextlib.contextmanager
def reading(log: PostgresLog) -> Iterator[Any]:
    with contextlib.closing(log.reader()) as reader:
        yield reader


def test_it_is_a_log_that_is_tailed(log: PostgresLog) -> None:
    assert isinstance(log, TailedLog)


def test_rows_become_updates_in_the_order_of_their_commits(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 3)
    items.execute("UPDATE item SET name = 'two' WHERE id = 2", "DELETE FROM item WHERE id = 1")
    with reading(log) as reader:
        rows, _ = read_all(reader, floors(log), log)
    assert [(row["object"], row["attributes"]["operation"]) for row in rows] == [
        ("public.item/1", "insert"),
        ("public.item/2", "insert"),
        ("public.item/3", "insert"),
        ("public.item/2", "update"),
        ("public.item/1", "delete"),
    ]
    assert [row["index"] for row in rows] == [0, 1, 2, 0, 0]
    assert places(rows) == sorted(places(rows))
    assert [row["version"] for row in rows] == [row["seq"] for row in rows]
    assert all(row["shard"] == shard_of(row["object"], 4) for row in rows)
    assert all(row["attributes"]["schema"] == "public" and row["attributes"]["table"] == "item" for row in rows)
    assert json.loads(rows[3]["payload"]) == {"id": 2, "name": "two"}
    assert json.loads(rows[4]["payload"]) == {"id": 1}


def test_the_same_range_gives_the_same_rows_however_it_is_read(log: PostgresLog, items: Database) -> None:
    for first in range(1, 100, 10):
        insert(items, first, first + 9)
    with reading(log) as reader:
        whole, upto = read_all(reader, floors(log), log)
    assert ids(whole) == list(range(1, 101))
    with reading(log) as reader:
        assert read_all(reader, floors(log), log, limit=7)[0] == whole
    assert log.tail(floors(log), 1000).to_pylist(maps_as_pydicts="strict") == whole
    assert log.tail(floors(log), 13).to_pylist(maps_as_pydicts="strict") == whole[:13]
    assert len(log.tail(upto, 10)) == 0
    (piece,) = log.slices(floors(log), upto)
    for _ in range(2):
        batches = list(pickle.loads(pickle.dumps(piece)).read())
        assert pa.Table.from_batches(batches).to_pylist(maps_as_pydicts="strict") == whole
    assert log.slices(upto, upto) == []


def test_a_slice_ends_within_a_transaction(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 100)
    with reading(log) as reader:
        whole, _ = read_all(reader, floors(log), log)
    start, end = (Positions({shard: Position(whole[n]["seq"], n) for shard in range(4)}) for n in (19, 59))
    (piece,) = log.slices(start, end)
    assert pa.Table.from_batches(piece.read()).to_pylist(maps_as_pydicts="strict") == whole[20:60]


def test_a_reader_stops_within_a_transaction_and_another_goes_on(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 50)
    insert(items, 51, 60)
    with reading(log) as reader:
        read = reader.read(floors(log), 20)
        rows = read.rows.to_pylist(maps_as_pydicts="strict")
        while len(rows) < 20:  # a read ends when nothing more comes for a moment
            read = reader.read(read.upto, 20 - len(rows))
            rows += read.rows.to_pylist(maps_as_pydicts="strict")
    assert ids(rows) == list(range(1, 21))
    assert set(read.upto.values()) == {Position(rows[0]["seq"], 19)}
    with contextlib.closing(open_log(items.stream())) as other, contextlib.closing(other.reader()) as reader:
        rest, _ = read_all(reader, read.upto, log)
    assert ids(rest) == list(range(21, 61))
    assert [row["index"] for row in rest] == [*range(20, 50), *range(10)]


def test_shards_that_stand_at_different_places_each_get_what_they_lack(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 40)
    with reading(log) as reader:
        whole, _ = read_all(reader, floors(log), log)
        after = Positions({shard: Position(whole[0]["seq"], 5 + 10 * shard) for shard in range(4)})
        rows, _ = read_all(reader, after, log)
    assert rows == [row for row in whole if row["index"] > 5 + 10 * row["shard"]]


def test_a_reader_gives_the_shards_that_it_is_asked_for_and_goes_back_for_another(
    log: PostgresLog,
    items: Database,
) -> None:
    insert(items, 1, 40)
    with reading(log) as reader:
        one, upto = read_all(reader, Positions({1: floors(log)[1]}), log)
        assert {row["shard"] for row in one} == {1}
        assert set(upto) == {1}
        insert(items, 41, 60)
        both, _ = read_all(reader, Positions({1: upto[1], 2: floors(log)[2]}), log)
    expected = [n for n in range(1, 61) if shard_of(f"public.item/{n}", 4) == 2]
    assert ids([row for row in both if row["shard"] == 2]) == expected
    assert min(ids([row for row in both if row["shard"] == 1])) > 40
    assert places(both) == sorted(places(both))


def test_the_position_moves_though_every_row_is_of_another_shard(log: PostgresLog, items: Database) -> None:
    shard = (shard_of("public.item/1", 4) + 1) % 4
    with reading(log) as reader:
        rows, before = read_all(reader, Positions({shard: floors(log)[shard]}), log)
        for _ in range(5):
            items.execute("INSERT INTO item VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET name = 'y'")
        more, upto = read_all(reader, before, log)
    assert rows == more == []
    assert upto[shard] > before[shard]


def test_the_position_moves_though_no_table_that_changes_is_published(items: Database) -> None:
    items.execute("CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION few FOR TABLE item")
    with contextlib.closing(create_log(items.stream(publication="few"))) as log, reading(log) as reader:  # type: ignore[arg-type]
        items.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        rows, upto = read_all(reader, floors(log), log)
        assert rows == []
        log.confirm(upto)  # type: ignore[attr-defined]
        eventually(lambda: log.bounds()[0].floor >= upto[0])


def test_a_table_joins_the_publication_while_it_is_read(items: Database) -> None:
    items.execute("CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION few FOR TABLE item")
    with contextlib.closing(create_log(items.stream(publication="few"))) as log, reading(log) as reader:  # type: ignore[arg-type]
        items.execute("INSERT INTO other VALUES (1)")
        insert(items, 1, 1)
        rows, upto = read_all(reader, floors(log), log)
        items.execute("ALTER PUBLICATION few ADD TABLE other", "INSERT INTO other VALUES (2)")
        more, _ = read_all(reader, upto, log)
    assert [row["object"] for row in rows + more] == ["public.item/1", "public.other/2"]


def test_an_idle_database_lets_its_log_go(items: Database) -> None:
    with contextlib.closing(create_log(items.stream(heartbeat=0.2))) as log, reading(log) as reader:  # type: ignore[arg-type]
        after = floors(log)

        def moved() -> bool:
            nonlocal after
            rows, after = reader.read(after, 100)
            assert len(rows) == 0
            log.confirm(after)  # type: ignore[attr-defined]
            return log.bounds()[0].floor.seq > start

        start = log.bounds()[0].head.seq
        eventually(moved)
        start = log.bounds()[0].head.seq
        eventually(moved)


def test_a_role_that_may_write_no_signs_of_life_is_told_once(
    items: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"tail_{items.name}"
    items.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'right'")
    for (function,) in items.execute("SELECT oid::regprocedure FROM pg_proc WHERE proname = 'pg_logical_emit_message'"):
        items.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    monkeypatch.setenv("PGPASSWORD", "right")
    with contextlib.closing(create_log(items.stream(user=role, heartbeat=0.05))) as log, reading(log) as reader:  # type: ignore[arg-type]
        after = floors(log)
        eventually(lambda: len(reader.read(after, 10).rows) == 0 and "no signs of life" in caplog.text)
        for _ in range(5):
            reader.read(after, 10)
    assert caplog.text.count("no signs of life") == 1
    items.execute(f"DROP ROLE {role}")


def test_work_that_is_rolled_back_never_shows(log: PostgresLog, items: Database) -> None:
    with contextlib.closing(items.server.connect(items.name)) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO item VALUES (1, 'rolled back')")
        connection.rollback()
        cursor.execute("INSERT INTO item VALUES (2, 'kept')")
        cursor.execute("SAVEPOINT one")
        cursor.execute("INSERT INTO item VALUES (3, 'undone')")
        cursor.execute("ROLLBACK TO SAVEPOINT one")
        cursor.execute("SAVEPOINT two")
        cursor.execute("INSERT INTO item VALUES (4, 'kept')")
        cursor.execute("RELEASE SAVEPOINT two")
        connection.commit()
    with reading(log) as reader:
        rows, _ = read_all(reader, floors(log), log)
    assert ids(rows) == [2, 4]
    assert [row["index"] for row in rows] == [0, 1]


def test_two_readers_read_at_once(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 500)
    with reading(log) as one, reading(log) as other:
        first, second = one.read(floors(log), 100), other.read(floors(log), 300)
        assert len(first.rows) <= 100
        insert(items, 501, 600)
        rest, _ = read_all(one, first.upto, log)
        rest_of_other, _ = read_all(other, second.upto, log)
    assert (
        first.rows.to_pylist(maps_as_pydicts="strict") + rest
        == second.rows.to_pylist(maps_as_pydicts="strict") + rest_of_other
    )
    assert len(first.rows) + len(rest) == 600


def confirmed(items: Database) -> int:
    lsn: int = items.execute(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots "
        f"WHERE slot_name = 'tidings_{items.name}'"
    )[0][0]
    return lsn


def test_what_all_shards_have_passed_is_confirmed_and_no_more(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 10)
    insert(items, 11, 20)
    with reading(log) as reader:
        rows, upto = read_all(reader, floors(log), log)
        start = confirmed(items)
        log.confirm(Positions({0: upto[0]}))
        assert confirmed(items) == start
        middle = Position(rows[10]["seq"], 4)
        log.confirm(Positions({**upto, 2: middle}))
        assert confirmed(items) == middle.seq
        eventually(lambda: log.bounds()[0].floor == Position(middle.seq, -1))
        log.confirm(Positions({**upto, 2: Position(rows[0]["seq"], 4)}))
        assert confirmed(items) == middle.seq
    # The transaction in which a shard stands is there as a whole.
    stands = Positions(dict.fromkeys(range(4), middle))
    assert ids(log.tail(stands, 100).to_pylist()) == [16, 17, 18, 19, 20]
    log.confirm(upto)
    assert confirmed(items) == upto[0].seq


@contextlib.contextmanager
def in_use(items: Database, slot: str) -> Iterator[None]:
    """Somebody else has a slot, as one who just moves it."""
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
    connection = items.server.connect(items.name, LogicalReplicationConnection)
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.start_replication(slot, options={"proto_version": "1", "publication_names": "everything"})
        eventually(lambda: bool(items.execute(active)))
        yield
    eventually(lambda: not items.execute(active))


def test_a_slot_that_somebody_else_moves_just_now_is_moved_the_next_time(log: PostgresLog, items: Database) -> None:
    start = confirmed(items)
    insert(items, 1, 10)
    stands = Positions(dict.fromkeys(range(4), log._slot.state().head))
    with in_use(items, f"tidings_{items.name}"):
        log.confirm(stands)
        assert confirmed(items) == start
    log.confirm(stands)
    assert confirmed(items) == stands[0].seq


def test_a_position_that_was_let_go_is_reported_with_exact_positions(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 10)
    with reading(log) as reader:
        rows, upto = read_all(reader, floors(log), log)
    log.confirm(upto)
    after = Positions({**upto, 3: Position(rows[4]["seq"], 4)})
    for read in (lambda: log.tail(after, 10), lambda: log.reader().read(after, 10), lambda: log.slices(after, upto)):
        with pytest.raises(PositionsLost, match="does not hold") as caught:
            read()
        assert caught.value.lost == {3: (Position(rows[4]["seq"], 5), upto[3])}


def test_a_position_after_the_end_of_the_log_is_reported(log: PostgresLog, items: Database) -> None:
    head = log.bounds()[1].head
    beyond = Positions({**floors(log), 1: Position(head.seq + 10**9, 3)})
    with pytest.raises(LogRestored, match="made anew, or restored") as caught:
        log.tail(beyond, 10)
    assert caught.value.lost[1][1] == beyond[1]
    with reading(log) as reader:
        insert(items, 1, 2)
        read_all(reader, floors(log), log)
        with pytest.raises(LogRestored):
            reader.read(beyond, 10)


def test_a_shard_that_the_stream_does_not_have_is_refused(log: PostgresLog) -> None:
    with pytest.raises(InvalidPosition, match="shards 0 to 3, not 4"):
        log.tail(Positions({4: Position(0)}), 10)


def test_bounds_are_the_same_object_while_nothing_happens(log: PostgresLog) -> None:
    eventually(lambda: log.bounds() is log.bounds())
    assert log.distance(Position(500, 3), Position(1_500, -1)) == 5


def test_what_is_held_can_be_asked_for_as_of_any_log(log: PostgresLog, items: Database) -> None:
    insert(items, 1, 100)
    assert len(held(log)) == 100


def test_large_rows_are_read_a_few_at_a_time(
    log: PostgresLog, items: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings_connectors.postgres.reader.BATCH_BYTES", 2**21)
    monkeypatch.setattr(base, "TAIL_BYTES", 2**21)
    after = floors(log)
    items.execute("INSERT INTO item SELECT n, repeat('x', 500000) FROM generate_series(1, 30) n")
    sizes: list[int] = []
    with reading(log) as reading_on:
        at = after
        while sum(sizes) < 30 * 500_000:
            rows, at = reading_on.read(at, 10_000)
            sizes.append(rows.nbytes)
    assert max(sizes) < 2**22
    assert 0 < log.tail(after, 10_000).nbytes < 2**23


@pytest.mark.slow
def test_a_huge_transaction_is_read_in_bounded_memory(log: PostgresLog, items: Database) -> None:
    after = floors(log)
    insert(items, 1, 1_000_000)
    count, grown = read_apart(items.stream(), after, 10_000)
    assert count == 1_000_000
    assert grown < 50_000  # kilobytes


@pytest.mark.slow
def test_spark_reads_a_range_and_follows(spark: SparkSession, log: PostgresLog, items: Database) -> None:
    insert(items, 1, 20)
    with reading(log) as reader:
        whole, upto = read_all(reader, floors(log), log)
    insert(items, 21, 30)
    assert log.scan(spark).count() == 30
    assert log.scan(spark, floors(log), upto).count() == 20
    middle = Positions({shard: Position(whole[0]["seq"], 4) for shard in range(4)})
    assert sorted(ids(log.scan(spark, middle, upto).toArrow().to_pylist())) == list(range(6, 21))
    first = Positions({shard: Position(at.seq, at.index + 1) for shard, at in upto.items()})
    reader = spark.readStream.format("tidings").option("definition", json.dumps(items.stream().to_json()))
    rows = reader.option("startingPosition", str(first)).load()
    query = rows.writeStream.format("memory").queryName("postgres_rows")
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("postgres_rows").count() == 10


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"needs the option 'publication'"),
        (
            {"publication": "p", "colour": "red"},
            r"an option 'colour', which .* knows attributes, before, heartbeat, keys, object",
        ),
        ({"publication": "p", "slot": "No"}, r"option 'slot' of stream 'shop' cannot be used: string should match"),
        ({"publication": "p", "object": "{"}, r"option 'object' of stream 'shop' cannot be used: '{' is no template"),
    ],
)
def test_options_are_checked(database: Database, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        create_log(StreamDefinition("shop", 4, database.address(), options=options))
