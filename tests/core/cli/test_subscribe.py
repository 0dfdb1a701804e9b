"""`tidings subscribe`: updates on stdout or to a command, and how it ends."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.support.commands import PATIENCE_S, Run, ended, flow_list, lags, line, publish, started, told
from tidings import Handler
from tidings.cluster import Cluster
from tidings.flow_status import status
from tidings.identity.keys import application_key
from tidings.positions import Position, Positions
from tidings.publisher.publisher import Publisher
from tidings.testing import eventually
from tidings.wire.security import Security


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
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()
    assert not [one.reason for one in status(cache) if "failed" in (one.reason or "")]


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


def test_a_command_sees_none_of_our_secrets(cache: Cluster, tmp_path: Path) -> None:
    secrets = {
        "TIDINGS_SECRET": "hidden-secret-of-the-cluster",
        "TIDINGS_APPLICATION_KEY": application_key("hidden-secret-of-the-cluster", "cache"),
        "TIDINGS_ZOOKEEPER_CREDENTIALS": "user:hidden-credentials",
        "MYSQL_PWD": "hidden-mysql",
        "PGPASSWORD": "hidden-postgres",
    }
    publish(cache, 1, objects=("alice",))
    options = {"env": {**os.environ, **secrets, "MINE": "shown"}}
    with (
        cache.publisher(token_interval=0.2, security=Security(secret="hidden-secret-of-the-cluster")),
        started("subscribe", "cache", "--exec", "env > seen; cat > /dev/null", "--limit", "1", **options) as process,
    ):
        result = ended(process)
    assert result.code == 0, result.err
    seen = (tmp_path / "seen").read_text()
    assert not [value for value in secrets.values() if value in seen]
    assert "MINE=shown" in seen.splitlines()
    assert "TIDINGS_STREAM=contacts" in seen.splitlines()


def test_a_command_that_always_fails_parks_its_flow_where_operators_see_why(
    cache: Cluster, publisher: Publisher, run: Run
) -> None:
    publish(cache, 1, objects=("alice",))
    shard = cache.stream("contacts").shard_of("alice")
    with started("subscribe", "cache", "--exec", "cat > /dev/null; kill -9 $$", "--id", "one") as process:
        eventually(lambda: status(cache, shard=shard)[0].state == "failed", PATIENCE_S)
        (parked,) = (one for one in flow_list(run) if one["shard"] == shard)
        assert parked["reason"] == "at 0, on_batch: CommandFailed: the command was killed by signal 9"
        assert (parked["datamarker"], parked["lag"], parked["subscriber"]) == (None, 1, "one")
        assert "failed: at 0, on_batch: CommandFailed: the command was killed by signal 9" in run("flows", "list").out
        described = run("flows", "describe", f"cache/contacts/{shard}").out
        assert "reason             at 0, on_batch: CommandFailed" in described
        assert run("applications", "describe", "cache", "--json").json["flows"] == {"failed": 1, "running": 1}
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
        eventually((tmp_path / "pid").exists, PATIENCE_S)
        child = int((tmp_path / "pid").read_text())
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 143
    eventually(lambda: not group_lives(child), PATIENCE_S)  # its parent is gone: init reaps it when it gets to it
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


def test_skipped_updates_are_counted(small: Cluster) -> None:
    small.create_application("cache", ["contacts"], mode="realtime", max_age=600)
    shard = small.stream("contacts").shard_of("alice")
    with small.publisher(token_interval=0.1):
        eventually(lambda: status(small, shard=shard)[0].datamarker, PATIENCE_S)
        with small.stream("contacts").producer() as producer:
            for version in range(3):
                producer.publish("alice", version, time=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
            producer.publish("alice", 3)
        with started("subscribe", "cache", "--json", "--limit", "1") as process:
            result = ended(process)
    assert json.loads(result.out)["version"] == 3
    assert f"skipped: cache/contacts/{shard}: 3 updates, too old" in result.err.splitlines()


def test_an_update_that_an_operator_skips_is_not_said_to_be_too_old(cache: Cluster, run: Run) -> None:
    shard = cache.stream("contacts").shard_of("alice")
    publish(cache, 5, 6, 7, objects=("alice",))
    assert run("flows", "skip", f"cache/contacts/{shard}", "--position", "1", "--execute").code == 0
    with cache.publisher(token_interval=0.1), started("subscribe", "cache", "--limit", "2") as process:
        result = ended(process)
    assert f"skipped: cache/contacts/{shard}: 1 update, skipped by an operator" in result.err.splitlines()


def test_two_subscribers_cannot_have_one_id(cache: Cluster, run: Run) -> None:
    with cache.subscribe("cache", Handler(), id="one"):
        result = run("subscribe", "cache", "--id", "one")
    waits, *_, error = result.err.splitlines()  # between them the first may say that no publisher serves it
    assert "applications/cache/subscribers/one is another process's; waits" in waits
    assert (result.code, error) == (
        1,
        "error: application 'cache' has a subscriber 'one' already; give this one another id",
    )


def test_a_key_in_the_environment_that_cannot_be_one_is_not_printed(
    cache: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_APPLICATION_KEY", "two words")
    result = run("subscribe", "cache")
    assert (result.code, told(result.err)) == (
        1,
        "error: 'TIDINGS_APPLICATION_KEY' holds no secret: lines of ASCII without spaces are wanted",
    )
