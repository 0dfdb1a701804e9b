"""`tidings up`, as a process of its own with all that belongs to it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.all_up import OWN, AllUp, all_up
from tests.support.commands import PROGRAM, Result, publish
from tests.support.subscribers import Seen
from tidings.cluster import Cluster, connect
from tidings.testing import eventually

SPEC = """
streams:
  contacts: {shards: 2, log: delta:data/contacts}
applications:
  cache: {streams: [contacts], start: earliest}
"""
SERVICE = """
streams:
  people: {shards: 1, log: delta:data/people}
  contacts.operations: {shards: 1, log: delta:data/operations}
  contacts.notifications: {shards: 1, log: delta:data/notifications}
pipelines:
  telling:
    input: [people, contacts.operations]
    stage: thialfi
    options: {service: contacts, away_days: 7}
    output: contacts.notifications
"""
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z (INFO|WARNING|ERROR) "
    r"(up|zookeeper|publisher-\d|pipelines|gateway-contacts): \S.*"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tidings.yml").write_text(SPEC)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> Result:
    """`tidings up`, which ends by itself."""
    return run_exactly(folder, *OWN[:-1], *arguments, **environment)


def refused(folder: Path, *arguments: str) -> str:
    """What it says of arguments that it does not take."""
    result = run_exactly(folder, *arguments)
    assert (result.code, result.out) == (2, ""), result
    return result.err


def run_exactly(folder: Path, *arguments: str, **environment: str) -> Result:
    """The same, with no other arguments."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    done = subprocess.run(
        [*PROGRAM, "up", *arguments],
        cwd=folder,
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def seeing(up: AllUp) -> Iterator[tuple[Cluster, Seen]]:
    """What a subscriber of `cache` sees."""
    seen = Seen()
    with connect(up.zookeeper) as cluster, cluster.subscribe("cache", seen, id="here"):
        yield cluster, seen


def saw(seen: Seen, version: int) -> bool:
    return sum(update.version == version for update in seen.updates) >= 4


@pytest.mark.slow
def test_a_killed_publisher_comes_back_ctrl_c_ends_all_and_a_restart_goes_on_where_it_stood(project: Path) -> None:
    with all_up(project) as up:
        with seeing(up) as (cluster, seen):
            publish(cluster, 1)
            eventually(lambda: saw(seen, 1), timeout=20)
            first = up.members["publisher-1"]["pid"]
            os.kill(first, signal.SIGKILL)
            publish(cluster, 2)
            eventually(lambda: saw(seen, 2), timeout=40)
            record = cluster.coordination.read("publishers", "publisher-1")
            assert record is not None
            assert record["pid"] != first
        assert len(up.pids()) >= 3, "ZooKeeper with its supervisor, and a publisher"
        assert up.end(signal.SIGINT) == 130
        assert not up.alive()
    log = up.log.read_text()
    assert "ERROR publisher-1: has ended with SIGKILL; it is started again in 1 s (restart 1)" in log
    assert not [line for line in log.splitlines() if not LINE.fullmatch(line)], "one form for all lines"
    # Whoever was told to name the address names it still.
    with all_up(project, TIDINGS_ZOOKEEPER=up.zookeeper) as again:
        with seeing(again) as (cluster, seen):
            publish(cluster, 3)
            eventually(lambda: saw(seen, 3), timeout=20)
            assert {update.version for update in seen.updates} == {3}, "what was acknowledged is not sent again"
        assert again.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: not again.alive(), timeout=20)


@pytest.mark.slow
def test_it_runs_once_brings_zookeeper_back_and_ends_at_once_when_told_twice(project: Path) -> None:
    with all_up(project, "--publishers", "2") as up:
        twice = run(project)
        assert (twice.code, twice.out) == (1, "")
        who = f"process {up.process.pid} on {os.uname().nodename}"
        assert twice.err == f"error: {project / 'tidings.yml'} runs already: {who}; stop that one first\n"
        os.kill(up.members["zookeeper"]["pid"], signal.SIGKILL)
        eventually(lambda: "INFO zookeeper: runs again as process" in up.log.read_text(), timeout=20)
        with seeing(up) as (cluster, seen):
            publish(cluster, 1)
            eventually(lambda: saw(seen, 1), timeout=20)
        up.process.send_signal(signal.SIGTERM)
        assert up.end(signal.SIGTERM) == 143
    log = up.log.read_text()
    assert "WARNING up: ZooKeeper at" in log
    assert not [line for line in log.splitlines() if not LINE.fullmatch(line)], "one form for all lines"


