"""Rows that are not in a MariaDB's log, or cannot be read there, are told to be lost, and the rest goes on."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support import mysql_server
from tests.support.mysql_server import PASSWORD, Scene, floors, heads, ids, inserts, listed, needs_mariadb, now
from tests.support.mysql_snapshots import stored
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.errors import LogUnavailable, PositionsLost
from tidings.flow_status import status
from tidings.log_reading import positions_at
from tidings.logs import Reader
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings.updates import shard_of
from tidings_connectors.mysql import reader as reader_module
from tidings_connectors.mysql.log import MysqlLog

password, server, scene = mysql_server.password, mysql_server.own_server, mysql_server.scene
pytestmark = needs_mariadb

AS_STATEMENTS = "SET SESSION binlog_format = 'STATEMENT'"
Told = tuple[Position, str]


def heard(log: MysqlLog, after: Positions, limit: int = 1000) -> tuple[list[int], list[Told]]:
    """The ids of the rows that a flow gets up to the head, and what it is told to be lost."""
    end, rows, losses = now(log), [], []
    with contextlib.closing(log.reader()) as reader:
        while any(after[shard] < at for shard, at in end.items()):
            found, after, told = step(reader, after, limit)
            rows += ids(listed(found)) if found is not None else []
            losses += told
    return rows, losses


def step(reader: Reader, after: Positions, limit: int) -> tuple[Any, Positions, list[Told]]:
    """One read; who is told of a loss goes on after it, as a flow does."""
    try:
        rows, upto = reader.read(after, limit)
    except PositionsLost as error:
        loss = error
    else:
        return rows, upto, []
    assert all(first == last and after[shard] == first.before for shard, (first, last) in loss.lost.items())
    places = {last for _, last in loss.lost.values()}
    passed = Positions({**after, **{shard: last for shard, (_, last) in loss.lost.items()}})
    return None, passed, [(place, loss.reason) for place in sorted(places)]


# Statements


def written_as_statements(scene: Scene, *statements: str) -> None:
    """By a session that was there before the server was told to log rows."""
    scene.sql(AS_STATEMENTS, *statements)


def test_what_is_logged_as_a_statement_is_lost_at_its_gtid_and_the_rest_is_read(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    written_as_statements(scene, "INSERT INTO items VALUES (2, 'b')")
    scene.sql("INSERT INTO items VALUES (3, 'c')")
    rows, losses = heard(log, start)
    assert rows == [1, 3]
    assert [at for at, _ in losses] == [Position(start[0].seq + 1, 0)]
    assert f"transaction 0-1-{start[0].seq + 1} is logged as a statement" in losses[0][1]
    assert heard(log, start, limit=1) == (rows, losses)
    after_it = Positions({0: losses[0][0]})
    assert heard(log, after_it) == ([3], [])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET name = 'x'",
        "DELETE FROM items WHERE id = 1",
        "/* by */ REPLACE `items` VALUES (1, 'z')",
        "INSERT INTO other VALUES (5)",
        "SELECT fill()",
        "LOAD DATA INFILE '{file}' INTO TABLE items",
        "CREATE TABLE copied SELECT 1 AS id",
        "SET STATEMENT max_statement_time = 10 FOR DELETE FROM items",
    ],
)
def test_every_statement_that_may_have_changed_a_watched_table_counts(scene: Scene, statement: str) -> None:
    scene.sql(
        "CREATE TABLE other (id INT)",
        "CREATE TRIGGER more AFTER INSERT ON other FOR EACH ROW INSERT INTO items VALUES (NEW.id, 'by a trigger')",
        "SET GLOBAL log_bin_trust_function_creators = 1",
        "CREATE FUNCTION fill() RETURNS INT BEGIN INSERT INTO items VALUES (9, 'by a function'); RETURN 1; END",
        "INSERT INTO items VALUES (1, 'a')",
    )
    file = scene.server.folder / "rows.tsv"  # where the server may read
    file.write_text("7\tloaded\n")
    file.chmod(0o644)
    log = scene.log("items", "copied", shards=2)
    start = heads(log)
    written_as_statements(scene, statement.format(file=file))
    rows, losses = heard(log, start)
    assert rows == []
    assert len(losses) == 1


def test_statements_that_do_not_concern_watched_tables_do_not_count(scene: Scene) -> None:
    other = f"checks_{scene.database[5:]}"
    scene.server.sql(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.sums (n INT)")
    log = scene.log("items", "copied")
    start = heads(log)
    written_as_statements(
        scene,
        f"REPLACE INTO {other}.sums SELECT COUNT(*) FROM items",
        "CREATE TABLE another SELECT 1 AS id",
        "CREATE TABLE plain (id INT PRIMARY KEY, word VARCHAR(9) DEFAULT 'select')",
        "DROP TABLE another",
        f"USE {other}",
        "UPDATE sums SET n = 2",
    )
    scene.sql("CREATE TABLE copied SELECT 1 AS id")
    assert heard(log, start) == ([1], [])


def test_the_rows_before_a_loss_are_tailed_and_only_then_it_is_told(scene: Scene) -> None:
    log = scene.log("items", shards=2)
    start = heads(log)
    scene.sql(*inserts(range(3)))
    written_as_statements(scene, "INSERT INTO items VALUES (5, 'b')")
    assert ids(listed(log.tail(start, 100))) == [0, 1, 2]
    with pytest.raises(PositionsLost, match="is logged as a statement") as caught:
        log.tail(Positions(dict.fromkeys(range(2), Position(start[0].seq + 3, -1))), 100)
    assert caught.value.lost == dict.fromkeys(range(2), (Position(start[0].seq + 3, 0),) * 2)


def test_a_shard_that_stands_before_a_loss_hears_of_it_though_the_reader_has_passed_it(scene: Scene) -> None:
    log = scene.log("items", shards=2)
    start = heads(log)
    written_as_statements(scene, "INSERT INTO items VALUES (5, 'b')")
    end = now(log)
    with contextlib.closing(log.reader()) as reader:
        for shard in range(2):
            after, losses = Positions({shard: start[shard]}), []
            while after[shard] < end[shard]:
                _, after, told = step(reader, after, 10)
                losses += told
            assert len(losses) == 1


def test_a_server_that_is_set_up_otherwise_is_found_out_at_the_next_connection(scene: Scene) -> None:
    log = scene.log("items")
    reader = log.reader()
    reader.read(heads(log), 10)
    scene.server.sql("SET GLOBAL binlog_format = 'MIXED'")
    try:
        reader.close()
        with pytest.raises(LogUnavailable, match=r"has binlog_format = MIXED.*SET GLOBAL binlog_format = 'ROW'"):
            reader.read(heads(log), 10)
    finally:
        scene.server.sql("SET GLOBAL binlog_format = 'ROW'")
    reader.read(heads(log), 10)
    reader.close()


def test_subscribers_and_operators_are_told_and_a_snapshot_makes_a_copy_whole(
    cluster: Cluster, scene: Scene, tmp_path: Path
) -> None:
    scene.may_read()
    options: dict[str, Any] = {
        "snapshot": True,
        "on_data_loss": "snapshot",
        "snapshot_folder": str(tmp_path / "snapshots"),
    }
    definition = scene.definition("items", **options)
    scene.sql(*inserts(range(50)))
    cluster.create_stream("shop", 2, definition.log, options=definition.options)
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        eventually(lambda: copy.rows == stored(scene, "items"))
        written_as_statements(scene, "UPDATE items SET name = 'unseen' WHERE id < 10")
        seq = scene.server.seq()
        eventually(lambda: copy.rows == stored(scene, "items"), timeout=60)
        assert sorted(copy.lost) == [(shard, Position(seq, 0), Position(seq, 0)) for shard in range(2)]
        reasons = {one.reason or "" for one in status(cluster)}
        assert all("is logged as a statement" in reason for reason in reasons)


def test_a_query_fails_unless_it_was_told_to_go_on_and_a_start_by_time_is_found(
    scene: Scene, spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "my.cnf"  # Spark's workers have the environment of their own start
    file.write_text(f"[client]\npassword={PASSWORD}\n")
    log = scene.log("items", shards=2, defaults_file=str(file))
    start = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    written_as_statements(scene, "INSERT INTO items VALUES (2, 'b')")
    scene.sql("SET SESSION timestamp = 2000000000", "INSERT INTO items VALUES (3, 'c')")
    first = Positions({shard: Position(at.seq, 0) for shard, at in start.items()})
    query = spark.read.format("tidings").option("definition", json.dumps(log._stream.to_json()))
    query = query.option("startingPosition", str(first))
    with pytest.raises(Exception, match="is logged as a statement"):
        query.load().count()
    assert query.option("failOnDataLoss", "false").load().count() == 2
    found = positions_at(log, shard_of(f"{scene.database}.items/3", 2), dt.datetime.fromtimestamp(1.9e9, dt.UTC))
    assert found == Position(start[0].seq + 2, -1)


# Other domains


def in_domain(scene: Scene, domain: int, *statements: str) -> None:
    scene.sql(f"SET SESSION gtid_domain_id = {domain}", *statements)


def test_rows_in_another_domain_are_lost_at_the_next_transaction_of_ours(scene: Scene) -> None:
    log = scene.log("items", shards=1)
    start = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    in_domain(scene, 7, "INSERT INTO items VALUES (2, 'b')", "INSERT INTO items VALUES (3, 'b')")
    scene.sql("FLUSH BINARY LOGS", "INSERT INTO items VALUES (4, 'c'), (5, 'd')", "INSERT INTO items VALUES (6, 'e')")
    seq = start[0].seq
    rows, losses = heard(log, start)
    assert rows == [1, 4, 5, 6]
    assert [at for at, _ in losses] == [Position(seq + 1, 2)]
    assert "changed watched tables, in another GTID domain than 0" in losses[0][1]
    for after, expected in (((seq + 1, -1), [4, 5, 6]), ((seq + 1, 0), [5, 6]), ((seq + 1, 1), [6])):
        log.forget()  # so that the place is looked for in the server's logs
        assert heard(log, Positions({0: Position(*after)})) == (expected, losses)
    assert heard(log, Positions({0: losses[0][0]})) == ([6], [])


def test_other_tables_in_another_domain_are_of_no_concern(scene: Scene) -> None:
    scene.sql("CREATE TABLE other (id INT)")
    log = scene.log("items", shards=1)
    start = heads(log)
    in_domain(scene, 8, "INSERT INTO other VALUES (1)")
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    assert heard(log, start) == ([1], [])


def test_a_domain_in_which_nothing_happens_any_more_is_an_error(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "ELSEWHERE_PATIENCE_S", 0)
    log = scene.log("items", shards=1)
    start = heads(log)
    in_domain(scene, 9, "INSERT INTO items VALUES (1, 'a')")
    with contextlib.closing(log.reader()) as reader:

        def told() -> bool:
            with contextlib.suppress(LogUnavailable):
                reader.read(start, 10)
                return False
            return True

        eventually(told)
        with pytest.raises(LogUnavailable, match=r"transaction 9-1-1 changed watched tables.*'domain'"):
            reader.read(start, 10)
    scene.sql("INSERT INTO items VALUES (2, 'b')")
    rows, losses = heard(log, start)
    assert rows == [2]
    assert len(losses) == 1


# What was written before the server was set up as it must be


@pytest.fixture
def before(server: mysql_server.Server) -> Iterator[Callable[[str, str], None]]:
    """Sets the server up otherwise, until the end of the test."""
    changed: dict[str, Any] = {}

    def change(setting: str, value: str) -> None:
        ((_, known),) = server.sql(f"SHOW GLOBAL VARIABLES LIKE '{setting}'")
        changed.setdefault(setting, known)
        server.sql(f"SET GLOBAL {setting} = '{value}'")

    yield change
    for setting, value in changed.items():
        server.sql(f"SET GLOBAL {setting} = '{value}'")


OLD = {
    "binlog_format": ("STATEMENT", "ROW"),
    "binlog_row_metadata": ("MINIMAL", "FULL"),
    "binlog_checksum": ("NONE", "CRC32"),
    "binlog_row_image": ("MINIMAL", "FULL"),
}


@pytest.mark.parametrize("setting", list(OLD))
def test_a_stream_begins_where_it_was_made_whatever_is_in_the_log_before(
    scene: Scene, before: Callable[[str, str], None], setting: str
) -> None:
    old, new = OLD[setting]
    before(setting, old)
    scene.sql(f"INSERT INTO items VALUES (1, '{'a' * 50}')", "UPDATE items SET name = 'b'", "DELETE FROM items")
    before(setting, new)
    log = scene.log("items", shards=1)
    start = heads(log)
    scene.sql("INSERT INTO items VALUES (2, 'b')")
    assert heard(log, start) == ([2], [])


def test_a_stream_with_a_snapshot_begins_with_it_whatever_is_in_the_log_before(scene: Scene, tmp_path: Path) -> None:
    scene.may_read()
    written_as_statements(scene, *inserts(range(5)))
    log = scene.log("items", shards=1, snapshot=True, snapshot_folder=str(tmp_path))
    scene.sql("INSERT INTO items VALUES (7, 'b')")
    assert heard(log, floors(log)) == ([0, 1, 2, 3, 4, 7], [])


def test_who_asks_for_what_was_written_before_names_of_columns_is_told_and_goes_on(
    scene: Scene, before: Callable[[str, str], None]
) -> None:
    start = Positions({0: Position(scene.server.seq() + 1, -1)})
    before("binlog_row_metadata", "MINIMAL")
    scene.sql("INSERT INTO items VALUES (1, 'a')")
    before("binlog_row_metadata", "FULL")
    scene.sql("INSERT INTO items VALUES (2, 'b')")
    log = scene.log("items", shards=1)
    rows, losses = heard(log, start)
    assert rows == [2]
    assert f"table {scene.database}.items has rows without names of columns" in losses[0][1]
    assert "PURGE" not in losses[0][1]


@pytest.mark.parametrize(("setting", "value"), [("binlog_checksum", "NONE"), ("log_bin_compress", "ON")])
def test_a_log_that_is_compressed_or_has_no_checksums_is_read(
    scene: Scene, before: Callable[[str, str], None], setting: str, value: str
) -> None:
    scene.sql("CREATE TABLE wide (id INT PRIMARY KEY, name TEXT)")  # short rows are not compressed
    log = scene.log("wide", shards=1)
    start = heads(log)
    before(setting, value)
    scene.sql(
        "INSERT INTO wide SELECT seq, REPEAT('x', 1000) FROM seq_0_to_19", "UPDATE wide SET name = REPEAT('y', 1000)"
    )
    scene.sql(
        "DELETE FROM wide", "FLUSH BINARY LOGS", f"/*{' ' * 300}*/ TRUNCATE wide", "INSERT INTO wide VALUES (5, 'a')"
    )
    rows = listed(log.tail(start, 1000))
    assert [row["attributes"]["operation"] for row in rows] == [
        *(operation for operation in ("insert", "update", "delete") for _ in range(20)),
        "truncate",
        "insert",
    ]
    assert [row["payload"]["name"][::999] for row in rows[:60:20]] == ["xx", "yy", "yy"]


# What cannot be read


def test_a_table_that_cannot_be_read_is_told_with_its_column_and_the_others_go_on(
    scene: Scene, before: Callable[[str, str], None]
) -> None:
    before("mysql56_temporal_format", "OFF")
    scene.sql("CREATE TABLE dates (id INT PRIMARY KEY, made DATETIME)")
    log = scene.log("items", "dates", shards=1)
    start = heads(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')", "INSERT INTO dates VALUES (2, NOW()), (3, NOW())")
    scene.sql("INSERT INTO items VALUES (4, 'b')")
    rows, losses = heard(log, start)
    assert rows == [1, 4]
    assert [at for at, _ in losses] == [Position(start[0].seq + 1, 0)]
    assert f"column 'made' of table {scene.database}.dates has type 12 of the binary log" in losses[0][1]


def test_a_value_that_is_no_text_is_told_with_its_column_and_the_rows_beside_it_are_read(scene: Scene) -> None:
    scene.sql("CREATE TABLE texts (id INT PRIMARY KEY, word VARCHAR(9) CHARACTER SET ujis)")
    log = scene.log("texts", shards=1)
    start = heads(log)
    scene.sql("INSERT INTO texts VALUES (1, '日'), (2, _ujis x'f5a1'), (3, '本'), (4, _ujis x'f5a2')")
    rows, losses = heard(log, start)
    assert rows == [1, 3]
    seq = start[0].seq
    assert [at for at, _ in losses] == [Position(seq, 1), Position(seq, 3)]
    assert f"column 'word' of table {scene.database}.texts has bytes that are no text" in losses[0][1]
    assert heard(log, start, limit=1) == (rows, losses)


def test_a_value_that_is_no_text_is_refused_by_a_snapshot(scene: Scene, tmp_path: Path) -> None:
    scene.may_read()
    scene.sql("CREATE TABLE texts (id INT PRIMARY KEY, word VARCHAR(9) CHARACTER SET ujis)")
    scene.sql("INSERT INTO texts VALUES (2, _ujis x'f5a1')")
    with pytest.raises(
        LogUnavailable, match=rf"column 'word' of table {scene.database}.texts has bytes that are no text"
    ):
        scene.log("texts", snapshot=True, snapshot_folder=str(tmp_path))
