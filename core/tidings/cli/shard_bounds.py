"""What a log holds, shard by shard, as `describe` and `truncate` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.logs import Log
    from tidings.positions import Bounds

Held = dict[str, Any]


def held(log: Log) -> list[Held]:
    """For each shard: `floor`, the first seq that is held; `head`, the newest; `updates`, how many are held.

    What is not known, or is not there, is None: an empty shard has no floor, and only our own logs, whose seqs are
    dense, tell how many updates lie between two of them.
    """
    from tidings.logs import WritableLog

    return held_in(log.bounds(), dense=isinstance(log, WritableLog))


def held_in(bounds_by_shard: dict[int, Bounds], *, dense: bool) -> list[Held]:
    """`held`, of bounds that are known already."""
    return [
        {
            "shard": shard,
            "floor": None if bounds.empty else bounds.floor.seq + 1 if dense else bounds.floor.seq,
            "head": None if bounds.head.seq < 0 else bounds.head.seq,
            "updates": max(0, bounds.head.seq - bounds.floor.seq) if dense else 0 if bounds.empty else None,
        }
        for shard, bounds in sorted(bounds_by_shard.items())
    ]


def total(shards: list[Held]) -> int | None:
    """The updates held in all shards, None if any shard's are not known."""
    counts = [shard["updates"] for shard in shards]
    return None if None in counts else sum(counts)
