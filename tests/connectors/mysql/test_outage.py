"""A MariaDB that goes away for a while."""

from __future__ import annotations

import pytest

from tests.support import mysql_server
from tests.support.mysql_server import Scene, needs_mariadb, running
from tests.support.outage_steps import loss_and_return_are_logged_once
from tidings.cluster import Cluster

password = mysql_server.password
pytestmark = needs_mariadb


@pytest.mark.slow
def test_its_loss_and_its_return_are_logged_once_with_how_long(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as server:
        scene = Scene(server)
        scene.may_read()
        scene.sql(mysql_server.ITEMS)
        definition = scene.definition("items")
        cluster.create_stream("shop", 2, definition.log, options=definition.options)
        loss_and_return_are_logged_once(
            cluster, caplog, lambda key: scene.sql(f"INSERT INTO items VALUES ({key}, 'x')"), server.stop, server.start
        )
        scene.close()
