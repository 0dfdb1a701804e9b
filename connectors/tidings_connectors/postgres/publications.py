"""The publication of a stream: whether it was there when the log was written that is read now."""

from __future__ import annotations

from tidings_connectors.postgres.connections import (
    UNDEFINED_OBJECT,
    Error,
    PostgresConnection,
    quoted_name,
    quoted_text,
)

# What a slot holds was written after all that is older than its `catalog_xmin`. A number that is not reached yet is one
# of the round before.
THERE = """
SELECT coalesce(age(publication.xmin) > age(slot.catalog_xmin) OR age(publication.xmin) < 0, false)
FROM pg_publication publication LEFT JOIN pg_replication_slots slot ON slot.slot_name = %s
WHERE publication.pubname = %s
"""


class NotPublished(Error):  # type: ignore[misc]
    """What versions up to 17 say by an error, and later ones by a warning."""

    pgcode = UNDEFINED_OBJECT


class PostgresPublication:
    """A publication by its name."""

    def __init__(self, connection: PostgresConnection, name: str) -> None:
        self.name = name
        self._connection = connection

    @property
    def making(self) -> str:
        """A statement that makes it."""
        return f"CREATE PUBLICATION {quoted_name(self.name)} FOR ALL TABLES"

    @property
    def names(self) -> str:
        """The option of `pgoutput` that names it, as SQL has it."""
        return quoted_text(quoted_name(self.name))

    def there(self) -> bool:
        """Whether it is there now."""
        return bool(self._connection.rows(THERE, (None, self.name)))

    def always_there(self, slot: str) -> bool:
        """Whether it is there, and was when the first was written that this slot holds."""
        return (True,) in self._connection.rows(THERE, (slot, self.name))
