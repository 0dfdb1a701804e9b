"""Sessions with ZooKeeper, and their end."""

from __future__ import annotations

from kazoo.client import KazooClient

from tidings.cluster import Cluster


def expire(cluster: Cluster) -> None:
    """End the session of this cluster as ZooKeeper does when it hears nothing."""
    twin = KazooClient(cluster.coordination.hosts, client_id=cluster.coordination.client.client_id)
    twin.start()
    twin.stop()
    twin.close()
