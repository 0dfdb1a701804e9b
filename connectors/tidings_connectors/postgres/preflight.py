"""What must be true of a server before its log can be tailed: looked at at once, and each want with its cure."""

from __future__ import annotations

from tidings.errors import LogUnavailable
from tidings_connectors.postgres.connections import PostgresConnection, PostgresServer, quoted_name, translating_errors
from tidings_connectors.postgres.slots import Slot

OLDEST = 12

FACTS = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
       current_setting('server_encoding'), current_database(), current_user::text,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       EXISTS (SELECT FROM pg_publication WHERE pubname = %s),
       current_setting('max_replication_slots')::int
       - (SELECT count(*)::int FROM pg_replication_slots WHERE slot_name <> %s),
       current_setting('max_wal_senders')::int,
       current_setting('max_wal_senders')::int - (SELECT count(*)::int FROM pg_stat_replication)
"""


def check_server(
    server: PostgresServer, connection: PostgresConnection, slot: Slot, publication: str, *, slots: int
) -> None:
    """Raise unless the server can be tailed, with so many more replication slots."""
    with translating_errors(server):
        facts = connection.row(FACTS, (publication, slot.lead.name))
    version, wal_level, encoding, database, role, may_replicate, published, free, most_senders, free_senders = facts
    if version < OLDEST * 10_000:
        raise LogUnavailable(
            f"PostgreSQL at {server} is version {version // 10_000}: tailing needs {OLDEST} or later, so upgrade it"
        )
    if wal_level != "logical":
        raise LogUnavailable(
            f"PostgreSQL at {server} has wal_level {wal_level!r}, which does not tell what changed: "
            "ALTER SYSTEM SET wal_level = logical; and restart the server"
        )
    if not may_replicate:
        raise LogUnavailable(
            f"role {role!r} of PostgreSQL at {server} may not replicate: ALTER ROLE {quoted_name(role)} REPLICATION"
        )
    if encoding == "SQL_ASCII":
        raise LogUnavailable(
            f"database {database!r} of PostgreSQL at {server} has the encoding SQL_ASCII, so that nobody knows what "
            f"its texts mean: move it to one made by CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    if not published:
        raise LogUnavailable(
            f"database {database!r} of PostgreSQL at {server} has no publication {publication!r}: "
            f"CREATE PUBLICATION {quoted_name(publication)} FOR ALL TABLES"
        )
    if free < slots:
        raise slot.too_few()
    if free_senders < 1:
        raise LogUnavailable(
            f"all of the {most_senders} WAL senders of PostgreSQL at {server} are in use, and each reader of a stream "
            f"needs one: ALTER SYSTEM SET max_wal_senders = {most_senders + 10}; and restart the server"
        )
