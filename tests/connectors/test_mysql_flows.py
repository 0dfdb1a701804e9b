"""From a statement in MariaDB to the callback of a subscriber."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import tidings
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogUnavailable
from tidings.testing import eventually

from .mysql_server import PASSWORD, Scene, missing, running

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


class Seen(tidings.Handler):
    def __init__(self) -> None:
        self.updates: list[tidings.Update] = []

    def on_update(self, update: tidings.Update) -> None:
        self.updates.append(update)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    with running() as server:
        own = Scene(server)
        own.sql("CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(50))")
        yield own
        own.close()


def test_rows_arrive_at_subscribers_filtered_and_across_a_restart_of_the_server(cluster: Cluster, scene: Scene) -> None:
    definition = scene.definition("items", shards=4)
    cluster.create_stream("shop", 4, definition.log, options=definition.options)
    cluster.create_application("all", ["shop"], start="earliest")
    cluster.create_application("deletes", ["shop"], filter="operation = delete", start="earliest")
    everything, deletes = Seen(), Seen()
    with cluster.subscribe("all", everything), cluster.subscribe("deletes", deletes), cluster.publisher():
        scene.sql("INSERT INTO items SELECT seq, CONCAT('item ', seq) FROM seq_1_to_100")
        scene.sql("UPDATE items SET name = 'x' WHERE id = 7", "DELETE FROM items WHERE id > 90")
        eventually(lambda: len(everything.updates) >= 111 and len(deletes.updates) >= 10)
        scene.server.kill()
        scene.server.start()
        scene.sql("INSERT INTO items VALUES (200, 'late')")
        eventually(lambda: any(update.object.endswith("/200") for update in everything.updates), timeout=60)
    assert len({(update.shard, update.position) for update in everything.updates}) == 112
    assert {update.object for update in deletes.updates} == {f"{scene.database}.items/{n}" for n in range(91, 101)}
    newest = [update for update in everything.updates if update.object.endswith("items/7")][-1]
    assert json.loads(newest.payload or b"") == {"id": 7, "name": "x"}


def test_a_stream_that_cannot_be_read_is_not_made(cluster: Cluster, scene: Scene) -> None:
    definition = scene.definition("items")
    scene.server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    with pytest.raises(LogUnavailable, match="SET GLOBAL binlog_row_metadata = 'FULL'"):
        cluster.create_stream("shop", 4, definition.log, options=definition.options)
    with pytest.raises(InvalidOption, match="must not hold a password"):
        cluster.create_stream("shop", 4, "mysql:mysql://a:b@c/d", options=definition.options)
    assert cluster.streams() == []
