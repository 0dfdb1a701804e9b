"""`tidings publisher`: a process that sends flows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.support.commands import PATIENCE_S, Run, ended, flow_list, lags, publish, started, told
from tests.support.scraping import ready, scraped
from tidings.cluster import Cluster
from tidings.testing import eventually


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


def test_a_publisher_that_is_terminated_releases_its_flows_at_once(cache: Cluster, run: Run) -> None:
    with started("publisher", "--session-timeout", "60", "--name", "east") as process:
        eventually(lambda: [one["owner"] for one in flow_list(run)] == ["east", "east"], PATIENCE_S)
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


# The kernel may hand a signal to any thread, as to one of gRPC's.
SIGNALLED_ELSEWHERE = """
import signal, sys, threading
from tidings.cli import main

def end():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=end, daemon=True).start()
sys.exit(main())
"""


def test_a_signal_that_reaches_another_thread_ends_it_too(cache: Cluster) -> None:
    command = [sys.executable, "-c", SIGNALLED_ELSEWHERE, "publisher"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            eventually(lambda: cache.coordination.children("publishers"), PATIENCE_S)
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.wait(PATIENCE_S) == 143
        finally:
            process.kill()


def test_the_secret_and_the_key_made_of_it_are_in_files(cache: Cluster, tmp_path: Path, run: Run) -> None:
    old, new = "a-secret-of-the-cluster", run("keys", "new").out.strip()
    (tmp_path / "old").write_text(f"{old}\n")
    (tmp_path / "both").write_text(f"{new}\n{old}\n")  # the second one is on its way out
    (tmp_path / "other").write_text("another-secret-of-no-cluster\n")
    (tmp_path / "key").write_text(run("keys", "show", "--application", "cache", "--secret-file", "old").out)
    assert len(run("keys", "show", "--application", "cache", "--secret-file", "both").out.split()) == 2
    publish(cache, 1, objects=("alice",))
    with started("subscribe", "cache", "--json", "--limit", "1", "--application-key", "key") as process:
        with started("publisher", "--secret-file", "other", "--name", "wrong") as wrong:
            eventually(lambda: {one["state"] for one in flow_list(run)} == {"restarting"}, PATIENCE_S, every=0.5)
            ((owner, reason),) = {(one["owner"], one["reason"]) for one in flow_list(run)}
            assert owner == "wrong"
            assert reason.startswith("the subscriber says of publisher 'wrong' at 127.0.0.1:")
            assert reason.endswith(
                ": it does not know our key: it has another secret, or the key is another application's"
            )
            wrong.send_signal(signal.SIGTERM)
            assert wrong.wait(PATIENCE_S) == 143
        environment = {**os.environ, "TIDINGS_SECRET": f"{new}\n{old}"}
        with started("publisher", "--token-interval", "0.1", env=environment, stderr=subprocess.DEVNULL):
            result = ended(process)
    assert (result.code, json.loads(result.out)["object"]) == (0, "alice")
    assert old not in result.err
    assert (tmp_path / "key").read_text().strip() not in result.err


def test_a_port_that_is_in_use_is_told(cache: Cluster, run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("publisher", "--listen", address)
    assert result.code == 1
    assert told(result.err) == f"error: cannot listen on {address}: Address already in use"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("tidings-control")]


def test_a_publisher_and_a_subscriber_serve_metrics_and_health(cache: Cluster, run: Run) -> None:
    publish(cache, 1, 2, 3)
    options = ("--token-interval", "0.1", "--metrics-by-shard", "--progress-timeout", "5")
    with (
        started("publisher", "--metrics", "0", *options) as publisher,
        started("subscribe", "cache", "--id", "one", "--metrics", "127.0.0.1:0") as subscriber,
    ):
        sending, receiving = metrics_of(publisher), metrics_of(subscriber)
        key = ("tidings_subscriber_processed_updates_total", "cache", "contacts")
        scraped(receiving, key, lambda updates: updates == 12)
        for shard in "01":
            scraped(sending, ("tidings_consumergroup_lag", "cache", shard, "contacts"), lambda lag: lag == 0)
        assert ready(sending) == ready(receiving) == (True, "ready\n")
        result = run("publisher", "--metrics", sending)
        assert result.code == 1
        assert told(result.err) == f"error: nothing can be served at {sending}: Address already in use"
        assert len(cache.coordination.children("publishers")) == 1, "before it has joined"


def metrics_of(process: subprocess.Popen[bytes]) -> str:
    """Where a command says that its metrics are."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(rb"metrics are at http://([^/]+)/metrics", line):
            return found[1].decode()
    raise AssertionError("it does not say where its metrics are")
