"""Where a process may connect to: what it was told itself, and not what ZooKeeper says."""

from __future__ import annotations

import socket
import threading

import pytest

from tidings import hosts
from tidings.cluster import Cluster
from tidings.errors import LogUnavailable, TidingsError
from tidings.hosts import VARIABLE, allow_hosts, check_hosts, trust_addresses
from tidings.stream_definition import StreamDefinition

ADDRESS = "postgresql://reader@db1.example/shop"


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_allowed", set())
    monkeypatch.setattr(hosts, "_given", set())
    monkeypatch.delenv(VARIABLE, raising=False)


def may_connect(*places: tuple[str, int]) -> bool:
    try:
        check_hosts(ADDRESS, places)
    except LogUnavailable:
        return False
    return True


def test_this_machine_is_always_allowed_and_others_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_connect(("127.0.0.1", 5432), ("localhost", 5432), ("::1", 5432), ("/run/postgresql", 5432))
    assert may_connect(), "one that only files of this machine name"
    assert not may_connect(("db1.example", 5432))
    monkeypatch.setenv(VARIABLE, "DB1.example, db2.example:5433")
    assert may_connect(("db1.example", 5432), ("db2.example", 5433))
    assert not may_connect(("db2.example", 5432))
    assert not may_connect(("db1.example", 5432), ("evil.example", 5432)), "one of several is enough to be refused"


def test_what_was_given_is_allowed_and_so_is_everything_if_that_is_said() -> None:
    allow_hosts(["db2.example", ""])
    assert may_connect(("db2.example", 1))
    assert not may_connect(("", 1), ("db1.example", 1))
    trust_addresses([ADDRESS])
    assert may_connect(("db1.example", 5432))
    hosts._given.clear()
    allow_hosts(["*"])
    assert may_connect(("db1.example", 5432))


@pytest.mark.parametrize("scheme", ["postgres:postgresql://reader@{}/shop", "mysql:mysql://reader@{}/shop"])
def test_no_password_goes_to_a_host_that_only_zookeeper_names(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hidden")
    monkeypatch.setenv("MYSQL_PWD", "hidden")
    with socket.create_server(("127.0.0.1", 0)) as evil:
        came = threading.Event()

        def accept() -> None:
            try:
                evil.accept()
            except OSError:
                return
            came.set()

        threading.Thread(target=accept, daemon=True).start()
        port = evil.getsockname()[1]
        monkeypatch.setattr(hosts, "is_loopback", lambda host: False)  # as if it were elsewhere
        options = {"tables": ["shop.items"]} if scheme.startswith("mysql") else {"publication": "shop"}
        written = StreamDefinition("shop", 2, scheme.format(f"127.0.0.1:{port}"), options=options)
        cluster.coordination.create(written.to_json(), "streams", "shop")
        with pytest.raises(TidingsError, match="is named in ZooKeeper alone"):
            cluster.stream("shop").log.close()
        assert not came.is_set()
        evil.shutdown(socket.SHUT_RDWR)
