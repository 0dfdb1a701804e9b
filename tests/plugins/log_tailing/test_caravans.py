from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import pyarrow as pa
import pytest

import tidings
from tidings.allocation_policies import Limits, Rider
from tidings.cli import main
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.testing import eventually, make_updates
from tidings_log_tailing.control import reports

ROWS = 3_000


class Counting(tidings.Handler):
    """Counts updates; while it is held, it processes none."""

    def __init__(self) -> None:
        self.seqs: dict[int, list[int]] = {}
        self.go_on = threading.Event()
        self.go_on.set()

    def on_batch(self, rows: pa.RecordBatch) -> None:
        self.go_on.wait(60)
        for shard, seq in zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True):
            self.seqs.setdefault(shard, []).append(seq)

    @property
    def count(self) -> int:
        return sum(map(len, self.seqs.values()))


def in_order(handler: Counting) -> bool:
    return all(seqs == list(range(len(seqs))) for seqs in handler.seqs.values())


def test_a_flow_that_does_not_keep_up_leaves_the_lead_and_comes_back(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    for name in ("fast", "slow"):
        cluster.create_application(name, ["contacts"], start="earliest")
    fast, slow = Counting(), Counting()
    slow.go_on.clear()
    with (
        cluster.subscribe("fast", fast),
        cluster.subscribe("slow", slow),
        cluster.publisher(window_bytes=50_000, token_interval=0.2),
    ):
        for seed in range(10):
            stream.writable_log.append(make_updates(ROWS, seed=seed))
        eventually(lambda: fast.count == 10 * ROWS, timeout=60)
        assert slow.count < ROWS
        slow.go_on.set()
        eventually(lambda: slow.count == 10 * ROWS, timeout=60)
        # Both keep up again, on one caravan.
        eventually(lambda: [len(one["caravans"]) for one in reports(cluster)] == [1], timeout=30)
        (report,) = reports(cluster)
        assert report["caravans"][0]["flows"] == 4
    assert in_order(fast)
    assert in_order(slow)


def test_one_read_serves_all_applications(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=2)
    handlers = {f"a{number}": Counting() for number in range(4)}
    for name in handlers:
        cluster.create_application(name, ["contacts"])
    subscribers = [cluster.subscribe(name, handler) for name, handler in handlers.items()]
    with cluster.publisher():
        eventually(lambda: all(one.state == "running" for one in status(cluster)), timeout=30)
        for seed in range(10):
            stream.writable_log.append(make_updates(ROWS, seed=seed))
        eventually(lambda: all(handler.count == 10 * ROWS for handler in handlers.values()), timeout=60)
        found = eventually(lambda: [one for one in reports(cluster) if one["bytes_sent"]], timeout=30)
        assert found[0]["read_per_sent"] < 0.5
    for subscriber in subscribers:
        subscriber.close()


def test_operators_see_caravans_and_limit_them_while_they_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    stream.writable_log.append(make_updates(ROWS))
    cache = Counting()

    def listed() -> list[dict[str, object]]:
        assert main(["caravans", "list", "--stream", "contacts", "--json"]) == 0
        return [one for report in json.loads(capsys.readouterr().out) for one in report["caravans"]]

    with cluster.subscribe("cache", cache), cluster.publisher(name="p1"):
        eventually(lambda: cache.count == ROWS, timeout=30)
        (before,) = eventually(listed, timeout=30)
        assert (before["flows"], before["behind"]) == (2, 0)
        assert main(["caravans", "set-limit", "contacts", "--policy", "one-per-flow", "--rate", "1e6"]) == 0
        assert "policy one-per-flow, caravans 8, rate 1,000,000.0, total_rate -" in capsys.readouterr().err
        eventually(lambda: [one["flows"] for one in listed()] == [1, 1], timeout=30)
        assert main(["caravans", "set-limit", "contacts", "--caravans", "1", "--rate", "0"]) == 0
        eventually(lambda: [one["flows"] for one in listed()] == [2], timeout=30)
        number = listed()[0]["number"]
        capsys.readouterr()
        assert main(["caravans", "reassign", "contacts"]) == 0
        eventually(lambda: [one["number"] for one in listed()] not in ([], [number]), timeout=30)
        stream.writable_log.append(make_updates(ROWS, seed=1))
        eventually(lambda: cache.count == 2 * ROWS, timeout=30)
        assert main(["caravans", "list"]) == 0
        assert "p1" in capsys.readouterr().out
    assert in_order(cache)
    assert reports(cluster) == [], "what a publisher told goes with it"


def test_a_limited_rate_is_kept_from_the_beginning(cluster: Cluster) -> None:
    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"], start="earliest")
    cluster.coordination.create({"total_rate": 500}, "caravans", "contacts")
    stream.writable_log.append(make_updates(1_000))
    cache = Counting()
    with cluster.subscribe("cache", cache), cluster.publisher():
        eventually(lambda: cache.count == 1_000, timeout=30)
        stream.writable_log.append(make_updates(1_000, seed=1))
        with pytest.raises(AssertionError, match="still not true"):
            eventually(lambda: cache.count > 1_000, timeout=1.0)
        eventually(lambda: cache.count == 2_000, timeout=30)


def test_wrong_words_to_caravans_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", cluster.address)
    cluster.create_stream("contacts", shards=1)
    for words, code, problem in (
        (["set-limit", "contacts"], 2, "nothing is to be changed: say what, by --caravans"),
        (["set-limit", "contacts", "--rate", "-1"], 2, "Invalid value for '--rate': '-1' is no rate"),
        (["set-limit", "contacts", "--total-rate", "1e15"], 2, "Invalid value for '--total-rate': '1e15' is no rate"),
        (["set-limit", "contacts", "--total-rate", "fast"], 2, "'fast' is no rate"),
        (["set-limit", "nobody", "--caravans", "2"], 1, "there is no stream 'nobody'"),
        (["set-limit", "contacts", "--policy", "horses"], 1, "no allocation policy 'horses' is installed"),
        (["reassign", "nobody"], 1, "there is no stream 'nobody'"),
        (["list", "--stream", "nobody"], 1, "there is no stream 'nobody'"),
    ):
        assert main(["caravans", *words]) == code
        err = " ".join(capsys.readouterr().err.split())
        assert problem in err
        assert "Traceback" not in err


def test_a_policy_that_makes_no_sense_stops_nothing_that_rides(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tidings.publisher import allocation

    def nobody(riders: Sequence[Rider], limits: Limits) -> list[list[Rider]]:
        return []

    stream = cluster.create_stream("contacts", shards=1)
    cluster.create_application("cache", ["contacts"])
    cache = Counting()
    with cluster.subscribe("cache", cache), cluster.publisher():
        eventually(lambda: all(one.state == "running" for one in status(cluster)), timeout=30)
        stream.writable_log.append(make_updates(100))
        eventually(lambda: cache.count == 100, timeout=30)
        monkeypatch.setattr(allocation, "policy", lambda *_: nobody)
        cluster.coordination.create({"policy": "nobody"}, "caravans", "contacts")
        eventually(lambda: "an allocation policy must put each flow into one group" in caplog.text, timeout=30)
        stream.writable_log.append(make_updates(100, seed=1))
        eventually(lambda: cache.count == 200, timeout=30)


def test_a_policy_that_fails_from_the_beginning_keeps_no_flow_waiting(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tidings.publisher import allocation

    def broken(riders: Sequence[Rider], limits: Limits) -> list[list[Rider]]:
        raise ZeroDivisionError("halves of nothing")

    monkeypatch.setattr(allocation, "policy", lambda *_: broken)
    stream = cluster.create_stream("contacts", shards=2)
    cluster.create_application("cache", ["contacts"], start="earliest")
    stream.writable_log.append(make_updates(100))
    cache = Counting()
    with cluster.subscribe("cache", cache), cluster.publisher():
        eventually(lambda: cache.count == 100, timeout=30)
        stream.writable_log.append(make_updates(100, seed=1))
        eventually(lambda: cache.count == 200, timeout=30)
    assert caplog.text.count("halves of nothing") == 1
