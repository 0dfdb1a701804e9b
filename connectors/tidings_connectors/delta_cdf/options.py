"""What a stream says of the Delta table that it tails."""

from __future__ import annotations

from pydantic import Field

from tidings_connectors.cdc.snapshot import SnapshotOptions


class CdfOptions(SnapshotOptions):
    """The options of a stream that tails a Delta table: those of every datastore, and this one."""

    key: tuple[str, ...] = Field(default=(), strict=False)
    """The columns that tell rows apart; without one the table is one object."""
