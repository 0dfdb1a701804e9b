"""`tidings flows`: who owns and who holds each flow, and its lag."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.commands import Run, flow_list, lags, line, publish, started, told
from tidings import Handler
from tidings.cluster import Cluster
from tidings.datamarkers import Datamarker
from tidings.flow_status import FlowStatus, status
from tidings.flows import Flow
from tidings.positions import START, Position, Positions
from tidings.publisher.ownership import Ownership, Wanted
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually

COLUMNS = ["APPLICATION", "STREAM", "SHARD", "DATAMARKER", "HEAD", "LAG", "LAG-SECONDS"]
COLUMNS += ["OWNER", "EPOCH", "SUBSCRIBER", "STATE"]


def test_the_lag_goes_to_nothing_as_a_subscriber_catches_up(cache: Cluster, publisher: Publisher, run: Run) -> None:
    eventually(lambda: lags(cache) == [0, 0])
    publish(cache, 1, 2, 3)
    table = [row.split() for row in run("flows", "list").out.splitlines()]
    assert table[0] == COLUMNS
    flows = [dict(zip(COLUMNS, row, strict=True)) for row in table[1:]]
    assert sum(int(one["LAG"]) for one in flows) == 12
    for one in flows:
        assert (one["DATAMARKER"], one["SUBSCRIBER"], one["STATE"]) == ("-", "-", "waiting")
        assert float(one["LAG-SECONDS"]) >= 0
        assert int(one["HEAD"]) == int(one["LAG"]) - 1
    first = [one["lag_seconds"] for one in flow_list(run)]
    assert all(
        later > earlier for earlier, later in zip(first, [one["lag_seconds"] for one in flow_list(run)], strict=True)
    )
    with started("subscribe", "cache", "--json", "--id", "one") as process:
        line(process)
        eventually(lambda: lags(cache) == [0, 0])
        for served in flow_list(run):
            assert (served["lag_seconds"], served["datamarker"], served["state"]) == (0.0, served["head"], "running")
            assert (served["owner"], served["subscriber"], served["pid"]) == ("here", "one", os.getpid())


def test_what_is_not_known_of_a_flow_is_not_nothing(cache: Cluster, run: Run) -> None:
    publish(cache, 1)
    for one in status(cache):
        assert (one.state, one.owner, one.epoch, one.datamarker, one.lag, one.lag_seconds) == (
            "unassigned",
            None,
            None,
            None,
            None,
            None,
        )
        assert one.head is not None
        assert one.head > START
    (row, *_) = run("flows", "list").out.splitlines()[1:]
    assert row.split()[3] == "-"
    assert row.split()[5:] == ["-", "-", "-", "-", "-", "unassigned"]


def take(ownership: Ownership, flow: Flow) -> int:
    """Own a flow, from its beginning; the epoch."""
    (taken,) = ownership.take([Wanted(flow, lambda before: before or START)], {})
    assert taken is not None
    return taken.epoch


def test_a_flow_is_with_a_subscriber_only_in_its_own_epoch_and_while_that_runs(cache: Cluster) -> None:
    flow = Flow("cache", "contacts", 0)
    ownership = Ownership(cache.coordination, "east")

    def now() -> FlowStatus:
        return status(cache, shard=0)[0]

    epoch = take(ownership, flow)
    assert (now().state, now().subscriber) == ("waiting", None)
    ownership.write(flow, epoch, "subscriber", {"id": "one", "epoch": epoch})
    assert (now().state, now().subscriber) == ("waiting", None), "that subscriber does not run"
    with cache.subscribe("cache", Handler(), id="one"):
        assert (now().state, now().subscriber) == ("running", "one")
        ownership.write(flow, epoch, "subscriber", {"id": "one", "epoch": epoch, "parked": "no"})
        assert (now().state, now().reason) == ("parked", "no")
        ownership.release(flow, epoch)
        assert (now().state, now().reason, now().epoch) == ("unassigned", None, epoch)
        assert take(ownership, flow) == epoch + 1
        assert (now().state, now().subscriber) == ("waiting", None)


def test_the_lag_counts_what_the_log_still_holds(cache: Cluster) -> None:
    shard = cache.stream("contacts").shard_of("alice")
    flow = Flow("cache", "contacts", shard)
    for version in range(4):
        publish(cache, version, objects=("alice",))
    ownership = Ownership(cache.coordination, "east")
    epoch = take(ownership, flow)
    for position, lag in ((START, 4), (Position(1), 2), (Position(1, -1), 3), (Position(3), 0)):
        ownership.write(flow, epoch, "datamarker", Datamarker.now(position, epoch).to_json())
        assert status(cache, shard=shard)[0].lag == lag
    cache.stream("contacts").writable_log.truncate(Positions({shard: Position(2)}))
    ownership.write(flow, epoch, "datamarker", Datamarker.now(START, epoch).to_json())
    (one,) = status(cache, shard=shard)
    assert one.lag == 2
    assert one.lag_seconds is not None
    assert one.lag_seconds > 0


def test_the_lag_is_known_for_many_shards_of_very_different_lag(small: Cluster, tmp_path: Path) -> None:
    small.create_stream("wide", 300, f"delta:{tmp_path / 'wide'}")
    with small.stream("wide").producer() as producer:
        for number in range(3_000):
            producer.publish(f"object-{number}", 1)
        for number in range(20_000):
            producer.publish("hot", number)
    small.create_application("all", ["wide"])
    small.create_application("some", ["wide"])
    stands = {Flow("all", "wide", shard): START for shard in range(300)}
    stands |= {Flow("some", "wide", shard): Position(1) for shard in range(300)}
    for flow, position in stands.items():
        small.coordination.create(Datamarker.now(position, 1).to_json(), *flow.place, "datamarker")
    flows = status(small)
    assert sum(one.lag or 0 for one in flows if one.flow.application == "all") == 23_000
    assert sum(one.lag or 0 for one in flows if one.flow.application == "some") == 23_000 - 2 * 300
    assert all(one.lag_seconds and one.lag_seconds > 0 for one in flows if one.lag)
    assert all(one.lag_seconds == 0 for one in flows if one.lag == 0)


def test_flows_are_shown_even_if_their_log_cannot_be_read(cache: Cluster, run: Run, tmp_path: Path) -> None:
    publish(cache, 1)
    (tmp_path / "contacts").rename(tmp_path / "away")
    result = run("flows", "list", "--json")
    assert result.code == 1
    assert [(one["head"], one["lag"], one["state"]) for one in result.json] == [(None, None, "unassigned")] * 2
    assert told(result.err).startswith("error: the log of stream 'contacts' ")


def test_flows_are_listed_by_application_and_by_stream(cache: Cluster, run: Run, tmp_path: Path) -> None:
    cache.create_stream("clicks", 3, f"delta:{tmp_path / 'clicks'}")
    cache.create_application("mailer", ["contacts", "clicks"])

    def keys(*arguments: str) -> set[tuple[str, str]]:
        return {(one["application"], one["stream"]) for one in flow_list(run, *arguments)}

    assert len(flow_list(run)) == 7
    assert keys("--application", "mailer") == {("mailer", "contacts"), ("mailer", "clicks")}
    assert keys("--stream", "contacts") == {("cache", "contacts"), ("mailer", "contacts")}
    assert keys("--stream", "clicks", "--application", "mailer") == {("mailer", "clicks")}
    assert run("flows", "describe", "mailer/clicks/2", "--json").json["shard"] == 2
