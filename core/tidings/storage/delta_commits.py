"""Commits to a Delta table that are durable before anybody sees them.

A commit file is synced under another name and then linked to its own, which the file system does for one writer only.
delta-rs commits in the same way; but it syncs nothing, and takes ten times as long for a few rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tidings.errors import LogUnavailable
from tidings.storage.durable import sync_folder

Action = dict[str, Any]
"""A line of a commit, as Delta's protocol has it."""

Sign = tuple[int, int, int]

ENGINE = "tidings"
CHECKSUM = "tidings.crc32"  # of all lines of a commit but the first, which says it; of a checkpoint, in its hint
SYNC_RETRIES_S = (0.01, 0.1)


class OutcomeUnknown(LogUnavailable):
    """A commit was made, and it is not known whether it is on the disk."""


class Commits:
    """The commits of the table in a folder."""

    def __init__(self, folder: Path) -> None:
        self._table = folder
        self.folder = folder / "_delta_log"

    def put(self, version: int, actions: Sequence[Action]) -> bool:
        """Make this the table's next version; False, and nothing changed, if another writer made that version.

        After an `OutcomeUnknown` the commit may be seen, and all that it names must stay.
        """
        lines = "\n".join(json.dumps(action) for action in actions if "commitInfo" not in action).encode()
        info = {"timestamp": milliseconds(), "operation": "WRITE", "engineInfo": ENGINE, CHECKSUM: zlib.crc32(lines)}
        content = json.dumps({"commitInfo": info}).encode() + b"\n" + lines
        draft = self.folder / f".{uuid.uuid4()}.tmp"
        try:
            with open(draft, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(self._table)  # the names of its files, before a commit speaks of them
            return self._link(draft, version)
        finally:
            with contextlib.suppress(OSError):  # maintenance deletes what is left
                draft.unlink()

    def _link(self, draft: Path, version: int) -> bool:
        path = self._path(version)
        try:
            os.link(draft, path)
        except OSError as error:
            # A file system behind a network may do it, and tell of a failure: whose file it is decides.
            if not path.exists() or not path.samefile(draft):
                if isinstance(error, FileExistsError):
                    return False
                raise
        try:
            if self._made_before(draft, version):
                path.unlink()
                return False
            self.sync()
        except OSError as error:
            raise OutcomeUnknown(
                f"commit {path} was made and may not outlast a power loss: {error.strerror or error}; read the table "
                "before you write the same again"
            ) from error
        return True

    def _made_before(self, draft: Path, version: int) -> bool:
        """Whether a checkpoint held this version when the draft was linked to its name.

        Then the name was free only because the commit was cleaned up, after this writer had been stopped for long.
        """
        if self.checkpointed() < version:
            return False
        linked = draft.stat().st_ctime_ns
        checkpoints = [path for path in self.folder.glob("*.checkpoint*.parquet") if _version(path) >= version]
        return any(path.stat().st_mtime_ns < linked for path in checkpoints)

    def sync(self) -> None:
        """Make sure of the commits that are seen, whoever made them."""
        for wait in SYNC_RETRIES_S:
            with contextlib.suppress(OSError):
                return sync_folder(self.folder)
            time.sleep(wait)
        return sync_folder(self.folder)

    def read(self, version: int) -> list[Action] | None:
        """A commit; None if it is not there, or not any more."""
        try:
            content = self._path(version).read_bytes()
        except FileNotFoundError:
            return None
        try:
            actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError:
            actions = []
        if not actions:
            raise LogUnavailable(f"commit {self._path(version)} is empty or torn: restore it, or the table")
        checksum = actions[0].get("commitInfo", {}).get(CHECKSUM)
        if checksum is not None and checksum != zlib.crc32(content.partition(b"\n")[2]):
            raise LogUnavailable(f"commit {self._path(version)} is damaged: restore it, or the table")
        return actions

    def sign(self, version: int) -> Sign | None:
        """What tells a commit from any other that ever has its name; None if it is not there, or not any more."""
        try:
            found = self._path(version).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def needed(self) -> list[Path]:
        """The files that tell of the newest version: the last checkpoint, and the commits after it."""
        since = self.checkpointed()
        hint = [self.folder / "_last_checkpoint"] if since >= 0 else []
        return hint + [path for path in self.folder.glob("[0-9]*") if _version(path) >= since]

    def check(self) -> None:
        """Raise `LogUnavailable` if the last checkpoint, or a commit after it, is not whole.

        delta-rs reads a torn commit as an empty one, and of a checkpoint whatever it finds in it.
        """
        hint = self._hint()
        since = hint.get("version", -1)
        known = hint.get("tags", {}).get(CHECKSUM)
        with contextlib.suppress(FileNotFoundError):  # delta-rs finds an older one, or says what is missing
            if known is not None and known != self.checkpoint_checksum(since):
                raise LogUnavailable(
                    f"checkpoint {self._checkpoint(since)} is not the one that _last_checkpoint tells of: "
                    "restore both, or the table"
                )
        for path in self.folder.glob("[0-9]*.json"):
            if _version(path) > since:
                self.read(_version(path))

    def checkpointed(self) -> int:
        """The version of the last checkpoint; -1 if there is none. Commits up to it may be gone."""
        version: int = self._hint().get("version", -1)
        return version

    def checkpoint_checksum(self, version: int) -> str:
        """The checksum of a checkpoint, as its hint has it."""
        return f"{zlib.crc32(self._checkpoint(version).read_bytes()):08x}"

    def _hint(self) -> Action:
        """What is said of the last checkpoint; nothing if there is none."""
        path = self.folder / "_last_checkpoint"
        try:
            hint = json.loads(path.read_bytes())
            return {"version": int(hint["version"]), "tags": dict(hint.get("tags") or {})}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LogUnavailable(f"{path} is empty or torn: delete it; the checkpoint is found without") from None

    def newest(self) -> int:
        """The newest version that there is a commit or a checkpoint of; -1 if there is none."""
        return max([self.checkpointed(), *map(_version, self.folder.glob("[0-9]*.json"))])

    def all(self) -> Iterator[list[Action]]:
        """The commits that are still there, in no order."""
        for path in self.folder.glob("[0-9]*.json"):
            if (commit := self.read(_version(path))) is not None:
                yield commit

    def drafts(self) -> list[Path]:
        """Commits that were begun; those of a writer that died stay behind."""
        return list(self.folder.glob(".*.tmp"))

    def _path(self, version: int) -> Path:
        return self.folder / f"{version:020}.json"

    def _checkpoint(self, version: int) -> Path:
        return self.folder / f"{version:020}.checkpoint.parquet"


def _version(path: Path) -> int:
    """The version that a file of the log belongs to."""
    return int(path.name.partition(".")[0])


def is_ours(commit: Sequence[Action]) -> bool:
    """Whether it was made here, and not by another engine."""
    return any(action.get("commitInfo", {}).get("engineInfo") == ENGINE for action in commit)


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
