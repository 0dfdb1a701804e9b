"""Wall clocks of processes, which can be set without touching the machine's: a small library that is loaded first."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

NANOSECONDS = 10**9


def missing() -> str | None:
    """What is missing to set clocks, or None."""
    return None if shutil.which("cc") else "there is no C compiler to make the clock with"


class Clocks:
    """A clock for each process that is given one; they are right at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", self._library, source, "-ldl"], check=True)

    def environment(self, name: str) -> dict[str, str]:
        """What a process must have around it to go by its own clock."""
        file = self._file(name)
        file.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(self._library), "SOAK_CLOCK": str(file)}

    def set(self, name: str, seconds: float) -> None:
        """Set a clock so far ahead, or back."""
        with open(self._file(name), "r+b") as file, mmap.mmap(file.fileno(), 8) as place:
            place[:] = struct.pack("=q", round(seconds * NANOSECONDS))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.clock"
