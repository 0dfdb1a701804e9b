"""A cluster that has lost its ZooKeeper goes on in another one, from a back-up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_acl

from tests.support.commands import Result, publish
from tests.support.subscribers import Seen
from tidings.backup import EPOCHS_AHEAD, KeptNode, RestoreStep, changed, read_backup, restore, take_backup
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.controls import pin, stop
from tidings.coordination.zookeeper import Coordination
from tidings.errors import InvalidOption
from tidings.flow_status import status
from tidings.flows import Flow
from tidings.identity.credentials import Credentials
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper
from tidings.testing import eventually

FLOW = Flow("cache", "contacts", 0)


@pytest.fixture
def cache(cluster: Cluster) -> Cluster:
    cluster.create_stream("contacts", 2)
    cluster.create_application("cache", ["contacts"], start="latest")
    return cluster


@pytest.fixture
def other(zookeeper: str, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Another tree."""
    with connect(f"{zookeeper}/other/{abs(hash(request.node.name))}") as cluster:
        yield cluster


def acknowledged(cluster: Cluster) -> bool:
    return all(one.lag == 0 and one.datamarker and one.datamarker.position.seq >= 0 for one in status(cluster))


def epoch(cluster: Cluster) -> int:
    tree = cluster.coordination
    return int(tree.client.exists(tree.path(*FLOW.place, "epoch")).version)


def acknowledge(cluster: Cluster, seen: Seen, *versions: int) -> None:
    """Publish, and have a publisher send it until all is acknowledged."""
    with cluster.publisher(token_interval=0.1, patience=1.0):
        eventually(lambda: {one.state for one in status(cluster)} == {"running"})
        publish(cluster, *versions)
        eventually(lambda: acknowledged(cluster) and seen.updates[-1].version == versions[-1])


def check(seen: Seen) -> None:
    """Version 1 was acknowledged before the back-up, 2 after it, and 3 was sent after the restore alone."""
    versions = [update.version for update in seen.updates]
    assert versions[:4] == [1] * 4
    assert 1 not in versions[4:], "what was acknowledged before the back-up is not sent again"
    assert versions.count(2) == 8, "what was acknowledged after it is"
    assert versions.count(3) == 4, "nothing is skipped, though the application starts at the latest"


@pytest.mark.slow
def test_flows_go_on_at_their_datamarkers_in_another_zookeeper(tmp_path: Path) -> None:
    seen = Seen()
    with EmbeddedZooKeeper(tmp_path / "first") as first, connect(first.address) as cluster:
        cluster.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}")
        cluster.create_application("cache", ["contacts"], start="latest")
        with cluster.subscribe("cache", seen, id="here"):
            acknowledge(cluster, seen, 1)
            taken = json.loads(json.dumps(take_backup(cluster)))
            acknowledge(cluster, seen, 2)
            before = epoch(cluster)
    with EmbeddedZooKeeper(tmp_path / "second") as second, connect(second.address) as cluster:
        restore(cluster, read_backup(taken))
        assert before < epoch(cluster) == before - 1 + EPOCHS_AHEAD, "owners since then had smaller ones"
        with cluster.subscribe("cache", seen, id="here"):
            acknowledge(cluster, seen, 3)
    check(seen)


@pytest.mark.slow
def test_a_subscriber_that_runs_on_takes_flows_again_when_the_tree_was_deleted_and_restored(cache: Cluster) -> None:
    seen = Seen()
    with cache.subscribe("cache", seen, id="here"):
        acknowledge(cache, seen, 1)
        taken = take_backup(cache)
        acknowledge(cache, seen, 2)
        cache.coordination.delete()
        restore(cache, read_backup(taken))
        acknowledge(cache, seen, 3)
    check(seen)


