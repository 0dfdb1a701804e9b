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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tidings.errors import LogMismatch, LogUnavailable
from tidings.storage.durable import sync_folder

Action = dict[str, Any]
"""A line of a commit, as Delta's protocol has it."""

ENGINE = "tidings"
CHECKSUM = "tidings.crc32"  # of all lines of a commit but the first, which says it; of a checkpoint, in its hint
HINT = "_last_checkpoint"
SYNC_RETRIES_S = (0.01, 0.1)


class OutcomeUnknown(LogUnavailable):
    """A commit was made, and it is not known whether it is on the disk."""


class Fingerprint(NamedTuple):
    """By which the file of a version is told from another of that name: the table may be made anew, or restored.

    The first two are known without a look into the file. They may change by themselves, as in a copy; the checksum of
    its content says then whether it is the same.
    """

    path: Path
    inode: int
    modified_ns: int
    checksum: int


class Commits:
    """The commits of the table in a folder."""

    def __init__(self, folder: Path) -> None:
        self._table = folder
        self.folder = folder / "_delta_log"
        self.hint = self.folder / HINT

    def put(self, version: int, actions: Sequence[Action], after: Fingerprint | None = None) -> Fingerprint | None:
        """Make this the table's next version; None, and nothing changed, if another writer made that version.

        None also if `after`, which is to be the version before, is not there, or not any more. After an
        `OutcomeUnknown` the commit may be seen, and all that it names must stay. `FileNotFoundError` if a file that it
        adds is not there: whoever thought it abandoned has deleted it.
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
                made = _fingerprint(self._path(version), os.fstat(file.fileno()), content)
            sync_folder(self._table)  # the names of its files, before a commit speaks of them
            for path in (self._table / unquote(action["add"]["path"]) for action in actions if "add" in action):
                path.stat()
            return made if self._link(draft, version, after) else None
        finally:
            with contextlib.suppress(OSError):  # maintenance deletes what is left
                draft.unlink()

    def _link(self, draft: Path, version: int, after: Fingerprint | None) -> bool:
        path = self._path(version)
        if not self._follows(after):
            return False
        try:
            os.link(draft, path)
        except OSError as error:
            # A file system behind a network may do it, and tell of a failure: whose file it is decides.
            if not path.exists() or not path.samefile(draft):
                if isinstance(error, FileExistsError):
                    return False
                raise
        try:
            if self._made_before(draft, version) or not self._follows(after):
                with contextlib.suppress(FileNotFoundError):
                    if path.samefile(draft):
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

    def _follows(self, after: Fingerprint | None) -> bool:
        return after is None or self.is_there(after)

    def is_there(self, known: Fingerprint) -> bool:
        """Whether the table still has this very file. If not, it was cleaned up, or this is another table."""
        try:
            found = os.stat(known.path)
        except FileNotFoundError:
            return False
        if (found.st_ino, found.st_mtime_ns) == (known.inode, known.modified_ns):
            return True
        again = _taken(known.path)
        return again is not None and again[0].checksum == known.checksum

    def fingerprint(self, version: int) -> Fingerprint | None:
        """That of the commit of a version, or of its checkpoint if the commit was cleaned up; None without either."""
        paths = (self._path(version), *self._checkpoints(version))
        return next((taken[0] for path in paths if (taken := _taken(path))), None)

    def mark(self, version: int) -> dict[str, int]:
        """By which this version is known in copies of the table: as JSON has it, empty if its commit is not there."""
        found = _taken(self._path(version))
        return {} if found is None else {"version": version, "commit": found[0].checksum}

    def check_mark(self, known: Mapping[str, Any]) -> None:
        """Raise `LogMismatch` if the version that `known` tells of is another one here, or not here yet.

        One whose commit was cleaned up tells nothing.
        """
        version, commit = known.get("version"), known.get("commit")
        if version is None or (version <= self.newest() and not self.mark(version)):
            return
        if self.mark(version) != {"version": version, "commit": commit}:
            raise LogMismatch(
                f"version {version} of the table in {self._table} is not the one that was read, or not there: wait "
                "until it is as far; if it is an older copy, make a new stream"
            )

    def sync(self) -> None:
        """Make sure of the commits that are seen, whoever made them."""
        for wait in SYNC_RETRIES_S:
            with contextlib.suppress(OSError):
                return sync_folder(self.folder)
            time.sleep(wait)
        return sync_folder(self.folder)

    def read(self, version: int) -> list[Action] | None:
        """A commit; None if it is not there, or not any more."""
        found = self.take(version)
        return None if found is None else found[1]

    def take(self, version: int) -> tuple[Fingerprint, list[Action]] | None:
        """A commit, and by what it is known again; None if it is not there, or not any more."""
        found = _taken(self._path(version))
        return None if found is None else (found[0], self._actions(version, found[1]))

    def _actions(self, version: int, content: bytes) -> list[Action]:
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

    def since(self, version: int) -> list[Path]:
        """The files that tell of this version and of later ones: checkpoints and commits."""
        return [path for path in self.folder.glob("[0-9]*") if _version(path) >= version]

    def check(self) -> None:
        """Raise `LogUnavailable` if the last checkpoint, or a commit after it, is not whole.

        delta-rs reads a torn commit as empty; of a checkpoint it takes what it finds, or panics.
        """
        hint = self._hint()
        since = hint.get("version", -1)
        known = hint.get("tags", {}).get(CHECKSUM)
        if known is not None and known != self.checkpoint_checksum(since) and since == self.checkpointed():
            names = ", ".join(map(str, self._checkpoints(since))) or f"of version {since}"
            raise LogUnavailable(
                f"checkpoint {names} is damaged or missing, or {self.hint} is damaged: restore both, or the table"
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
        checksum = 0
        for path in self._checkpoints(version):
            checksum = zlib.crc32(path.read_bytes(), checksum)
        return f"{checksum:08x}"

    def _hint(self) -> Action:
        """What is said of the last checkpoint; nothing if there is none."""
        path = self.hint
        try:
            hint = json.loads(path.read_bytes())
            return {"version": int(hint["version"]), "tags": dict(hint.get("tags") or {})}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LogUnavailable(f"{path} is empty or torn: delete it; the checkpoint is found without") from None

    def _checkpoints(self, version: int) -> list[Path]:
        return sorted(self.folder.glob(f"{version:020}.checkpoint*.parquet"))

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


def _version(path: Path) -> int:
    """The version that a file of the log belongs to."""
    return int(path.name.partition(".")[0])


def _taken(path: Path) -> tuple[Fingerprint, bytes] | None:
    """A file with its fingerprint; None if it is not there."""
    try:
        with open(path, "rb") as file:
            status, content = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return None
    return _fingerprint(path, status, content), content


def _fingerprint(path: Path, status: os.stat_result, content: bytes) -> Fingerprint:
    return Fingerprint(path, status.st_ino, status.st_mtime_ns, zlib.crc32(content))


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
