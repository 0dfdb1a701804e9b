"""Reading a binary log from the front to the back: transactions in, canonical rows out."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tidings.errors import LogUnavailable, PositionsLost
from tidings.log_reading import ends
from tidings.logs import Read
from tidings.positions import Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.moved_rows import updates_with_ends
from tidings_connectors.cdc.positions import later
from tidings_connectors.mysql.binlog import Begin, End, Feed, Item, Resolution, UnreadRows, size_of
from tidings_connectors.mysql.connection import POSITION_GONE, ServerError
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState
from tidings_connectors.mysql.options import MysqlOptions
from tidings_connectors.mysql.origin import ReadHistory
from tidings_connectors.mysql.sequencer import Loss, Sequencer

POLL_TIMEOUT_S = 0.05  # that a read waits for rows, and gathers them
LINGER_S = 0.002  # that a read waits for more rows when it has some
REOPEN_AHEAD_TRANSACTIONS = 100_000  # to open the log anew is cheaper than to read up to there
BATCH_BYTES = 32 * 2**20
IDLE_CHECK_INTERVAL_S = 1.0  # after which an idle reader looks whether the log still reaches up to it
ELSEWHERE_PATIENCE_S = 60.0  # that a loss in another domain waits for a transaction of ours to be told of


class BinlogSource(Protocol):
    """What a reader needs of its log."""

    stream_name: str
    shards: int
    options: MysqlOptions

    def open_feed(self, seq: int) -> tuple[Feed, GtidState]:
        """The items of the log from this transaction on, or from one before it, and the state that they come after."""

    def open_prepared(self, xid: str, end: Gtid) -> Feed | None:
        """The items of the log from where this XA transaction was prepared, which `end` ends; None if that is gone."""

    def remember(self, state: GtidState) -> None:
        """A state that a reader has met: the server knows it."""

    def note_history(self, history: ReadHistory) -> None:
        """What a reader has come by."""

    def forget(self) -> None:
        """The server does not know states that readers have met: it is another one."""

    def check(self, after: Positions) -> None:
        """Raise unless the log holds what comes after these positions, and reaches up to them."""


class Unread(NamedTuple):
    """What was gathered, and is not handed out yet: rows, and what is missing between them."""

    rows: pa.Table
    losses: list[Loss]


class MysqlReader:
    """A `Reader` with a connection of its own."""

    def __init__(self, source: BinlogSource) -> None:
        self._source = source
        self._feed: Feed | None = None
        self._detour: Feed | None = None  # to rows that were prepared earlier in the log than they are committed
        self._sequencer: Sequencer | None = None
        self._items: deque[Item] = deque()
        self._detour_items: deque[Item] = deque()
        self._left: Unread | None = None
        self._start = self._stand = Position(-1)
        self._seen: dict[int, Position] = {}  # the last row of each shard that was gathered and is not left
        self._checked = 0.0

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows of these shards; waits a little if there are none."""
        if not after:
            return Read(SCHEMA.empty_table(), after)
        try:
            sequencer = self._opened(after)
            unread = self._left if self._left is not None else self._gathered(sequencer, limit)
        except ServerError as error:
            self.close()
            if error.code == POSITION_GONE:
                self._source.forget()
                self._source.check(after)
            raise
        except BaseException:
            self.close()
            raise
        return self._handed_out(sequencer, unread, after, limit)

    def close(self) -> None:
        """Let go of the connection; a later read makes a new one."""
        for feed in (self._feed, self._detour):
            if feed is not None:
                feed.close()
        if self._sequencer is not None:
            self._source.remember(self._sequencer.state)
        self._feed = self._detour = self._sequencer = self._left = None
        self._items, self._detour_items = deque(), deque()

    def _opened(self, after: Positions) -> Sequencer:
        """What stands where these positions can be read on from."""
        start = min(after.values())
        goes_on = all(at >= self._seen.get(shard, self._start) for shard, at in after.items())
        if self._sequencer is None or not goes_on or start.seq > self._stand.seq + REOPEN_AHEAD_TRANSACTIONS:
            self.close()
            self._source.check(after)
            self._feed, state = self._source.open_feed(start.seq)
            self._sequencer = Sequencer(start, state, self._source.options)
            self._start = self._stand = start
            self._seen = {}
            self._checked = time.monotonic()
        return self._sequencer

    def _gathered(self, sequencer: Sequencer, limit: int) -> Unread:
        """About so many rows, or what comes within a short time, or has as many bytes as a batch, in their order."""
        deadline, size = time.monotonic() + POLL_TIMEOUT_S, 0
        while sequencer.count < limit and size < BATCH_BYTES:
            left = deadline - time.monotonic()
            item = self._next(min(left, LINGER_S) if sequencer.count else left)
            if item is None:
                break
            sequencer.add(item)
            size += size_of(item)
            if sequencer.wanted is not None:
                self._go_to_prepared(sequencer)
        self._source.remember(sequencer.state)
        gathered = sequencer.gathered()
        options, shards = self._source.options, self._source.shards
        rows = ordered([updates_with_ends(one, options, shards) for one in gathered.changes])
        if (history := sequencer.history) is not None:
            self._source.note_history(history)
        return Unread(rows, gathered.losses)

    def _next(self, timeout: float) -> Item | None:
        """The next item; None if there is none within so many seconds."""
        while self._detour is not None:
            if not self._detour_items and timeout > 0:
                self._detour_items = self._detour.take(timeout)
            if not self._detour_items:
                return None
            item = self._detour_items.popleft()
            if isinstance(item, End):
                self._detour.close()
                self._detour, self._detour_items = None, deque()
            elif not isinstance(item, Begin | Resolution):
                return item
        assert self._feed is not None
        if not self._items and timeout > 0:
            self._items = self._feed.take(timeout)
        return self._items.popleft() if self._items else None

    def _go_to_prepared(self, sequencer: Sequencer) -> None:
        """An XA transaction was committed, and its rows are not at hand: read them where it was prepared."""
        xid, sequencer.wanted = sequencer.wanted, None
        end = sequencer.gtid
        if xid is not None and end is not None:
            self._detour = self._source.open_prepared(xid, end)
            if self._detour is None:
                sequencer.add(
                    UnreadRows(f"transaction {end} commits XA transaction {xid}, and where it was prepared is purged")
                )

    def _handed_out(self, sequencer: Sequencer, unread: Unread, after: Positions, limit: int) -> Read:
        """Of these rows, those that are asked for, at most so many; the others are left for the next read."""
        rows, losses = unread
        stand, self._left = sequencer.place, None
        while losses and min(after.values()) >= losses[0].at:
            self._pass(losses[0], after)
            losses = losses[1:]
        if losses:
            stand = losses[0].at.before
            count = int(np.count_nonzero(~later(rows, Positions(dict.fromkeys(range(self._source.shards), stand)))))
            self._left, rows = Unread(rows.slice(count), losses), rows.slice(0, count)
        wanted = np.flatnonzero(later(rows, after))
        if len(wanted) > limit:
            cut = int(wanted[limit - 1]) + 1
            wanted, self._left, rows = wanted[:limit], Unread(unread.rows.slice(cut), losses), rows.slice(0, cut)
            stand = Position(rows["seq"][-1].as_py(), rows["index"][-1].as_py())
        self._seen |= ends(rows)
        self._stand = stand
        chosen = rows if len(wanted) == len(rows) else rows.take(wanted)
        upto = Positions({shard: max(at, stand) for shard, at in after.items()})
        if not len(chosen):
            self._tell_losses(losses, after, upto)
            self._look_around(sequencer, upto)
        return Read(chosen, upto)

    def _tell_losses(self, losses: list[Loss], after: Positions, upto: Positions) -> None:
        """Raise if nothing is left to be read before the first loss."""
        if losses and upto == after:
            at, reason = losses[0]
            lost = {shard: (at, at) for shard, stand in after.items() if stand < at}
            raise PositionsLost(f"stream {self._source.stream_name!r} lacks updates at {at}: {reason}", lost, reason)

    def _pass(self, loss: Loss, after: Positions) -> None:
        """Whoever comes from before it will have to read it again."""
        self._start = max(self._start, loss.at)
        self._seen |= {shard: max(self._seen.get(shard, loss.at), loss.at) for shard in after}

    def _look_around(self, sequencer: Sequencer, upto: Positions) -> None:
        """Nothing comes: see that the log is still there, and that nothing comes elsewhere."""
        if sequencer.elsewhere is not None and time.monotonic() > sequencer.elsewhere[0] + ELSEWHERE_PATIENCE_S:
            raise LogUnavailable(
                f"stream {self._source.stream_name!r} reads domain {self._source.options.domain}, in which nothing "
                f"happens, and {sequencer.elsewhere[1]}: make a stream with the option 'domain' for them, or set "
                "'other_domains' to 'ignored'"
            )
        if time.monotonic() > self._checked + IDLE_CHECK_INTERVAL_S:
            self._source.check(upto)
            self._checked = time.monotonic()


def ordered(tables: list[pa.Table]) -> pa.Table:
    """The rows of all tables by their positions."""
    if len(tables) < 2:
        return tables[0] if tables else SCHEMA.empty_table()
    return pa.concat_tables(tables).sort_by([("seq", "ascending"), ("index", "ascending")])
