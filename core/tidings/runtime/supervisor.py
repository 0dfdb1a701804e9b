"""The process that supervises a server, as the program that wants the server sees it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

from tidings.runtime import supervisor_main

# These are meant for the JVMs of Spark: a debugger's port or a large heap has no place here.
_SPARK_JVM_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")


def _is_left_out(variable: str) -> bool:
    return variable in _SPARK_JVM_VARIABLES or variable.startswith("TIDINGS_")


class Supervisor:
    """The supervising process (`supervisor_main`), seen from the program that wants the server.

    Popen only starts it: its `wait` and `poll` hold a lock that an exception from a signal handler may leave locked for
    good, and what follows a Ctrl-C is just when we have to wait.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor_main.__file__, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # The locale decides which file names Java can open. Our secrets are not for it.
            env={k: v for k, v in os.environ.items() if not _is_left_out(k)} | {"LC_ALL": "C.UTF-8"},
            # A Ctrl-C in the terminal is for this program, which may still need the server.
            start_new_session=True,
        )

    def report(self, deadline: float) -> dict[str, Any]:
        """What it says, once, about how it went; anything that is not a report comes back as `other`."""
        assert self._popen.stdout is not None
        with self._popen.stdout as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            line = pipe.readline() if selector.select(max(0.0, deadline - time.monotonic())) else b""
            if line.startswith(b"{"):
                report: dict[str, Any] = json.loads(line)
                return report
            # A stack trace, or silence.
            self.signal(signal.SIGKILL)
            return {"other": (line + pipe.read()).decode(errors="replace").strip() or "its supervisor says nothing"}

    def code(self) -> int | None:
        """Its exit code once it has ended; -1 if someone else took it, who waits for all children of this process."""
        if self._popen.returncode is None:
            try:
                pid, status = os.waitpid(self._popen.pid, os.WNOHANG)
            except ChildProcessError:
                self._popen.returncode = -1
            else:
                if pid:
                    self._popen.returncode = os.waitstatus_to_exitcode(status)
        code: int | None = self._popen.returncode
        return code

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, or None if it has not ended in that time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.01
        while (code := self.code()) is None and (deadline is None or time.monotonic() < deadline):
            time.sleep(pause)
            pause = min(0.1, pause * 1.2)
        return code

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.code() is None:
            os.kill(self._popen.pid, number)
