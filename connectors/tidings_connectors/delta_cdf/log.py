"""The change data feed of any Delta table as a log: `delta-cdf:/data/orders`.

A `seq` is a version of the table, an `index` counts the rows that changed in it.

Options of the stream are those of `cdc.mapping` and `cdc.snapshot`, and `key`: the columns that tell rows apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import LogMismatch, LogRestored, PositionsLost
from tidings.log_opening import resolve_path
from tidings.logs import Reader
from tidings.positions import Bounds, Position, Positions
from tidings_connectors.cdc import base
from tidings_connectors.cdc.base import TailedLogBase
from tidings_connectors.cdc.positions import missing
from tidings_connectors.delta_cdf.options import CdfOptions
from tidings_connectors.delta_cdf.preflight import check_table
from tidings_connectors.delta_cdf.reader import DeltaCdfReader
from tidings_connectors.delta_cdf.snapshot import DeltaRows
from tidings_connectors.delta_cdf.table import FedTable

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

VERSION_ROWS = 100  # as a guess of how far it is to the head
BOUNDS_MAX_AGE_S = 0.1  # for which the bounds are not looked up again
ORIGIN_MAX_AGE_S = 30.0
NEVER = -1e9


class DeltaCdfLog(TailedLogBase):
    """A `TailedLog` over a table's change data feed. Made by `create` and `open`."""

    def __init__(self, folder: Path, stream: StreamDefinition, options: CdfOptions) -> None:
        super().__init__(stream, options)
        self._options: CdfOptions = options
        self._table = FedTable(folder)
        self._lock = threading.Lock()
        self._known: tuple[float, dict[int, Bounds]] = (NEVER, {})
        self._origin = (NEVER, "")
        self._use_snapshots(DeltaRows(self._table, options.key), stream.name)

    @classmethod
    def preflight(cls, location: str, stream: StreamDefinition) -> dict[str, Any]:
        """As `tidings.log_checks` has it."""
        log = cls._unopened(location, stream)
        check_table(log._table, log._options)
        return log.origin()

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        """There is nothing to make but a snapshot, if one is wanted: the table is there."""
        log = cls._unopened(location, stream)
        check_table(log._table, log._options)
        log._take_snapshot()
        return log

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        log = cls._unopened(location, stream)
        check_table(log._table, log._options)
        log._resume_snapshot()
        return log

    @classmethod
    def _unopened(cls, location: str, stream: StreamDefinition) -> DeltaCdfLog:
        return cls(Path(location), stream, base.options_of(CdfOptions, stream, "Delta"))

    @classmethod
    def resolve(cls, location: str, folder: Path) -> str:
        return resolve_path(location, folder)

    def bounds(self) -> dict[int, Bounds]:
        with self._lock:
            looked, bounds = self._known
            if time.monotonic() - looked > BOUNDS_MAX_AGE_S:
                now = self._bounds_from_snapshot(self._table.bounds())
                if not bounds or bounds[0] != now:
                    bounds = dict.fromkeys(range(self._stream.shards), now)
                self._known = (time.monotonic(), bounds)
            return bounds

    def reader(self) -> Reader:
        return self._reader_with_snapshot(DeltaCdfReader(self, self._table, self._options, self._stream.shards))

    def check(self, after: Positions) -> None:
        with self._lock:
            self._known = (NEVER, self._known[1])
        held, name = self._bounds_with_snapshot(self._table.bounds()), self._stream.name
        # There is no version before 0, so whoever stands there has lost nothing.
        gone, ahead = missing(held, Positions({shard: max(at, Position(0, -1)) for shard, at in after.items()}))
        if gone:
            raise PositionsLost(f"stream {name!r} holds versions from {held.floor.seq} on, and no older ones", gone)
        if ahead:
            raise LogRestored(
                f"the table of stream {name!r} ends at version {held.head.seq - 1}: it was restored", ahead
            )

    def confirm(self, upto: Positions) -> None:
        """The table keeps its versions by its own rules (`delta.logRetentionDuration`, VACUUM); a snapshot is ours."""
        self._release_snapshots(upto)

    def origin(self) -> dict[str, Any]:
        with self._lock:
            looked, table = self._origin
        if time.monotonic() - looked > ORIGIN_MAX_AGE_S:
            looked, table = time.monotonic(), self._table.id()
            with self._lock:
                self._origin = looked, table
        return {"table": table, "name": self._name, **self._table.mark()}

    @classmethod
    def prove(cls, location: str, stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
        log = cls._unopened(location, stream)
        here = log._table.id()
        if here != known.get("table"):
            raise LogMismatch(
                f"the table in {location} has the id {here}, and stream {stream.name!r} was read from "
                f"{known.get('table')}: one that was written anew is another table, so make a new stream"
            )
        log._table.check_mark(known)
        name = log._name
        if name != known.get("name", name):
            raise LogMismatch(
                f"the folder of stream {stream.name!r} must still be called {known['name']!r}, and not {name!r}, since "
                "objects are named after it"
            )

    @property
    def _name(self) -> str:
        """What objects are named after."""
        folder = self._table.folder
        return f"{folder.parent.name}/{folder.name}"

    def distance(self, after: Position, upto: Position) -> int:
        return (upto.seq - after.seq) * VERSION_ROWS
