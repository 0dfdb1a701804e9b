"""What must be true of a table before its changes can be tailed."""

from __future__ import annotations

from tidings.errors import InvalidOption, LogMismatch
from tidings_connectors.delta_cdf.options import CdfOptions
from tidings_connectors.delta_cdf.table import FEED_PROPERTY, FedTable


def check_table(table: FedTable, options: CdfOptions) -> None:
    """Raise unless the table has a change data feed, and the columns of the key."""
    opened = table.open()
    if opened.metadata().configuration.get(FEED_PROPERTY) != "true":
        raise LogMismatch(
            f"the table in {table.folder} has no change data feed: "
            f"ALTER TABLE delta.`{table.folder}` SET TBLPROPERTIES ({FEED_PROPERTY} = true)"
        )
    names = [field.name for field in opened.schema().fields]
    missing = [name for name in options.key if name not in names]
    if missing:
        raise InvalidOption(
            f"the table in {table.folder} has no column {missing[0]!r} to be its key (columns: {', '.join(names)})"
        )
