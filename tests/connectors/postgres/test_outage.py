"""A PostgreSQL that goes away for a while."""

from __future__ import annotations

import pytest

from tests.support import postgres_server
from tests.support.outage_steps import loss_and_return_are_logged_once
from tests.support.postgres_server import PostgresServer
from tidings.cluster import Cluster

own_server = postgres_server.own_server


@pytest.mark.slow
def test_its_loss_and_its_return_are_logged_once_with_how_long(
    cluster: Cluster, own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    database = own_server.database()
    database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    cluster.create_stream("shop", 2, database.address(), options=database.options())

    def change(key: int) -> None:
        database.execute(f"INSERT INTO item VALUES ({key})")

    loss_and_return_are_logged_once(cluster, caplog, change, own_server.stop, own_server.start)
