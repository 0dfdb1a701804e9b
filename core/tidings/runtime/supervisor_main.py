"""Run one server process that outlives neither the program that wanted it nor this process.

This file is run as a script, by `tidings.runtime.supervisor`, and imports nothing but the standard library. It exists
because none of the simpler ways ends a server for certain. A kill -9 leaves the program no time to do it.
PR_SET_PDEATHSIG fires when the thread that forked ends, which in a user's program may be any short-lived one. A pipe
from the program tells nothing as long as some child forked from it holds a copy. So this process, which has one thread
and never forks anything else, watches the program and owns the server.

The lock on the folder is opened here and inherited by the server: the kernel frees it when both are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

LOCK_FILE = "lock"
OUTPUT_FILE = "zookeeper.out"
TERMINATION_GRACE_S = 5.0  # between asking the server to end and killing it
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


class _LifetimeWatch:
    """What ends the wait: a signal, the server's end or the parent's."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._stopping = False
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for stop in STOP_SIGNALS:
            signal.signal(stop, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler it would not wake the wait
        self._reader = reader
        self._events = [reader]
        self._interval = 0.2
        try:
            self._events.append(os.pidfd_open(parent))
            self._interval = 5.0
        except (AttributeError, OSError):
            pass  # not Linux, or a kernel without it: ask for the parent's pid five times a second instead

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def over(self) -> bool:
        """Is there no more reason to run the server?"""
        return self._stopping or os.getppid() != self._parent

    def wait(self, timeout: float | None = None) -> None:
        """Until something happened, or the timeout; it may return for no reason."""
        events = self._events if timeout is None else [self._reader]
        if select.select(events, [], [], self._interval if timeout is None else timeout)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 512)


def main(spec: dict[str, Any]) -> int:
    """Lock the folder, write its files, run the command in it and wait; `spec` comes from `zookeeper_server`."""
    # A mask is inherited: a program that takes SIGTERM with sigwait would otherwise make us deaf to it. Until the
    # server runs and its pid is known, a request to stop has to wait.
    signal.pthread_sigmask(signal.SIG_SETMASK, STOP_SIGNALS)
    life = _LifetimeWatch(spec["parent"])
    try:
        os.makedirs(spec["folder"], mode=0o700, exist_ok=True)
        os.chdir(spec["folder"])
        lock = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        while not locked(lock):
            other = holder(lock)
            if life.over() or not _is_ending(other):
                return _report(in_use=other.get("address"))
            life.wait(0.05)
        os.ftruncate(lock, 0)
        os.makedirs("data", mode=0o700, exist_ok=True)
        for name, text in spec["files"].items():
            with open(name, "w", encoding="ascii") as file:
                file.write(text)
        output = os.open(OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        return _report(folder=error.strerror or str(error))
    if life.over():
        return 1
    server = _launch(spec["command"], lock, output)
    os.pwrite(lock, json.dumps({"address": spec["address"], "pid": server, "parent": spec["parent"]}).encode(), 0)
    _report(pid=server)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # The parent has read all it wants to, and may keep the other end open without reading it.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    while not life.over():
        code = _exit_code(server)
        if code is not None:
            return code if code >= 0 else 128 - code
        life.wait()
    _end(server, life)
    return 0


def locked(lock: int) -> bool:
    """Take the lock, unless another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(lock: int) -> dict[str, Any]:
    """What the process that has the lock wrote into its file: nothing yet, if it is just starting."""
    try:
        record = json.loads(os.pread(lock, 4096, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _is_ending(other: dict[str, Any]) -> bool:
    """Was the program that ran the other server killed? Then the server goes soon, and a restart can wait for it."""
    try:
        os.kill(other["parent"], 0)
    except ProcessLookupError:
        return True
    except (KeyError, OSError):
        pass
    return False


def _report(**what: object) -> int:
    with contextlib.suppress(OSError):  # that the parent is gone is found out soon enough
        os.write(1, json.dumps(what).encode() + b"\n")
    return 1


def _launch(command: list[str], lock: int, output: int) -> int:
    """Fork and execute the server, which inherits the lock; importing subprocess would double our start."""
    supervisor = os.getpid()
    die_with_us = parent_death_signal()
    os.set_inheritable(lock, True)
    server = os.fork()
    if server == 0:
        _become(command, output, supervisor, die_with_us)
    return server


def _become(command: list[str], output: int, supervisor: int, die_with_us: Callable[[], object]) -> NoReturn:
    try:
        os.setpgid(0, 0)  # so that a `java` which is a wrapper script is ended together with what it runs
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with_us()
        if os.getppid() == supervisor:  # else it died before the line above, and no signal will come
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execv(command[0], command)
    except OSError as error:
        os.write(output, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def parent_death_signal() -> Callable[[], object]:
    """What a child calls to be killed when we are; nothing where the system has no such thing (macOS)."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda: None
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _exit_code(server: int) -> int | None:
    pid, status = os.waitpid(server, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def _end(server: int, life: _LifetimeWatch) -> None:
    _signal(server, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATION_GRACE_S
    while _exit_code(server) is None:
        left = deadline - time.monotonic()
        if left <= 0:
            _signal(server, signal.SIGKILL)
            os.waitpid(server, 0)
            return
        life.wait(left)


def _signal(server: int, number: int) -> None:
    try:
        os.killpg(server, number)
    except OSError:  # its group is not there yet, or not any more; its pid is ours until we wait for it
        os.kill(server, number)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