def test_thousands_of_nodes_and_epochs_are_copied_whole(cache: Cluster, other: Cluster) -> None:
    flows = [Flow("cache", "contacts", shard) for shard in range(600)]
    for flow in flows:
        cache.coordination.create({}, *flow.place, "epoch")
    taken = take_backup(cache)
    kept = {tuple(node["place"]) for node in taken["nodes"]}
    assert {(*flow.place, "epoch") for flow in flows} <= kept
    restore(other, [KeptNode((*FLOW.place, "epoch"), {}, 1_200)])
    assert epoch(other) == 1_200 + EPOCHS_AHEAD


def test_a_back_up_has_what_outlives_processes_and_no_secret(zookeeper: str, tmp_path: Path) -> None:
    credentials = Credentials.of_secrets(["a-secret-of-sixteen-characters-or-more"])
    tree = Coordination(f"{zookeeper}/closed-{tmp_path.name}", credentials=credentials)
    with Cluster(tree, logs=f"delta:{tmp_path}/streams") as cluster:
        cluster.create_stream("contacts", 1)
        cluster.create_application("cache", ["contacts"])
        with cluster.publisher(name="p1"), cluster.subscribe("cache", Seen(), id="here"):
            eventually(lambda: {one.state for one in status(cluster)} == {"running"})
            pin(cluster, [FLOW], "p1")
            taken = take_backup(cluster)
    places = {"/".join(node["place"]) for node in taken["nodes"]}
    assert {"streams/contacts", "applications/cache"} <= places
    assert {f"flows/{FLOW}/{name}" for name in ("epoch", "datamarker")} <= places
    said = next(node["value"] for node in taken["nodes"] if node["place"] == list(FLOW.controls_place))
    assert said["shards"] == {"0": {"pin": "p1"}}
    assert not {place for place in places if place.split("/")[-1] in ("owner", "here", "access", "p1", "subscriber")}
    text = json.dumps(taken)
    assert "a-secret" not in text
    assert not any(identity in text for role in ("operator", "viewer") for identity in credentials.identities(role))


def verbs(steps: list[RestoreStep]) -> Counter[str]:
    return Counter(step.verb for step in steps)


def test_what_operators_have_said_since_is_unsaid_by_a_restore(cache: Cluster) -> None:
    cache.coordination.create_path(*FLOW.controls_place)  # as whoever takes a flow does
    taken = read_backup(take_backup(cache))
    stop(cache, [FLOW])
    assert changed(restore(cache, taken, dry_run=True)) == ["/".join(FLOW.controls_place)]
    restore(cache, taken, force=True)
    assert cache.coordination.read(*FLOW.controls_place) is None


def test_a_restore_that_was_interrupted_still_gets_ahead_of_the_epochs_of_the_copy(other: Cluster) -> None:
    wanted = KeptNode((*FLOW.place, "epoch"), {}, 5)
    restore(other, [wanted._replace(epoch=0)])
    assert epoch(other) == EPOCHS_AHEAD
    restore(other, [wanted])
    assert epoch(other) == 5 + EPOCHS_AHEAD


@pytest.mark.parametrize(
    ("place", "epoch"),
    [
        ([*FLOW.place, "owner"], None),
        ([*FLOW.place, "subscriber"], None),
        (["applications", "cache", "subscribers", "ghost"], None),
        ([*FLOW.place, "epoch"], 10**9),
        ([*FLOW.place, "epoch"], -1),
        (["streams", "contacts"], 3),
    ],
)
def test_a_copy_has_nothing_of_those_who_ran_and_no_epoch_without_end(place: list[str], epoch: int | None) -> None:
    node = {"place": place, "value": {"publisher": "mallory"}, "epoch": epoch}
    with pytest.raises(InvalidOption, match="no back-up of a cluster"):
        read_backup({"format": 1, "nodes": [node]})


