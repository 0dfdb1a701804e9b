"""A second slot of a stream, ahead of the first: for readers that would have the server go through much WAL before they
come to where they stand.

The slot of the stream stands at the slowest flow, which may be one that nobody serves for days. A reader that copies it
gets its first row after the server has decoded all of the WAL from there on. So if others are far ahead of the slowest,
a slot is kept where it saves them the most.

What makes it safe:

- It is always ahead of the stream's own slot, so it holds no WAL that is not held anyway. It goes before the other is
  moved past it, or made anew, and with it; and whoever finds it anywhere else drops it.
- It is made by copying the stream's own, and not if that takes the last slot that the server has to give. A reader that
  finds no room for a copy takes its place.
- Nothing depends on it: who cannot have it, for whatever reason, copies the stream's own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from tidings.errors import LogUnavailable
from tidings_connectors.postgres.connections import (
    DUPLICATE_OBJECT,
    NOT_READY,
    OBJECT_IN_USE,
    UNDEFINED_OBJECT,
    Error,
    PostgresConnection,
    PostgresServer,
    translating_errors,
    unavailable,
)
from tidings_connectors.postgres.wal import LOST, lsn_text

GAP_BYTES = 64 * 2**20  # of WAL between the slowest and those who would be saved it
MOVE_BYTES = 16 * 2**20  # that it may lag behind: each time that it is moved, the server decodes some WAL
STEP_BYTES = 512 * 2**20  # that it is moved at once, so that who waits for it does not wait long

# One that is just being made has no place yet.
FOUND = f"""
SELECT (slot.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, (slot.restart_lsn - '0/0'::pg_lsn)::bigint
FROM pg_replication_slots slot
WHERE slot.slot_name = %s AND slot.plugin = 'pgoutput' AND slot.database = current_database() AND NOT ({LOST})
  AND slot.confirmed_flush_lsn IS NOT NULL AND slot.restart_lsn IS NOT NULL
"""
DROP = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name = %s AND plugin = 'pgoutput' AND database = current_database()
"""
MAKE = """
SELECT pg_copy_logical_replication_slot(%s, %s, false)
WHERE current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots) > 1
"""

PASSING = (OBJECT_IN_USE, NOT_READY, UNDEFINED_OBJECT, DUPLICATE_OBJECT)
"""What the server says when somebody else just moves, makes or drops it; then that will do."""

logger = logging.getLogger(__name__)


class LeadPlace(NamedTuple):
    """Where the slot stands, and from where on the server decodes for who reads a copy of it."""

    at: int
    restart: int


class LeadSlot:
    """The second slot of a stream. Its methods may be called from any thread."""

    def __init__(self, server: PostgresServer, connection: PostgresConnection, behind: str) -> None:
        self.name = lead_name(behind)
        self._behind = behind
        self._server = server
        self._connection = connection
        self._moving = PostgresConnection(server)  # what may take long makes nobody else wait
        self._settled: LeadPlace | None = None
        """Where it was when there was nothing to be gained by moving it."""
        self._told = False

    def serves(self, place: int) -> bool:
        """Whether a copy of it can be read from this place in the WAL on."""
        found = self._found()
        return found is not None and found.at <= place

    def follow(self, stands: Sequence[int]) -> None:
        """Have it where it saves readers the most that stand at these places; or not at all, if that is not much.

        Whatever goes wrong with it, the other slot is moved all the same.
        """
        try:
            self._follow(stands)
        except LogUnavailable as error:
            self._tell(str(error))

    def _follow(self, stands: Sequence[int]) -> None:
        slowest, place = min(stands), best_place(stands)
        if place - slowest < GAP_BYTES // 2:
            self.drop()
            return
        found = self._found()
        if found is None or found.at < slowest or found.at - max(stands) > GAP_BYTES // 2:
            self.drop()  # one that is lost is there, too
            found = self._make() if place - slowest >= GAP_BYTES else None
        if found is not None:
            self._move(found, place)

    def drop(self) -> bool:
        """Have the server keep nothing for it any more; whether it was there, and is not. It may be in use just now."""
        try:
            return bool(self._connection.rows(DROP, (self.name,)))
        except Error as error:
            self._pass(error)
            return False

    def take_place(self) -> bool:
        """Put a copy of it in the place of the slot that it is ahead of, if it is there and that one is not."""
        if self._found() is None:
            return False
        try:
            self._moving.rows("SELECT pg_copy_logical_replication_slot(%s, %s, false)", (self.name, self._behind))
        except Error as error:
            self._pass(error)
            return False
        self.drop()
        return True

    def close(self) -> None:
        """Let go of the connection."""
        self._moving.close()

    def _found(self) -> LeadPlace | None:
        """Where it is; None if it is not there, or holds nothing any more."""
        with translating_errors(self._server):
            rows = self._connection.rows(FOUND, (self.name,))
        return LeadPlace(*rows[0]) if rows else None

    def _make(self) -> LeadPlace | None:
        try:
            made = self._moving.rows(MAKE, (self._behind, self.name))
        except Error as error:
            self._pass(error)
        else:
            if not made:
                self._tell("it has no replication slot to spare (max_replication_slots)")
        return self._found()

    def _move(self, found: LeadPlace, place: int) -> None:
        """Move it on, unless that is not worth it. Its restart point lags behind it, and follows when it is moved
        again; unless a transaction is open."""
        near = place - found.at < MOVE_BYTES
        if near and (found.at - found.restart < MOVE_BYTES or found == self._settled):
            return
        self._settled = found if near else None
        upto = max(found.at, min(place, found.at + STEP_BYTES))
        try:
            self._moving.rows("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self.name, lsn_text(upto)))
        except Error as error:
            self._pass(error)

    def _pass(self, error: Error) -> None:
        if error.pgcode not in PASSING:
            raise unavailable(self._server, error) from error

    def _tell(self, reason: str) -> None:
        if not self._told:
            logger.warning(
                "readers of replication slot %r that are far ahead of it have to wait for the server: %s",
                self._behind,
                reason,
            )
        self._told = True


def best_place(stands: Sequence[int]) -> int:
    """Where a second slot saves readers at these places the most WAL, in all, if the first is at the last of them.

    >>> best_place([10, 9000, 9100, 9100])
    9000
    >>> best_place([10, 10])
    10
    """
    ordered = sorted(stands)
    saved = [(at - ordered[0]) * (len(ordered) - behind) for behind, at in enumerate(ordered)]
    return ordered[saved.index(max(saved))]


def lead_name(slot: str) -> str:
    """What the second slot is called; nobody calls a stream like that.

    >>> lead_name("tidings_shop")
    'tidings_shop_lead_6a167cc0ac5ef82e'
    """
    return f"{slot[:41]}_lead_{xxhash.xxh3_64_hexdigest(slot.encode())}"
