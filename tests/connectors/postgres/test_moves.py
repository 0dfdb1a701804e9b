"""The log of a stream at another address: the same server, its standby, or another one altogether."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.support import postgres_server
from tests.support.postgres_server import Database, PostgresServer
from tests.support.proxy import Proxy
from tests.support.scene import Scene
from tests.support.scene_fixture import scene as scene_fixture
from tests.support.subscribers import Copy
from tidings.cluster import Cluster
from tidings.coordination.origins import read_farthest, read_origin
from tidings.datamarkers import Datamarker
from tidings.errors import LogMismatch, LogUnavailable
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.positions import Positions
from tidings.testing import eventually
from tidings_connectors.cdc import snapshot
from tidings_connectors.postgres import connections
from tidings_connectors.postgres.log import PostgresLog

own_server, scene, database = postgres_server.own_server, scene_fixture, postgres_server.database


class Numbers(Copy):
    """The rows that were heard of, in their order, and what was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def on_update(self, update: tidings.Update) -> None:
        super().on_update(update)
        self.heard.append(int(update.object.rpartition("/")[2]))


@pytest.fixture
def shop(scene: Scene, own_server: PostgresServer) -> Iterator[tuple[Database, Numbers]]:
    """A stream of a database with a publisher in a process of its own, and a subscriber that has heard of one row."""
    own, numbers = own_server.database(), Numbers()
    own.execute("CREATE TABLE item (id int PRIMARY KEY)")
    scene.cluster.create_stream("shop", 2, own.address(), options=own.options())
    scene.cluster.create_application("cache", ["shop"], start="earliest")
    scene.sender("p", "--token-interval", "0.2", "--patience", "1")
    with scene.cluster.subscribe("cache", numbers):
        insert(own, numbers, 1)
        yield own, numbers


def insert(database: Database, numbers: Numbers, *rows: int) -> None:
    for row in rows:
        database.execute(f"INSERT INTO item VALUES ({row})")
    eventually(lambda: set(rows) <= set(numbers.heard), timeout=60)


def farthest(cluster: Cluster) -> int:
    """The farthest place that a flow has acknowledged."""
    return max(one.datamarker.position.seq for one in status(cluster) if one.datamarker)


def test_a_server_that_is_at_another_address_is_read_on_there_though_the_old_one_is_dead(
    scene: Scene, shop: tuple[Database, Numbers], own_server: PostgresServer
) -> None:
    own, numbers = shop
    cluster, before = scene.cluster, own.address()
    own_server.move()
    assert cluster.move_stream("shop", own.address(), dry_run=True) == []
    assert cluster.stream("shop").definition.log == before
    assert cluster.move_stream("shop", own.address()) == []
    assert cluster.stream("shop").definition.log == own.address()
    insert(own, numbers, *range(2, 10))
    assert numbers.lost == []
    assert set(numbers.heard) == set(range(1, 10))
    own_server.move()
    cluster.move_stream("shop", own.address())  # what it is known by goes with it
    insert(own, numbers, 10)


def test_a_publisher_leaves_a_server_that_has_fallen_silent(scene: Scene, own_server: PostgresServer) -> None:
    own, numbers = own_server.database(), Numbers()
    own.execute("CREATE TABLE item (id int PRIMARY KEY)")
    with Proxy(f"127.0.0.1:{own_server.port}") as proxy:
        before = own.address().replace(str(own_server.port), proxy.address.rpartition(":")[2])
        scene.cluster.create_stream("shop", 2, before, options=own.options())
        scene.cluster.create_application("cache", ["shop"], start="earliest")
        scene.sender("p", "--token-interval", "0.2", "--patience", "1")
        with scene.cluster.subscribe("cache", numbers):
            insert(own, numbers, 1)
            proxy.freeze()
            eventually(lambda: proxy.withheld)
            scene.cluster.move_stream("shop", own.address())
            insert(own, numbers, 2)


def test_one_who_waits_for_a_host_that_is_gone_hears_of_it_in_half_a_minute(database: Database) -> None:
    location = database.address().removeprefix("postgres:")
    for address, milliseconds in ((location, 30_000), (f"{location}?tcp_user_timeout=5000", 5_000)):
        with (
            contextlib.closing(connections.PostgresServer(address).connect()) as connection,
            socket.socket(fileno=os.dup(connection.fileno())) as raw,
        ):
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == milliseconds
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_another_server_and_another_database_are_refused_by_name(
    scene: Scene, shop: tuple[Database, Numbers], own_server: PostgresServer, database: Database
) -> None:
    own, numbers = shop
    known = read_origin(scene.cluster.coordination, scene.cluster.stream("shop").definition)
    assert known is not None
    with pytest.raises(LogMismatch, match=r"has the system identifier \d+, and the stream was read from \d+: ") as told:
        scene.cluster.move_stream("shop", database.address())
    assert f"was read from {known['system']}: one that was dumped and restored" in str(told.value)
    other = own_server.database()
    with pytest.raises(
        LogMismatch, match=rf"has the oid \d+, and the stream was read from the one with {known['database']}"
    ):
        scene.cluster.move_stream("shop", other.address())
    with pytest.raises(LogMismatch, match="no other kind of log is the same one"):
        scene.cluster.move_stream("shop", "mysql:mysql://tail@127.0.0.1/shop")
    assert scene.cluster.stream("shop").definition.log == own.address()
    insert(own, numbers, 2)


