"""The replication slot of a stream: what it holds for us, and how it is made and moved.

The slot itself is never read from. It stands where the slowest flow stands, and each reader reads a copy of it, or of
the one that is kept ahead of it for those who are.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidings.errors import LogMismatch, LogRestored, LogUnavailable, PositionsLost
from tidings.logs import Retained
from tidings.positions import Bounds, Position, Positions
from tidings_connectors.cdc.positions import missing
from tidings_connectors.postgres.connections import (
    DUPLICATE_OBJECT,
    LIMIT_EXCEEDED,
    NOT_READY,
    OBJECT_IN_USE,
    UNDEFINED_OBJECT,
    Error,
    PostgresConnection,
    PostgresServer,
    interruptible,
    quoted_text,
    translating_errors,
    unavailable,
)
from tidings_connectors.postgres.lead import DROP, LeadSlot
from tidings_connectors.postgres.wal import LOST, lsn_text

PATIENCE_S = 5.0  # with transactions that are open when the slot is made
WAITING = "PostgreSQL at %s waits for transactions that are open before it lets stream %r begin (pg_stat_activity)"
STATE_MAX_AGE_S = 0.2  # which is good enough for those who ask again and again

STATE = f"""
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END
        - '0/0'::pg_lsn)::bigint,
       pg_is_in_recovery(), current_database(), slot.plugin, slot.database,
       (slot.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, {LOST}
FROM (VALUES (1)) one LEFT JOIN pg_replication_slots slot ON slot.slot_name = %s
"""
DROP_LOST = f"""
SELECT pg_drop_replication_slot(slot.slot_name) FROM pg_replication_slots slot WHERE slot.slot_name = %s AND ({LOST})
"""

# Columns that only later versions have are looked up in the row as JSON.
RETAINED = """
SELECT pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                       slot.restart_lsn)::bigint,
       (to_jsonb(slot)->>'safe_wal_size')::bigint, to_jsonb(slot)->>'wal_status'
