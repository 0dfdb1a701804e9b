"""Records of flows are as fresh when they are read again and again, and their ages are not by publishers' clocks."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tests.support.console_scene import make_flows
from tidings import controls
from tidings.cluster import Cluster
from tidings.coordination.values import encode
from tidings.flow_status import KeptRecords, records_of, status
from tidings.flows import Flow

HOUR = dt.timedelta(hours=1)


def test_what_is_kept_is_as_fresh_as_what_is_read(cluster: Cluster, tmp_path: Path) -> None:
    make_flows(cluster, 1, 8, tmp_path)
    flows = [Flow("many-0", "wide", shard) for shard in range(8)]
    tree, kept = cluster.coordination, KeptRecords()
    first = records_of(cluster, flows, kept)
    tree.client.set(tree.path(*flows[1].place, "owner"), encode({"publisher": "another"}))
    tree.delete(*flows[2].place, "subscriber")
    tree.client.set(tree.path(*flows[3].place, "datamarker"), b"nonsense")
    tree.client.set(tree.path(*flows[4].place, "epoch"), b"")
    controls.stop(cluster, [flows[5]])
    tree.delete(*flows[6].place)
    second = records_of(cluster, flows, kept)
    assert second == records_of(cluster, flows)
    assert [first[flow] == second[flow] for flow in flows] == [True, *[False] * 6, True]
    assert second[flows[0]] is first[flows[0]]
    assert records_of(cluster, flows[:1], kept) == {flows[0]: first[flows[0]]}
    assert list(kept) == flows[:1]


def test_a_flow_is_not_stuck_because_the_clock_of_its_publisher_is_behind(cluster: Cluster) -> None:
    flow, now = Flow("cache", "contacts", 0), dt.datetime.now(dt.UTC)
    with cluster.create_stream("contacts", 1).producer() as producer:
        producer.publish("a", time=now - HOUR).result()
    cluster.create_application("cache", ["contacts"], start="earliest")
    tree, then = cluster.coordination, (now - HOUR).isoformat()
    tree.create({"load": 0.0}, "applications", "cache", "subscribers", "one", ephemeral=True)
    tree.create({}, *flow.place, "epoch")
    tree.create({"publisher": "late"}, *flow.place, "owner")
    tree.create({"id": "one", "epoch": 0, "since": then}, *flow.place, "subscriber")
    tree.create({"position": -1, "epoch": 0, "time": then}, *flow.place, "datamarker")
    (found,) = status(cluster)
    assert (found.state, found.lag, found.reason) == ("running", 1, None)
    assert found.lag_seconds is not None
    assert found.lag_seconds >= HOUR.total_seconds()


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_no_subscriber_has_a_flow_only_after_zookeeper_was_told_of_it(cluster: Cluster, off: dt.timedelta) -> None:
    flow, since = Flow("cache", "contacts", 0), dt.datetime.now(dt.UTC) + off
    cluster.coordination.create({"id": "one", "epoch": 0, "since": since.isoformat()}, *flow.place, "subscriber")
    record = records_of(cluster, [flow])[flow]
    assert record.named is not None
    assert abs(record.named - dt.datetime.now(dt.UTC)) < HOUR / 2
    assert record.held_since == min(since, record.named)
