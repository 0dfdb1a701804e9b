"""The property that matters: a registered client learns the latest version in the end, whatever was lost on the way."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.collisions import colliding
from tests.support.thialfi_stage import Row, Service, op
from tidings_thialfi.protocol import stream_schema
from tidings_thialfi.protocol.digests import Digest
from tidings_thialfi.server import stage

CLIENTS = (1, 2, 3)
NAMES = ("a", *colliding(2))

pairs = st.tuples(st.sampled_from(CLIENTS), st.sampled_from(NAMES))
number = st.integers(1, 30)
steps = st.one_of(
    st.tuples(st.just("update"), st.sampled_from(NAMES), st.integers(0, 9) | st.none(), st.sampled_from([0, *CLIENTS])),
    st.tuples(
        st.sampled_from([stream_schema.REGISTER, stream_schema.REGISTER, stream_schema.UNREGISTER]), pairs, number
    ),
    st.tuples(st.just(stream_schema.SYNC), st.sampled_from(CLIENTS), number),
    st.tuples(
        st.sampled_from([stream_schema.ONLINE, stream_schema.OFFLINE, stream_schema.CREATED]), st.sampled_from(CLIENTS)
    ),
    st.tuples(st.just("acknowledge what was heard"), st.sampled_from(CLIENTS)),
)
batches = st.lists(
    st.tuples(
        st.lists(steps, min_size=1, max_size=6),
        st.sets(st.sampled_from(CLIENTS)),  # those that hear nothing of this batch
        st.sampled_from(["go on", "go on", "repeat", "restart", "lose runs"]),
    ),
    max_size=10,
)


class World:
    """The service, what it should know, and what clients have heard."""

    def __init__(self, folder: Path) -> None:
        self.service = Service(folder)
        self.created: set[int] = set()
        self.wanted: dict[tuple[int, str], tuple[int, bool]] = {}
        self.floors: dict[int, int] = {}
        self.latest: dict[str, tuple[int, int]] = {}  # version, and which client made it
        self.notified: dict[tuple[int, str], int] = {}
        self.notified_unknown: dict[tuple[int, str], int] = {}

    def batch(self, does: list[Any], deaf: set[int]) -> None:
        updates, ops = [], []
        for what, *rest in does:
            if what == "update":
                name, version, client = rest
                updates.append({"object": name, "version": version, "source": f"app-{client}"})
            elif what in (stream_schema.REGISTER, stream_schema.UNREGISTER):
                (client, name), at = rest
                ops.append(op(client, what, at, object=name))
            elif what == "acknowledge what was heard":
                ops += self._acknowledgements(rest[0])
            else:
                ops.append(op(rest[0], what, *rest[1:]))
        table = self.service.table(updates=updates, ops=ops)
        before = self.registered()
        self._note(updates, ops)
        told = table.to_pylist(maps_as_pydicts="lossy")
        self._check(told, ops, before)
        self._hear([row for row in told if int(row["object"]) not in deaf])

    def registered(self) -> set[tuple[int, str]]:
        return {
            (client, name)
            for (client, name), (at, registered) in self.wanted.items()
            if registered and at >= self.floors.get(client, 0) and client in self.created
        }

    def _note(self, updates: list[Row], ops: list[Row]) -> None:
        self.created |= {int(row["object"]) for row in ops if row["attributes"]["op"] == stream_schema.CREATED}
        mine = [row for row in ops if int(row["object"]) in self.created]
        for row in mine:
            if row["attributes"]["op"] == stream_schema.SYNC:
                client = int(row["object"])
                self.floors[client] = max(self.floors.get(client, 0), row["version"])
        for row in mine:
            what = row["attributes"]["op"]
            if what in (stream_schema.REGISTER, stream_schema.UNREGISTER):
                at = (int(row["object"]), row["attributes"]["object"])
                one = (row["version"], what == stream_schema.REGISTER)
                # At one number the end of a registration counts for more; real clients use each number once.
                self.wanted[at] = max(self.wanted.get(at, one), one, key=lambda each: (each[0], not each[1]))
        for row in updates:
            if row["version"] is not None and row["version"] > self.latest.get(row["object"], (-1, 0))[0]:
                self.latest[row["object"]] = (row["version"], int(row["source"][4:]))

    def _check(self, told: list[Any], ops: list[Row], before: set[tuple[int, str]]) -> None:
        registered = self.registered()
        zombies = {int(row["object"]) for row in ops} - self.created
        assert {int(row["object"]) for row in told if row["attributes"]["say"] == "invalid"} == zombies
        for row in told:
            client, said = int(row["object"]), row["attributes"]
            pair = (client, said.get("object", ""))
            if said["say"] == "digest":
                names = [name for owner, name in registered if owner == client]
                assert [said["count"], said["sum"]] == Digest.of(client, names).to_json()
            elif said["say"] == "notify":
                assert pair in registered
                assert row["version"] == self.latest[pair[1]][0]
            elif said["say"] == "unknown":
                assert pair in registered
            elif said["say"] in ("registered", "unregistered"):
                assert (pair in registered) == (said["say"] == "registered")
        fresh = {(int(row["object"]), row["attributes"]["object"]) for row in told if "object" in row["attributes"]}
        assert registered - before <= fresh, "who has just registered is told something"

    def _hear(self, rows: list[Any]) -> None:
        for row in rows:
            said = row["attributes"]
            if said["say"] in ("notify", "unknown"):
                book = self.notified if said["say"] == "notify" else self.notified_unknown
                pair = (int(row["object"]), said["object"])
                book[pair] = max(book.get(pair, -1), row["version"])

    def _acknowledgements(self, client: int) -> Iterator[Row]:
        for (owner, name), version in self.notified.items():
            if owner == client:
                yield op(client, stream_schema.ACKNOWLEDGE, version, object=name)
        for (owner, name), at in self.notified_unknown.items():
            if owner == client:
                yield op(client, stream_schema.ACKNOWLEDGE_UNKNOWN, at, object=name)

    def check_everyone_knows(self) -> None:
        everyone = [(stream_schema.ONLINE, client) for client in sorted(self.created)]
        if everyone:
            self.batch(everyone, set())
        for _ in range(100):
            if self.service.more:
                self.batch([], set())
        assert not self.service.more
        for client, name in self.registered():
            version, maker = self.latest.get(name, (None, None))
            if version is None:
                assert (client, name) in self.notified_unknown
            elif maker != client:
                assert self.notified.get((client, name), -1) >= version


@pytest.mark.slow
@settings(max_examples=30)
@example([([(stream_schema.REGISTER, (2, "a"), 5)], {2}, "go on"), ([("update", "a", None, 2)], set(), "go on")], 1)
@given(batches, st.sampled_from([1, stage.ROOM_ROWS]))
def test_every_registered_client_learns_the_latest_version_in_the_end(history: list[Any], room: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ROOM_ROWS", room)
        world = World(Path(folder))
        world.batch([(stream_schema.CREATED, 1), (stream_schema.CREATED, 2)], set())
        for does, deaf, fate in history:
            world.service.repeat = fate == "repeat"
            world.batch(does, deaf)
            if fate in ("restart", "lose runs"):
                world.service.restart()
            if fate == "lose runs":
                shutil.rmtree(Path(folder) / "runs", ignore_errors=True)
        world.service.repeat = False
        world.check_everyone_knows()
        world.service.close()


@pytest.mark.parametrize("number", [2**62, 2**63 - 1])
def test_numbers_that_no_client_reaches_are_left_alone(tmp_path: Path, number: int) -> None:
    service = Service(tmp_path)
    assert service.batch(ops=[op(1, stream_schema.CREATED), op(1, stream_schema.REGISTER, number, object="a")]) == []


def test_the_largest_versions_are_told_until_they_are_acknowledged(tmp_path: Path) -> None:
    service = Service(tmp_path)
    service.batch(ops=[op(1, stream_schema.CREATED), op(1, stream_schema.REGISTER, 2**62 - 1, object="a")])
    for version in (2**62, 2**63 - 1):
        service.batch(updates=[{"object": "a", "version": version}])
        coming = [op(1, stream_schema.ONLINE)]
        assert (1, "notify", "a", version) in service.batch(ops=coming)
        service.batch(ops=[op(1, stream_schema.ACKNOWLEDGE, version, object="a")])
        assert (1, "notify", "a", version) not in service.batch(ops=coming)
    service.close()
