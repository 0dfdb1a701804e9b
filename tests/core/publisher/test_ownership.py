from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.security import make_acl

from tests.support.proxy import Proxy
from tests.support.requests import received
from tidings.cluster import Cluster
from tidings.coordination.node_cache import NodeCache
from tidings.coordination.zookeeper import Coordination
from tidings.datamarkers import Datamarker
from tidings.errors import InvalidPosition
from tidings.flows import Flow
from tidings.positions import START, Position
from tidings.publisher.ownership import Member, Ownership, Taken, Wanted, plan_ownership
from tidings.testing import eventually

STREAMS = ("contacts", "orders", "photos")
FLOW = Flow("cache", "contacts", 0)

members = st.lists(
    st.builds(
        Member,
        st.sampled_from([f"p{n}" for n in range(8)]),
        st.frozensets(st.sampled_from(STREAMS)),
        st.booleans(),
    ),
    unique_by=lambda member: member.id,
)
flows = st.lists(
    st.builds(Flow, st.sampled_from(["cache", "search"]), st.sampled_from(STREAMS), st.integers(0, 63)), unique=True
)
pins = st.dictionaries(
    st.builds(Flow, st.sampled_from(["cache", "search"]), st.sampled_from(STREAMS), st.integers(0, 63)),
    st.sampled_from([f"p{n}" for n in range(9)]),
)


def able(members: list[Member], flow: Flow) -> set[str]:
    return {member.id for member in members if flow.stream in member.streams and not member.draining}


@given(members, flows, pins)
def test_a_flow_is_owned_exactly_if_someone_can_read_it_and_by_one_of_those(
    members: list[Member], flows: list[Flow], pins: dict[Flow, str]
) -> None:
    target = plan_ownership(members, flows, pins)
    assert target.keys() == {flow for flow in flows if able(members, flow)}
    assert all(owner in able(members, flow) for flow, owner in target.items())


@given(members, flows, pins)
def test_a_pin_wins_while_the_pinned_publisher_can_own_the_flow(
    members: list[Member], flows: list[Flow], pins: dict[Flow, str]
) -> None:
    pinned, free = plan_ownership(members, flows, pins), plan_ownership(members, flows)
    for flow in flows:
        here = pins.get(flow) in able(members, flow)
        assert pinned.get(flow) == (pins[flow] if here else free.get(flow))


@given(members, flows, pins, st.data())
def test_a_publisher_that_leaves_or_drains_moves_its_own_flows_and_no_others(
    members: list[Member], flows: list[Flow], pins: dict[Flow, str], data: st.DataObject
) -> None:
    if not members:
        return
    leaver = data.draw(st.sampled_from(members))
    before = plan_ownership(members, flows, pins)
    stayers = [member for member in members if member is not leaver]
    draining = [*stayers, Member(leaver.id, leaver.streams, draining=True)]
    for after in (plan_ownership(stayers, flows, pins), plan_ownership(draining, flows, pins)):
        assert all(after[flow] == owner for flow, owner in before.items() if owner != leaver.id)
        assert leaver.id not in after.values()


@given(members, flows, st.frozensets(st.sampled_from(STREAMS)))
def test_a_publisher_that_joins_takes_flows_to_itself_and_moves_none_between_others(
    members: list[Member], flows: list[Flow], streams: frozenset[str]
) -> None:
    before = plan_ownership(members, flows)
    after = plan_ownership([*members, Member("joiner", streams)], flows)
    assert all(after[flow] in (owner, "joiner") for flow, owner in before.items())


@given(st.permutations([Member(f"p{n}", frozenset(STREAMS)) for n in range(5)]))
def test_all_publishers_plan_alike_in_whatever_order_they_see_each_other(members: list[Member]) -> None:
    flows = [Flow("cache", "contacts", shard) for shard in range(64)]
    plan = plan_ownership(members, flows)
    assert plan == plan_ownership(sorted(members, key=lambda member: member.id), flows)
    assert min(list(plan.values()).count(member.id) for member in members) > 3, "nobody is left with next to nothing"


@pytest.fixture
def owner(cluster: Cluster) -> Iterator[Callable[[str], tuple[Ownership, Coordination]]]:
    """Makes publishers' ownerships, each with a session of its own."""
    cluster.coordination.write({}, "applications", FLOW.application)
    with ExitStack() as closing:

        def make(name: str) -> tuple[Ownership, Coordination]:
            tree = Coordination(cluster.address, session_timeout=2)
            closing.callback(tree.close)
            return Ownership(tree, name), tree

        yield make


