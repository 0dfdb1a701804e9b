"""What a publisher does once it cannot be sure of its session, and once that is over."""

from __future__ import annotations

from tests.support.sessions import expire
from tidings.cluster import Cluster, connect
from tidings.flows import Flow
from tidings.testing import eventually

FLOW = Flow("cache", "contacts", 0)


def owned_in(cluster: Cluster) -> int:
    """The epoch in which the flow is owned; 0 if it has no owner."""
    tree = cluster.coordination
    stat = tree.client.exists(tree.path(*FLOW.place, "epoch"))
    return stat.version if stat is not None and tree.read(*FLOW.place, "owner") is not None else 0


def test_a_publisher_whose_lease_is_over_may_not_send_though_it_is_connected(cluster: Cluster) -> None:
    with cluster.publisher() as publisher:
        assert publisher.may_send()
        publisher._lease.close()
        assert not publisher.may_send()


def test_a_publisher_that_lost_its_session_drops_its_flows_and_takes_them_anew(cluster: Cluster) -> None:
    cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    with connect(cluster.address) as own, own.publisher():
        eventually(lambda: owned_in(cluster) == 1)
        expire(own)
        eventually(lambda: owned_in(cluster) == 2)
