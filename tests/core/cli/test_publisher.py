"""`tidings publisher`: a process that sends flows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.commands import PATIENCE_S, Run, ended, flow_list, lags, publish, started
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


def test_the_token_is_shared_through_files(cache: Cluster, tmp_path: Path, run: Run) -> None:
    (tmp_path / "token").write_text("a-new-one\na-secret\n")  # the second one is on its way out
    (tmp_path / "other").write_text("another\n")
    publish(cache, 1, objects=("alice",))
    with started("subscribe", "cache", "--json", "--limit", "1", "--token-file", "token") as process:
        with started("publisher", "--token-file", "other", "--name", "wrong") as wrong:
            eventually(lambda: {one["state"] for one in flow_list(run)} == {"failing"}, PATIENCE_S, every=0.5)
            assert {(one["owner"], one["reason"]) for one in flow_list(run)} == {
                ("wrong", "it does not accept our token: both sides need the same one")
            }
            wrong.send_signal(signal.SIGTERM)
            assert wrong.wait(PATIENCE_S) == 143
        environment = {**os.environ, "TIDINGS_TOKEN": "a-secret"}
        with started("publisher", "--token-interval", "0.1", env=environment, stderr=subprocess.DEVNULL):
            result = ended(process)
    assert (result.code, json.loads(result.out)["object"]) == (0, "alice")
    assert "a-secret" not in result.err