Make = Callable[[str], tuple[Ownership, Coordination]]


def take(one: Ownership) -> int | None:
    """Take the flow, from its beginning if it has none."""
    (taken,) = one.take([Wanted(FLOW, lambda before: before or START)], {})
    return taken.epoch if taken else None


def test_a_flow_has_one_owner_and_each_has_a_larger_epoch(cluster: Cluster, owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")
    epochs = []
    for one, other in ((first, second), (second, first), (first, second)):
        epoch = take(one)
        assert epoch is not None
        assert take(other) is None
        epochs.append(epoch)
        assert one.release(FLOW, epoch)
        assert not one.release(FLOW, epoch)
    assert epochs == sorted(set(epochs))
    assert cluster.coordination.read(*FLOW.place, "owner") is None


def test_an_owner_whose_epoch_is_over_writes_and_releases_nothing(cluster: Cluster, owner: Make) -> None:
    (stale, tree), (fresh, _) = owner("p1"), owner("p2")
    old = take(stale)
    assert old is not None
    assert stale.write(FLOW, old, "datamarker", Datamarker.now(Position(1), old).to_json())
    tree.close()
    new = eventually(lambda: take(fresh) or 0, timeout=10)
    late, _ = owner("p1")  # as if the session were another, and the epoch the one it remembers
    assert not late.write(FLOW, old, "datamarker", {"position": 9})
    assert not late.write(FLOW, old, "subscriber", {"id": "r1"})
    assert not late.release(FLOW, old)
    marker = cluster.coordination.read(*FLOW.place, "datamarker")
    assert marker is not None
    assert Datamarker.from_json(marker).position == Position(1)
    assert cluster.coordination.read(*FLOW.place, "subscriber") is None
    assert cluster.coordination.read(*FLOW.place, "owner") == {"publisher": "p2"}
    assert fresh.write(FLOW, new, "datamarker", {"position": 2})


def test_a_flow_whose_owner_is_cut_off_is_free_when_its_session_is_over(
    cluster: Cluster, owner: Make, zookeeper: str
) -> None:
    second, _ = owner("p2")
    with Proxy(zookeeper) as proxy, ExitStack() as closing:
        tree = Coordination(f"{proxy.address}{cluster.coordination.root}", session_timeout=2)
        closing.callback(tree.close)
        epoch = take(Ownership(tree, "p1"))
        assert epoch is not None
        proxy.cut()
        assert take(second) is None
        assert eventually(lambda: take(second) or 0, timeout=10) > epoch


def test_what_a_session_holds_and_does_not_know_of_it_can_take_again_with_a_larger_epoch(owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")
    epoch = take(first)  # and the answer is lost on its way, say
    assert epoch is not None
    assert take(second) is None
    again = take(first)
    assert again is not None
    assert again > epoch
    assert not first.write(FLOW, epoch, "datamarker", {"position": 1})


def test_a_flow_that_another_has_had_since_it_was_looked_at_is_not_taken(owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")

    def start(before: Position | None) -> Position:
        """Is asked after the flow was looked at, and before it is taken."""
        epoch = take(second)
        assert epoch is not None
        assert second.release(FLOW, epoch)
        return START

    epoch = take(first)
    assert epoch is not None
    assert first.release(FLOW, epoch)
    assert first.take([Wanted(FLOW, start)], {}) == [None]
    assert take(first) == epoch + 2


def test_a_flow_begins_where_it_is_told_and_goes_on_where_it_stands(cluster: Cluster, owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")
    taken = first.take([Wanted(FLOW, lambda before: Position(41) if before is None else before)], {})
    assert taken == [Taken(1, Position(41), None, None)]
    assert first.write(FLOW, 1, "subscriber", {"id": "r1", "epoch": 1})
    assert first.release(FLOW, 1)
    taken = second.take([Wanted(FLOW, lambda before: before or Position(0))], {})
    assert taken == [Taken(2, Position(41), Position(41), "r1")]


def test_a_flow_is_not_taken_for_an_application_that_was_dropped_or_changed_meanwhile(
    cluster: Cluster, owner: Make
) -> None:
    first, tree = owner("p1")
    nodes = NodeCache(tree, lambda: None)
    assert nodes.value("applications", "cache") is not None
    seen = nodes.version("applications", "cache")
    cluster.coordination.write({"another": "definition"}, "applications", "cache")
    assert first.take([Wanted(FLOW, lambda before: START, seen)], {}) == [None]
    cluster.coordination.delete("applications", "cache")
    assert first.take([Wanted(FLOW, lambda before: START)], {}) == [None]


def test_of_many_flows_those_are_taken_that_are_free_and_can_be_served(owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")
    flows = [Flow(FLOW.application, FLOW.stream, shard) for shard in range(20)]

    def start(before: Position | None) -> Position:
        return START

    def cannot(before: Position | None) -> Position:
        raise InvalidPosition("there is no such place")

    assert None not in first.take([Wanted(flow, start) for flow in flows[:5]], {})
    wanted = [Wanted(flow, cannot if flow.shard >= 15 else start) for flow in flows]
    taken = second.take(wanted, {})
    assert [one is not None for one in taken] == [False] * 5 + [True] * 10 + [False] * 5


FLOWS = [Flow(FLOW.application, FLOW.stream, shard) for shard in range(300)]


def begin(before: Position | None) -> Position:
    return before or START


def test_hundreds_of_flows_are_taken_written_and_released_in_few_requests(cluster: Cluster, owner: Make) -> None:
    one, tree = owner("p1")
    for epoch in (1, 2):
        before = received(tree)
        taken = one.take([Wanted(flow, begin) for flow in FLOWS], {})
        assert [found.epoch for found in taken if found] == [epoch] * len(FLOWS)
        batch = one.batch()
        finishes = [batch.write(flow, epoch, "subscriber", {"id": "r1", "epoch": epoch}) for flow in FLOWS]
        batch.commit()
        assert all(finish() for finish in finishes)
        assert all(one.release_many([(flow, epoch) for flow in FLOWS]))
        assert received(tree) - before < len(FLOWS) / 3, "of all who use this ZooKeeper"


def test_a_flow_that_another_takes_at_the_same_moment_keeps_nobody_from_the_others(owner: Make) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")

    def raced(before: Position | None) -> Position:
        """Is asked after all flows were looked at, and before the first is taken."""
        assert second.take([Wanted(FLOWS[7], begin)], {}) != [None]
        return START

    taken = first.take([Wanted(flow, raced if flow.shard == 7 else begin) for flow in FLOWS], {})
    assert [flow.shard for flow, found in zip(FLOWS, taken, strict=True) if found is None] == [7]


def test_of_writes_that_are_begun_together_those_are_fenced_whose_epoch_is_over(cluster: Cluster, owner: Make) -> None:
    (stale, _), (fresh, _) = owner("p1"), owner("p2")
    assert None not in stale.take([Wanted(flow, begin) for flow in FLOWS[:20]], {})
    assert stale.release_many([(flow, 1) for flow in FLOWS[3:5]]) == [True, True]
    assert None not in fresh.take([Wanted(flow, begin) for flow in FLOWS[3:5]], {})
    batch = stale.batch()
    finishes = [batch.write(flow, 1, "subscriber", {"id": "r1", "epoch": 1}) for flow in FLOWS[:20]]
    batch.commit()
    over = [shard not in (3, 4) for shard in range(20)]
    assert [finish() for finish in finishes] == over
    assert cluster.coordination.read(*FLOWS[3].place, "subscriber") is None
    assert cluster.coordination.read(*FLOWS[5].place, "subscriber") == {"id": "r1", "epoch": 1}
    assert stale.release_many([(flow, 1) for flow in FLOWS[:20]]) == over
    assert cluster.coordination.read(*FLOWS[3].place, "owner") == {"publisher": "p2"}


def test_a_node_that_makes_no_sense_or_is_forbidden_keeps_its_own_flow_from_being_taken(
    cluster: Cluster, owner: Make
) -> None:
    (first, _), (second, _) = owner("p1"), owner("p2")
    assert None not in first.take([Wanted(flow, begin) for flow in FLOWS[:20]], {})
    assert all(first.release_many([(flow, 1) for flow in FLOWS[:20]]))
    tree = cluster.coordination
    tree.client.set(tree.path(*FLOWS[2].place, "datamarker"), b"nonsense")
    tree.client.set_acls(tree.path(*FLOWS[9].place, "subscriber"), [make_acl("digest", "nobody:nothing", all=True)])
    taken = second.take([Wanted(flow, begin) for flow in FLOWS[:20]], {})
    assert [flow.shard for flow, found in zip(FLOWS, taken, strict=False) if found is None] == [2, 9]
