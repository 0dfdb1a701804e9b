"""What the tests of commands share: a real ZooKeeper, real Delta logs, and a way to run a command."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Result, Run
from tidings.cli import main
from tidings.cluster import Cluster, connect
from tidings.identity.environment import APPLICATION_KEY, CREDENTIALS, INSECURE, SECRET
from tidings.publisher.publisher import Publisher


@pytest.fixture
def address(zookeeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster of the test's own, as the environment names it; the test's folder is the working directory."""
    address = f"{zookeeper}/{uuid.uuid4()}"
    monkeypatch.setenv("TIDINGS_ZOOKEEPER", address)
    for name in (CREDENTIALS, SECRET, APPLICATION_KEY, f"{SECRET}_FILE", f"{APPLICATION_KEY}_FILE", INSECURE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return address


@pytest.fixture
def joined(address: str) -> Iterator[Cluster]:
    """The same cluster, seen from Python."""
    with connect(address) as cluster:
        yield cluster


@pytest.fixture
def run(address: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in this process, with this text or these bytes on stdin."""

    def run(*arguments: str, stdin: str | bytes = b"") -> Result:
        file = tmp_path / "stdin"
        file.write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        with file.open() as opened, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", opened)
            patch.setattr(os, "nice", lambda increment: increment)  # that is for good, and for all tests after it
            capfd.readouterr()
            code = main(list(arguments))
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def contacts(run: Run) -> Run:
    """The same, with a stream `contacts` of 4 shards."""
    assert run("streams", "create", "contacts", "--shards", "4", "--log", "delta:contacts").code == 0
    return run


@pytest.fixture
def small(joined: Cluster, tmp_path: Path) -> Cluster:
    """The cluster with a stream `contacts` of 2 shards: few flows are soon looked through."""
    joined.create_stream("contacts", 2, f"delta:{tmp_path / 'contacts'}")
    return joined


@pytest.fixture
def cache(small: Cluster) -> Cluster:
    """The same, with an application `cache` that reads all of `contacts`."""
    small.create_application("cache", ["contacts"], start="earliest")
    return small


@pytest.fixture
def publisher(cache: Cluster) -> Iterator[Publisher]:
    """A publisher in this process, whose datamarkers move fast."""
    with cache.publisher(name="here", token_interval=0.1) as publisher:
        yield publisher
