"""One bad value in ZooKeeper harms what it is about, and nothing else."""

from __future__ import annotations

import logging

import pytest

from tests.support.bad_nodes import DEEP, EVERYWHERE, put
from tests.support.scene import Scene
from tidings.flow_status import status
from tidings.testing import eventually


def test_bad_values_anywhere_keep_neither_old_nor_new_applications_from_being_served(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.prepare(2)
    scene.publisher("p1")
    with scene.subscriber("cache", "r1", load_interval=0.2):
        scene.publish(0, 10)
        eventually(lambda: scene.delivered("r1") == 10)
        put(scene.cluster, EVERYWHERE)
        scene.cluster.create_application("other", ["contacts"], start="earliest")
        scene.cluster.create_application("even", ["contacts"], start="earliest", balance="zookeeper")
        with scene.subscriber("other", "r2"), scene.subscriber("even", "r3"), scene.subscriber("cache", "late"):
            scene.publish(10, 10)
            eventually(lambda: scene.delivered("r2") == scene.delivered("r3") == 20, timeout=30)
            eventually(lambda: scene.delivered("r1", "late") == 20)
            # A subscriber whose registration goes puts it back: its watch is there.
            scene.cluster.coordination.delete("applications", "cache", "subscribers", "r1")
            eventually(lambda: "r1" in scene.children("applications", "cache", "subscribers"))
            second = scene.publisher("p2")
            eventually(lambda: second.flows)
    for place in (
        "streams/bad",
        "streams/deep",
        "applications/bad",
        "publishers/empty",
        "flows/cache/contacts",
    ):
        told = [one.getMessage() for one in caplog.records if f"/{place} " in one.getMessage()]
        assert told, place
        assert len(told) <= 6, f"{place} is told again and again, and not once by each who reads it: {told}"
        assert all("mend it, or empty it" in one for one in told)


@pytest.mark.parametrize(
    ("node", "raw"),
    [
        ("subscriber", b'{"version": 1}'),
        ("subscriber", b'{"version": 1, "id": ["x"], "epoch": {}}'),
        ("subscriber", DEEP),
        ("datamarker", b'{"version": 1, "position": 1, "epoch": Infinity, "time": 7}'),
        ("datamarker", DEEP),
    ],
)
def test_a_flow_of_which_zookeeper_holds_nonsense_waits_alone_until_that_is_mended(
    scene: Scene, caplog: pytest.LogCaptureFixture, node: str, raw: bytes
) -> None:
    scene.prepare(2, balance="zookeeper")
    scene.publish(0, 20)
    put(scene.cluster, {f"flows/cache/contacts/0/{node}": raw})
    publisher = scene.publisher("p1")
    expected = sum(shard == 1 for shard in scene.published()["shard"].to_pylist())
    with scene.subscriber("cache", "r1"):
        eventually(lambda: scene.delivered("r1") == expected)
        bad, good = status(scene.cluster)
        assert (bad.state, good.state) == ("unassigned", "running")
        assert f"/flows/cache/contacts/0/{node}" in str(bad.problem)
        assert [flow.shard for flow in publisher.flows] == [1]
        warnings = [one for one in caplog.records if "flow cache/contacts/0 cannot be served" in one.getMessage()]
        assert len(warnings) == 1, "it is told once"
        put(scene.cluster, {f"flows/cache/contacts/0/{node}": b""})
        eventually(lambda: scene.delivered("r1") == 20)


def test_an_application_that_cannot_be_placed_is_told_of_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def broken(*_: object) -> None:
        tried.append(1)
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr("tidings.publisher.assignment.strategy", lambda name: broken)
    scene.prepare(2)
    with caplog.at_level(logging.WARNING), scene.subscriber("cache", "r1"):
        scene.publisher("p1")
        eventually(lambda: len(tried) > 3)
    assert caplog.text.count("the flows of application 'cache' cannot be placed") == 1
