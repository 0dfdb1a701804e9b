"""The `tidings` command as a shell starts it: `tidings.cli.main`, and quiet if it is ended before that is imported.

Nothing of `tidings` is imported until Ctrl-C and SIGTERM have a handler: imports take most of a short command's time,
and an exception in the midst of them would be shown with its trace. It is for the program alone, since it takes over
the signals of its process; others call `tidings.cli.main`.
"""

from __future__ import annotations

import os
import signal

# A shell's background job ignores Ctrl-C, and goes on doing so.
_INTERRUPTIBLE = signal.getsignal(signal.SIGINT) == signal.default_int_handler
_TERMINABLE = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)  # nothing was begun yet, and nothing printed


if _INTERRUPTIBLE:
    signal.signal(signal.SIGINT, _end)
if _TERMINABLE:
    signal.signal(signal.SIGTERM, _end)


def main() -> int:
    """Run the command that the shell has named; the exit code."""
    import tidings.cli.command  # noqa: F401 - with it all that takes a while
    from tidings.cli import main as run

    try:
        if _TERMINABLE:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if _INTERRUPTIBLE:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