def test_a_standby_that_was_promoted_is_read_on_if_it_has_all_that_was_read(
    scene: Scene, shop: tuple[Database, Numbers], own_server: PostgresServer
) -> None:
    own, numbers = shop
    cluster = scene.cluster
    with contextlib.closing(PostgresServer(own_server)) as standby:
        there = Database(standby, own.name)
        insert(own, numbers, 2)
        own_server.stop()  # in good order: what it has written has come to the standby
        standby.promote()
        slot = own.options()["slot"]
        missing = rf"has no replication slot '{slot}' for stream 'shop': SELECT pg_create_logical_replication_slot"
        with pytest.raises(LogUnavailable, match=missing):
            cluster.move_stream("shop", there.address())
        there.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        (told,) = cluster.move_stream("shop", there.address())
        assert "begins after the datamarkers of 2 flows, which will hear on_data_loss" in told
        insert(there, numbers, 3)
        assert set(numbers.heard) == {1, 2, 3}
        eventually(lambda: {shard for shard, _, _ in numbers.lost} == {0, 1})
        # The old one is written to again, and comes from another timeline than the one that was read last.
        definition = cluster.stream("shop").definition
        eventually(lambda: (read_origin(cluster.coordination, definition) or {}).get("timeline") == 2, timeout=60)
        own_server.start()
        with pytest.raises(LogMismatch, match="is on timeline 1, which does not come from timeline 2"):
            cluster.move_stream("shop", own.address())


def test_a_standby_that_was_promoted_without_what_was_read_is_refused(
    scene: Scene, shop: tuple[Database, Numbers], own_server: PostgresServer
) -> None:
    own, numbers = shop
    with contextlib.closing(PostgresServer(own_server)) as standby:
        there = Database(standby, own.name)
        standby.promote()
        there.execute(f"SELECT pg_create_logical_replication_slot('{own.options()['slot']}', 'pgoutput')")
        before = farthest(scene.cluster)
        insert(own, numbers, 2)
        eventually(lambda: farthest(scene.cluster) > before)
        for row in range(100, 120):  # so that its log is longer than what was read of the other
            there.execute(f"INSERT INTO item VALUES ({row})")
        with pytest.raises(
            LogMismatch, match=r"on timeline 2, which parted from timeline 1 at \d+, and flows have read"
        ):
            scene.cluster.move_stream("shop", there.address())
        assert set(numbers.heard) == {1, 2}


def test_who_waits_for_a_snapshot_of_its_own_is_not_said_to_lose_anything(
    scene: Scene, own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RELEASE_DELAY_S", 0)
    own, cluster = own_server.database(), scene.cluster
    own.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
    options = {**own.options(), "snapshot": True, "snapshot_folder": str(tmp_path)}
    log = cluster.create_stream("shop", 2, own.address(), options=options).log
    assert isinstance(log, PostgresLog)
    own.execute("INSERT INTO item VALUES (2)")
    head = log.bounds()[0].head

    def released() -> bool:
        log.confirm(Positions(dict.fromkeys((0, 1), head)))
        return not list(tmp_path.rglob("*.parquet"))

    eventually(released)
    cluster.create_application("late", ["shop"], start="earliest")
    for shard in (0, 1):
        waits = Datamarker.now(log.earliest(), 1)
        cluster.coordination.create(waits.to_json(), *Flow("late", "shop", shard).place, "datamarker")
    log.close()
    own_server.move()
    assert cluster.move_stream("shop", own.address()) == []


def test_a_standby_that_lacks_what_was_heard_and_not_acknowledged_is_refused(
    scene: Scene, own_server: PostgresServer
) -> None:
    own, numbers, cluster = own_server.database(), Numbers(), scene.cluster
    own.execute("CREATE TABLE item (id int PRIMARY KEY)")
    cluster.create_stream("shop", 2, own.address(), options=own.options())
    cluster.create_application("cache", ["shop"], start="earliest")
    scene.sender("p", "--token-interval", "60")
    with cluster.subscribe("cache", numbers), contextlib.closing(PostgresServer(own_server)) as standby:
        insert(own, numbers, 1)
        standby.promote()
        there, slot = Database(standby, own.name), own.options()["slot"]
        there.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        parted = there.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0]
        own.execute("SELECT pg_switch_wal()")
        insert(own, numbers, 2, 3)
        known = cluster.stream("shop").definition
        eventually(
            lambda: any(at.seq > parted for at in read_farthest(cluster.coordination, known).values()), timeout=60
        )
        own_server.kill()
        there.execute("SELECT pg_switch_wal()", *(f"INSERT INTO item VALUES ({n})" for n in range(100, 110)))
        assert max(one.datamarker.position.seq for one in status(cluster) if one.datamarker) < parted
        with pytest.raises(LogMismatch, match="what is between was lost when it was promoted"):
            cluster.move_stream("shop", there.address())
