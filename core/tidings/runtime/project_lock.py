"""The lock of a project: one process at a time runs all of it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from tidings.errors import ProjectRuns
from tidings.runtime import supervisor_main


class ProjectLock:
    """Holds the lock on a folder while this process lives, or `ProjectRuns`. The kernel frees it, however that ends."""

    def __init__(self, folder: Path, project: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        if not supervisor_main.locked(self._file):
            other = supervisor_main.holder(self._file)
            os.close(self._file)
            who = f"process {other.get('pid')} on {other.get('host')}"
            raise ProjectRuns(f"{project} runs already: {who}; stop that one first")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
