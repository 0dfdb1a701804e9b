"""The processes of a soak: each is a real one, in a group of its own, and is started again when it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.mysql_install import die_with_parent

LEAVING_S = 60.0


class Member:
    """A process by a name, which may be killed, stopped and started again; all that it prints is in its log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.has_clock = "LD_PRELOAD" in (env or {})
        self.unasked: list[str] = []
        """What it said last, each time that it has ended although nobody had asked it to."""
        self._command = list(command)
        self._folder = folder
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False

    @property
    def pid(self) -> int | None:
        """The process's id, which is that of its group as well; None while there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        self._wanted = True
        if self.pid is None:
            with open(self.log, "ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )

    def revive(self) -> None:
        """Start it if it has ended by itself, as a supervisor would."""
        if self._wanted and self._process is not None and self.pid is None:
            self.unasked.append(f"{self._last_words()} ({self._process.returncode})")
            self.start()

    def kill(self) -> None:
        """Kill -9, with all processes that it has started."""
        self._wanted = False
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        self._wanted = False
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def end(self, within: float = LEAVING_S) -> None:
        """Wait until it has ended, as it was asked to; kill it if it does not."""
        deadline = time.monotonic() + within
        while self.pid is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1][:200] if lines else "nothing"

    def _signal(self, sent: signal.Signals) -> None:
        if self.pid is not None:
            os.killpg(self.pid, sent)