FROM pg_replication_slots slot WHERE slot.slot_name = %s
"""

logger = logging.getLogger(__name__)


class SlotState(NamedTuple):
    """What the server says of the slot, now."""

    floor: Position
    head: Position
    recovering: bool
    lost: bool
    """The server has thrown away what the slot was to keep. Then the log is empty, and ends where that was noticed."""


class Slot:
    """The slot of one stream. Its methods may be called from any thread."""

    def __init__(self, server: PostgresServer, connection: PostgresConnection, stream: str, name: str) -> None:
        self.name = name
        self.lead = LeadSlot(server, connection, name)
        """The one ahead of it, which never stays without it."""
        self._server = server
        self._connection = connection
        self._moving = PostgresConnection(server)  # what may take long makes nobody else wait
        self._stream = stream
        self._lock = threading.Lock()
        self._state: tuple[float, SlotState] | None = None
        self._lost_at: Position | None = None

    @property
    def making(self) -> str:
        """The statement that makes it."""
        return f"SELECT pg_create_logical_replication_slot({quoted_text(self.name)}, 'pgoutput')"

    def there(self) -> bool:
        """Whether there is a slot of that name; `LogMismatch` if it is for something else."""
        return self.found() is not None

    def state(self, age: float = 0.0) -> SlotState:
        """What the slot holds, or held so many seconds ago."""
        with self._lock:
            if self._state is not None and time.monotonic() - self._state[0] < age:
                return self._state[1]
        asked = time.monotonic()
        state = self.found()
        if state is None:
            self.lead.drop()
            raise self.missing()
        with self._lock:
            if not state.lost:
                self._lost_at = None
            else:
                self._lost_at = self._lost_at or state.head
                state = state._replace(floor=self._lost_at, head=self._lost_at)
            self._state = asked, state
            return state

    def readable_state(self) -> SlotState:
        """What the slot holds. One that is lost holds nothing, and never will: it is made anew first.

        If the one ahead of it is not lost, those who are there lose nothing.
        """
        state = self.state()
        if not state.lost:
            return state
        logger.warning(
            "the server %s has removed WAL that replication slot %r of stream %r was to keep, so it is made anew: "
            "raise max_slot_wal_keep_size, or see by `tidings flows list` who stays behind",
            self._server,
            self.name,
            self._stream,
        )
        try:
            self._moving.rows(DROP_LOST, (self.name,))
        except Error as error:
            if error.pgcode != UNDEFINED_OBJECT:  # else somebody else has just dropped it
                with translating_errors(self._server):
                    raise
        if not self.lead.take_place():
            self.create()
        return self.state()

    def create(self) -> None:
        """Make the slot; it is no error if somebody else just did.

        The server waits until all transactions are over that were open when it began, which may be long.
        """
        self.lead.drop()
        try:
            with self.telling_who_waits():
                interruptible(lambda: self._moving.rows(self.making), self._moving.cancel)
        except Error as error:
            if error.pgcode == LIMIT_EXCEEDED:
                raise self.too_few() from error
            if error.pgcode != DUPLICATE_OBJECT:
                with translating_errors(self._server):
                    raise

    @contextlib.contextmanager
    def telling_who_waits(self) -> Iterator[None]:
        """Say so if the server waits for open transactions, as it does before it makes a slot."""
        told = threading.Timer(PATIENCE_S, logger.warning, (WAITING, self._server, self._stream))
        told.start()
        try:
            yield
        finally:
            told.cancel()

    def drop(self) -> None:
        """Have the server keep nothing for it any more."""
        name = self.name
        try:
            if self.there():
                self._moving.rows("SELECT pg_drop_replication_slot(%s)", (name,))
            name = self.lead.name  # which nobody can make any more
            self._moving.rows(DROP, (name,))
        except (LogUnavailable, Error) as error:
            reason = error if isinstance(error, LogUnavailable) else unavailable(self._server, error)
            raise LogUnavailable(
                f"{reason}; as long as replication slot {name!r} is there the server keeps all of its WAL: SELECT "
                f"pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name IN "
                f"({quoted_text(self.name)}, {quoted_text(self.lead.name)})"
            ) from error

    def replace(self, other: str) -> None:
        """Have it stand where another slot stands, and hold what that one holds."""
        self.lead.drop()
        with translating_errors(self._server):
            if self.there():
                self._moving.rows("SELECT pg_drop_replication_slot(%s)", (self.name,))
            try:
                self._moving.rows("SELECT pg_copy_logical_replication_slot(%s, %s, false)", (other, self.name))
            except Error as error:
                if error.pgcode == LIMIT_EXCEEDED:
                    raise self.too_few() from error
                raise

    def advance(self, lsn: int) -> None:
        """Let go of what is before this place in the WAL, unless the slot is there already."""
        if lsn <= self.state().floor.seq:
            return
        try:
            self._moving.rows("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self.name, lsn_text(lsn)))
        except Error as error:
            # Somebody else moves it at this moment, or has moved it further already: either will do.
            if error.pgcode not in (OBJECT_IN_USE, NOT_READY):
                with translating_errors(self._server):
                    raise

    def retained(self) -> Retained | None:
        """How much WAL the server keeps for it; None if there is no such slot, or it keeps none any more."""
        with translating_errors(self._server):
            found = self._moving.rows(RETAINED, (self.name,))
        return Retained(*found[0]) if found and found[0][0] is not None else None

    def close(self) -> None:
        """Let go of the connections."""
        self._moving.close()
        self.lead.close()

    def check(self, state: SlotState, after: Positions) -> None:
        """Raise unless a reader that stands at these positions can be served."""
        gone, ahead = missing(Bounds(state.floor, state.head), after)
        if gone:
            shard, (first, last) = next(iter(gone.items()))
            others = f" (nor {'those' if len(gone) > 2 else 'that'} of {len(gone) - 1} more)" if len(gone) > 1 else ""
            what = f"PostgreSQL does not hold {first} to {last.seq} of shard {shard}{others} of stream {self._stream!r}"
            raise PositionsLost(
                f"{what} any more, since replication slot {self.name!r} was made anew or moved on to {last.seq}", gone
            )
        if not ahead:
            return
        shard, (_, at) = next(iter(ahead.items()))
        if state.recovering:
            raise LogUnavailable(
                f"the replica {self._server} has replayed its log up to {state.head.seq} and not yet up to {at.seq}, "
                f"where a reader of shard {shard} of stream {self._stream!r} stands: wait for it"
            )
        raise LogRestored(
            f"the reader stands at {at} in shard {shard} of stream {self._stream!r}, but PostgreSQL's log ends at "
            f"{state.head.seq}: the server was made anew, or restored from an older copy",
            ahead,
        )

    def claimed(self) -> LogMismatch:
        """What to say when there is a slot of that name, and the stream is new."""
        return LogMismatch(
            f"PostgreSQL at {self._server} has a replication slot {self.name!r} already, which may be another "
            f"stream's, or another cluster's: give stream {self._stream!r} another by its option 'slot'; or if it is "
            f"nobody's, SELECT pg_drop_replication_slot({quoted_text(self.name)})"
        )

    def missing(self) -> LogUnavailable:
        """What to say when there is no such slot."""
        return LogUnavailable(
            f"PostgreSQL at {self._server} has no replication slot {self.name!r} for stream {self._stream!r}: "
            f"{self.making}"
        )

    def too_few(self) -> LogUnavailable:
        """What to say when the server has no room for another slot."""
        most = int(self._connection.row("SELECT current_setting('max_replication_slots')")[0])
        return LogUnavailable(
            f"all of the {most} replication slots of PostgreSQL at {self._server} are in use, and each reader of a "
            f"stream needs one: ALTER SYSTEM SET max_replication_slots = {most + 10}; and restart the server"
        )

    def found(self) -> SlotState | None:
        """What the server says of it; None if there is no such slot."""
        with translating_errors(self._server):
            row: tuple[Any, ...] = self._connection.row(STATE, (self.name,))
        head, recovering, here, plugin, database, floor, lost = row
        if plugin is None and database is None and floor is None:
            return None
        if plugin != "pgoutput" or database != here:
            what = f"of database {database!r} with plugin {plugin!r}" if plugin else "for physical replication"
            raise LogMismatch(
                f"replication slot {self.name!r} of PostgreSQL at {self._server} is {what}, not of {here!r} with "
                f"'pgoutput': give stream {self._stream!r} another by its option 'slot'"
            )
        low = Position(floor or 0, -1)
        return SlotState(low, max(low, Position(head or 0, -1)), recovering, lost)
