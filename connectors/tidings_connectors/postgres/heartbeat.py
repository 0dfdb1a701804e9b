"""Signs of life in the WAL of a database that is idle."""

from __future__ import annotations

import logging
import threading
import time

from tidings_connectors.postgres.connections import (
    INSUFFICIENT_PRIVILEGE,
    READ_ONLY,
    Error,
    PostgresConnection,
    PostgresServer,
    unavailable,
)
from tidings_connectors.postgres.slots import STATE_MAX_AGE_S, Slot

logger = logging.getLogger(__name__)


class Heartbeat:
    """Writes a sign of life to the WAL when no row came for a while, for all readers of a log together.

    So the place up to which all is read moves on in an idle database too, past the WAL of others.
    """

    def __init__(self, server: PostgresServer, connection: PostgresConnection, slot: Slot, seconds: float) -> None:
        self._server = server
        self._connection = connection
        self._slot = slot
        self._seconds = seconds
        self._lock = threading.Lock()
        self._last = time.monotonic()

    def row_came(self) -> None:
        """Not idle."""
        self._last = time.monotonic()

    def idle(self) -> None:
        """No row came. Writes, if it is time."""
        if not self._seconds or time.monotonic() - self._last < self._seconds:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._last = time.monotonic()
            if not self._slot.state(STATE_MAX_AGE_S).recovering:
                self._connection.rows("SELECT pg_logical_emit_message(false, 'tidings', '')")
        except Error as error:
            if error.pgcode not in (INSUFFICIENT_PRIVILEGE, READ_ONLY):
                raise unavailable(self._server, error) from error
            self._seconds = 0
            logger.warning("no signs of life in an idle database: %s", unavailable(self._server, error))
        finally:
            self._lock.release()
