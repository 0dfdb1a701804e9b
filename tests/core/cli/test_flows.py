"""`tidings flows`: who owns and who holds each flow, and its lag."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from rich.console import Console

from tests.support.commands import Run, ended, flow_list, lags, line, publish, started, told
from tidings import Handler, __version__
from tidings.cli.flows import SPARE
from tidings.cli.output import make_table
from tidings.cluster import Cluster
from tidings.datamarkers import Datamarker
from tidings.flow_status import FlowStatus, status
from tidings.flows import Flow
from tidings.positions import START, Position, Positions
from tidings.protocol_versions import PROTOCOL
from tidings.publisher.ownership import Ownership, Wanted
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually
from tidings.updates import Update

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
    assert row.split()[5:] == ["-", "-", "-", "-", "-", "unassigned:", "no", "publisher", "runs"]


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
        assert (now().state, now().reason) == ("failed", "no")
        ownership.release(flow, epoch)
        assert (now().state, now().reason, now().epoch) == ("unassigned", "it failed before: no", epoch)
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


def test_flows_are_chosen_by_state_and_sorted_by_lag(cache: Cluster, publisher: Publisher, run: Run) -> None:
    cache.create_application("idle", ["contacts"], start="latest")
    eventually(lambda: lags(cache) == [0, 0, 0, 0])
    publish(cache, 1, 2, 3)
    assert {one["state"] for one in run("flows", "list", "--state", "waiting", "--json").json} == {"waiting"}
    assert run("flows", "list", "--state", "failed", "--json").json == []
    by_lag = [one["lag"] for one in run("flows", "list", "--sort", "lag", "--json").json]
    assert by_lag == sorted(by_lag, reverse=True)
    worst = run("flows", "list", "--sort", "lag", "--limit", "1", "--json").json
    assert [one["lag"] for one in worst] == by_lag[:1]
    assert run("flows", "list", "--state", "gone").code == 2


def test_a_summary_has_a_line_for_each_application_and_stream(cache: Cluster, publisher: Publisher, run: Run) -> None:
    eventually(lambda: lags(cache) == [0, 0])
    publish(cache, 1, 2, 3)
    (line,) = run("flows", "list", "--summary", "--json").json
    assert run("flows", "list", "--summary", "--limit", "1").code == 2
    assert (line["application"], line["stream"], line["flows"], line["waiting"], line["running"]) == (
        "cache",
        "contacts",
        2,
        2,
        0,
    )
    assert line["lag"] == max(one["lag"] for one in flow_list(run))
    header, row = (line.split() for line in run("flows", "list", "--summary").out.splitlines())
    assert dict(zip(header, row, strict=True))["WAITING"] == "2"


def test_flows_are_watched_until_ctrl_c(cache: Cluster, publisher: Publisher) -> None:
    with started("flows", "list", "--watch", "--json") as process:
        first, second = (json.loads(line(process)) for _ in range(2))
        assert [one["shard"] for one in first] == [one["shard"] for one in second] == [0, 1]
        process.send_signal(signal.SIGINT)
        assert ended(process).code == 130


def test_a_narrow_terminal_is_spared_columns_until_the_others_fit() -> None:
    rows = [["cache", "contacts", 3, 1200, 1300, 100, 2.5, "publisher-of-the-east-1", 7, "subscriber-1", "running"]]

    def headers(width: int) -> list[str]:
        return [str(column.header) for column in make_table(COLUMNS, rows, SPARE, width).columns]

    assert headers(200) == COLUMNS
    assert headers(118) == [name for name in COLUMNS if name != "EPOCH"]
    narrow = make_table(COLUMNS, rows, SPARE, 80)
    assert Console(width=80).measure(narrow).maximum <= 80
    assert {"APPLICATION", "STREAM", "SHARD", "LAG", "STATE"} <= {str(column.header) for column in narrow.columns}


def test_publishers_and_subscribers_are_listed_with_their_flows(cache: Cluster, publisher: Publisher, run: Run) -> None:
    with cache.subscribe("cache", Handler(), id="one"):
        eventually(lambda: {one.subscriber for one in status(cache)} == {"one"})
        (here,) = run("publishers", "list", "--json").json
        assert (here["publisher"], here["flows"], here["address"]) == ("here", 2, publisher.address)
        (one,) = run("subscribers", "list", "--json").json
        assert (one["subscriber"], one["application"], one["flows"]) == ("one", "cache", 2)
        assert run("subscribers", "list", "--application", "cache", "--json").json == [one]
        assert (here["tidings"], one["tidings"]) == (__version__, __version__)
        assert (here["protocol"], one["protocol"]) == (PROTOCOL, PROTOCOL)
        assert {"TIDINGS", __version__, "PROTOCOL"} <= set(run("subscribers", "list").out.split())
        assert str(os.getpid()) in run("publishers", "list").out.split()  # a number without thousands
        described = run("publishers", "describe", "here", "--json").json
        assert (described["flows"], described["draining"]) == (["cache/contacts/0", "cache/contacts/1"], False)
        table = run("publishers", "describe", "here").out
        assert f"pid                {os.getpid()}\n" in table
        assert table.split()[-3:] == ["cache", "contacts", "2"]
        assert "no publisher 'nope' runs (publishers: here)" in run("publishers", "describe", "nope").err
        assert run("subscribers", "list").out.split()[:2] == ["SUBSCRIBER", "APPLICATION"]
        assert run("subscribers", "list").out.split()[-1] == "-", "nothing is unreachable"
    assert run("subscribers", "list", "--json").json == []
    assert "there is no application 'nope'" in run("subscribers", "list", "--application", "nope").err


def test_what_a_subscriber_cannot_reach_is_told_of_publishers_where_they_are_now(cache: Cluster, run: Run) -> None:
    tree, place = cache.coordination, ("applications", "cache", "subscribers", "one")
    for name, port in (("east", 2), ("west", 1), ("south", 1)):
        tree.create({"address": f"127.0.0.1:{port}", "applications": ["cache"]}, "publishers", name, ephemeral=True)
    told = dict.fromkeys(("east", "west", "south"), "nothing listens at its address")
    tried = {"east": "127.0.0.1:1", "west": "127.0.0.1:1"}  # of the last a former release does not say it
    tree.create({"capacity": 1.0, "unreachable": told, "tried": tried}, *place, ephemeral=True)
    (one,) = run("subscribers", "list", "--json").json
    assert one["unreachable"] == {name: told[name] for name in ("west", "south")}, "the first is elsewhere by now"
    said = "west at 127.0.0.1:1: nothing listens at its address; south: nothing listens at its address\n"
    assert run("subscribers", "list").out.endswith(said)


def test_a_member_that_makes_no_sense_is_told_of_and_left_out(cache: Cluster, run: Run) -> None:
    tree = cache.coordination
    tree.create_path("publishers")
    tree.client.create(tree.path("publishers", "odd"), b"not json")
    listed = run("publishers", "list", "--json")
    assert (listed.code, listed.json) == (0, [])
    assert "'odd' is left out: what ZooKeeper holds at" in listed.err


def owners(cluster: Cluster) -> set[str | None]:
    return {one.owner for one in status(cluster)}


def test_a_publisher_drains_its_flows_go_to_another_and_nothing_is_lost(cache: Cluster, run: Run) -> None:
    seen: list[str] = []

    class Notes(Handler):
        def on_update(self, update: Update) -> None:
            seen.append(update.object)

    with (
        cache.publisher(name="one", token_interval=0.1),
        cache.subscribe("cache", Notes()),
        cache.stream("contacts").producer() as producer,
    ):
        eventually(lambda: owners(cache) == {"one"})
        refused = run("publishers", "drain", "one")
        assert (refused.code, "no other publisher runs that could take the flows" in refused.err) == (1, True)
        assert "no publisher 'nobody' runs (publishers: one)" in run("publishers", "drain", "nobody").err
        with cache.publisher(name="two", token_interval=0.1):
            published = [f"o-{number}" for number in range(300)]
            for name in published[:150]:
                producer.publish(name)
            assert run("publishers", "drain", "one", "--wait", "--json").json == {"draining": "one", "flows": 0}
            for name in published[150:]:
                producer.publish(name)
            producer.flush()
            eventually(lambda: owners(cache) == {"two"})
            eventually(lambda: set(seen) == set(published))
            assert {one["publisher"]: one["draining"] for one in run("publishers", "list", "--json").json} == {
                "one": True,
                "two": False,
            }
            assert run("publishers", "undrain", "one").code == 0
            assert "does not drain" in run("publishers", "undrain", "one").err
        eventually(lambda: owners(cache) == {"one"})


def test_a_flow_is_pinned_to_a_publisher_while_that_runs(cache: Cluster, run: Run) -> None:
    with cache.publisher(name="one", token_interval=0.1):
        with cache.publisher(name="two", token_interval=0.1):
            for name in ("one", "two"):
                assert run("flows", "move", "cache/contacts/0", "cache/contacts/1", "--to", name).code == 0
                eventually(lambda: owners(cache) == {name})  # noqa: B023
            assert run("flows", "describe", "cache/contacts/0", "--json").json["pinned_to"] == "two"
        eventually(lambda: owners(cache) == {"one"})  # while it does not run, others own them
        unpinned = run("flows", "unpin", "cache/contacts/0", "cache/contacts/1", "--json").json
        assert unpinned == {"unpinned": ["cache/contacts/0", "cache/contacts/1"]}
        assert run("flows", "unpin", "cache/contacts/0", "--json").json == {"unpinned": []}
        assert "no publisher 'two' runs" in run("flows", "move", "cache/contacts/0", "--to", "two").err
        assert "has shards 0 to 1, not 7" in run("flows", "move", "cache/contacts/7", "--to", "one").err
        assert run("flows", "move", "nonsense", "--to", "one").code == 2
    with cache.publisher(name="narrow", streams=[]):
        assert "does not read stream 'contacts'" in run("flows", "move", "cache/contacts/0", "--to", "narrow").err


def test_flows_are_stopped_and_go_on_where_they_stood(cache: Cluster, publisher: Publisher, run: Run) -> None:
    cache.create_application("other", ["contacts"], start="earliest")
    seen: list[str] = []

    class Notes(Handler):
        def on_update(self, update: Update) -> None:
            seen.append(update.object)

    def states(application: str) -> set[str]:
        return {one.state for one in status(cache, application=application)}

    with cache.subscribe("cache", Notes()), cache.stream("contacts").producer() as producer:
        first = [f"a-{number}" for number in range(40)]
        for name in first:
            producer.publish(name)
        eventually(lambda: sorted(seen) == sorted(first) and lags(cache)[:2] == [0, 0])
        assert len(run("flows", "stop", "--application", "cache", "--json").json["stopped"]) == 2
        eventually(lambda: states("cache") == {"stopped"})
        assert states("other") == {"waiting"}
        later = [f"b-{number}" for number in range(40)]
        for name in later:
            producer.publish(name)
        producer.flush()
        assert run("flows", "stop", "cache/contacts/0", "--json").json == {"stopped": []}
        assert sorted(seen) == sorted(first)
        assert "1 flow is resumed now" in run("flows", "resume", "cache/contacts/0").err
        assert len(run("flows", "list", "--state", "stopped", "--json").json) == 1
        resumed = run("flows", "resume", "--application", "cache", "--stream", "contacts")
        assert "1 of 2 flows is resumed now" in resumed.err
        eventually(lambda: sorted(seen) == sorted(first + later))
    for wrong in ((), ("cache/contacts/0", "--application", "cache")):
        assert (run("flows", "stop", *wrong).code, run("flows", "resume", *wrong).code) == (2, 2)
    assert "there is no application 'nope'" in run("flows", "stop", "--application", "nope").err


def test_a_pin_and_a_stop_do_not_undo_each_other(cache: Cluster, publisher: Publisher, run: Run) -> None:
    eventually(lambda: owners(cache) == {"here"})
    assert run("flows", "move", "cache/contacts/0", "--to", "here").code == 0
    assert run("flows", "stop", "cache/contacts/0").code == 0
    eventually(lambda: [one.state for one in status(cache)] == ["stopped", "waiting"])
    assert run("flows", "describe", "cache/contacts/0", "--json").json["pinned_to"] == "here"
    assert run("flows", "unpin", "cache/contacts/0").code == 0
    assert [one.state for one in status(cache)] == ["stopped", "waiting"]
