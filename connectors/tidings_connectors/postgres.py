"""The change log of a PostgreSQL database, tailed through logical decoding with `pgoutput`.

Address: `postgres:<connection string>`, as in `postgres:postgresql://tail@127.0.0.1:5432/shop` or
`postgres:service=shop`; a password comes from PGPASSWORD, a passfile or a service, never from the address. The server
is PostgreSQL 12 or later with `wal_level = logical`, a publication says which tables, and the role needs LOGIN and
REPLICATION.

A position's `seq` is where the transaction's commit is in the WAL, as a number; its `index` counts the rows of the
transaction. The stream has one replication slot, which is never read from: it stands where the slowest flow stands, so
that the server keeps what is still needed, and each reader reads a copy of it that goes with its connection. So a
server needs a replication slot for each stream and each reader.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from tidings.errors import InvalidPosition
from tidings.positions import Bounds, Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.postgres_connections import Asking, Server
from tidings_connectors.postgres_merging import MergedReader
from tidings_connectors.postgres_options import PostgresOptions, options_of
from tidings_connectors.postgres_preflight import check_server
from tidings_connectors.postgres_reader import Heartbeat, PostgresReader
from tidings_connectors.postgres_slots import FRESH, Slot, State
from tidings_connectors.postgres_snapshot import Run, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from tidings.streams import StreamDefinition

    R = TypeVar("R", DataFrameReader, DataStreamReader)

SLICE_ROWS = 50_000  # rows of one batch of a slice
ROW_BYTES = 200  # of WAL, as a guess


class PostgresLog:
    """A `TailedLog` over a replication slot. Made by `create` and `open`."""

    def __init__(self, server: Server, stream: StreamDefinition, options: PostgresOptions) -> None:
        self._server = server
        self._stream = stream
        self._options = options
        self._asking = Asking(server)
        self._slot = Slot(server, self._asking, stream.name, options.slot)
        self._heartbeat = Heartbeat(server, self._asking, self._slot, options.heartbeat)
        self._snapshot: Snapshot | None = None
        if options.snapshot and options.snapshot_folder:
            self._snapshot = Snapshot(server, self._slot, stream.name, Path(options.snapshot_folder))
        self._bounds: dict[int, Bounds] = {}
        self._lock = threading.Lock()
        self._readers: set[PostgresReader] = set()

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        log = cls._of(location, stream)
        with log._closed_on_error():
            there = log._slot.there()
            log._check(slots=1 if there else 2)
            if log._snapshot is not None:
                log._take_snapshot()
            elif not there:
                log._slot.create()
            return log

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        log = cls._of(location, stream)
        with log._closed_on_error():
            log._check(slots=1)
            log._slot.state()
            log._take_snapshot()
            return log

    @classmethod
    def _of(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        return cls(Server(location), stream, options_of(stream))

    def bounds(self) -> dict[int, Bounds]:
        state = self._state(FRESH)
        now = Bounds(state.floor, state.head)
        with self._lock:
            if self._bounds.get(0) != now:
                self._bounds = dict.fromkeys(range(self._stream.shards), now)
            return self._bounds

    def reach(self, after: Positions, limit: int | None) -> Positions:
        """The head. How many rows are on the way there only reading tells, so the limit cannot be honoured."""
        state = self._state()
        stands = self._all(after)
        self._slot.check(state, stands)
        return Positions({shard: max(at, state.head) for shard, at in stands.items()})

    def reader(self) -> PostgresReader | MergedReader:
        """A reader, for one who reads on and on; it holds a connection and a temporary replication slot."""
        return self._reader(self._heartbeat)

    def quiet_reader(self) -> PostgresReader | MergedReader:
        """A reader that writes no signs of life, for one who reads a range."""
        return self._reader(None)

    def tail(self, after: Positions, limit: int) -> pa.Table:
        """The next rows. Each call opens a connection: who reads on and on uses a `reader`."""
        stands = self._all(after)
        state = self._state()
        self._slot.check(state, stands)
        with contextlib.closing(self.quiet_reader()) as reader:
            parts = [SCHEMA.empty_table()]
            found = 0
            while found < limit and min(stands.values()) < state.head:
                rows, stands = reader.read(stands, limit - found)
                parts.append(rows)
                found += len(rows)
        return pa.concat_tables(parts).slice(0, limit)

    def slices(self, after: Positions, upto: Positions) -> list[PostgresSlice]:
        stands, end = self._all(after), self._all(upto)
        state = self._state()
        self._slot.check(state, stands)
        self._slot.check(state, upto)
        asked = Positions({shard: at for shard, at in stands.items() if at < end[shard]})
        return [PostgresSlice(self._location, self._stream, asked, end)] if len(asked) else []

    def scan(self, spark: SparkSession, after: Positions | None = None, upto: Positions | None = None) -> DataFrame:
        reader = self._source(spark.read, after)
        if upto is not None:
            reader = reader.option("endingPosition", str(self._all(upto)))
        return reader.load()

    def stream(self, spark: SparkSession, after: Positions | None = None) -> DataFrame:
        return self._source(spark.readStream, after).load()

    def confirm(self, upto: Positions) -> None:
        """Move the slot to the last of these positions; a shard that is not named has passed nothing."""
        # A transaction that has only begun to be read is sent again from here, and so is the one that ends here.
        self._slot.advance(min(upto[shard].seq for shard in range(self._stream.shards)))
        if self._snapshot is not None and any(
            self._slot.state(FRESH).floor.seq > one.place for one in self._runs()[-1:]
        ):
            self._snapshot.forget()

    def distance(self, after: Position, upto: Position) -> int:
        """About how many rows lie between, by the bytes of WAL."""
        return max(0, upto.seq - after.seq) // ROW_BYTES

    def close(self) -> None:
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        self._slot.close()
        self._asking.close()

    @property
    def _location(self) -> str:
        return self._stream.log.partition(":")[2]

    def _check(self, *, slots: int) -> None:
        check_server(self._server, self._asking, self._slot, self._options.publication, slots=slots)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            yield
            failed.pop_all()

    def _state(self, age: float = 0.0) -> State:
        """What is held: by the slot, and before it the snapshot, if it joins on."""
        state = self._slot.state(age)
        runs = self._runs()
        if runs and not state.lost and state.floor.seq <= runs[0].place:
            return state._replace(floor=min(state.floor, Position(runs[0].seq, -1)))
        return state

    def _runs(self) -> list[Run]:
        return [] if self._snapshot is None else self._snapshot.runs()

    def _take_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.take(self._options.publication, self._options.mapping, self._stream.shards)

    def _reader(self, heartbeat: Heartbeat | None) -> PostgresReader | MergedReader:
        plain = PostgresReader(
            self._server, self._asking, self._slot, self._options, self._stream.shards, heartbeat, self._forget
        )
        with self._lock:
            self._readers.add(plain)
        return plain if self._snapshot is None else MergedReader(plain, self._snapshot, self._slot)

    def _forget(self, reader: PostgresReader) -> None:
        with self._lock:
            self._readers.discard(reader)

    def _all(self, positions: Positions) -> Positions:
        """The positions for every shard: one that is not named stands at the start."""
        shards = self._stream.shards
        if len(positions) and max(positions) >= shards:
            raise InvalidPosition(f"stream {self._stream.name!r} has shards 0 to {shards - 1}, not {max(positions)}")
        return Positions({shard: positions[shard] for shard in range(shards)})

    def _source(self, reader: R, after: Positions | None) -> R:
        """Spark's reader of this stream."""
        reader = reader.format("tidings").option("definition", json.dumps(self._stream.to_json()))
        if after is not None:
            stands = self._all(after)
            first = Positions({shard: Position(at.seq, at.index + 1) for shard, at in stands.items()})
            reader = reader.option("startingPosition", str(first))
        return reader


@dataclass(frozen=True)
class PostgresSlice:
    """The rows of some shards between two positions, read by a reader of its own."""

    location: str
    stream: StreamDefinition
    after: Positions
    upto: Positions

    def read(self) -> Iterator[pa.RecordBatch]:
        log = PostgresLog(Server(self.location), self.stream, options_of(self.stream))
        end_seq, end_index = (
            np.array([getattr(self.upto[shard], name) for shard in range(self.stream.shards)], np.int64)
            for name in ("seq", "index")
        )
        with contextlib.closing(log), contextlib.closing(log.quiet_reader()) as reader:
            stands = self.after
            while any(at < self.upto[shard] for shard, at in stands.items()):
                rows, stands = reader.read(stands, SLICE_ROWS)
                shards, seqs, indexes = (rows[name].to_numpy() for name in ("shard", "seq", "index"))
                last, last_index = end_seq[shards], end_index[shards]
                within = (seqs < last) | ((seqs == last) & (indexes <= last_index))
                yield from rows.filter(pa.array(within)).to_batches()
