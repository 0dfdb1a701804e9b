"""A `tidings` command that ends with the process that started it: `python -m tidings.cli.child PID streams list`.

However that one ends. On Linux the kernel sees to it; elsewhere a thread looks whether the parent is still there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from tidings.cli import main
from tidings.runtime.supervisor_main import parent_death_signal

LOOK_INTERVAL_S = 0.2


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def run(parent: int, arguments: list[str]) -> int:
    """Run the command; the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
    parent_death_signal()()
    if os.getppid() != parent or not sys.platform.startswith("linux"):
        threading.Thread(target=_end_with, args=(parent,), name="tidings-parent", daemon=True).start()
    sys.argv = ["tidings", *arguments]  # by which the audit knows it
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
