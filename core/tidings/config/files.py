"""Where a project's `tidings.yml` is, and its bytes. Nothing heavy is imported: every command looks for it."""

from __future__ import annotations

import os
from pathlib import Path

from tidings.errors import InvalidConfig

FILE_NAMES = ("tidings.yml", "tidings.yaml")
MAX_FILE_BYTES = 2**20


def find(start: Path) -> Path:
    """The `tidings.yml` or `tidings.yaml` of this folder, or of the nearest one above that has one."""
    found = nearest(start)
    if found is None:
        raise InvalidConfig(f"there is no {FILE_NAMES[0]} in {start.absolute()} or above it: name a file")
    return found


def nearest(start: Path) -> Path | None:
    """The same; None if there is none."""
    for folder in (start.absolute(), *start.absolute().parents):
        there = [folder / name for name in FILE_NAMES if os.path.exists(folder / name)]  # False where we may not look
        if len(there) > 1:
            raise InvalidConfig(f"{folder} has both {FILE_NAMES[0]} and {FILE_NAMES[1]}: keep one of them")
        if there:
            return there[0]
    return None


def read_bytes(path: Path) -> bytes:
    """What is in the file; `InvalidConfig` if it cannot be read, or is larger than any project's."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidConfig(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidConfig(f"{path}: is larger than {MAX_FILE_BYTES:,} bytes")
    return raw
