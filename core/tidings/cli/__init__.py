"""The `tidings` command, and the same from Python: `tidings.cli.main(["streams", "list"])` gives the exit code.

Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted, 143 terminated. An error that tidings raises on purpose is
one sentence on stderr; any other is a bug, and shows its trace.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command as the shell would, with `sys.argv` if no arguments are given; the exit code."""
    try:
        from tidings.cli.command import run  # it takes a while, in which Ctrl-C is no reason for a trace

        return run(arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