def test_a_restore_overwrites_nothing_unless_it_is_forced_and_wants_no_owners(cache: Cluster, other: Cluster) -> None:
    taken = read_backup(take_backup(cache))
    assert verbs(restore(other, taken, dry_run=True)) == {"create": len(taken)}
    assert other.coordination.children("streams") == []
    restore(other, taken)
    assert verbs(restore(other, taken)) == {"unchanged": len(taken)}, "once more changes nothing"
    other.coordination.write({"streams": ["others"]}, "applications", "cache")
    with pytest.raises(InvalidOption, match=r"at 1 of its places \(applications/cache\): .* --force"):
        restore(other, taken)
    assert verbs(restore(other, taken, force=True))["change"] == 1
    assert other.coordination.read("applications", "cache") == cache.coordination.read("applications", "cache")
    with other.publisher(name="p1"):
        eventually(lambda: {one.owner for one in status(other)} == {"p1"})
        with pytest.raises(InvalidOption, match="own 2 of the flows: stop all publishers first"):
            restore(other, taken, force=True)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(list(arguments))
        return Result(code, *capfd.readouterr())

    return run


def test_the_commands_print_a_back_up_and_take_it_again(
    cache: Cluster, other: Cluster, run: Any, tmp_path: Path
) -> None:
    taken = run("backup", "--zookeeper", cache.address)
    assert (taken.code, taken.json["left_out"]) == (0, [])
    file = tmp_path / "cluster.json"
    file.write_text(taken.out + " " * 2**21)  # that of a large cluster has megabytes
    assert run("restore", str(file), "--zookeeper", other.address).code == 2
    assert "cannot be read" in run("restore", str(tmp_path / "none.json"), "--execute").err
    shown = run("restore", str(file), "--dry-run", "--json", "--zookeeper", other.address)
    assert shown.json["executed"] is False
    done = run("restore", str(file), "--execute", "--zookeeper", other.address)
    assert done.code == 0
    assert done.err.endswith("; done\n")
    assert [stream.name for stream in other.streams()] == ["contacts"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "is no back-up"),
        ("nothing", "is no back-up: make one by `tidings backup`"),
        ('{"format": 9, "nodes": []}', "format 9"),
        ('{"format": 1, "nodes": [{"place": [".."], "value": null}]}', "a place that is none"),
        ('{"format": 1, "nodes": [{"place": ["access"], "value": {}}]}', "cannot be restored at access"),
        ('{"format": 1, "nodes": [{"place": ["streams", "s"], "value": 7}]}', "no value at streams/s"),
        ('{"format": 1, "nodes": [{"place": ["strange", "s"], "value": {}}]}', "strange/s is no place of tidings"),
    ],
)
def test_what_is_no_back_up_is_refused_in_a_sentence(run: Any, tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(text)
    result = run("restore", str(file), "--execute")
    assert result.code == 1
    assert result.err.startswith(f"error: {file} ")
    assert reason in result.err
    assert result.err.count("\n") == 1


def test_a_node_that_nobody_may_read_is_left_out_and_named_and_what_subscribers_make_is_not_looked_at(
    cache: Cluster,
) -> None:
    tree, nobody = cache.coordination, [make_acl("digest", "nobody:nothing", all=True)]
    tree.create_path("applications", "cache", "subscribers")
    for place in (("applications", "cache", "subscribers", "spy"), ("streams", "locked")):
        tree.client.create(tree.path(*place), b"{}", nobody)
    taken = take_backup(cache)
    assert taken["left_out"] == [f"{tree.path('streams', 'locked')}: we may not read it; see `tidings doctor`"]
    assert ["streams", "contacts"] in [node["place"] for node in taken["nodes"]]


@pytest.mark.parametrize("place", [["streams"] * 3_000, ["streams", "x" * 100_000]])
def test_places_that_no_cluster_has_are_no_back_up(place: list[str]) -> None:
    with pytest.raises(InvalidOption, match="a place that is none"):
        read_backup({"format": 1, "nodes": [{"place": place, "value": {}}]})


def test_a_path_at_which_nothing_was_ever_made_cannot_be_backed_up(
    zookeeper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", "--zookeeper", f"{zookeeper}/nowhere"]) == 1
    assert "nothing was ever made at" in capsys.readouterr().err
