"""What all tests share."""

from __future__ import annotations

import os

import pytest

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
