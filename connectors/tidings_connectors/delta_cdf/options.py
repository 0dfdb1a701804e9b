"""What a stream says of the Delta table that it tails."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from tidings_connectors.cdc.snapshot import SnapshotOptions


class CdfOptions(SnapshotOptions):
    """The options of a stream that tails a Delta table: those of every datastore, and this one."""

    placing: ClassVar[tuple[str, ...]] = (*SnapshotOptions.placing, "key")

    key: tuple[str, ...] = Field(default=(), strict=False)
    """The columns that tell rows apart; without one the table is one object."""
