"""Power loss: a file system on a disk of its own, and that disk as it stands at a moment, mounted again.

    with power_loss.disk(tmp_path) as disk:
        steps(disk.folder)
        with disk.after_power_loss() as folder:
            check(folder)

The disk is an ext4 image on a loop device. The file behind the device holds what the file system gave to the disk, and
nothing of what it still has in memory: so a copy of that file is the disk after a power loss. The journal is written
every ten minutes, data not before they are half a minute old, and no rename makes an exception: within a test only
what was synced is on the disk.

Steps are over, or stopped, when the power goes: a copy takes a moment, and is of one state only if nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

DISK_BYTES = 64 * 2**20
OPTIONS = "loop,commit=600,noauto_da_alloc"


@dataclass(frozen=True)
class Disk:
    """A disk that can lose its power, again and again."""

    image: Path
    folder: Path
    """Where it is mounted."""

    @contextlib.contextmanager
    def after_power_loss(self, *, names: bool = False) -> Iterator[Path]:
        """The disk as it would be if the power went now, mounted elsewhere.

        With `names`, some other program synced a file of its own just before: the journal is on the disk then with all
        that it says of names and sizes, though not with the contents of files that were never synced.
        """
        if names:
            with tempfile.NamedTemporaryFile(dir=self.folder) as other:
                other.write(b"mine")
                other.flush()
                os.fsync(other.fileno())
        with tempfile.TemporaryDirectory(dir=self.image.parent) as place:
            copy, folder = Path(place) / "image", Path(place) / "disk"
            shutil.copyfile(self.image, copy)
            with _mounted(copy, folder):
                yield folder


def missing() -> str | None:
    """What is missing to mount a disk, or None."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("mkfs.ext4", "mount", "losetup"))):
        return "needs root and loop devices, to mount a disk of its own"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "needs a loop device, to mount a disk of its own"
    return None


@contextlib.contextmanager
def disk(place: Path, size: int = DISK_BYTES) -> Iterator[Disk]:
    """A new disk, whose image is in this folder; the test is skipped where none can be mounted."""
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    image = place / "image"
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image], check=True)
    with _mounted(image, place / "disk") as folder:
        yield Disk(image, folder)


@contextlib.contextmanager
def _mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-o", OPTIONS, image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
