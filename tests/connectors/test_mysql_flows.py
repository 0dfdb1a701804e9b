"""From a statement in MariaDB to the callback of a subscriber."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogUnavailable
from tidings.testing import eventually

from . import mysql_server
from .mysql_server import Scene, Server, needs_mariadb, running
from .subscribers import hearing

password, scene = mysql_server.password, mysql_server.scene
pytestmark = needs_mariadb


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as own:
        yield own


def test_rows_arrive_at_subscribers_filtered_and_across_a_restart_of_the_server(cluster: Cluster, scene: Scene) -> None:
    definition = scene.definition("items", shards=4)
    cluster.create_stream("shop", 4, definition.log, options=definition.options)
    with hearing(cluster, "shop") as (everything, deletes):
        scene.sql("INSERT INTO items SELECT seq, CONCAT('item ', seq) FROM seq_1_to_100")
        scene.sql("UPDATE items SET name = 'x' WHERE id = 7", "DELETE FROM items WHERE id > 90")
        eventually(lambda: len(everything) >= 111 and len(deletes) >= 10)
        scene.server.kill()
        scene.server.start()
        scene.sql("INSERT INTO items VALUES (200, 'late')")
        eventually(lambda: any(update.object.endswith("/200") for update in everything), timeout=60)
    assert len({(update.shard, update.position) for update in everything}) == 112
    assert {update.object for update in deletes} == {f"{scene.database}.items/{n}" for n in range(91, 101)}
    newest = [update for update in everything if update.object.endswith("items/7")][-1]
    assert json.loads(newest.payload or b"") == {"id": 7, "name": "x"}


def test_a_stream_that_cannot_be_read_is_not_made(cluster: Cluster, scene: Scene) -> None:
    definition = scene.definition("items")
    scene.server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    with pytest.raises(LogUnavailable, match="SET GLOBAL binlog_row_metadata = 'FULL'"):
        cluster.create_stream("shop", 4, definition.log, options=definition.options)
    with pytest.raises(InvalidOption, match="must not hold a password"):
        cluster.create_stream("shop", 4, "mysql:mysql://a:b@c/d", options=definition.options)
    assert cluster.streams() == []
