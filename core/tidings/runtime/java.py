"""Finds the Java that Spark will run on, and says in one sentence what is wrong when there is none."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import JavaMissing

MIN_JAVA = 17
"""The oldest Java that Spark 4 runs on."""


@dataclass(frozen=True)
class Java:
    """One Java: its launcher, and its version as it gives it (`17.0.15`, `1.8.0_412`)."""

    path: Path
    version: str

    @property
    def feature(self) -> int:
        """The number that people mean by a Java's version.

        >>> Java(Path("java"), "17.0.15").feature, Java(Path("java"), "1.8.0_412").feature
        (17, 8)
        """
        numbers = [int(n) for n in re.findall(r"\d+", self.version)]
        return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def find() -> Java:
    """The Java of JAVA_HOME, else the one on PATH: the same choice that Spark makes.

    Raises `JavaMissing` when there is none, when it does not run, or when it is older than 17. A JAVA_HOME without a
    Java in it is an error although PATH may have one, because Spark would not look there.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        launcher = Path(home, "bin", "java")
        if not os.access(launcher, os.X_OK):
            raise JavaMissing(f"JAVA_HOME is '{home}', which holds no Java: point it to Java {MIN_JAVA} or later")
        origin = "JAVA_HOME"
    else:
        found = shutil.which("java")
        if found is None:
            raise JavaMissing(
                f"there is no Java: install Java {MIN_JAVA} or later and put it on PATH, or set JAVA_HOME to its folder"
            )
        launcher, origin = Path(found), "PATH"
    java = _run(launcher)
    if java is None:
        raise JavaMissing(
            f"'{launcher}' (from {origin}) does not run: install Java {MIN_JAVA} or later, or set JAVA_HOME to it"
        )
    if java.feature < MIN_JAVA:
        raise JavaMissing(
            f"Java {java.version} at '{launcher}' (from {origin}) is too old: install Java {MIN_JAVA} or later, or set "
            "JAVA_HOME to it"
        )
    return java


@functools.lru_cache(maxsize=8)
def _run(launcher: Path) -> Java | None:
    try:
        done = subprocess.run(
            [launcher, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # The line may come after others, such as the one that repeats JAVA_TOOL_OPTIONS.
    match = re.search(r'version "(\d[^"]*)"', done.stderr + done.stdout)
    return Java(launcher, match[1]) if match else None
