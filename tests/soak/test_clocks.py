from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import clocks

TELL = """
import datetime, sys, time
for _ in sys.stdin:
    print(time.time(), datetime.datetime.now(datetime.UTC).timestamp(), time.monotonic(), flush=True)
"""


@pytest.mark.skipif(clocks.missing() is not None, reason=clocks.missing() or "")
def test_a_clock_that_is_set_is_that_of_one_process_and_stops_nobody_from_waiting(tmp_path: Path) -> None:
    own = clocks.Clocks(tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, **own.environment("one")}
    with subprocess.Popen([sys.executable, "-c", TELL], env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]

        def told() -> list[float]:
            process.stdin.write("go\n")
            process.stdin.flush()
            return [float(one) for one in process.stdout.readline().split()]

        wall, date, steady = told()
        for shift in (-86_400.0, 3600.0, 0.0):
            own.set("one", shift)
            now = told()
            passed = now[2] - steady
            assert now[0] - wall == pytest.approx(shift + passed, abs=1.0)
            assert now[1] - date == pytest.approx(shift + passed, abs=1.0)
            assert 0 <= passed < 600
        process.stdin.close()
