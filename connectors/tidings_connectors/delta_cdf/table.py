"""The Delta table under a log: which versions of it have a change data feed, and what the feed has of each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import LogUnavailable
from tidings.positions import Bounds, Position
from tidings.storage.delta_commits import Commits
from tidings.storage.delta_rs import containing_panics

if TYPE_CHECKING:
    from deltalake import DeltaTable

FEED_PROPERTY = "delta.enableChangeDataFeed"
FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


class FedTable:
    """A table of somebody else's, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._commits = folder / "_delta_log"
        self._newest_known: int | None = None
        self._began: int | None = None
        self._vacuumed = 0

    def open(self, version: int | None = None) -> DeltaTable:
        """The table as delta-rs sees it, in its newest version or in this one."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            with containing_panics(self.folder):
                return DeltaTable(self.folder, version=version)
        except (DeltaError, OSError) as error:
            if not self._commits.exists():
                raise LogUnavailable(f"there is no Delta table in {self.folder}") from None
            raise LogUnavailable(f"no Delta table can be read in {self.folder}: {error}") from None

    def id(self) -> str:
        """Which table it is, wherever its folder is."""
        return str(self.open().metadata().id)

    def mark(self) -> dict[str, int]:
        """By which the newest version is known in copies of the table."""
        return Commits(self.folder).mark(self._newest())

    def check_mark(self, known: Mapping[str, Any]) -> None:
        """Raise `LogMismatch` if a version that was read elsewhere is another one here, or not here yet."""
        Commits(self.folder).check_mark(known)

    def bounds(self) -> Bounds:
        """What the feed holds, now."""
        head = Position(self._newest() + 1, -1)  # which says so if there is no table any more
        return Bounds(Position(self._oldest(), -1), head)

    def feed(self, version: int) -> pa.Table:
        """The changes of one version, in whichever order the table has them; `LogUnavailable` if they are gone."""
        from deltalake.exceptions import DeltaError

        try:
            with containing_panics(self.folder):
                if any("%" in path for _, path, _ in self._files(version)):  # delta-rs takes them as they stand
                    return self._read(version)
                found = pa.table(self.open(version).load_cdf(starting_version=version, ending_version=version))
        except (DeltaError, OSError, pa.ArrowException) as error:
            if self._has_files(version):
                raise LogUnavailable(
                    f"version {version} of the table in {self.folder} cannot be read: {error}"
                ) from None
            newest = self._newest()
            self._vacuumed = next((one for one in range(version + 1, newest + 1) if self._has_files(one)), newest + 1)
            raise LogUnavailable(
                f"the changes of version {version} of the table in {self.folder} were vacuumed"
            ) from None
        return found

    def _read(self, version: int) -> pa.Table:
        """The changes of one version, from the files that its commit names."""
        schema = pa.schema(self.open(version).schema().to_arrow())
        stamped = {"_commit_version": pa.scalar(version), "_commit_timestamp": self._time(version)}
        found = []
        for kind, path, partition in self._files(version):
            rows = pq.ParquetFile(self.folder / unquote(path)).read()
            added = {name: pa.scalar(value).cast(schema.field(name).type) for name, value in partition.items()}
            added |= {} if kind == "cdc" else {"_change_type": pa.scalar("insert" if kind == "add" else "delete")}
            for name, value in (added | stamped).items():
                rows = rows.append_column(name, pa.repeat(value, len(rows)))
            found.append(rows.select([*schema.names, *FEED_COLUMNS]))
        return pa.concat_tables(found, promote_options="permissive")

    def _time(self, version: int) -> pa.Scalar:
        """When a version was committed."""
        stamps = [action["timestamp"] for kind, action in self._actions(version) if kind == "commitInfo"]
        return pa.scalar(stamps[0] if stamps else int(self._commit(version).stat().st_mtime * 1000), pa.timestamp("ms"))

    def _newest(self) -> int:
        at = self.open().version() if self._newest_known is None else self._newest_known
        if not self._commit(at).exists():
            at = int(self.open().version())  # made anew, or cleaned up
        else:
            while self._commit(at + 1).exists():
                at += 1
        self._newest_known = at
        return at

    def _oldest(self) -> int:
        """The first version whose changes can be had: its commit is there, and the feed was on by then."""
        versions = [
            int(found[1]) for path in self._commits.iterdir() if (found := re.fullmatch(r"(\d{20})\.json", path.name))
        ]
        oldest = min(versions, default=0)
        if self._began is None or self._began < oldest:
            self._began = next((one for one in sorted(versions) if self._feeds(one)), oldest)
        return max(oldest, self._began, self._vacuumed)

    def _feeds(self, version: int) -> bool:
        """Whether the feed was on in this version; a version that does not say so has it from the one before."""
        lines = self._commit(version).read_text().splitlines()
        metadata = [json.loads(line)["metaData"] for line in lines if line.startswith('{"metaData"')]
        if metadata:
            return bool(metadata[-1]["configuration"].get(FEED_PROPERTY) == "true")
        return self.open(version).metadata().configuration.get(FEED_PROPERTY) == "true"

    def _has_files(self, version: int) -> bool:
        """Whether all files are there that the changes of a version are in."""
        return all((self.folder / unquote(path)).exists() for _, path, _ in self._files(version))

    def _files(self, version: int) -> list[tuple[str, str, dict[str, str | None]]]:
        """The files that the changes of a version are in: the kind of each, its path, and what all its rows share."""
        files = [
            (kind, action["path"], action.get("partitionValues") or {})
            for kind, action in self._actions(version)
            if kind == "cdc" or (kind in ("add", "remove") and action["dataChange"])
        ]
        return [one for one in files if one[0] == "cdc"] or files

    def _actions(self, version: int) -> list[tuple[str, dict[str, Any]]]:
        lines = self._commit(version).read_text().splitlines()
        return [action for line in lines if line for action in json.loads(line).items()]

    def _commit(self, version: int) -> Path:
        return self._commits / f"{version:020}.json"
