"""A family of streams over several databases: one that is down stops its own flows alone, and one more can be added."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from tests.support import postgres_server
from tests.support.postgres_server import Database, PostgresServer, shared_server
from tests.support.scene import Scene
from tests.support.scene_fixture import scene as scene_fixture
from tests.support.subscribers import Seen
from tidings.errors import InvalidOption
from tidings.flow_status import status
from tidings.testing import eventually

own_server = postgres_server.own_server
scene = scene_fixture


@pytest.fixture
def databases() -> Iterator[list[Database]]:
    """Two databases of one server: two logs."""
    if (lacking := postgres_server.missing()) is not None:
        pytest.skip(lacking)
    with contextlib.ExitStack() as ending:
        own = [shared_server().database() for _ in range(2)]
        for one in own:
            ending.callback(one.drop)
        yield own


def test_one_database_goes_down_and_another_comes_while_the_others_go_on(
    scene: Scene, own_server: PostgresServer, databases: list[Database]
) -> None:
    west, north = databases
    east = own_server.database()
    for database in (east, west, north):
        database.execute("CREATE TABLE item (id int PRIMARY KEY)")
    shop = f"shop_{uuid.uuid4().hex[:8]}"  # slots are called after it, and the server is shared
    options = {"publication": "everything"}
    cluster, seen = scene.cluster, Seen()
    cluster.create_family(shop, {"east": east.address(), "west": west.address()}, 2, options=options)
    cluster.create_application("cache", [shop], start="earliest")
    scene.sender("p", "--patience", "1")

    def insert(database: Database, stream: str, number: int) -> None:
        database.execute(f"INSERT INTO item VALUES ({number})")
        eventually(
            lambda: (f"{shop}.{stream}", f"public.item/{number}") in {(one.stream, one.object) for one in seen.updates},
            timeout=60,
        )

    with cluster.subscribe("cache", seen):
        insert(east, "east", 1)
        insert(west, "west", 1)
        own_server.kill()
        eventually(lambda: {one.owner for one in status(cluster, stream=f"{shop}.east")} == {None}, timeout=60)
        insert(west, "west", 2)
        cluster.create_family(shop, {"north": north.address()}, 2, options=options)
        insert(north, "north", 1)
        own_server.start()
        insert(east, "east", 2)
        with pytest.raises(InvalidOption, match="option 'slot' cannot be given to a family of streams"):
            cluster.create_family(shop, {"south": north.address()}, 2, options={**options, "slot": "x"})
        told = [(one.stream, one.object) for one in seen.updates]
        assert sorted(set(told)) == [
            (f"{shop}.{stream}", f"public.item/{number}")
            for stream, numbers in (("east", (1, 2)), ("north", (1,)), ("west", (1, 2)))
            for number in numbers
        ]
        cluster.drop_stream(shop)
