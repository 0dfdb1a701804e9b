"""Snapshots of a MariaDB's tables on demand, while everything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import demanded_steps, mysql_server, snapshot_steps
from tests.support.demanded_steps import KEYS, Gate, Store, a_lost_store_is_filled_while_rows_change, ask, ended
from tests.support.mysql_server import Scene, Server, needs_mariadb, running
from tests.support.mysql_snapshots import stored
from tidings.cluster import Cluster
from tidings.testing import eventually

password, small_chunks = mysql_server.password, snapshot_steps.small_chunks
gate, soon = demanded_steps.gate, demanded_steps.soon
pytestmark = needs_mariadb


class Items:
    """The table of a test."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        scene.may_read()
        scene.sql(mysql_server.ITEMS, f"INSERT INTO items SELECT seq, 'old' FROM seq_0_to_{KEYS - 1}")

    def put(self, key: int, name: str) -> None:
        self.scene.sql(f"INSERT INTO items VALUES ({key}, '{name}') ON DUPLICATE KEY UPDATE name = '{name}'")

    def delete(self, key: int) -> None:
        self.scene.sql(f"DELETE FROM items WHERE id = {key}")

    def rows(self) -> dict[str, Any]:
        return stored(self.scene, "items")


@pytest.fixture
def own() -> Iterator[Server]:
    with running() as server:
        yield server


def tailed(cluster: Cluster, scene: Scene, folder: Path) -> None:
    definition = scene.definition("items", snapshot_folder=str(folder))
    cluster.create_stream("shop", 4, definition.log, options=definition.options)


def test_a_lost_store_is_filled_while_rows_change_and_others_get_nothing_of_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    scene = Scene(mysql_server.shared())
    items = Items(scene)
    tailed(cluster, scene, tmp_path)
    _, cache = a_lost_store_is_filled_while_rows_change(cluster, "shop", items)
    cache.check_order()


@pytest.mark.slow
def test_one_that_a_restart_of_the_server_interrupts_begins_anew(
    cluster: Cluster, own: Server, tmp_path: Path, gate: Gate
) -> None:
    scene = Scene(own)
    items, cache = Items(scene), Store()
    tailed(cluster, scene, tmp_path)
    cluster.create_application("cache", ["shop"], start="latest")
    with cluster.publisher(token_interval=0.2), cluster.subscribe("cache", cache):
        ask(cluster, "shop", ["cache"])
        gate.wait_until_placed(cluster, "shop")
        items.put(1, "new")
        own.stop()
        gate.open.set()
        own.start()
        items.delete(2)
        found = ended(cluster, "shop", timeout=120)
        assert (found.ended, found.attempt > 1) == ("complete", True)
        eventually(lambda: cache.rows == items.rows())
    cache.check_order()
