"""A dataset in two MariaDB servers, with a publisher at each: what subscribers hear when one of the servers dies."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.support.mysql_server import PASSWORD, Server, follow, needs_mariadb, running
from tidings.cluster import Cluster, connect
from tidings.flow_status import status
from tidings.positions import Position
from tidings.testing import eventually

SHARDS = 4

pytestmark = needs_mariadb


class Recorder(tidings.Handler):
    """Keeps what it hears: the number of the row, and where it was."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, Position, int]] = []

    def on_update(self, update: tidings.Update) -> None:
        self.heard.append((update.shard, update.position, int(update.object.rpartition("/")[2])))

    @property
    def numbers(self) -> set[int]:
        return {number for _, _, number in self.heard}


class Load:
    """Inserts row after row, in small transactions, where it is told to."""

    def __init__(self, database: str) -> None:
        self._database = database
        self.written = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def at(self, server: Server) -> Iterator[None]:
        """Write to this server until the block is left."""
        stop = threading.Event()

        def write() -> None:
            with contextlib.closing(server.connect(database=self._database, autocommit=False)) as connection:
                while not stop.wait(0.005):
                    with connection.cursor() as cursor:
                        for _ in range(3):
                            cursor.execute("INSERT INTO items VALUES (%s)", (self.written + 1,))
                            self.written += 1
                        connection.commit()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def owners(cluster: Cluster) -> set[str | None]:
    return {one.owner for one in status(cluster)}


def check(recorder: Recorder) -> None:
    """In order within a shard, but for what is repeated; and the same row always at the same place."""
    first: dict[tuple[int, Position], int] = {}
    for shard, position, number in recorder.heard:
        assert first.setdefault((shard, position), number) == number
    for shard in range(SHARDS):
        once = list(dict.fromkeys(position for one, position, _ in recorder.heard if one == shard))
        assert once == sorted(once)


@pytest.mark.slow
def test_a_replica_takes_over_under_load_and_gives_back(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    database, recorder = f"shop_{uuid.uuid4().hex[:8]}", Recorder()
    with contextlib.ExitStack() as ending:
        primary, replica = ending.enter_context(running(1)), ending.enter_context(running(2))
        replica.sql("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")  # so that files and offsets differ
        follow(replica, primary)
        primary.sql(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.items (id INT PRIMARY KEY)")
        load = Load(database)
        cluster.create_stream(
            "items",
            SHARDS,
            primary.address(database),
            options={"tables": [f"{database}.items"]},
            replicas={"east": replica.address(database)},
        )
        cluster.create_application("cache", ["items"], start="earliest")
        ending.enter_context(cluster.subscribe("cache", recorder))

        def publisher(name: str, at: str | None) -> contextlib.ExitStack:
            """A publisher with a session of its own."""
            stack = contextlib.ExitStack()
            own = stack.enter_context(connect(cluster.address, session_timeout=2))
            stack.enter_context(own.publisher(name=name, replica=at, token_interval=0.2, patience=2.0))
            ending.callback(stack.close)
            return stack

        publisher("p", None)
        publisher("p-east", "east")
        eventually(lambda: owners(cluster) == {"p"}, timeout=30)
        with load.at(primary):
            eventually(lambda: len(recorder.numbers) > 300, timeout=30)
        eventually(lambda: replica.seq() == primary.seq(), timeout=30)
        primary.kill()  # its publisher lives, and has nothing to read
        replica.sql("STOP SLAVE", "RESET SLAVE ALL")
        with load.at(replica):
            eventually(lambda: owners(cluster) == {"p-east"}, timeout=60)
            before = load.written
            eventually(lambda: len(recorder.numbers) > before, timeout=60)
        # The first one is back, and has learnt what it missed.
        primary.start()
        follow(primary, replica)
        with load.at(replica):
            eventually(lambda: owners(cluster) == {"p"}, timeout=60)
            before = load.written
            eventually(lambda: len(recorder.numbers) > before, timeout=60)
        eventually(lambda: recorder.numbers == set(range(1, load.written + 1)), timeout=60)
    check(recorder)
    assert len({(shard, position) for shard, position, _ in recorder.heard}) == load.written
