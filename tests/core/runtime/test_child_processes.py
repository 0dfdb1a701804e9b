"""Child processes that are kept running."""

from __future__ import annotations

import sys

import pytest

from tidings.errors import InvalidOption
from tidings.runtime.child_processes import ChildProcesses
from tidings.runtime.log_lines import LogLine
from tidings.runtime.processes import ProcessPlan, Tier
from tidings.testing import eventually


def test_one_whose_command_is_wrong_is_not_started_again_and_its_words_are_an_error() -> None:
    told: list[LogLine] = []
    plan = ProcessPlan("console", ("print('Error: no such option'); raise SystemExit(2)",), Tier.EDGE)
    children = ChildProcesses([plan], [sys.executable, "-c"], {}, told.append)
    with pytest.raises(InvalidOption, match="console cannot be started by `tidings print"):
        eventually(lambda: children.step(0.1))
    assert ("ERROR", "no such option") in [(line.level, line.text) for line in told]
    assert sum("starts as process" in line.text for line in told) == 1
