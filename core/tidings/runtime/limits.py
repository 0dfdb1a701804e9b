"""How much a process may have of the machine."""

from __future__ import annotations

import contextlib
import resource


def take_all_files() -> None:
    """Have as many files and sockets open as the machine allows: a server's peers each take one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
