"""What a stream says of the database that it tails: the address of the server, and the options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, ClassVar

import xxhash
from pydantic import Field

from tidings.errors import InvalidOption
from tidings_connectors.cdc import base
from tidings_connectors.cdc.snapshot import SnapshotOptions

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

MAX_NAME_BYTES = 63  # in PostgreSQL


class PostgresOptions(SnapshotOptions):
    """The options of a stream that tails a PostgreSQL database: those of every datastore, and these."""

    placing: ClassVar[tuple[str, ...]] = (*SnapshotOptions.placing, "slot", "keys")

    publication: str = Field(min_length=1, max_length=MAX_NAME_BYTES)
    """Which tables and which operations: what `CREATE PUBLICATION` made."""
    slot: str = Field("", pattern="^[a-z0-9_]{0,63}$")
    """The replication slot that keeps the log for us; without a name it is called after the stream."""
    keys: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(default_factory=dict)
    """The columns that tell rows apart, by `schema.table`, where the replica identity does not say it."""
    heartbeat: float = Field(30.0, ge=0)
    """After how many seconds without a row a sign of life is written to the WAL; 0 for never."""


def options_of(stream: StreamDefinition) -> PostgresOptions:
    """The options of a stream; `InvalidOption` says which are there if one is not known."""
    options = base.options_of(PostgresOptions, stream, "PostgreSQL")
    if options.slot and stream.family:
        raise InvalidOption(
            f"option 'slot' cannot be given to a family of streams: that of {stream.name!r} is called after the stream"
        )
    return options if options.slot else options.model_copy(update={"slot": slot_name(stream.name)})


def slot_name(stream: str) -> str:
    """The name of a stream's slot, of the letters that PostgreSQL allows there.

    >>> slot_name("shop")
    'tidings_shop'
    >>> slot_name("Shop-EU")
    'tidings_shop_eu_2bb4c0'
    """
    plain = re.sub(r"[^a-z0-9_]", "_", stream.lower())
    if plain == stream and len(plain) <= MAX_NAME_BYTES - 8:
        return f"tidings_{plain}"
    return f"tidings_{plain[: MAX_NAME_BYTES - 15]}_{xxhash.xxh3_64_hexdigest(stream.encode())[:6]}"
