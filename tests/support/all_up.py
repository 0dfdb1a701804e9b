"""`tidings up` in a process of its own, on a ZooKeeper and at ports of its own, and who belongs to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.commands import PROGRAM
from tidings.testing import eventually

PATIENCE_S = 60.0
OWN = ("--zookeeper-port", "0", "--listen", "0", "--no-console", "--json")


class AllUp:
    """One that runs, once it has said that all processes do."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.log = folder / "up.log"
        known = {name: value for name, value in os.environ.items() if not name.startswith("TIDINGS_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PROGRAM, "up", *OWN, *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**known, **environment},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.said: dict[str, Any] = json.loads(line)
        self.zookeeper: str = self.said["zookeeper"]
        self.members = {one["process"]: one for one in self.said["processes"]}
        self.seen: set[int] = set()

    def pids(self) -> set[int]:
        """Those of all processes that it has started, now and whenever this was asked before."""
        self.seen |= {self.members["zookeeper"]["pid"], *_below(self.process.pid)}
        return self.seen

    def alive(self) -> list[int]:
        """Which of these are still there."""
        return [pid for pid in self.seen if _lives(pid)]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Have it end; the exit code."""
        self.pids()
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE_S)


@contextlib.contextmanager
def all_up(folder: Path, *arguments: str, **environment: str) -> Iterator[AllUp]:
    """It runs, and nothing of it is left afterwards."""
    up = AllUp(folder, *arguments, **environment)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.end()
        eventually(lambda: not up.alive(), timeout=PATIENCE_S)


def _below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from _below(child)


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
