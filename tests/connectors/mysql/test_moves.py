"""The log of a stream at another server: a replica that has the same history, and servers that only look like it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mysql_server import ITEMS, PASSWORD, Server, follow, needs_mariadb, running
from tests.support.subscribers import Seen
from tidings.cli.apply_plan import carry_out, plan
from tidings.cluster import Cluster
from tidings.config.spec import load
from tidings.coordination.origins import read_origin
from tidings.errors import InvalidConfig, LogMismatch
from tidings.flow_status import status
from tidings.testing import eventually

TABLE = ITEMS.replace("items", "shop.items")

pytestmark = needs_mariadb


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """A primary, and a replica that has another id."""
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    with running(1) as primary, running(2) as replica:
        follow(replica, primary)
        primary.sql("CREATE DATABASE shop", TABLE)
        yield primary, replica


def insert(server: Server, *numbers: int) -> None:
    server.sql(*(f"INSERT INTO shop.items VALUES ({number}, 'item {number}')" for number in numbers))


def heard(seen: Seen) -> set[int]:
    return {int(one.object.rpartition("/")[2]) for one in seen.updates}


def test_a_stream_goes_on_at_a_replica_and_at_no_other_server(cluster: Cluster, servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    seen = Seen()
    options = {"tables": ["shop.items"]}
    cluster.create_stream("shop", 2, primary.address("shop"), options=options)
    cluster.create_application("cache", ["shop"], start="earliest")
    definition = cluster.stream("shop").definition

    def known() -> dict[str, str]:
        return read_origin(cluster.coordination, definition) or {}

    def acknowledged() -> bool:
        marks = [one.datamarker for one in status(cluster)]
        return all(mark is not None and mark.position.seq > primary.seq() for mark in marks)

    with contextlib.ExitStack() as ending:
        ending.enter_context(cluster.subscribe("cache", seen))
        ending.enter_context(cluster.publisher(token_interval=0.2, patience=1.0))
        insert(primary, 1, 2, 3)
        eventually(lambda: known().get("last") == f"0-1-{primary.seq()}" and acknowledged(), timeout=60)
        assert known()["rows_of"].startswith("0-1-")

        # Another server, of the same id, which has done as many things, and to a table of that name.
        other = ending.enter_context(running(1))
        other.sql("CREATE DATABASE shop", TABLE)
        while other.seq() < primary.seq():
            insert(other, 100 + other.seq())
        with pytest.raises(LogMismatch, match=r"has other rows \(digest \w+\) than the stream has read \(\w+\)"):
            cluster.move_stream("shop", other.address("shop"))

        # The replica, while it is behind, and when it is not.
        eventually(lambda: replica.seq() == primary.seq(), timeout=30)
        replica.sql("STOP SLAVE")
        insert(primary, 4)
        eventually(lambda: 4 in heard(seen) and acknowledged(), timeout=30)
        behind = rf"ends with transaction {replica.seq()}, and the stream is at {primary.seq()}: wait until"
        with pytest.raises(LogMismatch, match=behind):
            cluster.move_stream("shop", replica.address("shop"))
        replica.sql("START SLAVE")
        eventually(lambda: replica.seq() == primary.seq(), timeout=30)
        replica.sql("STOP SLAVE")
        primary.kill()
        cluster.move_stream("shop", replica.address("shop"))
        insert(replica, 5)
        eventually(lambda: heard(seen) == {1, 2, 3, 4, 5}, timeout=60)
        moved = replace(definition, log=replica.address("shop"))
        eventually(
            lambda: (read_origin(cluster.coordination, moved) or {}).get("last") == f"0-2-{replica.seq()}", timeout=60
        )


def test_a_replica_that_was_promoted_without_what_was_read_is_refused(
    cluster: Cluster, servers: tuple[Server, Server]
) -> None:
    primary, replica = servers
    seen = Seen()
    cluster.create_stream("shop", 2, primary.address("shop"), options={"tables": ["shop.items"]})
    cluster.create_application("cache", ["shop"], start="earliest")
    with cluster.subscribe("cache", seen), cluster.publisher(token_interval=0.2, patience=1.0):
        insert(primary, 1)
        eventually(lambda: 1 in heard(seen) and read_origin(cluster.coordination, cluster.stream("shop").definition))
        eventually(lambda: replica.seq() == primary.seq(), timeout=30)
        replica.sql("STOP SLAVE")
        insert(primary, 2)
        lost = primary.seq()
        eventually(
            lambda: all(one.datamarker and one.datamarker.position.seq > lost for one in status(cluster)), timeout=30
        )
        insert(replica, 3, 4)
        with pytest.raises(LogMismatch, match=rf"has 0-2-{lost} where the stream has read 0-1-{lost}: "):
            cluster.move_stream("shop", replica.address("shop"))
    assert heard(seen) == {1, 2}


@pytest.mark.parametrize("quiet", [False, True])
def test_an_older_copy_of_the_server_that_was_written_to_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    seen = Seen()
    with running(1) as first, contextlib.closing(Server(1)) as copy:
        first.sql("CREATE DATABASE shop", TABLE, "CREATE TABLE shop.others (id INT)")
        cluster.create_stream("shop", 2, first.address("shop"), options={"tables": ["shop.items"]})
        cluster.create_application("cache", ["shop"], start="earliest")
        definition = cluster.stream("shop").definition

        def noted() -> bool:
            known = read_origin(cluster.coordination, definition) or {}
            return known.get("last") == f"0-1-{first.seq()}"

        with cluster.subscribe("cache", seen), cluster.publisher(token_interval=0.2, patience=1.0):
            insert(first, 1, 2)
            eventually(lambda: heard(seen) == {1, 2} and noted(), timeout=60)
            first.stop()
            copy.take(first)
            first.start()
            if quiet:
                first.sql(*(f"INSERT INTO shop.others VALUES ({number})" for number in (3, 4)))
            else:
                insert(first, 3, 4)
                eventually(lambda: heard(seen) == {1, 2, 3, 4}, timeout=60)
            eventually(noted, timeout=60)
            first.kill()
            copy.start()
            insert(copy, *range(100, 110))
            told = r"has rows, and the stream has read none between" if quiet else r"has other rows \(digest \w+\)"
            with pytest.raises(LogMismatch, match=told):
                cluster.move_stream("shop", copy.address("shop"))


def test_a_replica_is_taken_only_if_it_replicates_the_server_of_the_stream(
    cluster: Cluster, servers: tuple[Server, Server], tmp_path: Path
) -> None:
    primary, replica = servers
    options = {"tables": ["shop.items"]}
    other = replica.address("shop")
    for last in ("CREATE TABLE shop.others (id INT)", "INSERT INTO shop.items VALUES (1, 'x')"):
        primary.sql(last)
        cluster.create_stream("shop", 2, primary.address("shop"), options=options, replicas={"east": other})
        cluster.drop_stream("shop")
    # A server of the same id that has done as much, and the same; but at another time.
    with running(1) as stranger:
        stranger.sql("CREATE DATABASE shop", TABLE, "CREATE TABLE shop.others (id INT)")
        while stranger.seq() < primary.seq():
            insert(stranger, 1 + stranger.seq())
        refused = rf"MariaDB at \S+ has 0-1-{primary.seq()} .* where the log of the stream has 0-1-{primary.seq()} "
        replicas = {"east": other, "west": stranger.address("shop")}
        with pytest.raises(LogMismatch, match=refused):
            cluster.create_stream("shop", 2, primary.address("shop"), options=options, replicas=replicas)
        assert cluster.streams() == []
        # The same in a file, for a stream that is new and for one that is there.
        file = tmp_path / "tidings.yml"
        stream = {"shards": 2, "log": primary.address("shop"), "options": options, "replicas": replicas}
        file.write_text(json.dumps({"streams": {"shop": stream}}))
        spec = load(file)
        for _ in range(2):
            with pytest.raises(InvalidConfig, match=rf"^\S+: streams\.shop\.replicas\.west: {refused}"):
                plan(spec, cluster)
            cluster.create_stream("shop", 2, primary.address("shop"), options=options)
        file.write_text(json.dumps({"streams": {"shop": {**stream, "replicas": {"east": other}}}}))
        carry_out(plan(load(file), cluster), cluster)
        assert cluster.stream("shop").definition.replicas == {"east": other}
