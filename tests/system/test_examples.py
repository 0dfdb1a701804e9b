"""The examples run as they stand, and the README shows the first of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.support.places import ROOT


def run(name: str) -> str:
    """What it prints, and nothing but that: not a line comes from the framework, Spark or gRPC."""
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_the_quick_start_publishes_and_reads() -> None:
    assert re.search(r"contacts/alice\|\s+2\|", run("quickstart.py"))


def test_the_readme_shows_the_quick_start_as_it_is() -> None:
    example = (ROOT / "examples" / "quickstart.py").read_text()
    code = example[example.index("import tempfile") :]
    assert code in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_pipelines_filter_greet_and_keep_the_newest() -> None:
    told = run("pipeline.py")
    assert re.search(r"contacts/alva\s*\|3\s*\|hej, alva 3", told)
    assert re.search(r"contacts/cecilia\s*\|2\s*\|hej, cecilia 2", told)
    assert "bob" not in told


@pytest.mark.slow
def test_the_demo_ends_well() -> None:
    told = run("demo.py")
    assert "updates arrived, each once" in told
    assert "updates arrived, in order within each shard" in told
    assert "nothing was missed" in told


@pytest.mark.slow
def test_two_clients_of_the_contacts_app_keep_their_caches_fresh() -> None:
    told = run("contacts.py")
    assert "laptop hears of bob, version 5" in told
    assert "laptop hears of bob, version 4" not in told
    assert "both caches are fresh" in told


@pytest.mark.slow
def test_the_demo_ends_at_once_and_cleanly_when_it_is_terminated() -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout
        assert any("ZooKeeper answers" in line for line in demo.stdout)
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 143
    assert "Traceback" not in errors
