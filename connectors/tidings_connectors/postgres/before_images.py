"""Which tables log what their rows were before.

PostgreSQL logs of an old row what the replica identity says: the key, or with `FULL` all columns. A table that is
published for its partitions says what its own is, but its rows are logged by that of the partition they are in.
"""

from __future__ import annotations

from tidings_connectors.postgres.connections import PostgresConnection, PostgresServer, translating_errors


def partitions_are_full(table: str) -> str:
    """Whether each partition of a table has `REPLICA IDENTITY FULL`, if there are any; as SQL has it."""
    return f"""NOT EXISTS (
    SELECT FROM pg_partition_tree({table}) part JOIN pg_class leaf ON leaf.oid = part.relid
    WHERE part.isleaf AND leaf.relreplident <> 'f'
)"""


class BeforeImages:
    """What is known of the partitions of a database's tables. Its methods may be called from any thread."""

    def __init__(self, server: PostgresServer, connection: PostgresConnection) -> None:
        self._server = server
        self._connection = connection

    def of_all_partitions(self, oid: int) -> bool:
        """Whether each partition of a table logs old rows as a table with `REPLICA IDENTITY FULL` says it."""
        with translating_errors(self._server):
            return bool(self._connection.row(f"SELECT {partitions_are_full('%s::oid')}", (oid,))[0])
