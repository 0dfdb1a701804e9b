"""What the console is told of collected streams."""

from __future__ import annotations

from tidings.cluster import Cluster
from tidings_gc_tombstones.status import for_console


def test_streams_with_policies_are_told_of_and_one_that_fails_harms_no_other(cluster: Cluster) -> None:
    cluster.create_stream("plain", 1)
    for name in ("contacts", "gone"):
        cluster.create_stream(name, 1, collect={"latest_per_key": True})
    with cluster.stream("contacts").producer() as producer:
        producer.publish("alice", version=1)
    cluster.stream("gone").writable_log.destroy()
    contacts, gone = for_console(cluster)
    assert (contacts["stream"], contacts["updates"], contacts["survivors"], contacts["collected"]) == (
        "contacts",
        1,
        1,
        0,
    )
    assert (contacts["policies"], contacts["problem"]) == (["latest_per_key: True"], None)
    assert gone["problem"]
