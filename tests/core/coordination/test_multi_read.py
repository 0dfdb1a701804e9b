"""Many nodes in one request, against a real ZooKeeper."""

from __future__ import annotations

import queue
import threading

import pytest
from kazoo.exceptions import UnimplementedError
from kazoo.protocol.serialization import GetData
from kazoo.security import make_acl

from tests.support.requests import received
from tests.support.sessions import expire
from tidings.cluster import Cluster
from tidings.coordination.multi_read import MAX_PATHS_BYTES, MAX_READS, MultiRead, split
from tidings.coordination.node_cache import NodeCache, NodeValue
from tidings.coordination.values import encode
from tidings.coordination.zookeeper import Coordination, Node
from tidings.errors import CoordinationDenied, TidingsError
from tidings.testing import eventually


def raws(found: list[Node | CoordinationDenied | None]) -> list[object]:
    return [one.raw if isinstance(one, Node) else one and type(one) for one in found]


@pytest.fixture
def tree(cluster: Cluster) -> Coordination:
    """Nodes `a`, `b` without a value, and one that we may not read."""
    tree = cluster.coordination
    tree.create({"n": 1}, "box", "a")
    tree.create_path("box", "b")
    nobody = [make_acl("digest", "nobody:nothing", all=True)]
    tree.client.create(tree.path("box", "forbidden"), b"secret", nobody)
    return tree


PLACES = [("box", "a"), ("box", "missing"), ("box", "forbidden"), ("box", "b"), ("box", "a")]
FOUND = [encode({"n": 1}), None, CoordinationDenied, b"", encode({"n": 1})]


def test_a_node_that_is_missing_or_forbidden_harms_no_other(tree: Coordination) -> None:
    assert raws(tree.read_many(PLACES)) == FOUND
    assert tree.read_many([]) == []
    children = tree.children_of_many([("box",), ("box", "a"), ("box", "missing"), ("box", "forbidden")])
    assert children[:3] == [["a", "b", "forbidden"], [], None]
    assert isinstance(children[3], CoordinationDenied)


def test_what_is_read_comes_with_its_version(tree: Coordination) -> None:
    tree.write({"n": 2}, "box", "a")
    (found,) = tree.read_many([("box", "a")])
    assert isinstance(found, Node)
    assert found.stat.version == 1


def test_a_server_that_does_not_know_the_request_is_asked_for_one_after_the_other(
    tree: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MultiRead, "type", 99)
    assert raws(tree.read_many(PLACES)) == FOUND
    assert tree.children_of_many([("box", "missing"), ("box",)]) == [None, ["a", "b", "forbidden"]]
    monkeypatch.undo()
    assert raws(tree.read_many(PLACES)) == FOUND


def test_a_refusal_that_overtakes_other_answers_reaches_who_asked_for_it_and_the_session_goes_on(
    tree: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MultiRead, "type", 99)
    session, before = tree.client.client_id, tree.reconnects
    for number in range(200):  # which are synced, and take longer than a refusal
        tree.client.create_async(tree.path("box", f"slow-{number}"), bytes(10_000))
    refused = tree._call(MultiRead([GetData(tree.path("box", "a"), None)]))
    with pytest.raises(UnimplementedError):
        refused.get(timeout=30)
    eventually(lambda: tree.reconnects > before and tree.client.connected)
    assert tree.client.client_id == session
    assert tree.read("box", "a") == {"n": 1}


def test_who_has_lost_a_session_is_answered_in_the_next_one(cluster: Cluster, tree: Coordination) -> None:
    session = tree.client.client_id
    expire(cluster)
    eventually(lambda: tree.client.connected and tree.client.client_id != session)
    before = tree.reconnects
    for _ in range(20):
        assert tree.read("box", "a") == {"n": 1}
    assert tree.reconnects == before


def test_thousands_of_nodes_take_few_requests_and_large_ones_come_whole(tree: Coordination) -> None:
    large = bytes(900 * 2**10)
    for number in range(4):
        tree.client.create(tree.path("box", f"large-{number}"), large)
    before = received(tree)
    found = tree.read_many([*[("box", f"large-{number}") for number in range(4)], *[("box", "a")] * 2_000])
    assert raws(found) == [large] * 4 + [encode({"n": 1})] * 2_000
    assert received(tree) - before < 2_000 / 10, "of all who use this ZooKeeper"


