"""Files that are there whole or not at all, and still are after a power failure."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, draft: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make the draft, and put it in the place of the file, if there is one."""
    write(draft)
    sync_file(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it is in, if they are not there; their names are on the disk then."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_file(path: Path) -> None:
    """Make sure of what was written to a file, by whomever."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def time_in(folder: Path) -> float:
    """What time it is for the file system of a folder, in seconds since 1970.

    How old a file is can only be told by the clock that its times come from. Writers on several machines have clocks of
    their own, and one that is wrong must not delete what others write this moment.
    """
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime


def sync_folder(folder: Path) -> None:
    """Make sure of the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
