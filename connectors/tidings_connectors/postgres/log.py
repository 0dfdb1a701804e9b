"""The change log of a PostgreSQL database, tailed through logical decoding with `pgoutput`.

Address: `postgres:<connection string>`, as in `postgres:postgresql://tail@127.0.0.1:5432/shop` or
`postgres:service=shop`; a password comes from PGPASSWORD, a passfile or a service, never from the address; `tls` says
what else does not. The server is PostgreSQL 12 or later with `wal_level = logical`, a publication says which tables,
and the role needs LOGIN and REPLICATION.

A position's `seq` is where the transaction's commit is in the WAL, as a number; its `index` counts the rows of the
transaction. The stream has one replication slot, which is never read from: it stands where the slowest flow stands, so
that the server keeps what is still needed, and each reader reads a copy of it that goes with its connection. So a
server needs a replication slot for each stream and each reader; and one more if flows are far from each other, see
`lead`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidings.errors import LogUnavailable
from tidings.logs import Reader, Retained
from tidings.positions import Bounds, Position, Positions
from tidings_connectors.cdc.base import TailedLogBase
from tidings_connectors.postgres.connections import PostgresConnection, PostgresServer
from tidings_connectors.postgres.heartbeat import Heartbeat
from tidings_connectors.postgres.keys import TableKeys
from tidings_connectors.postgres.left_out import LeftOutTables
from tidings_connectors.postgres.options import PostgresOptions, options_of
from tidings_connectors.postgres.origin import ORIGIN_MAX_AGE_S, PostgresOrigin, check_origin, origin_of
from tidings_connectors.postgres.preflight import check_server
from tidings_connectors.postgres.reader import PostgresReader
from tidings_connectors.postgres.slots import STATE_MAX_AGE_S, Slot, SlotState
from tidings_connectors.postgres.snapshot import PostgresTables

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

ROW_BYTES = 200  # of WAL, as a guess


class PostgresLog(TailedLogBase):
    """A `TailedLog` over a replication slot. Made by `create` and `open`."""

    def __init__(self, server: PostgresServer, stream: StreamDefinition, options: PostgresOptions) -> None:
        super().__init__(stream, options)
        self._server = server
        self._options: PostgresOptions = options
        self._connection = PostgresConnection(server)
        self._slot = Slot(server, self._connection, stream.name, options.slot)
        self._heartbeat = Heartbeat(server, self._connection, self._slot, options.heartbeat)
        self._keys = TableKeys(server, self._connection, options.keys)
        self._left_out = LeftOutTables(stream.name, options)
        self._tables = PostgresTables(server, self._slot, options, self._left_out)
        self._use_snapshots(self._tables, options.slot)
        self._bounds: dict[int, Bounds] = {}
        self._lock = threading.Lock()
        self._readers: set[PostgresReader] = set()
        self._origin: tuple[float, PostgresOrigin | None] = (0.0, None)

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        log = cls._unopened(location, stream)
        with log._closed_on_error():
            there = log._check_new()
            with contextlib.ExitStack() as failed:
                if not there:
                    failed.callback(log._slot.drop)
                if log._snapshot is not None and log._options.snapshot:
                    log._snapshot.take(again=not there)  # which makes the slot
                elif not there:
                    log._slot.create()
                failed.pop_all()
            return log

    @classmethod
    def preflight(cls, location: str, stream: StreamDefinition) -> dict[str, Any]:
        """As `tidings.log_checks` has it."""
        with contextlib.closing(cls._unopened(location, stream)) as log:
            log._check_new()
            return log.origin()

    @classmethod
    def claims(cls, location: str, stream: StreamDefinition) -> set[str]:
        """As `tidings.log_checks` has it."""
        return {f"slot {options_of(stream).slot} of {location}"}

    @classmethod
    def check_unclaimed(cls, location: str, stream: StreamDefinition) -> None:
        """As `tidings.log_checks` has it. Two that moved one slot would lose updates, and not hear of it."""
        with contextlib.closing(cls._unopened(location, stream)) as log:
            if log._slot.there():
                raise log._slot.claimed()

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        log = cls._unopened(location, stream)
        with log._closed_on_error():
            log._check(slots=1)
            if log._snapshot is not None and log._options.on_data_loss == "snapshot" and not log._slot.there():
                log._snapshot.begin(again=True)
            log._slot.state()
            log._resume_snapshot()
            return log

    @classmethod
    def _unopened(cls, location: str, stream: StreamDefinition) -> PostgresLog:
        return cls(PostgresServer(location), stream, options_of(stream))

    def _abandon(self) -> None:
        self._slot.drop()
        super()._abandon()

    def bounds(self) -> dict[int, Bounds]:
        state = self._with_snapshot(self._slot.state(STATE_MAX_AGE_S))
        now = Bounds(state.floor, state.head)
        with self._lock:
            if self._bounds.get(0) != now:
                self._bounds = dict.fromkeys(range(self._stream.shards), now)
            return self._bounds

    def reader(self) -> Reader:
        """A reader, for one who reads on and on; it holds a connection and a temporary replication slot."""
        plain = PostgresReader(
            self._server,
            self._connection,
            self._slot,
            self._options,
            self._stream.shards,
            self._keys,
            self._left_out,
            self._heartbeat,
            self._forget,
        )
        with self._lock:
            self._readers.add(plain)
        return self._reader_with_snapshot(plain)

    def check(self, after: Positions) -> None:
        self._slot.check(self._with_snapshot(self._slot.readable_state()), after)

    def confirm(self, upto: Positions) -> None:
        """Move the slot to the last of these positions; a shard that is not named has passed nothing."""
        # A transaction that has only begun to be read is sent again from here, and so is the one that ends here.
        self._slot.advance(self._release_snapshots(upto).seq)
        self._left_out.forget(min(upto[shard] for shard in range(self._stream.shards)))

    def retained(self, slowest: Position) -> Retained | None:
        """The WAL from where the slot needs it on; the server may need some of it for itself."""
        return self._slot.retained()

    def followers_at(self, stands: Sequence[Position]) -> None:
        """Spare those who are far ahead of the slowest the way from there."""
        floor = self._slot.state(STATE_MAX_AGE_S).floor.seq  # nobody is further back, wherever one begins
        self._slot.lead.follow([max(floor, at.seq) for at in stands])

    def origin(self) -> dict[str, Any]:
        with self._lock:
            looked, known = self._origin
        if known is None or time.monotonic() > looked + ORIGIN_MAX_AGE_S:
            looked, known = time.monotonic(), origin_of(self._server)
            with self._lock:
                self._origin = looked, known
        return known._asdict()

    @classmethod
    def prove(cls, location: str, stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
        with contextlib.closing(cls._unopened(location, stream)) as log:
            check_origin(log._server, known, passed)
            if not log._slot.there():
                raise LogUnavailable(
                    f"{log._slot.missing()}; before version 17 a server that is promoted has none, and flows that have "
                    "not read up to where it is made will hear on_data_loss"
                )

    def distance(self, after: Position, upto: Position) -> int:
        """About how many rows lie between, by the bytes of WAL."""
        return max(0, upto.seq - after.seq) // ROW_BYTES

    def close(self) -> None:
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        super().close()
        self._slot.close()
        self._connection.close()

    def _check_new(self) -> bool:
        """Raise unless the log can be made; whether its slot is there already."""
        there = self._slot.there()
        self._check(slots=1 if there else 2)
        self._tables.check(new=not there)
        return there

    def _check(self, *, slots: int) -> None:
        check_server(self._server, self._connection, self._slot, self._options.publication, slots=slots)
        self._keys.look()

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            yield
            failed.pop_all()

    def _with_snapshot(self, state: SlotState) -> SlotState:
        """What is held: by the slot, and before it the snapshot, if it joins on."""
        if state.lost:
            return state
        return state._replace(floor=self._bounds_with_snapshot(Bounds(state.floor, state.head)).floor)

    def _forget(self, reader: PostgresReader) -> None:
        with self._lock:
            self._readers.discard(reader)
