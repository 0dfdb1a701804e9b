"""Files that are there whole or not at all, and still are after a power failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, draft: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make the draft, and put it in the place of the file, if there is one."""
    write(draft)
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make sure of the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
