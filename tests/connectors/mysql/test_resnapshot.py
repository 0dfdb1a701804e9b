"""All rows of a MariaDB once more, after something was lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.mysql.test_faults import purged
from tests.support import mysql_server, snapshot_steps
from tests.support.mysql_server import Scene, Server, drain, floors, needs_mariadb, now, places, running
from tests.support.mysql_snapshots import BASE, operations, stored
from tests.support.snapshot_steps import read_past
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.errors import LogRestored, PositionsLost
from tidings.positions import Position
from tidings.testing import eventually

password, small_chunks = mysql_server.password, snapshot_steps.small_chunks
pytestmark = needs_mariadb


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as own:
        yield own


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    own = Scene(server)
    own.may_read()
    own.sql(mysql_server.ITEMS)
    yield own
    own.close()


def again(folder: Path) -> dict[str, Any]:
    return {"on_data_loss": "snapshot", "snapshot_folder": str(folder)}


def cut_off(server: Server) -> None:
    """The newest log begins after all that a flow has read."""
    server.sql("FLUSH BINARY LOGS")
    eventually(lambda: purged(server))


def reset(server: Server) -> None:
    server.sql("RESET MASTER")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut_off, reset])
def test_a_copy_is_whole_again_after_a_loss(
    cluster: Cluster, scene: Scene, tmp_path: Path, damage: Callable[[Server], None]
) -> None:
    definition = scene.definition("items", **again(tmp_path / "snapshots"))
    cluster.create_stream("shop", 4, definition.log, options=definition.options)
    cluster.create_application("cache", ["shop"], start="earliest")
    copy = Copy()

    def same() -> bool:
        return copy.rows == stored(scene, "items")

    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        scene.sql("INSERT INTO items SELECT seq, CONCAT('item ', seq) FROM seq_1_to_1000")
        eventually(same)
    assert copy.lost == []
    scene.sql("DELETE FROM items WHERE id > 900", "UPDATE items SET name = 'x' WHERE id < 10")
    damage(scene.server)
    scene.sql("INSERT INTO items VALUES (3000, 'between')")
    with cluster.subscribe("cache", copy), cluster.publisher(token_interval=0.2):
        eventually(same, timeout=60)
        assert sorted(shard for shard, _, _ in copy.lost) == [0, 1, 2, 3]
        scene.sql("INSERT INTO items VALUES (5000, 'after')", "DELETE FROM items WHERE id = 20")
        eventually(same)
        eventually(lambda: not list(tmp_path.rglob("snapshots/**/*.parquet")))  # when all flows have passed them
    assert len(copy.lost) == 4


def test_the_loss_ends_where_the_rows_begin(scene: Scene, tmp_path: Path) -> None:
    log = scene.log("items", **again(tmp_path))
    with contextlib.closing(log.reader()) as reader:
        start = now(log)
        scene.sql("INSERT INTO items SELECT seq, 'x' FROM seq_1_to_250")
        rows, after = drain(reader, start, now(log))
        assert operations(rows) == ["insert"] * 250
    scene.sql("INSERT INTO items VALUES (300, 'unread')")
    cut_off(scene.server)
    seq = scene.server.seq()
    with contextlib.closing(log.reader()) as reader:
        loss = read_past(log, reader, after, PositionsLost)
        assert loss.lost == {
            shard: (Position(at.seq, at.index + 1), Position(seq, BASE - 1)) for shard, at in after.items()
        }
        scene.sql("DELETE FROM items WHERE id = 7")
        rest, _ = drain(reader, floors(log), now(log))
        assert operations(rest) == ["snapshot"] * 251 + ["delete"]
        assert places(rest) == [*((seq, BASE + index) for index in range(251)), (seq + 1, 0)]
        # Who comes later to the same loss finds that it was cared for.
        with contextlib.closing(log.reader()) as late, pytest.raises(PositionsLost):
            late.read(after, 10)
        assert drain(reader, floors(log), now(log))[0] == rest


def test_a_reset_server_is_read_as_it_is_now(scene: Scene, tmp_path: Path) -> None:
    log = scene.log("items", **again(tmp_path))
    scene.sql("INSERT INTO items VALUES (1, 'a')", "INSERT INTO items VALUES (2, 'b')")
    stand = now(log)
    with contextlib.closing(log.reader()) as reader:
        reset(scene.server)
        read_past(log, reader, stand, LogRestored)
        rows, _ = drain(reader, floors(log), now(log))
        assert places(rows) == [(0, BASE), (0, BASE + 1)]
        scene.sql("DELETE FROM items WHERE id = 1")
        rows, _ = drain(reader, floors(log), now(log))
        assert operations(rows) == ["snapshot", "snapshot", "delete"]


def test_an_empty_database_is_a_snapshot_too(scene: Scene, tmp_path: Path) -> None:
    log = scene.log("items", **again(tmp_path))
    stand = now(log)
    scene.sql("INSERT INTO items VALUES (1, 'a')", "DELETE FROM items")
    cut_off(scene.server)
    with contextlib.closing(log.reader()) as reader:
        read_past(log, reader, stand, PositionsLost)
        assert drain(reader, floors(log), now(log))[0] == []
        scene.sql("INSERT INTO items VALUES (2, 'b')")
        assert operations(drain(reader, floors(log), now(log))[0]) == ["insert"]