def test_reads_are_split_by_their_number_and_by_the_length_of_their_paths() -> None:
    short = [GetData(f"/{number}", None) for number in range(2 * MAX_READS + 1)]
    assert [len(part) for part in split(short)] == [MAX_READS, MAX_READS, 1]
    long = [GetData("/" + "ä" * (MAX_PATHS_BYTES // 5), None) for _ in range(5)]
    assert [len(part) for part in split(long)] == [2, 2, 1]
    assert [one for part in split(long) for one in part] == long
    assert all(len(MultiRead(part).serialize()) < 2**20 for part in split(long))
    assert list(split([])) == []


def test_a_cache_is_filled_with_what_is_there_and_what_is_not(tree: Coordination) -> None:
    changed = threading.Event()
    nodes = NodeCache(tree, changed.set)
    nodes.fill(PLACES)
    asked = received(tree)
    known = [nodes.value(*place) for place in PLACES if "forbidden" not in place]
    assert known == [{"n": 1}, None, None, {"n": 1}]
    assert nodes.version("box", "a") == 0
    assert received(tree) - asked < 10, "the others who use this ZooKeeper"
    assert nodes.value("box", "forbidden") is None
    before = nodes.generation
    for change in (lambda: tree.write({"n": 2}, "box", "a"), lambda: tree.create({"n": 5}, "box", "missing")):
        changed.clear()
        change()
        assert changed.wait(10)
    assert nodes.generation > before
    assert [nodes.value("box", name) for name in ("a", "missing")] == [{"n": 2}, {"n": 5}]


def test_a_cache_that_is_filled_tells_of_nothing_that_was_so_before(tree: Coordination) -> None:
    changed = threading.Event()
    nodes = NodeCache(tree, changed.set)
    places = [("box", "a"), ("box", "b"), ("box", "missing"), ("box", "nor", "this")]
    nodes.fill(places)
    nodes.fill(places)
    tree.ping()  # what was to be told came before the answer to this
    assert not changed.is_set()
    assert nodes.generation == 0


@pytest.mark.parametrize("together", [True, False])
def test_who_asks_without_waiting_is_answered_for_each_place_and_the_answers_are_kept(
    tree: Coordination, *, together: bool
) -> None:
    if not together:
        tree.reads_one_by_one()
    changed, answered = threading.Event(), threading.Semaphore(0)
    nodes = NodeCache(tree, changed.set)
    found: dict[int, NodeValue | TidingsError] = {}

    def keep(number: int, answer: NodeValue | TidingsError) -> None:
        found[number] = answer
        answered.release()

    nodes.ask(PLACES[:4], keep)
    for _ in PLACES[:4]:
        assert answered.acquire(timeout=10)
    made = tree.client.exists(tree.path("box", "a")).czxid
    assert found[0] == NodeValue({"n": 1}, made)
    assert found[1] == NodeValue(None, -1)
    assert isinstance(found[2], CoordinationDenied)
    assert isinstance(found[3], NodeValue)
    assert nodes.cached("box", "a") == {"n": 1}
    changed.clear()
    tree.write({"n": 2}, "box", "a")
    assert changed.wait(10)
    assert nodes.value("box", "a") == {"n": 2}


def test_who_asks_a_server_that_knows_only_single_reads_hears_of_it_and_is_answered_the_next_time(
    tree: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, answers = NodeCache(tree, lambda: None), queue.SimpleQueue[NodeValue | TidingsError]()
    monkeypatch.setattr(MultiRead, "type", 99)

    def ask() -> NodeValue | TidingsError:
        nodes.ask([("box", "a")], lambda _, answer: answers.put(answer))
        return answers.get(timeout=30)

    assert isinstance(ask(), TidingsError)
    answer = eventually(lambda: isinstance(found := ask(), NodeValue) and found)  # it has hung up on us before that
    assert isinstance(answer, NodeValue)
    assert answer.value == {"n": 1}
