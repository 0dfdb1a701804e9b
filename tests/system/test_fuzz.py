"""A minute of fuzzing; `make fuzz MINUTES=60` goes on for longer, from other seeds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 30
SEEDS = (1,)  # it found dates that Python has none for


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_peer_says_that_is_almost_right_crashes_nobody_and_leaves_nothing_behind(seed: int) -> None:
    # Nice, since it would take all the time that tests beside it need.
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.fuzz.wire", str(seed), str(SECONDS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 5, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "internal error" not in result.stderr
    assert "Traceback" not in result.stderr
