"""`tidings applications`, `subscribe`, `publisher` and `flows`: real processes, a real ZooKeeper, real Delta logs."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import pty
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidings import Handler
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.datamarkers import Datamarker
from tidings.flows import Flow, FlowStatus, status
from tidings.ownership import Ownership
from tidings.positions import START, Position, Positions
from tidings.publisher import Publisher
from tidings.testing import eventually

PROGRAM = [sys.executable, "-c", "import sys; from tidings.cli import main; sys.exit(main())"]
PATIENCE = 60.0
COLUMNS = ["APPLICATION", "STREAM", "SHARD", "DATAMARKER", "HEAD", "LAG", "LAG-SECONDS"]
COLUMNS += ["OWNER", "EPOCH", "SUBSCRIBER", "STATE"]


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def joined(zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of the test's own, as the environment names it, with a stream `contacts` of 2 shards."""
    address = f"{zookeeper}/{uuid.uuid4()}"
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", address)
    monkeypatch.delenv("TIDINGS_ZOOKEEPER_CREDENTIALS", raising=False)
    monkeypatch.delenv("TIDINGS_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    with connect(address) as cluster:
        cluster.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}")
        yield cluster


@pytest.fixture
def run(joined: Cluster, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def cache(joined: Cluster) -> Cluster:
    """The same cluster, with an application `cache` that reads all of `contacts`."""
    joined.create_application("cache", ["contacts"], start="earliest")
    return joined


@pytest.fixture
def publisher(cache: Cluster) -> Iterator[Publisher]:
    """A publisher in this process, whose datamarkers move fast."""
    with cache.publisher(name="here", token_interval=0.1) as publisher:
        yield publisher


@contextlib.contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, killed at the end if it still runs."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen([*PROGRAM, *arguments], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> Result:
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out.decode(), err.decode())


