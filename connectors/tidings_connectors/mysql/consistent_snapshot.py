"""A state of all tables of a MariaDB, and which transactions it has.

A transaction that is begun WITH CONSISTENT SNAPSHOT sees one state, and the server says which place in its binary log
that is. Mostly that is right. But while it begins a new log, the server tells the place after transactions that cannot
be seen yet, and so it may while others wait for a replica before they commit; and a place in a log that was purged
is none. So a place is believed only if a transaction of the same log comes before it, and nobody waits. If no place
can be believed, one waits until all that is written was written some time ago, and so is to be seen.

The rows of an XA transaction are in the log when it is prepared, and in the tables when it is committed. A state in
between would have them neither in it nor after it, so there must be none.
"""

from __future__ import annotations

import time
from typing import Any

from tidings.errors import LogUnavailable
from tidings_connectors.mysql.connection import MysqlConnection
from tidings_connectors.mysql.mariadb_gtid import GtidState, parse_state

MAX_ATTEMPTS = 20
VISIBLE_AFTER_S = 0.5  # a transaction that was written to the log can be seen by then

XA_PREPARED = (
    "has XA transactions that are prepared, so that their rows are in its log and not in its tables: XA RECOVER lists "
    "them, and XA COMMIT or XA ROLLBACK ends them"
)
WAITING_FOR_REPLICA = (
    "has transactions that are in its log and not in its tables while they wait for a replica: take it when there are "
    "fewer, or SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_COMMIT'"
)
ROTATING_TOO_OFTEN = (
    "begins new binary logs so often that it does not tell where in them a state of its tables is: "
    "SET GLOBAL max_binlog_size = 1073741824"
)


def begin(session: Any, connection: MysqlConnection) -> GtidState:
    """Begin a transaction that sees one state, and find out over another connection which transactions it has."""
    reason, known = "", None
    for attempt in range(MAX_ATTEMPTS):
        if attempt:
            time.sleep(VISIBLE_AFTER_S)
        prepares, prepared, waiting = _prepares(connection), connection.ask("XA RECOVER"), _waiting(connection)
        file, position = _begun(session)
        ((reported, first, written),) = connection.ask(
            "SELECT BINLOG_GTID_POS(%s, %s), BINLOG_GTID_POS(%s, 4), @@GLOBAL.gtid_binlog_pos", file, position, file
        )
        if prepared or _prepares(connection) != prepares:
            reason = XA_PREPARED
        elif waiting:
            reason = WAITING_FOR_REPLICA
        elif reported is not None and reported != first:
            return parse_state(reported)
        elif written == known:
            return parse_state(written)
        else:
            reason = ROTATING_TOO_OFTEN
        known = written
    raise LogUnavailable(f"no snapshot can be taken, since MariaDB at {connection.place} {reason}")


def _begun(session: Any) -> tuple[str, int]:
    """The place that the server tells of the state that it now shows: a binary log, and how far in it."""
    with session.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
        status = {name.decode().lower(): value.decode() for name, value in cursor.fetchall()}
    return status["binlog_snapshot_file"], int(status["binlog_snapshot_position"] or 0)


def _prepares(connection: MysqlConnection) -> int:
    """How many XA transactions were ever prepared."""
    return int(_shown(connection, "STATUS", "Com_xa_prepare") or 0)


def _waiting(connection: MysqlConnection) -> int:
    """How many transactions wait for a replica after they are written and before they can be seen."""
    if _shown(connection, "VARIABLES", "rpl_semi_sync_master_wait_point") != "AFTER_SYNC":
        return 0
    return int(_shown(connection, "STATUS", "Rpl_semi_sync_master_wait_sessions") or 0)


def _shown(connection: MysqlConnection, kind: str, name: str) -> str | None:
    found = connection.ask(f"SHOW GLOBAL {kind} WHERE variable_name = %s", name)
    return found[0][1] if found else None
