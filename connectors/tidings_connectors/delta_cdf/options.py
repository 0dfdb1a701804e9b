"""What a stream says of the Delta table that it tails."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from tidings_connectors.cdc.snapshot import SnapshotOptions


class CdfOptions(SnapshotOptions):
    """The options of a stream that tails a Delta table: those of every datastore, and this one."""

    placing: ClassVar[tuple[str, ...]] = (*SnapshotOptions.placing, "key")

    key: tuple[str, ...] = Field(default=(), strict=False)
    """The columns that tell rows apart; without one the table is one object."""

    @model_validator(mode="after")
    def _rows_known(self) -> Self:
        if self.before and not self.key:
            raise ValueError("'before' needs 'key', since it is the key that tells what a row was before")
        return self
