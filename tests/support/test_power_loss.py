from __future__ import annotations

import os
from pathlib import Path

from tests.support import power_loss
from tidings.storage.durable import sync_folder


def write(path: Path, *, sync: bool) -> None:
    with open(path, "wb") as file:
        file.write(b"whole")
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_only_what_was_synced_outlives_a_power_loss(tmp_path: Path) -> None:
    with power_loss.disk(tmp_path) as disk:
        write(disk.folder / "synced", sync=True)
        sync_folder(disk.folder)
        write(disk.folder / "written", sync=False)
        write(disk.folder / "renamed.tmp", sync=False)
        os.replace(disk.folder / "renamed.tmp", disk.folder / "synced.2")
        with disk.after_power_loss() as folder:
            assert {path.name for path in folder.iterdir()} == {"lost+found", "synced"}
            assert (folder / "synced").read_bytes() == b"whole"
        with disk.after_power_loss(names=True) as folder:
            assert (folder / "written").read_bytes() == (folder / "synced.2").read_bytes() == b""
            assert (folder / "synced").read_bytes() == b"whole"
