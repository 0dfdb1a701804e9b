"""Reading a MariaDB's binary log: transactions, positions, resuming, several readers."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support import mysql_server
from tests.support.mysql_server import (
    PASSWORD,
    Scene,
    brief,
    drain,
    heads,
    ids,
    inserts,
    listed,
    needs_mariadb,
    now,
    places,
)
from tests.support.read_all import read_apart
from tidings.errors import InvalidPosition
from tidings.log_opening import open_log
from tidings.logs import Read, TailedLog
from tidings.positions import START, Position, Positions
from tidings.testing import eventually
from tidings.updates import SCHEMA

password, server, scene = mysql_server.password, mysql_server.shared_server, mysql_server.scene
pytestmark = needs_mariadb


def some(read: Read) -> Read | None:
    """What was read, if there is something: the first read may be over before the connection is there."""
    return read if len(read.rows) else None


def test_it_is_a_tailed_log(scene: Scene) -> None:
    assert isinstance(scene.log("items"), TailedLog)


def test_rows_become_canonical_updates(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a'), (2, NULL)", "UPDATE items SET name = 'b' WHERE id = 1")
    scene.sql("DELETE FROM items WHERE id = 2")
    table = log.tail(after, 100)
    assert table.schema == SCHEMA
    rows = listed(table)
    assert brief(rows) == [("items/1", "insert"), ("items/2", "insert"), ("items/1", "update"), ("items/2", "delete")]
    seq = after[0].seq
    assert places(rows) == [(seq, 0), (seq, 1), (seq + 1, 0), (seq + 2, 0)]
    assert [row["payload"] for row in rows] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 1, "name": "b"},
        {"id": 2, "name": None},
    ]
    assert {row["attributes"]["schema"] for row in rows} == {scene.database}
    assert [row["version"] for row in rows] == [seq, seq, seq + 1, seq + 2]
    assert all(row["time"].timestamp() > 1_600_000_000 for row in rows)


def test_bounds_are_the_transactions_that_the_server_has(scene: Scene) -> None:
    log = scene.log("items")
    before = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    assert eventually(lambda: heads(log) != before)
    assert heads(log) == Positions({shard: Position(before[shard].seq + 1, -1) for shard in range(2)})
    assert heads(log)[0] == Position(scene.server.seq() + 1, -1)
    assert log.bounds()[0].floor == Position(1, -1)
    assert log.bounds() is log.bounds()
    assert log.distance(before[0], now(log)[0]) == 1


def test_a_log_is_read_from_its_very_start(scene: Scene) -> None:
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    log = scene.log("items")
    assert ids(listed(log.tail(Positions(), 100))) == [1]
    assert ids(listed(log.tail(Positions({0: START, 1: Position(1, -1)}), 100))) == [1]


def test_rows_in_small_bites_come_once_and_in_order_within_and_across_transactions(scene: Scene) -> None:
    log = scene.log("items", shards=3)
    after = heads(log)
    for start in range(0, 60, 20):
        values = ", ".join(f"({number}, 'x')" for number in range(start, start + 20))
        scene.sql(f"INSERT INTO items VALUES {values}")
    reader = log.reader()
    rows, stand = drain(reader, after, now(log), limit=7)
    assert ids(rows) == list(range(60))
    assert places(rows) == [(after[0].seq + number // 20, number % 20) for number in range(60)]
    assert stand == heads(log)
    reader.close()


def test_a_reader_stops_mid_transaction_and_a_new_one_goes_on(scene: Scene) -> None:
    log = scene.log("items")
    start = heads(log)
    scene.sql(*inserts(range(30)), together=True)
    end = now(log)
    for stop in (1, 7, 29):
        reader = log.reader()
        found = eventually(lambda: some(reader.read(start, stop)))  # noqa: B023
        assert found is not None
        rows, after = found
        assert len(rows) == stop
        assert after[0] == after[1] == Position(start[0].seq, stop - 1)
        reader.close()
        log.forget()
        other = open_log(scene.definition("items")).reader()
        rest, stand = drain(other, after, end)
        assert ids(listed(rows)) + ids(rest) == list(range(30))
        assert stand == end
        other.close()


def test_rows_of_one_gtid_in_several_tables_share_its_numbers(scene: Scene) -> None:
    scene.sql("CREATE TABLE notes (id INT PRIMARY KEY, items INT)")
    log = scene.log("items", "notes", shards=4)
    after = heads(log)
    statements = []
    for number in range(5):
        statements += [f"INSERT INTO items VALUES ({number}, 'x')", f"INSERT INTO notes VALUES ({number}, {number})"]
    scene.sql(*statements, "UPDATE notes SET items = 7", together=True)
    rows, _ = drain(log.reader(), after, now(log), limit=4)
    assert places(rows) == [(after[0].seq, index) for index in range(15)]
    assert [row["attributes"]["table"] for row in rows] == ["items", "notes"] * 5 + ["notes"] * 5


def test_shards_stand_where_they_stand_and_others_are_left_out(scene: Scene) -> None:
    log = scene.log("items", shards=4)
    start = heads(log)
    scene.sql(*inserts(range(40)))
    end = now(log)
    everything, _ = drain(log.reader(), start, end)
    of = {shard: [row for row in everything if row["shard"] == shard] for shard in range(4)}
    assert all(of.values())
    late = Position(of[2][3]["seq"], 0)
    rows, after = drain(log.reader(), Positions({1: start[1], 2: late}), Positions({1: end[1], 2: end[2]}), limit=3)
    assert after == Positions({1: end[1], 2: end[2]})
    assert [row for row in rows if row["shard"] == 1] == of[1]
    assert [row for row in rows if row["shard"] == 2] == of[2][4:]
    assert len(rows) == len(of[1]) + len(of[2]) - 4


def test_a_reader_goes_back_and_takes_up_other_shards(scene: Scene) -> None:
    log = scene.log("items", shards=4)
    start = heads(log)
    scene.sql(*inserts(range(40)))
    end = now(log)
    reader: Any = log.reader()
    everything, _ = drain(reader, start, end)
    of = {shard: [row for row in everything if row["shard"] == shard] for shard in range(4)}
    feed = reader._feed
    drain(reader, Positions({1: end[1]}), Positions({1: end[1]}))
    assert reader._feed is feed
    rows, _ = drain(reader, Positions({1: start[1]}), Positions({1: end[1]}))
    assert rows == of[1]
    rows, _ = drain(reader, Positions({0: start[0], 1: end[1]}), Positions({0: end[0], 1: end[1]}))
    assert rows == of[0]
    reader.close()


def test_going_on_takes_no_new_connection(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    reader: Any = log.reader()
    after = reader.read(after, 10).upto
    feed = reader._feed
    for number in range(5):
        scene.sql(f"INSERT INTO items VALUES ({number}, 'x')")
        found, after = drain(reader, after, now(log))
        assert ids(found) == [number]
        assert reader._feed is feed
    reader.close()


def test_the_position_moves_though_all_that_happens_is_of_no_concern(scene: Scene) -> None:
    log = scene.log("items")
    after = heads(log)
    scene.sql("CREATE TABLE others (id INT)", "INSERT INTO others VALUES (1)", "TRUNCATE others", "DROP TABLE others")
    reader = log.reader()
    rows, stand = drain(reader, after, now(log))
    assert rows == []
    assert stand == now(log)
    assert stand[0].seq == after[0].seq + 4
    rows, again = reader.read(stand, 10)
    assert len(rows) == 0
    assert again == stand
    reader.close()


def test_a_large_transaction_is_read_in_parts(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    after = heads(log)
    scene.sql("INSERT INTO items SELECT seq, REPEAT('x', 40) FROM seq_1_to_100000")
    end = now(log)
    reader = log.reader()
    count, last, inside = 0, Position(-1), 0
    while after[0] < end[0]:
        rows, after = reader.read(after, 5_000)
        assert len(rows) <= 5_000
        assert rows["index"].to_pylist() == list(range(count, count + len(rows)))
        count += len(rows)
        inside += after[0].index >= 0
        assert after[0] > last or not len(rows)
        last = after[0]
    reader.close()
    assert count == 100_000
    assert inside > 10


def test_large_rows_are_read_a_few_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings_connectors.mysql.reader.BATCH_BYTES", 2**21)
    scene.sql("CREATE TABLE large (id INT PRIMARY KEY, text LONGTEXT)")
    log = scene.log("large")
    after = heads(log)
    scene.sql("INSERT INTO large SELECT seq, REPEAT('x', 500000) FROM seq_1_to_30")
    sizes: list[int] = []
    with contextlib.closing(log.reader()) as reading_on:
        at = after
        while sum(sizes) < 30 * 500_000:
            rows, at = reading_on.read(at, 10_000)
            sizes.append(rows.nbytes)
    assert max(sizes) < 2**22


@pytest.mark.slow
def test_a_huge_transaction_is_read_in_bounded_memory(scene: Scene) -> None:
    after = heads(scene.log("items"))
    scene.sql("INSERT INTO items SELECT seq, REPEAT('x', 40) FROM seq_1_to_1000000")
    count, grown = read_apart(scene.definition("items"), after, 10_000)
    assert count == 1_000_000
    assert grown < 50_000  # kilobytes


def test_other_domains_are_not_read_and_do_not_disturb(scene: Scene) -> None:
    ours, theirs = scene.log("items", other_domains="ignored"), scene.log("items", domain=7, other_domains="ignored")
    after, other = heads(ours), heads(theirs)
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    scene.sql(
        "SET SESSION gtid_domain_id = 7", "INSERT INTO items VALUES (2, 'b')", "INSERT INTO items VALUES (3, 'c')"
    )
    scene.sql("FLUSH BINARY LOGS", "INSERT INTO items VALUES (4, 'd')")
    assert ids(listed(ours.tail(after, 10))) == [1, 4]
    assert ids(listed(theirs.tail(other, 10))) == [2, 3]


def test_readers_follow_a_writer_without_missing_or_doubling(scene: Scene) -> None:
    log = scene.log("items", shards=2)
    start = heads(log)
    done = threading.Event()

    def write() -> None:
        scene.sql(*inserts(range(1000)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found: dict[int, list[Any]] = {0: [], 1: []}

    def follow(shard: int) -> None:
        reader, after = log.reader(), Positions({shard: start[shard]})
        while not done.is_set() or after[shard] < now(log)[shard]:
            rows, after = reader.read(after, 50)
            found[shard] += listed(rows)
        reader.close()

    readers = [threading.Thread(target=follow, args=(shard,)) for shard in found]
    for one in readers:
        one.start()
    for one in (writer, *readers):
        one.join()
    assert all(places(rows) == sorted(set(places(rows))) for rows in found.values())
    assert sorted(ids(found[0] + found[1])) == list(range(1000))


def test_readers_whose_number_was_chosen_do_not_end_each_other(scene: Scene) -> None:
    log = scene.log("items", server_id=7000)
    after = heads(log)
    two_readers: list[Any] = [log.reader(), log.reader()]
    one, two = two_readers
    stands = [one.read(after, 10).upto, two.read(after, 10).upto]
    feeds = one._feed, two._feed
    scene.sql("INSERT INTO items VALUES (1, 'x')")
    for reader, stand in zip((one, two), stands, strict=True):
        assert ids(drain(reader, stand, now(log))[0]) == [1]
    assert (one._feed, two._feed) == feeds
    one.close()
    two.close()


def test_a_slice_can_be_read_elsewhere_and_again(scene: Scene) -> None:
    log = scene.log("items", shards=3)
    start = heads(log)
    scene.sql(*inserts(range(20)))
    end = log.reach(start, 5)
    assert end == now(log)
    scene.sql("INSERT INTO items VALUES (99, 'later')")
    (piece,) = log.slices(start, end)
    for _ in range(2):
        rows = pa.Table.from_batches(pickle.loads(pickle.dumps(piece)).read(), SCHEMA)
        assert ids(listed(rows)) == list(range(20))
    assert PASSWORD not in repr(piece) + repr(log)
    assert log.slices(end, end) == []


def test_spark_scans_and_follows_it(scene: Scene, spark: SparkSession, tmp_path: Path) -> None:
    # Spark's workers have the environment of their own start.
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\npassword={PASSWORD}\n")
    log = scene.log("items", shards=2, defaults_file=str(file))
    start = heads(log)
    scene.sql(*inserts(range(10)))
    middle = now(log)
    scene.sql(*inserts(range(10, 15)))
    assert log.scan(spark, start, middle).count() == 10
    assert log.scan(spark, middle).count() == 5
    first = Positions({shard: Position(at.seq, at.index + 1) for shard, at in start.items()})
    reader = spark.readStream.format("tidings").option("definition", json.dumps(log._stream.to_json()))
    rows = reader.option("startingPosition", str(first)).load()
    query = rows.writeStream.format("memory").queryName(scene.database)
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    assert spark.table(scene.database).count() == 15


def test_a_shard_that_the_stream_does_not_have_is_refused(scene: Scene) -> None:
    log = scene.log("items")
    with pytest.raises(InvalidPosition, match="shards 0 to 1, not 2"):
        log.tail(Positions({2: Position(0)}), 10)
