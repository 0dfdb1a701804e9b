"""From a statement in MariaDB to the callback of a subscriber."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import mysql_server, snapshot_steps
from tests.support.made_anew import Datastore, flows_are_told
from tests.support.mysql_server import Scene, Server, needs_mariadb, running
from tests.support.snapshot_steps import rows_reach_who_comes_later
from tests.support.subscribers import hearing
from tidings.cli import main
from tidings.cluster import Cluster
from tidings.errors import InvalidOption, LogUnavailable
from tidings.testing import eventually

password, scene, shared_server = mysql_server.password, mysql_server.scene, mysql_server.shared_server
small_chunks = snapshot_steps.small_chunks
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


def test_a_table_is_added_while_it_runs_and_what_is_wrong_with_the_new_options_is_told_first(
    cluster: Cluster, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    scene.sql("CREATE TABLE others (id INT PRIMARY KEY)")
    definition, file = scene.definition("items"), tmp_path / "tidings.yml"

    def apply(*tables: str, **more: Any) -> int:
        options = {"tables": [f"{scene.database}.{table}" for table in tables], **more}
        stream = {"log": definition.log, "shards": definition.shards, "options": options}
        file.write_text(json.dumps({"streams": {"shop": stream}}))
        return main(["apply", str(file)])

    assert apply("items") == 0
    with hearing(cluster, "shop") as (everything, _):
        scene.sql("INSERT INTO items VALUES (1, 'a')", "INSERT INTO others VALUES (1)")
        eventually(lambda: len(everything) == 1)
        assert apply("items", "others", tabels=1) == 1
        assert "an option 'tabels', which a log of MariaDB does not know" in capsys.readouterr().err
        assert "others" not in str(cluster.stream("shop").definition.options)
        assert apply("items", "others") == 0
        numbers = itertools.count(2)  # what comes before the publisher has heard of it is not told

        def told() -> bool:
            scene.sql(f"INSERT INTO others VALUES ({next(numbers)})")
            return ".others/" in everything[-1].object

        eventually(told, timeout=60, every=0.1)
        scene.sql("INSERT INTO items VALUES (3, 'c')")
        eventually(lambda: any(update.object.endswith("items/3") for update in everything))


def test_a_stream_that_cannot_be_read_is_not_made(cluster: Cluster, scene: Scene) -> None:
    definition = scene.definition("items")
    scene.server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    with pytest.raises(LogUnavailable, match="SET GLOBAL binlog_row_metadata = 'FULL'"):
        cluster.create_stream("shop", 4, definition.log, options=definition.options)
    with pytest.raises(InvalidOption, match="must not hold a password"):
        cluster.create_stream("shop", 4, "mysql:mysql://a:b@c/d", options=definition.options)
    assert cluster.streams() == []


def test_who_comes_later_gets_the_rows_too_and_nobody_else_does(cluster: Cluster, scene: Scene, tmp_path: Path) -> None:
    scene.may_read()
    scene.sql("INSERT INTO items SELECT seq, 'x' FROM seq_1_to_250")
    made = scene.definition("items", snapshot=True, snapshot_folder=str(tmp_path))
    cluster.create_stream("shop", 2, made.log, options=made.options)
    rows_reach_who_comes_later(
        cluster, "shop", tmp_path, 250, lambda number: scene.sql(f"INSERT INTO items VALUES ({number}, 'late')")
    )


@pytest.mark.parametrize("snapshot", [False, True])
def test_flows_of_a_stream_that_was_made_anew_over_another_server_are_told(
    cluster: Cluster, shared_server: Server, server: Server, tmp_path: Path, snapshot: bool
) -> None:
    def tables(one: Server) -> Datastore:
        scene = Scene(one)
        scene.sql("CREATE TABLE items (id INT PRIMARY KEY)")
        scene.may_read()
        made = scene.definition("items", snapshot=snapshot, snapshot_folder=str(tmp_path))
        return Datastore(made.log, made.options, lambda number: scene.sql(f"INSERT INTO items VALUES ({number})"))

    flows_are_told(cluster, tables(server), tables(shared_server))
