"""Commits to a Delta table that are durable before anybody sees them.

A commit file is synced under another name and then linked to its own, which the file system does for one writer only.
delta-rs, which makes the tables, writes their checkpoints and vacuums them, commits in the same way; but it syncs
nothing, and takes ten times as long for a few rows.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidings.storage.durable import sync_folder

Action = dict[str, Any]
"""A line of a commit, as Delta's protocol has it."""


class Commits:
    """The commits of the table in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "_delta_log"

    def put(self, version: int, actions: Sequence[Action]) -> bool:
        """Make this the table's next version; False, and nothing changed, if another writer made that version."""
        info = {"commitInfo": {"timestamp": milliseconds(), "operation": "WRITE", "engineInfo": "tidings"}}
        content = "\n".join(map(json.dumps, [info, *actions])).encode()
        draft = self._log / f".{uuid.uuid4()}.tmp"
        try:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._folder)  # the names of its files, before a commit speaks of them
            os.link(draft, self._path(version))
            sync_folder(self._log)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    def read(self, version: int) -> list[Action] | None:
        """A commit; None if it is not there, or not any more."""
        try:
            content = self._path(version).read_bytes()
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in content.splitlines() if line.strip()]

    def checkpointed(self) -> int:
        """The version of the last checkpoint; -1 if there is none. Commits up to it may be gone."""
        try:
            return int(json.loads((self._log / "_last_checkpoint").read_bytes())["version"])
        except FileNotFoundError:
            return -1

    def drafts(self) -> list[Path]:
        """Commits that were begun; those of a writer that died stay behind."""
        return list(self._log.glob(".*.tmp"))

    def _path(self, version: int) -> Path:
        return self._log / f"{version:020}.json"


def milliseconds() -> int:
    """The time now, as Delta writes it."""
    return int(time.time() * 1000)


def added(name: str, size: int, modified: int, statistics: dict[str, Any], *, data_change: bool = True) -> Action:
    """A file that is part of the table from this commit on."""
    file = {"path": name, "partitionValues": {}, "size": size, "modificationTime": modified}
    return {"add": {**file, "dataChange": data_change, "stats": json.dumps(statistics)}}


def done(app: str, number: int) -> Action:
    """An application's transaction, which this commit carries out."""
    return {"txn": {"appId": app, "version": number, "lastUpdated": milliseconds()}}


def removed(name: str, size: int, *, data_change: bool = True) -> Action:
    """A file that is part of the table up to this commit."""
    file = {"path": name, "deletionTimestamp": milliseconds(), "dataChange": data_change}
    return {"remove": {**file, "extendedFileMetadata": True, "partitionValues": {}, "size": size}}
