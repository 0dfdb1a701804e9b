"""Positions in MariaDB's binary log: GTIDs, the same on a primary and on its replicas.

A GTID has a domain, the server that wrote the transaction, and a number that grows within the domain. The `seq` of a
position is that number, in the domain that the stream reads. Who has read all of transaction n stands at (n + 1, -1).

A GTID state, as in `0-1-57,7-2-3`, has the last GTID of each domain. To read on, MariaDB wants a state whose GTIDs are
in its log to the letter, the writer's server id among it, which a position does not have. So a state is either what the
server says it was at the beginning of one of its logs, or what a reader has met on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidings.errors import LogRestored, PositionsLost
from tidings.positions import Bounds, Position, Positions
from tidings_connectors.cdc.positions import missing


class Gtid(NamedTuple):
    """A transaction."""

    domain: int
    server: int
    seq: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.seq}"


GtidState = Mapping[int, Gtid]
"""The last transaction of each domain."""


def parse_state(text: str) -> dict[int, Gtid]:
    """A state as the server writes it.

    >>> parse_state("7-2-3,0-1-57")
    {7: Gtid(domain=7, server=2, seq=3), 0: Gtid(domain=0, server=1, seq=57)}
    >>> parse_state("")
    {}
    """
    gtids = [Gtid(*map(int, part.split("-"))) for part in text.split(",") if part]
    return {gtid.domain: gtid for gtid in gtids}


def state_text(state: GtidState) -> str:
    """A state as the server reads it.

    >>> state_text(parse_state("0-1-57"))
    '0-1-57'
    """
    return ",".join(map(str, state.values()))


def seq_in(state: GtidState, domain: int) -> int:
    """The number of the last transaction of a domain; 0 if there was none."""
    return state[domain].seq if domain in state else 0


def after_transaction(seq: int) -> Position:
    """Where one stands who has read all of a transaction.

    >>> after_transaction(57)
    Position(seq=58, index=-1)
    """
    return Position(seq + 1, -1)


def check_held(stream: str, bounds: Bounds, after: Positions) -> None:
    """Raise unless the log holds all that comes after these positions, and reaches up to them."""
    # The first transaction of all is number 1, so whoever stands before it has lost nothing.
    lost, ahead = missing(bounds, Positions({shard: max(at, after_transaction(0)) for shard, at in after.items()}))
    if lost:
        shard, (start, floor) = next(iter(lost.items()))
        others = f" (and some of {len(lost) - 1} other shards)" if len(lost) > 1 else ""
        raise PositionsLost(
            f"stream {stream!r} no longer has transactions {start.seq} to {floor.seq - 1} of shard {shard}{others}: "
            "the binary log was purged",
            lost,
        )
    if ahead:
        shard, (end, at) = next(iter(ahead.items()))
        raise LogRestored(
            f"the reader stands before transaction {at.seq} in shard {shard} of stream {stream!r}, but the binary log "
            f"ends with {end.seq - 1}: it was reset, or the server was restored from an older copy",
            ahead,
        )
