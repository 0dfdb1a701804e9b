"""XA transactions that are prepared: their rows are in the log by then, and happen when they are committed, or never.

What was prepared is kept until then, as long as there is room. What there was no room for, or was prepared before the
place from which is read, is found again in the log, by looking for it backwards, log by log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tidings_connectors.mysql.binlog import PREPARES_FLAG, Rows, Statement, UnreadRows
from tidings_connectors.mysql.connection import translating_errors
from tidings_connectors.mysql.event_stream import (
    GTID,
    HEARTBEAT,
    ROTATE,
    XA_PREPARE,
    events,
    file_of,
    transaction_of,
    xid_of,
)
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState
from tidings_connectors.mysql.options import Place

KEPT_BYTES = 16 * 2**20
KEPT_TRANSACTIONS = 1000


class Undone(NamedTuple):
    """Rows of a transaction that went back to a savepoint before them."""

    rows: Rows


Held: TypeAlias = Rows | Undone | UnreadRows | Statement


class PreparedPlace(NamedTuple):
    """Where a transaction was prepared: in which one, and the state before it."""

    gtid: Gtid
    state: GtidState


class PreparedTransactions:
    """What was prepared and did not end yet, within limits; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[list[Held], int]] = {}
        self._bytes = 0

    def put(self, xid: str, held: list[Held], size: int) -> None:
        """Keep what was prepared under this name."""
        self.take(xid)
        self._held[xid] = held, size
        self._bytes += size
        while self._held and (self._bytes > KEPT_BYTES or len(self._held) > KEPT_TRANSACTIONS):
            self.take(next(iter(self._held)))

    def take(self, xid: str) -> list[Held] | None:
        """What was prepared under this name, which is forgotten; None if it is not known."""
        held, size = self._held.pop(xid, (None, 0))
        self._bytes -= size
        return held


def find_prepared(
    place: Place,
    files: Sequence[str],
    state_at: Callable[[str], GtidState | None],
    xid: str,
    end: Gtid,
    server_id: Callable[[], int],
) -> PreparedPlace | None:
    """Where the transaction of this name was prepared that `end` has ended; None if the logs do not hold that."""
    for file in reversed(files):
        state = state_at(file)
        if state is None:
            return None
        if end.domain in state and state[end.domain].seq >= end.seq:
            continue
        if (found := _find_in(place, file, state, xid, end, server_id())) is not None:
            return found
    return None


def _find_in(place: Place, file: str, state: GtidState, xid: str, end: Gtid, server_id: int) -> PreparedPlace | None:
    """The last place in one log where it was prepared."""
    found = begun = None
    ended = dict(state)
    with contextlib.closing(events(place, state, server_id)) as sent, translating_errors(place):
        for event in sent:
            if event.type == HEARTBEAT or (event.type == ROTATE and file_of(event) != file):
                break
            if event.type == GTID:
                gtid, flags = transaction_of(event)
                if gtid.domain == end.domain and gtid.seq >= end.seq:
                    break
                begun = PreparedPlace(gtid, dict(ended)) if flags & PREPARES_FLAG else None
                ended[gtid.domain] = gtid
            elif event.type == XA_PREPARE and begun is not None and xid_of(event) == xid:
                found = begun
    return found
