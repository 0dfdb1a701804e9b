"""Which history a binary log has, and whether another server has the same.

A GTID is the same on a primary and on its replicas, the id of the server that wrote it among it; but servers that have
nothing to do with each other number alike, and many have the id 1; and one that was restored from an older copy numbers
anew what it had done since. So a log is known by the last transaction that was read of it, and by a digest of the rows
of the last that had any, which is only the same in copies of one history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import xxhash

from tidings.errors import LogMismatch, LogUnavailable
from tidings_connectors.mysql.binlog import Begin, End, Feed, Rows, Statement
from tidings_connectors.mysql.mariadb_gtid import Gtid, parse_state
from tidings_connectors.mysql.options import Place

DIGEST_BYTES = 2**16  # of a large transaction
PATIENCE_S = 60.0  # with a log that is read from the beginning of its file


class RowsDigest:
    """A digest of the rows of a transaction, wherever a server cuts them into events; and of texts, if any."""

    def __init__(self) -> None:
        self._digest, self._left, self._any = xxhash.xxh3_128(), DIGEST_BYTES, False

    def add(self, rows: Rows) -> None:
        self._digest.update(rows.data[: self._left])
        self._left -= min(self._left, len(rows.data))
        self._any |= bool(rows.data)

    def add_text(self, text: str) -> None:
        self._digest.update(text.encode(errors="surrogateescape"))
        self._any = True

    def __str__(self) -> str:
        return str(self._digest.hexdigest()) if self._any else ""


class ReadTransaction(NamedTuple):
    """A transaction as a log has it, and a digest of its rows; there is none if it has none of watched tables."""

    gtid: Gtid
    rows: str


class ReadHistory(NamedTuple):
    """What a reader has come by: its last transaction, the last that had rows, and after which one none had any."""

    last: Gtid
    rows: ReadTransaction | None
    quiet: int


def read_transaction(feed: Feed, domain: int, seq: int, *, whole: bool = False) -> ReadTransaction | None:
    """The transaction of this number; None if the log has none, or does not come to it in time.

    If it is to be read as a whole, the digest is also of when it was written, and of its statements.
    """
    found = next((one for one in _transactions(feed, domain, whole) if one.gtid.seq >= seq), None)
    return found if found is not None and found.gtid.seq == seq else None


def transaction_with_rows(feed: Feed, domain: int, last: int) -> ReadTransaction | None:
    """The first transaction that has rows, up to the one of this number; None if there is none."""
    for one in _transactions(feed, domain):
        if one.rows or one.gtid.seq >= last:
            return one if one.rows and one.gtid.seq <= last else None
    raise LogUnavailable(
        f"the binary log could not be read up to transaction {last} within {PATIENCE_S:g} s: try again"
    )


def _transactions(feed: Feed, domain: int, whole: bool = False) -> Iterator[ReadTransaction]:
    """The transactions of a domain, for as long as one has patience."""
    begun: Gtid | None = None
    digest, deadline = RowsDigest(), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for item in feed.take(1.0):
            if isinstance(item, Begin):
                begun, digest = item.gtid, RowsDigest()
                if whole:
                    digest.add_text(str(item.time))
            elif whole and isinstance(item, Statement):
                digest.add_text(item.text)
            elif isinstance(item, Rows):
                digest.add(item)
            elif isinstance(item, End) and begun is not None and begun.domain == domain:
                yield ReadTransaction(begun, str(digest))


class MysqlOrigin(NamedTuple):
    """What a log is known by: the last transaction that was read, the last one that had rows, with their digest, and
    the one after which none had any, up to the last."""

    last: str
    rows_of: str
    rows: str
    quiet: str


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
    place: Place,
    known: Mapping[str, Any],
    read: int,
    transaction: Callable[[int], ReadTransaction | None],
    with_rows: Callable[[int, int], ReadTransaction | None],
) -> None:
    """Raise unless a server has the history that is known, up to the transaction of this number.

    `transaction` looks one up in the server's log, and `with_rows` the first with rows between two. Within one history
    no two servers have one id: so a server that has parted from it since has another id in the transactions that are
    its own.
    """
    there = MysqlOrigin(*(str(known.get(name, "")) for name in MysqlOrigin._fields))
    if not there.last or not there.rows_of:
        raise LogUnavailable(
            f"no rows of the stream were read yet, which would prove that MariaDB at {place} is the same one: let a "
            "publisher read some first; if the server is gone, make a new stream"
        )
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
    if there.quiet and (other := with_rows(int(there.quiet), last.seq)) is not None:
        raise LogMismatch(
            f"transaction {other.gtid} of MariaDB at {place} has rows, and the stream has read none between "
            f"{there.quiet} and {last}: it is an older copy that was written to, so make a new stream"
        )
