"""Child processes that are kept running: one that ends is started again, and what all of them print is one log.

One that was started by a wrong command is not: it would end in the same way each time.

All is done by the thread that calls `step` and `stop`, which must live as long as the children: the kernel ends a child
when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from tidings.errors import InvalidOption
from tidings.runtime.log_lines import MAX_CHARACTERS, Tell, own_line, read_line, timestamp
from tidings.runtime.processes import ProcessPlan, Restarts, Tier

STOP_GRACE_S = 30.0  # for a batch to end, or flows to be given away
READ_BYTES = 65_536
USAGE = 2  # the exit code of a command that is wrong
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


class ChildProcess:
    """One of them; the process may be another one each time it is looked at."""

    def __init__(self, plan: ProcessPlan) -> None:
        self.plan = plan
        self.restarts = Restarts()
        self._popen: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._due = 0.0
        self._partial = b""

    @property
    def pid(self) -> int | None:
        """Its process id, while it runs."""
        return self._popen.pid if self._popen is not None else None

    @property
    def output(self) -> int | None:
        """The file descriptor at which to read what it prints."""
        return self._popen.stdout.fileno() if self._popen is not None and self._popen.stdout else None

    def is_due(self) -> bool:
        """Whether it is to be started now."""
        return self._popen is None and time.monotonic() >= self._due

    def start(self, program: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Ctrl-C in the terminal is not for it: whoever started it says when it ends."""
        self._popen = subprocess.Popen(
            [*program, *self.plan.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            process_group=0,
        )
        assert self._popen.stdout is not None
        os.set_blocking(self._popen.stdout.fileno(), False)
        self._began = time.monotonic()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to all that it has started, too."""
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if group else os.kill)(self._popen.pid, number)

    def lines(self) -> list[str]:
        """What it has printed since."""
        if (output := self.output) is None:
            return []
        with contextlib.suppress(BlockingIOError):
            self._partial += os.read(output, READ_BYTES)
        *whole, self._partial = self._partial.split(b"\n")
        if len(self._partial) > 4 * MAX_CHARACTERS:  # a line without an end
            whole, self._partial = [*whole, self._partial], b""
        return [line.decode(errors="replace") for line in whole if line.strip()]

    def ended(self) -> tuple[int, list[str]] | None:
        """Its exit code and last lines, once, if it has ended; nothing that it has started is left then."""
        if self._popen is None or os.waitid(os.P_PID, self._popen.pid, _LOOK) is None:
            return None
        self.signal(signal.SIGKILL, group=True)  # before anybody else can have its number
        code, found = self._popen.wait(), []
        while lines := self.lines():
            found += lines
        if self._partial.strip():
            found.append(self._partial.decode(errors="replace"))
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._popen, self._partial = None, b""
        return code, found

    def rest(self) -> float:
        """It has ended, and was not meant to: wait before it is started again; for how long."""
        pause_s = self.restarts.pause_s(time.monotonic() - self._began)
        self._due = time.monotonic() + pause_s
        return pause_s


class ChildProcesses:
    """Keeps processes running. `tell` gets each line of their log."""

    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        program: Sequence[str],
        environment: Mapping[str, str],
        tell: Tell,
    ) -> None:
        self.children = [ChildProcess(plan) for plan in sorted(plans, key=lambda plan: plan.tier)]
        self._program = program
        self._environment = environment
        self._tell = tell

    def step(self, timeout_s: float) -> None:
        """Start what is due, and pass on what is printed, for about so long.

        `InvalidOption` if the command of one is wrong: to start it again would change nothing.
        """
        for child in self.children:
            if child.is_due():
                child.start(self._program, self._environment)
                self._say(child, "INFO", f"starts as process {child.pid}")
        self._listen(timeout_s)
        for child in self.children:
            if (code := self._collect(child)) == USAGE:
                command = " ".join(("tidings", *child.plan.arguments))
                raise InvalidOption(f"{child.plan.name} cannot be started by `{command}`: its lines above say why")
            if code is not None:
                again = f"it is started again in {child.rest():g} s ({child.restarts.said})"
                self._say(child, "ERROR", f"has ended with {_ending(code)}; {again}")

    def stop(self, hurried: Callable[[], bool]) -> None:
        """End all, those first that need others; at once, if somebody is in a hurry."""
        for tier in sorted(Tier, reverse=True):
            self._stop([child for child in self.children if child.plan.tier is tier], hurried)

    def _stop(self, children: Sequence[ChildProcess], hurried: Callable[[], bool]) -> None:
        for child in children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        killed = False
        while running := [child for child in children if child.pid is not None]:
            if not killed and (hurried() or time.monotonic() > deadline):
                killed = True
                for child in running:
                    self._say(child, "WARNING", "is killed: " + ("in a hurry" if hurried() else "it does not end"))
                    child.signal(signal.SIGKILL, group=True)
            self._listen(0.1)
            for child in running:
                if (code := self._collect(child)) is not None:
                    self._say(child, "INFO", f"has ended with {_ending(code)}")

    def _listen(self, timeout_s: float) -> None:
        """Pass on what is printed within that time."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for child in self.children:
                if child.output is not None:
                    selector.register(child.output, selectors.EVENT_READ, child)
            while selector.get_map() and (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                for key, _ in ready:
                    lines = key.data.lines()
                    self._pass_on(key.data, lines)
                    if not lines:  # the end, or less than a line: do not spin
                        selector.unregister(key.fd)
            time.sleep(max(0.0, deadline - time.monotonic()))

    def _collect(self, child: ChildProcess) -> int | None:
        """The exit code of a child that has ended."""
        if (found := child.ended()) is None:
            return None
        code, lines = found
        self._pass_on(child, lines)
        return code

    def _pass_on(self, child: ChildProcess, lines: Sequence[str]) -> None:
        for line in lines:
            self._tell(read_line(child.plan.name, line, timestamp()))

    def _say(self, child: ChildProcess, level: str, text: str) -> None:
        self._tell(own_line(child.plan.name, level, text))


def _ending(code: int) -> str:
    """An exit code as people know it.

    >>> _ending(1), _ending(-9)
    ('exit code 1', 'SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
