"""The change data feed of any Delta table as a log: `delta-cdf:/data/orders`.

A `seq` is a version of the table, an `index` counts the rows that changed in it. The feed does not say in which order
the rows of a version changed, and a reader may find them in another order the next time; so they are put in the order
of their objects, and an object's end comes before its beginning.

Options of the stream are those of `row_mapping`, and `key`: the columns that tell rows apart. Without a key the table
is one object.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tidings.errors import InvalidOption, LogMismatch, LogRestored, LogUnavailable, PositionsLost
from tidings.logs import Read, Reader, resolve_path
from tidings.positions import Bounds, Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc import base
from tidings_connectors.cdc.base import Tailing
from tidings_connectors.cdc.mapping import DELETE, INSERT, UPDATE, Changes, updates_of
from tidings_connectors.cdc.positions import chosen, later, missing
from tidings_connectors.cdc.snapshot import SnapshotOptions
from tidings_connectors.delta_cdf.columns import column_of
from tidings_connectors.delta_cdf.snapshot import DeltaRows

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from tidings.stream_definition import StreamDefinition

FEED = "delta.enableChangeDataFeed"
OPERATIONS = {"insert": INSERT, "update_postimage": UPDATE, "update_preimage": DELETE, "delete": DELETE}
ROWS_A_VERSION = 100  # as a guess of how far it is to the head
FRESH = 0.1  # seconds for which the bounds are not looked up again
WAIT = 0.05  # seconds that a reader waits for a new version


class CdfOptions(SnapshotOptions):
    """What becomes of a row, and which columns are its key."""

    key: tuple[str, ...] = Field(default=(), strict=False)


class DeltaCdfLog(Tailing):
    """A `TailedLog` over a table's change data feed."""

    def __init__(self, folder: Path, stream: StreamDefinition, options: CdfOptions) -> None:
        super().__init__(stream, options)
        self.folder = folder
        self.options = options
        self._lock = threading.Lock()
        self._known: tuple[float, dict[int, Bounds]] = (-1e9, {})
        self._began: int | None = None
        self._vacuumed = 0
        self._snapshot_of(DeltaRows(folder, options.key, self.table, self._fed), stream.name)

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        """There is nothing to make but a snapshot, if one is wanted: the table is there."""
        log = cls._of(location, stream)
        log._check(log.table())
        log._take()
        return log

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        log = cls._of(location, stream)
        log._check(log.table())
        log._resume()
        return log

    @classmethod
    def _of(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        return cls(Path(location), stream, base.options_of(CdfOptions, stream, "Delta"))

    def table(self, version: int | None = None) -> DeltaTable:
        """The table as delta-rs sees it."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(self.folder, version=version)
        except (DeltaError, OSError) as error:
            if not (self.folder / "_delta_log").exists():
                raise LogUnavailable(f"there is no Delta table in {self.folder}") from None
            raise LogUnavailable(f"no Delta table can be read in {self.folder}: {error}") from None

    def _check(self, table: DeltaTable) -> None:
        if table.metadata().configuration.get(FEED) != "true":
            raise LogMismatch(
                f"the table in {self.folder} has no change data feed: "
                f"ALTER TABLE delta.`{self.folder}` SET TBLPROPERTIES ({FEED} = true)"
            )
        names = [field.name for field in table.schema().fields]
        missing = [name for name in self.options.key if name not in names]
        if missing:
            raise InvalidOption(
                f"the table in {self.folder} has no column {missing[0]!r} to be its key (columns: {', '.join(names)})"
            )

    @classmethod
    def resolve(cls, location: str, folder: Path) -> str:
        return resolve_path(location, folder)

    def bounds(self) -> dict[int, Bounds]:
        with self._lock:
            looked, bounds = self._known
            if time.monotonic() - looked > FRESH:
                now = self._joined(self._fed())
                if not bounds or bounds[0] != now:
                    bounds = dict.fromkeys(range(self._stream.shards), now)
                self._known = (time.monotonic(), bounds)
            return bounds

    def _fed(self) -> Bounds:
        """What the feed holds."""
        head = Position(self._newest() + 1, -1)  # which says so if there is no table any more
        return Bounds(Position(self._oldest(), -1), head)

    def _newest(self) -> int:
        commits = self.folder / "_delta_log"
        at = self._known[1][0].head.seq if self._known[1] else self.table().version() + 1
        if at and not (commits / f"{at - 1:020}.json").exists():
            return int(self.table().version())  # made anew, or cleaned up
        while (commits / f"{at:020}.json").exists():
            at += 1
        return at - 1

    def _oldest(self) -> int:
        """The first version whose changes can be had: its commit is there, and the feed was on by then."""
        commits = self.folder / "_delta_log"
        versions = [
            int(found[1]) for path in commits.iterdir() if (found := re.fullmatch(r"(\d{20})\.json", path.name))
        ]
        oldest = min(versions, default=0)
        if self._began is None or self._began < oldest:
            self._began = next((one for one in sorted(versions) if self._feeds(one)), oldest)
        return max(oldest, self._began, self._vacuumed)

    def _feeds(self, version: int) -> bool:
        """Whether the feed was on in this version; a version that does not say so has it from the one before."""
        text = (self.folder / "_delta_log" / f"{version:020}.json").read_text()
        said = [json.loads(line)["metaData"] for line in text.splitlines() if line.startswith('{"metaData"')]
        if said:
            return bool(said[-1]["configuration"].get(FEED) == "true")
        return self.table(version).metadata().configuration.get(FEED) == "true"

    def check(self, after: Positions) -> None:
        with self._lock:
            self._known = (-1e9, self._known[1])
        held, name = self.bounds()[0], self._stream.name
        # There is no version before 0, so whoever stands there has lost nothing.
        gone, ahead = missing(held, Positions({shard: max(at, Position(0, -1)) for shard, at in after.items()}))
        if gone:
            raise PositionsLost(f"stream {name!r} holds versions from {held.floor.seq} on, and no older ones", gone)
        if ahead:
            raise LogRestored(
                f"the table of stream {name!r} ends at version {held.head.seq - 1}: it was restored", ahead
            )

    def reader(self) -> Reader:
        return self._merged(DeltaCdfReader(self))

    def confirm(self, upto: Positions) -> None:
        """The table keeps its versions by its own rules (`delta.logRetentionDuration`, VACUUM); a snapshot is ours."""
        self._forget_snapshot(upto)

    def distance(self, after: Position, upto: Position) -> int:
        return (upto.seq - after.seq) * ROWS_A_VERSION

    def changes(self, version: int) -> pa.Table:
        """The updates of one version, in their order."""
        feed = self._feed(version)
        if not len(feed):
            return SCHEMA.empty_table()
        kinds = feed["_change_type"].cast(pa.string()).combine_chunks()
        times = feed["_commit_timestamp"].cast(pa.timestamp("us", "UTC")).combine_chunks()
        rows = feed.drop_columns([name for name in feed.column_names if name.startswith("_c") and name in META])
        columns = [column_of(name, rows[name].combine_chunks()) for name in rows.column_names]
        count = len(feed)
        made = Changes(
            self.folder.parent.name,
            self.folder.name,
            columns,
            self.options.key,
            pc.replace_substring_regex(kinds, "^update_.*image$", UPDATE),
            np.full(count, version, np.int64),
            np.zeros(count, np.int32),
            times,
        )
        updates = updates_of(made, self.options, self._stream.shards)
        return _arranged(updates, kinds)

    def _feed(self, version: int) -> pa.Table:
        from deltalake.exceptions import DeltaError

        try:
            found = pa.table(self.table(version).load_cdf(starting_version=version, ending_version=version))
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

    def _has_files(self, version: int) -> bool:
        """Whether all files are there that the changes of a version are in."""
        lines = (self.folder / "_delta_log" / f"{version:020}.json").read_text().splitlines()
        actions = [action for line in lines if line for action in json.loads(line).items()]
        changes = [action["path"] for kind, action in actions if kind == "cdc"]
        data = [action["path"] for kind, action in actions if kind in ("add", "remove") and action["dataChange"]]
        return all((self.folder / unquote(path)).exists() for path in changes or data)


META = ("_change_type", "_commit_version", "_commit_timestamp")


def _arranged(updates: pa.Table, kinds: pa.StringArray) -> pa.Table:
    """The updates of a version in an order that is always the same, numbered.

    What a row was before an update is left out, unless its object is not there any more: its key has changed.
    """
    after = pc.equal(kinds, "update_postimage")
    still = pc.is_in(updates["object"], updates["object"].filter(after).combine_chunks())
    before = pc.equal(kinds, "update_preimage")
    updates = updates.append_column("ends", pc.or_(before, pc.equal(kinds, "delete")))
    keyed = updates.filter(pc.invert(pc.and_(before, still)))
    keyed = keyed.append_column("begins", pc.invert(keyed["ends"]))
    keyed = keyed.sort_by([("object", "ascending"), ("begins", "ascending"), ("payload", "ascending")])
    keyed = keyed.set_column(
        SCHEMA.get_field_index("index"), SCHEMA.field("index"), pa.array(np.arange(len(keyed), dtype=np.int32))
    )
    return _ended(keyed).select(SCHEMA.names).cast(SCHEMA)


def _ended(updates: pa.Table) -> pa.Table:
    """The updates, of which those that end an object say so."""
    if not pc.any(updates["ends"]).as_py():
        return updates
    attributes = [
        [(key, DELETE if key == "operation" and ends else value) for key, value in one]
        for one, ends in zip(updates["attributes"].to_pylist(), updates["ends"].to_pylist(), strict=True)
    ]
    field = SCHEMA.field("attributes")
    return updates.set_column(updates.column_names.index("attributes"), field, pa.array(attributes, field.type))


class DeltaCdfReader:
    """Reads versions one after the other. Each is read as a whole, and so has to fit into memory."""

    def __init__(self, log: DeltaCdfLog, wait: float = WAIT) -> None:
        self._log = log
        self._wait = wait
        self._held: tuple[int, pa.Table] = (-1, SCHEMA.empty_table())

    def read(self, after: Positions, limit: int) -> Read:
        held = self._log.bounds()[0]
        if any(not held.floor <= at <= held.head for at in after.values()):
            self._log.check(after)
        head = held.head
        rear = min(after.values())
        version = rear.seq + (0 if rear.index < 0 or self._has_more(rear) else 1)
        if version >= head.seq:
            time.sleep(self._wait)
            return Read(
                SCHEMA.empty_table(), Positions({shard: max(at, Position(version, -1)) for shard, at in after.items()})
            )
        found: list[pa.Table] = []
        count, upto = 0, rear
        while version < head.seq and count < limit:
            try:
                rows = self._version(version)
            except LogUnavailable:
                if found:
                    break  # that is told next time, with the positions of what is lost
                self._log.check(after)
                raise
            rows = chosen(rows, later(rows, after))
            room = limit - count
            found.append(rows.slice(0, room))
            count += len(found[-1])
            upto = Position(version + 1, -1)
            if len(rows) > room:
                last = found[-1].slice(len(found[-1]) - 1)
                upto = Position(version, last["index"][0].as_py())
            version += 1
        table = pa.concat_tables([SCHEMA.empty_table(), *found])
        return Read(table, Positions({shard: max(at, upto) for shard, at in after.items()}))

    def close(self) -> None:
        """Nothing is held."""

    def _has_more(self, at: Position) -> bool:
        """Whether the version has rows after this one."""
        return at.seq < self._log.bounds()[0].head.seq and len(self._version(at.seq)) > at.index + 1

    def _version(self, version: int) -> pa.Table:
        if self._held[0] != version:
            self._held = (version, self._log.changes(version))
        return self._held[1]
