"""A session with ZooKeeper: what it knows of itself, and how soon it gives up."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from kazoo.protocol.states import KazooState

from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.errors import CoordinationUnavailable, InvalidName
from tidings.testing import eventually


def test_what_zookeeper_grants_is_known_before_anyone_hears_of_the_connection(zookeeper: str) -> None:
    with Proxy(zookeeper) as proxy, contextlib.closing(Coordination(proxy.address, session_timeout=3600.0)) as session:
        granted = session.session_timeout
        assert 1 < granted < 3600
        heard: list[float] = []

        def listen(state: str) -> None:
            if state == KazooState.CONNECTED:
                heard.append(session.session_timeout)

        session.client.add_listener(listen)
        session.session_timeout = 3600.0
        proxy.cut()
        proxy.heal()
        eventually(lambda: heard)
    assert heard == [granted]


def test_a_server_that_takes_connections_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        since = time.monotonic()
        with pytest.raises(CoordinationUnavailable, match=r"within 0\.2 s"):
            Coordination("{}:{}".format(*silent.getsockname()), timeout=0.2, session_timeout=30.0)
        assert time.monotonic() - since < 10, "well before a session would time out"


def test_a_name_that_zookeeper_does_not_take_is_an_error_of_ours(cluster: Cluster) -> None:
    nodes = NodeCache(cluster.coordination, lambda: None)
    for ask in (nodes.value, nodes.children, nodes.exists):
        with pytest.raises(InvalidName, match="does not take such a name"):
            ask("streams", "a\0b")


def test_the_absence_of_zookeeper_is_told_once_and_so_is_its_return(
    zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(zookeeper) as proxy, contextlib.closing(Coordination(proxy.address)) as tree:
        proxy.cut()
        eventually(lambda: f"ZooKeeper at {tree.hosts} is away" in caplog.messages)
        proxy.heal()
        eventually(lambda: any(one.startswith(f"ZooKeeper at {tree.hosts} is back after ") for one in caplog.messages))
        tree.ping()
    assert len([record for record in caplog.records if record.name == "tidings.coordination.session"]) == 2
