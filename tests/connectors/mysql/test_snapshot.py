"""The rows that were there before the log of a MariaDB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.connectors.mysql.test_faults import purged
from tests.connectors.mysql.test_preflight import mended
from tests.support import mysql_server, mysql_snapshots, snapshot_steps
from tests.support.mysql_server import ITEMS, Scene, Server, drain, floors, listed, needs_mariadb, now, places
from tests.support.mysql_snapshots import BASE, opened, operations, replayed, stored, whole, with_snapshot
from tests.support.snapshot_steps import kill_midway, noted
from tidings.errors import InvalidOption, LogUnavailable, PositionsLost
from tidings.log_opening import create_log, open_log
from tidings.positions import Position, Positions
from tidings.testing import eventually
from tidings_connectors.mysql import snapshot
from tidings_connectors.mysql.log import MysqlLog

password, server = mysql_server.password, mysql_server.own_server
small_chunks, scene = snapshot_steps.small_chunks, mysql_snapshots.scene
pytestmark = needs_mariadb


@pytest.fixture
def items(scene: Scene) -> Scene:
    """A table with rows that the log does not have any more."""
    scene.sql(ITEMS, "INSERT INTO items SELECT seq, 'first' FROM seq_1_to_1000", "FLUSH BINARY LOGS")
    eventually(lambda: purged(scene.server))
    return scene


def test_the_rows_that_are_there_come_before_the_log(items: Scene, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path, "items", shards=4)
    seq = items.server.seq()
    create_log(stream).close()
    items.sql("UPDATE items SET name = 'second' WHERE id <= 3", "DELETE FROM items WHERE id = 4")
    rows = whole(stream)
    assert operations(rows) == ["snapshot"] * 1000 + ["update"] * 3 + ["delete"]
    assert [row["payload"]["id"] for row in rows[:1000]] == list(range(1, 1001))
    assert places(rows[:1000]) == [(seq, BASE + number) for number in range(1000)]
    assert places(rows[1000:]) == [(seq + 1, 0), (seq + 1, 1), (seq + 1, 2), (seq + 2, 0)]
    assert replayed(rows) == stored(items, "items")
    assert whole(stream, limit=33, make=False) == rows
    with opened(stream, make=False) as log:
        assert listed(log.tail(floors(log), 10_000)) == rows
        stands = Positions({shard: Position(seq, BASE + 200 * shard) for shard in range(4)})
        expected = [row for row in rows if row["seq"] > seq or row["index"] > BASE + 200 * row["shard"]]
        assert listed(log.tail(stands, 10_000)) == expected
        (piece,) = log.slices(floors(log), log.reach(floors(log), None))
        assert listed(pa.Table.from_batches(piece.read())) == rows


@pytest.mark.slow
def test_one_that_was_killed_goes_on_though_nothing_was_written_since(items: Scene, tmp_path: Path) -> None:
    items.sql("INSERT INTO items SELECT seq, 'first' FROM seq_1001_to_20000")
    stream = with_snapshot(items, tmp_path, "items")
    kill_midway(stream, tmp_path / items.database / "note.json")
    rows = whole(stream, make=False)
    assert operations(rows).count("snapshot") == 20_000
    assert places(rows) == sorted(set(places(rows)))
    assert replayed(rows) == stored(items, "items")


@pytest.mark.slow
def test_one_that_was_killed_goes_on_with_the_remaining_keys(items: Scene, tmp_path: Path) -> None:
    items.sql("INSERT INTO items SELECT seq, 'first' FROM seq_1001_to_20000")
    stream = with_snapshot(items, tmp_path, "items")
    note = tmp_path / items.database / "note.json"
    for _ in range(2):
        chunks = kill_midway(stream, note)
        items.sql("UPDATE items SET name = 'later' WHERE id % 7 = 0", "DELETE FROM items WHERE id % 1000 = 11")
        items.sql("INSERT INTO items SELECT MAX(id) + 1, 'new' FROM items")
    assert chunks < 200
    rows = whole(stream, limit=777, make=False)
    runs = noted(note)["runs"]
    assert len({run["seq"] for run in runs}) == 3
    assert places(rows) == sorted(set(places(rows)))
    keys = [row["object"] for row in rows if row["attributes"]["operation"] == "snapshot"]
    assert len(keys) == len(set(keys))
    assert replayed(rows) == stored(items, "items")


def test_tables_of_another_engine_have_no_state_and_that_is_told(scene: Scene, tmp_path: Path) -> None:
    for engine in ("MyISAM", "Aria"):
        scene.sql(f"CREATE TABLE `{engine} %` (id INT PRIMARY KEY) ENGINE = {engine}")
        stream = with_snapshot(scene, tmp_path / engine, f"{engine} %")
        mended("needs tables of InnoDB", lambda: create_log(stream).close(), scene.server.sql, start="ALTER TABLE")  # noqa: B023


@pytest.mark.parametrize("options", [{"snapshot": True}, {"on_data_loss": "snapshot"}])
def test_a_user_who_may_not_read_a_table_is_told_before_anything_is_made(
    server: Server, tmp_path: Path, options: dict[str, Any]
) -> None:
    scene = Scene(server)
    scene.sql("CREATE TABLE `items %s` (id INT PRIMARY KEY, secret INT)")
    stream = scene.definition("items %s", snapshot_folder=str(tmp_path), **options)

    def attempt() -> None:
        create_log(stream).close()

    server.sql(f"GRANT SELECT (id) ON {scene.database}.`items %s` TO tidings")  # some of it is not enough
    with pytest.raises(LogUnavailable, match=r"may not read table test_\w+.items %s, which a snapshot needs"):
        attempt()
    assert not list(tmp_path.iterdir())
    mended("may not read table", attempt, server.sql, start="GRANT SELECT")


def test_what_all_have_passed_is_deleted_and_then_lost(items: Scene, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path, "items", shards=2)
    with opened(stream) as log, contextlib.closing(log.reader()) as reader:
        start = floors(log)
        items.sql("INSERT INTO items VALUES (5000, 'x')")
        rows, upto = drain(reader, start, now(log))
        seq = rows[0]["seq"]
        log.confirm(Positions({**upto, 1: Position(seq, BASE + 10)}))
        assert len(list(tmp_path.rglob("*.parquet"))) == 10
        log.confirm(upto)
        assert not list(tmp_path.rglob("*.parquet"))
        assert floors(log)[0] == Position(seq + 1, -1)
        with pytest.raises(PositionsLost) as caught:
            reader.read(start, 10)
        assert caught.value.lost[0] == (Position(seq, BASE), Position(seq + 1, -1))
    open_log(stream).close()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_log_that_is_purged_before_a_snapshot_is_complete_is_told(
    items: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = with_snapshot(items, tmp_path, "items")
    read = snapshot.MysqlTable.pieces

    def purge(self: snapshot.MysqlTable, last: list[str] | None) -> Iterator[Any]:
        items.sql("INSERT INTO items VALUES (5000, 'x')", "FLUSH BINARY LOGS")
        eventually(lambda: purged(items.server))
        yield from read(self, last)

    with monkeypatch.context() as patch:
        patch.setattr(snapshot.MysqlTable, "pieces", purge)
        with pytest.raises(LogUnavailable, match="keep the log for longer than a snapshot takes"):
            create_log(stream)
    rows = whole(stream)
    assert operations(rows) == ["snapshot"] * 1001


def test_who_stops_in_the_middle_of_a_table_does_not_read_it_to_its_end(items: Scene, tmp_path: Path) -> None:
    items.sql("INSERT INTO items SELECT seq, REPEAT('x', 50) FROM seq_1001_to_300000")
    log = items.log("items", snapshot_folder=str(tmp_path))

    def sent() -> int:
        return int(dict(items.server.sql("SHOW GLOBAL STATUS LIKE 'Bytes_sent'"))["Bytes_sent"])

    before = sent()
    with log._tables.state() as state:
        pieces = state.tables[0].pieces(None)
        next(pieces)
        pieces.close()  # type: ignore[attr-defined]
    assert sent() - before < 10_000_000  # of 18


def test_one_works_at_a_snapshot_and_others_wait(items: Scene, tmp_path: Path) -> None:
    stream = with_snapshot(items, tmp_path, "items")
    logs = [MysqlLog._unopened(stream.log.partition(":")[2], stream) for _ in range(2)]
    one, other = (log._snapshot for log in logs)
    assert one is not None
    assert other is not None
    with one._alone() as mine, other._alone() as theirs:
        assert (mine, theirs) == (True, False)
        other.start()
        assert other.note().runs == []
    eventually(lambda: other.note().complete)
    for log in logs:
        log.close()


def test_rows_that_are_large_are_cut_into_smaller_pieces(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings_connectors.cdc.snapshot.CHUNK_BYTES", 10_000)
    scene.sql("CREATE TABLE large (id INT PRIMARY KEY, body BLOB)")
    scene.sql("INSERT INTO large SELECT seq, REPEAT('x', 4000) FROM seq_1_to_10")
    log = scene.log("large", snapshot_folder=str(tmp_path))
    with log._tables.state() as state:
        assert [len(piece.columns[0].values) for piece in state.tables[0].pieces(None)] == [3, 3, 3, 1]


def test_a_snapshot_needs_a_folder(scene: Scene) -> None:
    with pytest.raises(InvalidOption, match="a snapshot needs the option 'snapshot_folder'"):
        create_log(scene.definition("items", snapshot=True))
