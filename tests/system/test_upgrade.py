"""Members are replaced one after the other while updates flow, old ones beside new ones."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support.scene import Scene, stop
from tidings.controls import drain, owned_flows, undrain
from tidings.flow_status import status
from tidings.protocol_versions import own_versions
from tidings.testing import eventually

SHARDS = 4
OLD, NEW = "unsaid", "3:2"


def sender(scene: Scene, name: str, speaks: str, *options: str) -> subprocess.Popen[bytes]:
    """A publisher of a release that speaks these versions."""
    process = scene.start(name, "release.py", speaks, "sender.py", scene.address, name, *options)
    eventually(lambda: name in scene.children("publishers"), timeout=20)
    return process


def recorder(scene: Scene, id: str, speaks: str) -> subprocess.Popen[bytes]:
    """A subscriber of such a release."""
    place = ("applications", "cache", "subscribers")
    process = scene.start(id, "release.py", speaks, "recorder.py", scene.address, "cache", id, str(scene.file(id)))
    eventually(lambda: id in scene.children(*place), timeout=20)
    return process


@pytest.mark.slow
def test_all_members_are_replaced_under_load_and_nothing_is_lost_or_repeated_or_out_of_order(scene: Scene) -> None:
    scene.prepare(SHARDS, balance="zookeeper")
    subscribers = {id: recorder(scene, id, OLD) for id in ("r1", "r2")}
    publishers = {name: sender(scene, name, OLD) for name in ("p1", "p2")}
    recorders = ("r1", "r2", "r3", "r4")
    with scene.load() as count:
        eventually(lambda: scene.delivered(*recorders) > 200, timeout=20)
        for old, new in (("p1", "p3"), ("p2", "p4")):
            publishers[new] = sender(scene, new, NEW)
            drain(scene.cluster, old)
            eventually(lambda: owned_flows(scene.cluster)[old] == 0, timeout=20)  # noqa: B023
            stop(publishers[old], signal.SIGTERM)
            undrain(scene.cluster, old)
            at = count()
            eventually(lambda: scene.delivered(*recorders) > at + 100, timeout=20)  # noqa: B023
        for old, new in (("r1", "r3"), ("r2", "r4")):
            subscribers[new] = recorder(scene, new, NEW)
            stop(subscribers[old], signal.SIGTERM)
            at = count()
            eventually(lambda: scene.delivered(*recorders) > at + 100, timeout=20)  # noqa: B023
    scene.finish(*recorders)
    rows = scene.record(*recorders).rows
    assert len(rows) == len(set(rows)), "flows move at a token, and repeat nothing"
    assert set(scene.owners("cache", SHARDS)) <= {"p3", "p4"}


@pytest.mark.slow
def test_members_that_do_not_fit_say_so_on_both_sides_and_those_that_fit_get_the_flows(scene: Scene) -> None:
    reason = f"the publisher speaks protocol 4 to 5, and this subscriber {own_versions()}: upgrade this subscriber"
    scene.prepare(SHARDS)
    scene.publish(0, 50)
    publisher = sender(scene, "p1", "5:4", "--patience", "1")
    scene.recorder("cache", "r1")

    address = (scene.cluster.coordination.read("publishers", "p1") or {})["address"]
    quoted = f"the subscriber says of publisher 'p1' at {address}: {reason}"

    def restarting() -> bool:
        return {(one.state, one.reason) for one in status(scene.cluster)} == {("restarting", quoted)}

    eventually(restarting, timeout=20)
    told = scene.cluster.coordination.read("applications", "cache", "subscribers", "r1")
    assert told is not None
    assert (told["unreachable"], told["tried"]) == ({"p1": reason}, {"p1": address})
    assert quoted in (scene.folder / "p1.log").read_text(), "the publisher's operator reads it, too"
    recorder(scene, "r2", "5:4")  # which fits this publisher, and not the next
    eventually(lambda: scene.delivered("r2") == 50, timeout=20)
    stop(publisher, signal.SIGTERM)
    scene.sender("p2", "--patience", "1")
    scene.publish(50, 50)
    scene.finish("r1", "r2")
    assert scene.delivered("r1") == 50