def line(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The next line that it prints."""
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    assert ready, "nothing was printed"
    value: dict[str, Any] = json.loads(process.stdout.readline())
    return value


def publish(cluster: Cluster, *versions: int, objects: tuple[str, ...] = ("alice", "bob", "carol", "dave")) -> None:
    """An update of each object for each version, durable when it returns."""
    with cluster.stream("contacts").producer() as producer:
        for version in versions:
            for name in objects:
                producer.publish(name, version, payload=f"{name} {version}".encode())


def flow_list(run: Run, *arguments: str) -> list[dict[str, Any]]:
    result = run("flows", "list", "--json", *arguments)
    assert result.code == 0, result.err
    flows: list[dict[str, Any]] = result.json
    return flows


def lags(cluster: Cluster) -> list[int | None]:
    return [one.lag for one in status(cluster)]


def told(error: str) -> str:
    """The sentence, if it is one and no trace."""
    lines = error.splitlines()
    assert len(lines) == 1, error
    return lines[0]


# Applications


def test_an_application_is_defined_listed_described_and_dropped(run: Run) -> None:
    options = ["--stream", "contacts", "--filter", "region = eu", "--mode", "realtime", "--max-age", "PT30S"]
    made = run("applications", "create", "cache", *options, "--balance", "zookeeper")
    assert (made.code, made.out, made.err) == (0, "", "application 'cache' reads contacts\n")
    (listed,) = run("applications", "list", "--json").json
    assert listed == {
        "name": "cache",
        "streams": ["contacts"],
        "filter": "region = eu",
        "start": "latest",
        "mode": "realtime",
        "max_age": 30,
        "balance": "zookeeper",
    }
    table = run("applications", "list").out.splitlines()
    assert table[0].split() == ["APPLICATION", "STREAMS", "MODE", "START", "FILTER"]
    assert table[1].split() == ["cache", "contacts", "realtime", "latest", "region", "=", "eu"]
    described = run("applications", "describe", "cache", "--json").json
    assert described == {**listed, "subscribers": [], "flows": {"unassigned": 2}, "lag": None}
    assert "flows              2 unassigned\n" in run("applications", "describe", "cache").out
    assert run("applications", "drop", "cache").code == 2, "nobody can be asked"
    assert run("applications", "drop", "cache", "--yes").err.startswith("application 'cache' is dropped")
    assert run("applications", "list", "--json").json == []


def test_dropping_asks_first(cache: Cluster) -> None:
    for answer, code, left in ((b"n\n", 1, 1), (b"y\n", 0, 0)):
        terminal, end = pty.openpty()
        with started("applications", "drop", "cache", stdin=end) as process:
            os.write(terminal, answer)
            result = ended(process)
        assert result.code == code
        assert result.err.startswith("Drop application 'cache' and its datamarkers? [y/N]:")
        assert len(cache.applications()) == left
        os.close(terminal)
        os.close(end)


def test_an_application_that_is_there_is_made_again_only_if_it_is_the_same(run: Run) -> None:
    arguments = ("applications", "create", "cache", "--stream", "contacts", "--json")
    assert run(*arguments).json == run(*arguments).json
    other = run(*arguments, "--start", "earliest")
    assert (other.code, told(other.err)) == (
        1,
        "error: application 'cache' is there already, with another definition; drop it first",
    )


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z"),
        ('{"contacts": {"1": 1200}}', {"contacts": {"1": 1200}}),
    ],
)
def test_an_application_starts_where_it_is_told(run: Run, text: str, start: Any) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--start", text, "--json")
    assert made.json["start"] == start


def test_a_filter_that_cannot_be_meant_is_warned_of(run: Run) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--filter", "shard = 7")
    assert made.code == 0
    assert made.err.startswith("warning: the filter of application 'cache': `shard = 7` holds for no update")
    assert len(made.err.splitlines()) == 2, "once, and as a command tells it"


def test_a_filter_that_does_not_parse_is_shown_with_a_caret(run: Run) -> None:
    made = run("applications", "create", "cache", "--stream", "contacts", "--filter", "mcd_key xists")
    assert made.code == 2
    message = (
        "Error: Invalid value for '--filter': column 9: expected 'exists', '=', '!=', 'in' or 'matches', not 'xists'"
    )
    assert made.err.splitlines()[-3:] == [message, "  mcd_key xists", "          ^"]
    assert run("applications", "list", "--json").json == []


def test_applications_of_a_file_are_those_of_the_command_line(joined: Cluster, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text("applications:\n  cache: {streams: [contacts], filter: kind = foo, start: earliest}\n")
    applied = run("apply")
    assert applied.code == 0
    assert applied.err.startswith("warning: the filter of application 'cache': `kind = foo` holds for no update")
    options = ("--filter", "kind = foo", "--start", "earliest")
    assert run("applications", "create", "cache", "--stream", "contacts", *options).code == 0, "it is the same"
    assert run("apply").err.endswith("0 done\n")


def test_an_application_is_applied_beside_a_subscriber_that_was_there_first(
    joined: Cluster, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "tidings.yml").write_text("applications:\n  cache: {streams: [contacts]}\n")
    joined.coordination.create({}, "applications", "cache", "subscribers", "one")
    assert run("apply").code == 0
    assert joined.application("cache").streams == ("contacts",)


def test_a_file_with_a_filter_that_does_not_parse_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tidings.yml"
    file.write_text("applications:\n  cache:\n    streams: [contacts]\n    filter: a or\n    max_age: PT1M\n")
    applied = run("apply")
    assert applied.code == 1
    message, text, caret = applied.err.splitlines()
    assert message.startswith("error: tidings.yml:4: applications.cache.filter: column 3: ")
    assert (text, caret) == ("error:   a or", "error:     ^")
    file.write_text("applications:\n  cache: {streams: [contacts], max_age: PT1M}\n")
    assert told(run("apply").err).endswith("max_age: is for mode: realtime; reliable sends every update")


# Subscribe and publisher


def test_updates_come_from_the_publisher_to_the_subscriber_and_are_acknowledged(cache: Cluster, run: Run) -> None:
    publish(cache, 1, 2, 3)
    with started("publisher", "--streams", "contacts", "--name", "east", "--token-interval", "0.1") as publisher:
        with started("subscribe", "cache", "--json", "--id", "one", "--limit", "12") as process:
            result = ended(process)
        assert result.code == 0, result.err
        updates = [json.loads(text) for text in result.out.splitlines()]
        assert {update["stream"] for update in updates} == {"contacts"}
        for name in ("alice", "bob", "carol", "dave"):
            assert [one["version"] for one in updates if one["object"] == name] == [1, 2, 3]
        assert updates[0]["payload"] == f"{updates[0]['object']} {updates[0]['version']}"
        eventually(lambda: lags(cache) == [0, 0])
        assert {one["owner"] for one in flow_list(run)} == {"east"}
        publisher.send_signal(signal.SIGTERM)
        assert ended(publisher).code == 143
    publish(cache, 4)
    assert sum(one["lag"] for one in flow_list(run)) == 4, "what was acknowledged is not owed again"


def test_an_update_is_printed_as_tail_prints_it(cache: Cluster, publisher: Publisher) -> None:
    publish(cache, 7, objects=("alice",))
    with started("subscribe", "cache", "--limit", "1") as process:
        result = ended(process)
    assert result.code == 0, result.err
    shard = cache.stream("contacts").shard_of("alice")
    assert result.out.split("  ")[1:] == [f"contacts/{shard}/0", "alice", "v7", "alice 7\n"]


def test_a_limit_that_cuts_a_batch_leaves_the_rest_for_the_next(cache: Cluster, publisher: Publisher) -> None:
    publish(cache, *range(10), objects=("alice",))
    with started("subscribe", "cache", "--json", "--limit", "3") as process:
        assert [json.loads(text)["version"] for text in ended(process).out.splitlines()] == [0, 1, 2]
    with started("subscribe", "cache", "--json", "--limit", "10") as process:
        assert [json.loads(text)["version"] for text in ended(process).out.splitlines()] == list(range(10))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_subscriber_that_is_stopped_leaves_at_once(
    cache: Cluster, publisher: Publisher, run: Run, number: signal.Signals, code: int
) -> None:
    publish(cache, 1)
    with started("subscribe", "cache", "--json", "--id", "one") as process:
        line(process)
        (subscriber,) = run("applications", "describe", "cache", "--json").json["subscribers"]
        assert (subscriber["id"], subscriber["capacity"]) == ("one", 1.0)
        process.send_signal(number)
        result = ended(process)
    assert result.code == code
    assert "Traceback" not in result.err
    assert run("applications", "describe", "cache", "--json").json["subscribers"] == []
    eventually(lambda: {one.state for one in status(cache)} == {"waiting"})


def test_a_subscriber_ends_when_nobody_reads_it_and_parks_nothing(cache: Cluster, publisher: Publisher) -> None:
    publish(cache, 1)
    with started("subscribe", "cache", "--json") as process:
        line(process)
        assert process.stdout
        process.stdout.close()
        publish(cache, 2)
        assert process.wait(PATIENCE) == 1
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
    assert all(one.reason is None for one in status(cache))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_that_fails_gets_its_batch_again_until_it_succeeds(
    cache: Cluster, publisher: Publisher, tmp_path: Path
) -> None:
    """The first two runs keep nothing and fail; what the others keep is everything, once."""
    command = script(
        tmp_path / "load.sh",
        "cat > batch.$$; echo x >> runs; [ $(wc -l < runs) -gt 2 ] || { rm batch.$$; exit 3; }\n"
        'cat batch.$$ >> kept; echo "$TIDINGS_APPLICATION/$TIDINGS_STREAM/$TIDINGS_SHARD" >> flows',
    )
    publish(cache, 1, 2)
    with started("subscribe", "cache", "--exec", command, "--limit", "8") as process:
        result = ended(process)
    assert result.code == 0, result.err
    assert "on_batch: CommandFailed: the command ended with exit code 3 (attempt 2)" in result.err
    kept = [json.loads(text) for text in (tmp_path / "kept").read_text().splitlines()]
    for name in ("alice", "bob", "carol", "dave"):
        assert [one["version"] for one in kept if one["object"] == name] == [1, 2]
    shards = {cache.stream("contacts").shard_of(name) for name in ("alice", "bob", "carol", "dave")}
    assert set((tmp_path / "flows").read_text().split()) == {f"cache/contacts/{shard}" for shard in shards}
    eventually(lambda: lags(cache) == [0, 0])


def test_a_command_that_always_fails_parks_its_flow_where_operators_see_why(
    cache: Cluster, publisher: Publisher, run: Run
) -> None:
    publish(cache, 1, objects=("alice",))
    shard = cache.stream("contacts").shard_of("alice")
    with started("subscribe", "cache", "--exec", "cat > /dev/null; kill -9 $$", "--id", "one") as process:
        eventually(lambda: status(cache, shard=shard)[0].state == "parked", PATIENCE)
        (parked,) = (one for one in flow_list(run) if one["shard"] == shard)
        assert parked["reason"] == "on_batch: CommandFailed: the command was killed by signal 9"
        assert (parked["datamarker"], parked["lag"], parked["subscriber"]) == (None, 1, "one")
        assert "parked: on_batch: CommandFailed: the command was killed by signal 9" in run("flows", "list").out
        described = run("flows", "describe", f"cache/contacts/{shard}").out
        assert "reason             on_batch: CommandFailed" in described
        assert run("applications", "describe", "cache", "--json").json["flows"] == {"parked": 1, "running": 1}
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 143


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_command_that_hangs_does_not_outlive_its_subscriber(
    cache: Cluster, publisher: Publisher, tmp_path: Path
) -> None:
    publish(cache, 1, objects=("alice",))
    with started("subscribe", "cache", "--exec", "echo $$ > pid.new; mv pid.new pid; sleep 600; true") as process:
        eventually((tmp_path / "pid").exists, PATIENCE)
        child = int((tmp_path / "pid").read_text())
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 143
    eventually(lambda: not group_lives(child), PATIENCE)  # its parent is gone: init reaps it when it gets to it
    assert status(cache, shard=cache.stream("contacts").shard_of("alice"))[0].lag == 1


def test_lost_updates_are_told_with_their_positions(cache: Cluster) -> None:
    log = cache.stream("contacts").writable_log
    shard = cache.stream("contacts").shard_of("alice")
    publish(cache, *range(5), objects=("alice",))
    with cache.publisher(token_interval=0.1):
        with started("subscribe", "cache", "--json", "--limit", "5") as process:
            assert ended(process).code == 0
        eventually(lambda: status(cache, shard=shard)[0].lag == 0)
    for version in range(5, 9):  # a file each, so that truncation can let go of some
        publish(cache, version, objects=("alice",))
    log.truncate(Positions({shard: Position(7)}))
    with (
        cache.publisher(token_interval=0.1),
        started("subscribe", "cache", "--json", "--limit", "2") as process,
    ):
        result = ended(process)
    assert f"lost: cache/contacts/{shard}: 5 to 6" in result.err.splitlines()
    assert [json.loads(text)["version"] for text in result.out.splitlines()] == [7, 8]


def test_skipped_updates_are_counted(joined: Cluster) -> None:
    joined.create_application("cache", ["contacts"], mode="realtime", max_age=600)
    shard = joined.stream("contacts").shard_of("alice")
    with joined.publisher(token_interval=0.1):
        eventually(lambda: status(joined, shard=shard)[0].datamarker, PATIENCE)
        with joined.stream("contacts").producer() as producer:
            for version in range(3):
                producer.publish("alice", version, time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
            producer.publish("alice", 3)
        with started("subscribe", "cache", "--json", "--limit", "1") as process:
            result = ended(process)
    assert json.loads(result.out)["version"] == 3
    assert f"skipped: cache/contacts/{shard}: 3 updates, too old" in result.err.splitlines()


def test_a_publisher_that_is_terminated_releases_its_flows_at_once(cache: Cluster, run: Run) -> None:
    with started("publisher", "--session-timeout", "60", "--name", "east") as process:
        eventually(lambda: [one["owner"] for one in flow_list(run)] == ["east", "east"], PATIENCE)
        assert {one["epoch"] for one in flow_list(run)} == {1}
        process.send_signal(signal.SIGTERM)
        result = ended(process)
        since = time.monotonic()
        assert result.code == 143
        assert "publisher east owns cache/contacts/0, epoch 1" in result.err
        assert "publisher east has released cache/contacts/1" in result.err
        assert [(one["owner"], one["state"]) for one in flow_list(run)] == [(None, "unassigned")] * 2
        assert cache.coordination.children("publishers") == []
        assert time.monotonic() - since < 20, "well before its session could time out"


def test_the_token_is_shared_through_files(cache: Cluster, tmp_path: Path, run: Run) -> None:
    (tmp_path / "token").write_text("a-secret\n")
    (tmp_path / "other").write_text("another\n")
    publish(cache, 1, objects=("alice",))
    with started("subscribe", "cache", "--json", "--limit", "1", "--token-file", "token") as process:
        with started("publisher", "--token-file", "other", "--name", "wrong") as wrong:
            eventually(lambda: {one.owner for one in status(cache)} == {"wrong"}, PATIENCE)
            assert wrong.stderr
            heard = b""
            while b"a token is needed" not in heard:
                ready, _, _ = select.select([wrong.stderr], [], [], PATIENCE)
                assert ready, heard
                heard += os.read(wrong.stderr.fileno(), 65536)
            wrong.send_signal(signal.SIGTERM)
            assert wrong.wait(PATIENCE) == 143
        environment = {**os.environ, "TIDINGS_TOKEN": "a-secret"}
        with started("publisher", "--token-interval", "0.1", env=environment, stderr=subprocess.DEVNULL):
            result = ended(process)
    assert (result.code, json.loads(result.out)["object"]) == (0, "alice")
    assert "a-secret" not in result.err


# Flows


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


def test_a_flow_is_with_a_subscriber_only_in_its_own_epoch_and_while_that_runs(cache: Cluster) -> None:
    flow = Flow("cache", "contacts", 0)
    ownership = Ownership(cache.coordination, "east")

    def now() -> FlowStatus:
        return status(cache, shard=0)[0]

    epoch = ownership.take(flow, {})
    assert epoch is not None
    assert (now().state, now().subscriber) == ("waiting", None)
    ownership.write(flow, epoch, "subscriber", {"id": "one", "epoch": epoch})
    assert (now().state, now().subscriber) == ("waiting", None), "that subscriber does not run"
    with cache.subscribe("cache", Handler(), id="one"):
        assert (now().state, now().subscriber) == ("running", "one")
        ownership.write(flow, epoch, "subscriber", {"id": "one", "epoch": epoch, "parked": "no"})
        assert (now().state, now().reason) == ("parked", "no")
        ownership.release(flow, epoch)
        assert (now().state, now().reason, now().epoch) == ("unassigned", None, epoch)
        assert ownership.take(flow, {}) == epoch + 1
        assert (now().state, now().subscriber) == ("waiting", None)


def test_the_lag_counts_what_the_log_still_holds(cache: Cluster) -> None:
    shard = cache.stream("contacts").shard_of("alice")
    flow = Flow("cache", "contacts", shard)
    for version in range(4):
        publish(cache, version, objects=("alice",))
    ownership = Ownership(cache.coordination, "east")
    epoch = ownership.take(flow, {})
    assert epoch is not None
    for position, lag in ((START, 4), (Position(1), 2), (Position(1, -1), 3), (Position(3), 0)):
        ownership.write(flow, epoch, "datamarker", Datamarker.now(position, epoch).to_json())
        assert status(cache, shard=shard)[0].lag == lag
    cache.stream("contacts").writable_log.truncate(Positions({shard: Position(2)}))
    ownership.write(flow, epoch, "datamarker", Datamarker.now(START, epoch).to_json())
    (one,) = status(cache, shard=shard)
    assert one.lag == 2
    assert one.lag_seconds is not None
    assert one.lag_seconds > 0


def test_the_lag_is_known_for_many_shards_of_very_different_lag(joined: Cluster, tmp_path: Path) -> None:
    joined.create_stream("wide", 300, f"delta:{tmp_path / 'wide'}")
    with joined.stream("wide").producer() as producer:
        for number in range(3_000):
            producer.publish(f"object-{number}", 1)
        for number in range(20_000):
            producer.publish("hot", number)
    joined.create_application("all", ["wide"])
    joined.create_application("some", ["wide"])
    stands = {Flow("all", "wide", shard): START for shard in range(300)}
    stands |= {Flow("some", "wide", shard): Position(1) for shard in range(300)}
    for flow, position in stands.items():
        joined.coordination.create(Datamarker.now(position, 1).to_json(), *flow.place, "datamarker")
    flows = status(joined)
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


# Bad input


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("applications create x --stream nope", 1, "error: there is no stream 'nope' in "),
        ("applications create x", 2, "Missing option '--stream'"),
        ("applications create x/y --stream contacts", 1, "error: 'x/y' is no name for an application"),
        ("applications create x --stream contacts --stream contacts", 1, "each named once"),
        ("applications create x --stream contacts --mode fast", 1, "error: mode 'fast' of application 'x' is none of"),
        ("applications create x --stream contacts --max-age PT30S", 1, "and for realtime mode"),
        ("applications create x --stream contacts --max-age 30", 2, "Invalid value for '--max-age'"),
        ("applications create x --stream contacts --balance nope", 1, "error: no balancer 'nope' is installed"),
        ("applications create x --stream contacts --start {}", 2, "Invalid value for '--start'"),
        ("applications create x --stream contacts --start tomorrow", 2, "Invalid value for '--start'"),
        ("applications create x --stream contacts --start {", 2, "Invalid value for '--start'"),
        ('applications create x --stream contacts --start {"a":{"0":1}}', 1, "stream 'a' is none of the application's"),
        ('applications create x --stream contacts --start {"contacts":{"9":1}}', 1, "has shards 0 to 1"),
        ("applications describe nope", 1, "error: there is no application 'nope' in "),
        ("applications drop nope --yes", 1, "error: there is no application 'nope' in "),
        ("subscribe nope", 1, "error: there is no application 'nope' in "),
        ("subscribe cache --address here", 1, "error: 'here' is no address to listen on"),
        ("subscribe cache --id a/b", 1, "error: 'a/b' is no name for a subscriber"),
        ("subscribe cache --capacity 0", 2, "Invalid value for '--capacity'"),
        (
            "subscribe cache --token-file nope",
            2,
            "Invalid value for '--token-file': 'nope' cannot be read: No such file",
        ),
        (
            "subscribe cache --token-file empty",
            2,
            "Invalid value for '--token-file': 'empty' holds no token: it is empty",
        ),
        ("subscribe cache --token-file .", 2, "Invalid value for '--token-file'"),
        ("subscribe cache --tls-certificate nope", 2, "Invalid value for '--tls-certificate': 'nope' cannot be read"),
        ("subscribe cache --tls-certificate junk", 2, "error: TLS needs both --tls-certificate and --tls-key"),
        ("subscribe cache --tls-certificate junk --tls-key junk", 1, "'junk' and 'junk' are no certificate in PEM"),
        (
            "subscribe cache --address 203.0.113.7:1",
            1,
            "cannot listen on 203.0.113.7:1: Cannot assign requested address",
        ),
        ("subscribe cache --json --exec cat", 2, "error: --json is about printing"),
        ("publisher --streams nope", 1, "error: there is no stream 'nope' in "),
        ("publisher --streams contacts,", 2, "error: --streams is a list of names"),
        ("publisher --name a/b", 1, "error: 'a/b' is no name for a publisher"),
        ("publisher --token-file nope", 2, "Invalid value for '--token-file'"),
        ("publisher --tls-authority nope", 2, "Invalid value for '--tls-authority'"),
        ("flows list --application nope", 1, "error: there is no application 'nope' in "),
        ("flows list --stream nope", 1, "error: there is no stream 'nope' in "),
        (
            "flows list --application cache --stream clicks",
            1,
            "error: application 'cache' does not read stream 'clicks'",
        ),
        ("flows describe cache/contacts", 2, "'cache/contacts' is no flow; write APP/STREAM/SHARD"),
        ("flows describe cache/contacts/9", 1, "error: stream 'contacts' has shards 0 to 1, not 9"),
        ("flows describe nope/contacts/0", 1, "error: there is no application 'nope' in "),
    ],
)
def test_bad_input_is_one_clear_sentence(
    cache: Cluster, run: Run, tmp_path: Path, arguments: str, code: int, message: str
) -> None:
    cache.create_stream("clicks", 2, f"delta:{tmp_path / 'clicks'}")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "junk").write_text("no certificate\n")
    result = run(*arguments.split())
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err.splitlines()[-1]
    assert "Traceback" not in result.err
    if code == 1:
        told(result.err)
    assert run("applications", "describe", "cache", "--json").json["subscribers"] == []


def test_two_subscribers_cannot_have_one_id(cache: Cluster, run: Run) -> None:
    with cache.subscribe("cache", Handler(), id="one"):
        result = run("subscribe", "cache", "--id", "one")
    assert (result.code, told(result.err)) == (1, "error: application 'cache' has a subscriber 'one' already")


def test_a_port_that_is_in_use_is_told(cache: Cluster, run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("subscribe", "cache", "--address", address)
    assert result.code == 1
    assert told(result.err) == f"error: cannot listen on {address}: Address already in use"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("tidings-subscriber")]


def test_a_token_in_the_environment_that_cannot_be_one_is_not_printed(
    cache: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_TOKEN", "two words")
    result = run("subscribe", "cache")
    assert (result.code, told(result.err)) == (
        1,
        "error: 'TIDINGS_TOKEN' holds no token: one line of ASCII without spaces is wanted",
    )
