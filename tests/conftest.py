"""What all tests share."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

import tidings
import tidings.wire
from tidings.cluster import Cluster
from tidings.coordination.zookeeper import Coordination
from tidings.runtime.zookeeper_server import EmbeddedZooKeeper
from tidings.stream_definition import StreamDefinition, split_address
from tidings_connectors.delta.log import DeltaLog

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("tidings", deadline=None)
settings.load_profile("tidings")

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # An expected failure is reported as skipped too; that one is meant.
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With TIDINGS_NO_SKIP=1, as in CI, a skipped test fails the run."""
    if os.environ.get("TIDINGS_NO_SKIP") != "1" or not _skipped:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(
            f"\n{len(_skipped)} skipped, and TIDINGS_NO_SKIP=1 allows none: {', '.join(_skipped)}", red=True
        )
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: starting one takes longer than most tests do."""
    session = tidings.session("tests", master="local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one real ZooKeeper for all tests that do not harm theirs."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


@pytest.fixture
def cluster(zookeeper: str, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own: a root of its own in the shared ZooKeeper, and a folder for its logs."""
    with Cluster(Coordination(f"{zookeeper}/{uuid.uuid4()}"), logs=f"delta:{tmp_path}/streams") as own:
        yield own


@pytest.fixture
def definition(tmp_path: Path) -> StreamDefinition:
    """A stream that no ZooKeeper knows, for tests of its log alone."""
    return StreamDefinition("contacts", 4, f"delta:{tmp_path / 'contacts'}")


@pytest.fixture
def log(definition: StreamDefinition) -> Iterator[DeltaLog]:
    with contextlib.closing(DeltaLog.create(split_address(definition.log)[1], definition)) as log:
        yield log
