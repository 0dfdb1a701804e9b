"""Which history a binary log has, and whether another server has the same.

A GTID is the same on a primary and on its replicas, the id of the server that wrote it among it; but servers that have
nothing to do with each other number alike, and many have the id 1. So a log is known by the last transaction that was
read of it, and by a digest of the rows of one, which is only the same in copies of one history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import xxhash

from tidings.errors import LogMismatch
from tidings_connectors.mysql.binlog import Begin, End, Feed, Rows, Statement
from tidings_connectors.mysql.mariadb_gtid import Gtid, parse_state
from tidings_connectors.mysql.options import Place

DIGEST_MAX_AGE_S = 30.0
DIGEST_BYTES = 2**16  # of a large transaction
PATIENCE_S = 60.0  # with a log that is read from the beginning of its file


class ReadTransaction(NamedTuple):
    """A transaction as a log has it, and a digest of its rows; there is none if it has none of watched tables."""

    gtid: Gtid
    rows: str


def read_transaction(feed: Feed, domain: int, seq: int, *, whole: bool = False) -> ReadTransaction | None:
    """The transaction of this number; None if the log has none, or does not come to it in time.

    If it is to be read as a whole, the digest is also of when it was written, and of its statements.
    """
    begun: Gtid | None = None
    digest, left, deadline = xxhash.xxh3_128(), DIGEST_BYTES, time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for item in feed.take(1.0):
            if isinstance(item, Begin) and item.gtid.domain == domain and item.gtid.seq >= seq:
                if item.gtid.seq > seq:
                    return None
                begun = item.gtid
                digest.update(str(item.time).encode() if whole else b"")
            elif begun is not None and whole and isinstance(item, Statement):
                digest.update(item.text.encode(errors="surrogateescape"))
            elif begun is not None and isinstance(item, Rows):
                digest.update(item.data[:left])  # wherever a server cuts the rows of a transaction into events
                left -= min(left, len(item.data))
            elif begun is not None and isinstance(item, End):
                return ReadTransaction(begun, digest.hexdigest() if whole or left < DIGEST_BYTES else "")
    return None


class MysqlOrigin(NamedTuple):
    """What a log is known by: the last transaction that was read, and one that had rows, with their digest."""

    last: str
    rows_of: str
    rows: str


class MysqlNewest(NamedTuple):
    """What a log is known by that nobody has read: its newest transaction, and a digest of all that is in it."""

    newest: str
    whole: str


def check_newest(place: Place, known: MysqlNewest, found: ReadTransaction | None) -> None:
    """Raise unless this is the transaction that is known, in the log of another server."""
    if found is None or (str(found.gtid), found.rows) != known:
        raise LogMismatch(
            f"MariaDB at {place} has {'nothing' if found is None else f'{found.gtid} ({found.rows})'} "
            f"where the log of the stream has {known.newest} ({known.whole}): it is no replica of it, so name one"
        )


def check_origin(
    place: Place, known: Mapping[str, Any], read: int, transaction: Callable[[int], ReadTransaction | None]
) -> None:
    """Raise unless a server has the history that is known, up to the transaction of this number.

    `transaction` looks one up in the server's log. Within one history no two servers have one id: so a server that has
    parted from it since has another id in the transactions that are its own.
    """
    there = MysqlOrigin(*(str(known.get(name, "")) for name in MysqlOrigin._fields))
    (last,), (rows_of,) = (parse_state(text).values() for text in (there.last, there.rows_of))
    end = last._replace(seq=max(last.seq, read))
    for gtid, rows in ((rows_of, there.rows), (end, "")):
        found = transaction(gtid.seq)
        if found is None or found.gtid != gtid:
            raise LogMismatch(
                f"MariaDB at {place} has {found.gtid if found else 'nothing'} where the stream has read {gtid}: it "
                "is another server, or lost what was read when it was promoted, so make a new stream"
            )
        if rows and found.rows != rows:
            raise LogMismatch(
                f"transaction {gtid} of MariaDB at {place} has other rows (digest {found.rows or 'of none'}) than the "
                f"stream has read ({rows}): it is another server, so make a new stream"
            )