def test_a_mistake_is_told_with_its_line_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SPEC.replace("shards: 2", "shards: 0"))
    result = run(tmp_path)
    assert (result.code, result.out) == (1, "")
    assert result.err == "error: tidings.yml:3: streams.contacts.shards: must be at least 1, not 0\n"
    assert not (tmp_path / "storage").exists()
    assert run(tmp_path, "--publishers", "many").code == 2
    assert "--zookeeper names one that runs" in refused(tmp_path, "--zookeeper-port", "1", "--zookeeper", "zk1:2181")
    assert "one or the other" in refused(tmp_path, "--no-console", "--console", "8090")
    assert "is no address" in refused(tmp_path, "--console", "8090x", "--dry-run")
    assert "can be reached from other machines" in refused(tmp_path, "--console", "0.0.0.0:8090", "--dry-run")
    assert "there is no tidings.yml" in run(Path("/")).err


def test_a_dry_run_shows_what_would_be_started_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SERVICE)
    result = run(tmp_path, "--dry-run", "--publishers", "2")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "PROCESS",
        "publisher-1",
        "publisher-2",
        "pipelines",
        "gateway-contacts",
    ]
    assert run(tmp_path, "--dry-run", "--json").json["zookeeper"] is None
    given = run(tmp_path, "--dry-run", "--json", TIDINGS_ZOOKEEPER="zk1:2181/prod")
    assert given.json["zookeeper"] == "zk1:2181/prod"
    assert not (tmp_path / "storage").exists()


@pytest.mark.slow
def test_the_console_answers_once_all_are_said_to_run_and_the_table_says_how_to_sign_in(project: Path) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
    up = subprocess.Popen(
        [*PROGRAM, "up", "--zookeeper-port", "0", "--console", "0"],
        cwd=project,
        env={**known, "XDG_STATE_HOME": str(project / "state")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert up.stdout is not None
        lines = list(itertools.takewhile(lambda line: line != "Ctrl-C ends all.\n", up.stdout))
        (told,) = (line for line in lines if line.startswith("The console is at"))
        assert "sign in as admin, with the password in the log above" in told
        assert any("console: user 'admin' was made" in line for line in lines[: lines.index(told)])
        url = told.split()[4].rstrip(":")
        with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
            assert answer.status == 200
        busy = run_exactly(project.parent, str(other_project(project)), "--console", url.partition("//")[2])
        assert (busy.code, busy.out) == (1, "")
        assert "of the console is in use by another program" in busy.err
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=60)
    assert up.returncode == 130


def other_project(project: Path) -> Path:
    """A project beside this one."""
    folder = project / "other"
    folder.mkdir()
    (folder / "tidings.yml").write_text(SPEC)
    return folder / "tidings.yml"


@pytest.mark.slow
def test_a_service_of_the_file_gets_its_pipeline_and_a_gateway(tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(SERVICE)
    with all_up(tmp_path) as up:
        url = up.members["gateway-contacts"]["listens"]
        with urllib.request.urlopen(f"{url}/health/live", timeout=10) as answer:
            assert answer.status == 200
        with connect(up.zookeeper) as cluster:
            service = cluster.coordination.read("thialfi", "contacts")
            assert service is not None
            assert (service["streams"], service["pipeline"]) == (["people"], "telling")
        keys = tmp_path / "storage" / "up" / "gateway-contacts.keys"
        assert keys.stat().st_mode & 0o777 == 0o600
        assert any("java" in Path(f"/proc/{pid}/cmdline").read_text() for pid in up.pids())
        assert up.end(signal.SIGINT) == 130
    log = up.log.read_text()
    order = ["gateway-contacts: has ended", "pipelines: has ended", "publisher-1: has ended"]
    assert [log.index(one) for one in order] == sorted(log.index(one) for one in order)
    assert "up: waits for" in log
    assert not [line for line in log.splitlines() if not LINE.fullmatch(line)], "one form for all lines"
