"""`tidings run`, in this process and as a process of its own, on a real ZooKeeper and real logs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.commands import PROGRAM, Result, Run, started
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.coordination.pipeline_lock import PipelineLock
from tidings.testing import eventually, held, make_updates

PATIENCE_S = 120.0

SPEC = """
streams:
  contacts: {shards: 2, log: delta:data/contacts}
  europe: {shards: 2, log: delta:data/europe}
  tagged: {shards: 3, log: delta:data/tagged}
pipelines:
  europe:
    input: contacts
    stage: filter
    options: {filter: region = eu}
    output: europe
  tag:
    input: [europe]
    stage: map
    options: {set: {attributes.tag: {constant: seen}}}
    output: tagged
  newest: {input: contacts, stage: latest}
"""


@pytest.fixture
def project(zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A folder with the file above, in a cluster that has its streams."""
    address = f"{zookeeper}/{uuid.uuid4()}"
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", address)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidings.yml").write_text(SPEC)
    assert main(["apply"]) == 0
    with connect(address) as cluster:
        yield cluster


@pytest.fixture
def run(project: Cluster, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(["run", *arguments])
        return Result(code, *capfd.readouterr())

    return run


def publish(cluster: Cluster, count: int, seed: int = 0) -> int:
    """Some updates; how many of them are for Europe."""
    updates = make_updates(count, seed=seed)
    cluster.stream("contacts").writable_log.append(updates)
    return sum(dict(row)["region"] == "eu" for row in updates["attributes"].to_pylist())


def test_once_processes_what_is_there_through_all_pipelines_and_ends(
    spark: SparkSession, project: Cluster, run: Run, tmp_path: Path
) -> None:
    expected = publish(project, 100)
    result = run("--once", "--json")
    assert result.code == 0, result.err
    rows = {row["pipeline"]: row for row in json.loads(result.out)}
    assert (rows["europe"]["updates_in"], rows["europe"]["updates_out"]) == (100, expected)
    assert (rows["tag"]["updates_in"], rows["tag"]["updates_out"]) == (expected, expected)
    assert (rows["newest"]["updates_in"], rows["newest"]["lag"]) == (100, 0)
    tagged = held(project.stream("tagged").log)
    assert len(tagged) == expected
    assert all(dict(row)["tag"] == "seen" for row in tagged["attributes"].to_pylist())
    assert (tmp_path / "storage" / "pipelines" / "europe" / "checkpoint" / "commits" / "0").exists()
    assert (tmp_path / "storage" / "pipelines" / "newest" / "state" / "latest" / "_delta_log").exists()
    assert project.coordination.children("pipelines") == []


def test_one_pipeline_can_be_named_with_and_without_the_file(spark: SparkSession, project: Cluster, run: Run) -> None:
    expected = publish(project, 30)
    result = run("europe", "--once")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[-1] == f"europe: 30 updates in, {expected} out"
    assert len(held(project.stream("europe").log)) == expected
    result = run("tidings.yml", "tag", "--once", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert len(held(project.stream("tagged").log)) == expected
    result = run("nope")
    assert (result.code, result.err) == (
        1,
        "error: tidings.yml has no pipeline 'nope' (pipelines: europe, tag, newest)\n",
    )
    assert "nope.yml: cannot be read" in run("nope.yml").err


def test_a_dry_run_shows_what_would_run_and_touches_nothing(project: Cluster, run: Run, tmp_path: Path) -> None:
    result = run("--dry-run")
    assert result.code == 0, result.err
    assert [line.split()[:4] for line in result.out.splitlines()[1:]] == [
        ["europe", "contacts", "filter", "europe"],
        ["tag", "europe", "map", "tagged"],
        ["newest", "contacts", "latest", "-"],
    ]
    assert result.err == "3 ready to run; nothing was started (--dry-run)\n"
    assert not (tmp_path / "storage").exists()
    assert json.loads(run("--dry-run", "--json").out)["pipelines"][2]["output"] is None


def test_a_dry_run_says_which_pipelines_run_elsewhere(project: Cluster, run: Run) -> None:
    lock = PipelineLock(project.coordination, "tag")
    result = run("--dry-run")
    lock.release()
    here = f"process {os.getpid()} on {socket.gethostname()}"
    warning, ready = result.err.splitlines()
    assert warning == f"warning: pipeline 'tag' is run by {here} now: it can be run here once that one has ended"
    assert (result.code, ready) == (0, "2 ready to run; nothing was started (--dry-run)")
    assert [one["held_by"] for one in json.loads(run("--dry-run", "--json").out)["pipelines"]] == [None] * 3


def test_a_dry_run_finds_every_mistake_with_its_line_and_key(project: Cluster, run: Run, tmp_path: Path) -> None:
    (tmp_path / "data" / "europe").rename(tmp_path / "data" / "elsewhere")
    (tmp_path / "tidings.yml").write_text(
        """
streams:
  planned: {log: delta:data/planned}
pipelines:
  a: {input: contacts, stage: nope, output: tagged}
  b:
    input: [contacts, missing]
    stage: filter
    options:
      filtr: region = eu
    output: planned
  c:
    input: contacts
    stage: map
    options:
      set:
        version: {column: colour}
    output: tagged
  d: {input: europe, stage: filter, options: {filter: a exists}, output: tagged}
  e: {input: contacts, stage: filter, options: {filter: a exists}}
  f: {input: contacts, stage: latest, output: tagged}
  g: {input: contacts, stage: reshard, options: {shards: 7}, output: tagged}
"""
    )
    result = run("--dry-run")
    assert result.code == 1
    told = [line.removeprefix("error: tidings.yml:") for line in result.err.splitlines()]
    assert told[0].startswith("5: pipelines.a.stage: no stage 'nope' is installed (installed: ")
    assert (
        told[1]
        == "7: pipelines.b.input.1: there is no stream 'missing' in the cluster (streams: contacts, europe, tagged)"
    )
    assert told[2] == "9: pipelines.b.options.filter: is missing"
    assert told[3] == "10: pipelines.b.options.filtr: unknown key; did you mean filter?"
    assert told[4] == "11: pipelines.b.output: there is no stream 'planned' in the cluster; `tidings apply` makes it"
    assert told[5].startswith("17: pipelines.c.options.set.version: there is no column 'colour'; the columns are")
    assert told[6].startswith("19: pipelines.d.input.0: the log of stream 'europe' is not to be found in")
    assert told[7:] == [
        "20: pipelines.e: the stage writes a stream: name it as the output",
        "21: pipelines.f: the stage writes no stream: leave the output out",
        "22: pipelines.g: stream 'tagged' has 3 shards, not 7",
    ]


def test_pipelines_that_go_in_a_circle_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text(
        "pipelines:\n  a: {input: x, stage: s, output: y}\n  b: {input: y, stage: s, output: x}\n"
    )
    result = run("--dry-run")
    assert result.code == 1
    assert "tidings.yml:2: pipelines.a.output: comes back to its own input, by a → b → a" in result.err


def test_a_failing_pipeline_names_itself_and_the_others_go_on(
    spark: SparkSession, project: Cluster, run: Run, tmp_path: Path
) -> None:
    expected = publish(project, 40)
    broken = SPEC.replace("{attributes.tag: {constant: seen}}", "{object: {attribute: no-such}}")
    (tmp_path / "tidings.yml").write_text(broken)
    result = run("--once")
    assert result.code == 1
    assert "error: pipeline 'tag' failed: object None is NoneType, not text" in result.err
    assert "Traceback" not in result.err
    assert f"europe: 40 updates in, {expected} out" in result.err
    assert len(held(project.stream("tagged").log)) == 0


def test_a_pipeline_that_runs_elsewhere_is_refused_and_the_others_run(
    spark: SparkSession, project: Cluster, run: Run
) -> None:
    expected = publish(project, 20)
    holder = {"host": "far-away", "pid": 4711, "since": "2026-01-01T00:00:00Z", "session_timeout": 10.0}
    project.coordination.create(holder, "pipelines", "newest", ephemeral=True)
    result = run("--once")
    assert result.code == 1
    assert (
        "error: pipeline 'newest' runs already: process 4711 on far-away has it since 2026-01-01T00:00:00Z; "
        "stop that one first"
    ) in result.err
    assert len(held(project.stream("tagged").log)) == expected


def test_a_file_without_pipelines_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tidings.yml").write_text("name: x\n")
    assert run().err == "error: tidings.yml has no pipelines: add one under 'pipelines:'\n"


def test_an_address_that_cannot_be_listened_at_is_bad_usage(run: Run) -> None:
    result = run("--metrics", "here")
    assert result.code == 2
    assert "'here' is no address to listen at" in result.err


# In processes of their own


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_pipelines_after_their_batch_and_nothing_is_repeated(
    project: Cluster, tmp_path: Path, sent: signal.Signals
) -> None:
    europe = project.stream("europe").log
    expected = publish(project, 50)
    with started("run", "europe", "--metrics", "0") as process:
        assert process.stderr
        address = re.findall(rb"http://\S+", process.stderr.readline())[0].decode()
        health = address.replace("/metrics", "/health")
        assert get(f"{health}/live") == (200, "alive\n")
        eventually(lambda: len(held(europe)) == expected, timeout=PATIENCE_S)
        eventually(lambda: get(f"{health}/ready")[0] == 200, timeout=PATIENCE_S)
        told = eventually(
            lambda: (text := get(address)[1]) and 'input_updates_total{pipeline="europe"} 50.0' in text and text
        )
        assert told
        assert f'tidings_pipeline_output_updates_total{{pipeline="europe"}} {expected}.0' in told
        assert 'tidings_pipeline_lag_updates{pipeline="europe",stream="contacts"} 0.0' in told
        assert 'tidings_pipeline_running{pipeline="europe"} 1.0' in told
        assert project.coordination.children("pipelines") == ["europe"]
        process.send_signal(sent)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + sent
    assert b"Traceback" not in err
    assert f"europe: 50 updates in, {expected} out" in err.decode()
    assert project.coordination.children("pipelines") == []
    checkpoint = tmp_path / "storage" / "pipelines" / "europe" / "checkpoint"
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) == len(list((checkpoint / "commits").glob("[0-9]*")))


@pytest.mark.slow
def test_a_pipeline_that_fails_in_a_process_of_its_own_says_so_in_one_line(project: Cluster, tmp_path: Path) -> None:
    publish(project, 5)
    broken = SPEC.replace("{attributes.tag: {constant: seen}}", "{object: {attribute: no-such}}")
    (tmp_path / "tidings.yml").write_text(broken)
    with started("run", "--once", "--quiet") as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert out == b""
    assert err.decode() == "error: pipeline 'tag' failed: object None is NoneType, not text\n"


@pytest.mark.slow
def test_a_pipeline_that_fails_while_others_run_is_started_again_until_it_can_go_on(
    project: Cluster, tmp_path: Path
) -> None:
    there, away = tmp_path / "data" / "europe", tmp_path / "away"
    expected, europe = publish(project, 50), project.stream("europe").log
    told = tmp_path / "told"
    failed = re.compile(r"^error: pipeline '(europe|tag)' failed: .*; it is started again in \d+ s$", re.MULTILINE)
    with told.open("wb") as stderr, started("run", "--quiet", stderr=stderr) as process:
        eventually(lambda: len(project.coordination.children("pipelines")) == 3, timeout=PATIENCE_S)
        eventually(lambda: len(held(europe)) == expected, timeout=PATIENCE_S)
        there.rename(away)
        expected += publish(project, 50, seed=1)
        eventually(lambda: failed.search(told.read_text()), timeout=PATIENCE_S)
        assert "newest" in project.coordination.children("pipelines"), "which goes on"
        away.rename(there)
        eventually(lambda: len(held(europe)) == expected, timeout=PATIENCE_S)
        eventually(lambda: len(held(project.stream("tagged").log)) == expected, timeout=PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_reaches_all_processes_and_still_ends_cleanly(project: Cluster) -> None:
    expected = publish(project, 50)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*PROGRAM, "run", "europe"])
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(terminal, 4096):
                shown.append(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        eventually(lambda: len(held(project.stream("europe").log)) == expected, timeout=PATIENCE_S)
        eventually(lambda: b"ROWS/S" in b"".join(shown), timeout=PATIENCE_S)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    finally:
        reader.join(5)
        os.close(terminal)
    text = b"".join(shown).decode()
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "Traceback" not in text
    assert "failed" not in text
    assert f"europe: 50 updates in, {expected} out" in text
