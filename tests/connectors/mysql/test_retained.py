"""How much of its binary log a MariaDB is to keep for a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import Scene, heads, needs_mariadb, now
from tidings.flows import Flow
from tidings.retention import retained_by

password = mysql_server.password
pytestmark = needs_mariadb


@pytest.fixture
def scene() -> Iterator[Scene]:
    own = Scene(mysql_server.shared())
    own.sql(mysql_server.ITEMS)
    yield own
    own.close()


def test_the_logs_count_from_the_one_on_that_the_slowest_flow_needs(scene: Scene) -> None:
    log = scene.log("items")
    slow, fast = Flow("slow", "shop", 0), Flow("fast", "shop", 0)
    behind = now(log)[0]
    scene.sql("INSERT INTO items SELECT seq, 'x' FROM seq_1_to_1000")
    scene.server.sql("FLUSH BINARY LOGS")
    scene.sql("INSERT INTO items VALUES (2000, 'x')")
    ahead = now(log)[0]
    assert ahead > behind == min(behind, heads(log)[0])
    both, one = retained_by(log, {slow: behind, fast: ahead}), retained_by(log, {fast: ahead})
    assert both is not None
    assert one is not None
    assert (both.flow, one.flow) == (slow, fast)
    sizes = [int(row[1]) for row in scene.server.sql("SHOW BINARY LOGS")]
    assert one.bytes < sizes[-2] < both.bytes <= sum(sizes)
    assert one.bytes <= sizes[-1]
    assert (one.room, one.status) == (None, None)
    assert retained_by(log, {}) is None
