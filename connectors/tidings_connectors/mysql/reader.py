"""Reading a binary log from the front to the back: transactions in, canonical rows out."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tidings.errors import LogUnavailable
from tidings.logs import Read, ends
from tidings.positions import Position, Positions
from tidings.updates import SCHEMA
from tidings_connectors.cdc.changes import Changes
from tidings_connectors.cdc.mapping import updates_of
from tidings_connectors.cdc.positions import later
from tidings_connectors.mysql.binlog import Begin, End, Feed, Item, Rows, Statement
from tidings_connectors.mysql.connection import POSITION_GONE, ServerError
from tidings_connectors.mysql.mariadb_gtid import GtidState, after_transaction, seq_in
from tidings_connectors.mysql.options import MysqlOptions
from tidings_connectors.mysql.rows import Draft, Shape, changed, savepoint_of, truncated, truncated_table

POLL_TIMEOUT_S = 0.05  # that a read waits for rows, and gathers them
LINGER_S = 0.002  # that a read waits for more rows when it has some
HOLD_BYTES = 2**20  # a transaction is held back until its end has come, unless it is larger than this
REOPEN_AHEAD_TRANSACTIONS = 100_000  # to open the log anew is cheaper than to read up to there
IDLE_CHECK_INTERVAL_S = 1.0  # after which an idle reader looks whether the log still reaches up to it
WRITE_STATEMENTS = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD")

logger = logging.getLogger(__name__)


class BinlogSource(Protocol):
    """What a reader needs of its log."""

    stream_name: str
    shards: int
    options: MysqlOptions

    def open_feed(self, seq: int) -> tuple[Feed, GtidState]:
        """The items of the log from this transaction on, or from one before it, and the state that they come after."""

    def remember(self, state: GtidState) -> None:
        """A state that a reader has met: the server knows it."""

    def forget(self) -> None:
        """The server does not know states that readers have met: it is another one."""

    def check(self, after: Positions) -> None:
        """Raise unless the log holds what comes after these positions, and reaches up to them."""


class Undone(NamedTuple):
    """Rows of a transaction that went back to a savepoint before them."""

    rows: Rows


class Sequencer:
    """Puts numbers on the rows of transactions, and gathers them as changes, table by table."""

    def __init__(self, start: Position, state: GtidState, options: MysqlOptions) -> None:
        self.place = start
        """Everything up to here was gathered, or is no row of ours."""
        self.state = dict(state)
        """The last transaction of each domain that has ended."""
        self.count = 0
        """How many rows are gathered."""
        self._start = start
        self._options = options
        self._watched = options.watched
        self._begun: Begin | None = None
        self._ours = False
        self._index = 0
        self._held: list[Rows | Undone | Statement] = []
        self._held_bytes = 0
        self._drafts: dict[Shape, Draft] = {}
        self._truncations: list[Changes] = []

    def add(self, item: Item) -> None:
        """Take the next item."""
        match item:
            case Rows():
                if self._ours:
                    self._held.append(item)
                    self._held_bytes += len(item.data)
                    if self._held_bytes > HOLD_BYTES:
                        self._release()
            case Statement():
                if self._ours:
                    self._held.append(item)
                    self._go_back(item.text)
            case Begin():
                self._check_order(item)
                self._begun = item
                self._ours = item.gtid.domain == self._options.domain and item.gtid.seq >= self._start.seq
                self._index = 0
            case End():
                self._end(item.kept)

    def changes(self) -> list[Changes]:
        """What was gathered, table by table."""
        made = [draft.changes() for draft in self._drafts.values() if len(draft)] + self._truncations
        self._drafts, self._truncations, self.count = {}, [], 0
        return made

    def _end(self, kept: bool) -> None:
        if kept:
            self._release()
        begun, self._begun = self._begun, None
        if begun is not None and not kept and self._ours and self._index:
            logger.warning("transaction %s was broken off after %d of its rows were read", begun.gtid, self._index)
        self._held, self._held_bytes, self._ours = [], 0, False
        if begun is None or not kept:
            return
        self.state[begun.gtid.domain] = begun.gtid
        if begun.gtid.domain == self._options.domain:
            self.place = max(self.place, after_transaction(begun.gtid.seq))

    def _check_order(self, begun: Begin) -> None:
        last = seq_in(self.state, begun.gtid.domain)
        if begun.gtid.domain == self._options.domain and begun.gtid.seq <= last:
            raise LogUnavailable(
                f"transaction {begun.gtid} comes after number {last} in the binary log, so that positions have no "
                "order: SET GLOBAL gtid_strict_mode = ON"
            )

    def _go_back(self, statement: str) -> None:
        """Undo what came after a savepoint, if that is what the statement does.

        Mostly the server itself leaves out what was undone, but not when tables without transactions were written too.
        """
        back, name = savepoint_of(statement) or (False, "")
        if not back:
            return
        made = [at for at, item in enumerate(self._held) if isinstance(item, Statement) and made_by(item, name)]
        if not made:
            logger.warning("a part of a transaction was undone after its rows were handed out: %s", self._begun)
        for at in range(made[-1] if made else 0, len(self._held)):
            if isinstance(item := self._held[at], Rows):
                self._held[at] = Undone(item)

    def _release(self) -> None:
        """Gather what was held back."""
        if not self._held or self._begun is None:
            return
        for item in self._held:
            match item:
                case Rows():
                    self._gather(item, self._begun)
                case Undone():  # it has numbers all the same, so that these do not depend on when it was undone
                    self._index += len(changed(Draft(item.rows.shape), *item.rows[1:3], *item.rows.present))
                case Statement():
                    self._understand(item, self._begun)
        self._held, self._held_bytes = [], 0
        self.place = max(self.place, Position(self._begun.gtid.seq, self._index - 1))

    def _gather(self, rows: Rows, begun: Begin) -> None:
        draft = self._drafts.get(rows.shape)
        if draft is None:
            draft = self._drafts[rows.shape] = Draft(rows.shape)
        found = changed(draft, rows.operation, rows.data, *rows.present)
        first, self._index = self._index, self._index + len(found)
        if begun.gtid.seq == self._start.seq and (passed := self._start.index + 1 - first) > 0:
            found, first = found[passed:], first + passed
        draft.add(found, begun.gtid.seq, first, begun.time)
        self.count += len(found)

    def _understand(self, statement: Statement, begun: Begin) -> None:
        table = truncated_table(statement.database, statement.text)
        if table in self._watched and table is not None:
            at = Position(begun.gtid.seq, self._index)
            self._index += 1
            if at > self._start:
                self._truncations.append(truncated(*table, self._options, at.seq, at.index, begun.time))
                self.count += 1
        elif statement.text.startswith("XA ROLLBACK"):
            logger.warning("%s: what it undoes was handed out when it was prepared (%s)", statement.text, begun.gtid)
        elif statement.text.lstrip()[:7].upper().startswith(WRITE_STATEMENTS) and self._names_watched(statement.text):
            logger.warning("transaction %s is logged as a statement: what rows it changed is not known", begun.gtid)

    def _names_watched(self, statement: str) -> bool:
        return any(table in statement for _, table in self._watched)


class MysqlReader:
    """A `Reader` with a connection of its own."""

    def __init__(self, source: BinlogSource) -> None:
        self._source = source
        self._feed: Feed | None = None
        self._sequencer: Sequencer | None = None
        self._items: deque[Item] = deque()
        self._left: pa.Table | None = None  # rows that were gathered, and are not handed out yet
        self._start = self._stand = Position(-1)
        self._seen: dict[int, Position] = {}  # the last row of each shard that was gathered and is not left
        self._checked = 0.0

    def read(self, after: Positions, limit: int) -> Read:
        """The next rows of these shards; waits a little if there are none."""
        if not after:
            return Read(SCHEMA.empty_table(), after)
        try:
            sequencer = self._opened(after)
            rows = self._left if self._left is not None else self._gathered(sequencer, limit)
        except ServerError as error:
            self.close()
            if error.code == POSITION_GONE:
                self._source.forget()
                self._source.check(after)
            raise
        except BaseException:
            self.close()
            raise
        return self._handed_out(sequencer, rows, after, limit)

    def close(self) -> None:
        """Let go of the connection; a later read makes a new one."""
        if self._feed is not None:
            self._feed.close()
        if self._sequencer is not None:
            self._source.remember(self._sequencer.state)
        self._feed = self._sequencer = self._left = None
        self._items = deque()

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

    def _gathered(self, sequencer: Sequencer, limit: int) -> pa.Table:
        """About so many rows, or what comes within a short time, in their order."""
        assert self._feed is not None
        deadline = time.monotonic() + POLL_TIMEOUT_S
        while sequencer.count < limit:
            if not self._items:
                left = deadline - time.monotonic()
                if left > 0:
                    self._items = self._feed.take(min(left, LINGER_S) if sequencer.count else left)
                if not self._items:
                    break
            sequencer.add(self._items.popleft())
        self._source.remember(sequencer.state)
        return ordered([updates_of(one, self._source.options, self._source.shards) for one in sequencer.changes()])

    def _handed_out(self, sequencer: Sequencer, rows: pa.Table, after: Positions, limit: int) -> Read:
        """Of these rows, those that are asked for, at most so many; the others are left for the next read."""
        wanted = np.flatnonzero(later(rows, after))
        self._left, self._stand = None, sequencer.place
        if len(wanted) > limit:
            cut = int(wanted[limit - 1]) + 1
            wanted, self._left, rows = wanted[:limit], rows.slice(cut), rows.slice(0, cut)
            self._stand = Position(rows["seq"][-1].as_py(), rows["index"][-1].as_py())
        self._seen |= ends(rows)
        chosen = rows if len(wanted) == len(rows) else rows.take(wanted)
        upto = Positions({shard: max(at, self._stand) for shard, at in after.items()})
        if not len(chosen) and time.monotonic() > self._checked + IDLE_CHECK_INTERVAL_S:
            self._source.check(upto)
            self._checked = time.monotonic()
        return Read(chosen, upto)


def made_by(statement: Statement, savepoint: str) -> bool:
    """Whether a statement makes a savepoint of this name."""
    return savepoint_of(statement.text) == (False, savepoint)


def ordered(tables: list[pa.Table]) -> pa.Table:
    """The rows of all tables by their positions."""
    if len(tables) < 2:
        return tables[0] if tables else SCHEMA.empty_table()
    return pa.concat_tables(tables).sort_by([("seq", "ascending"), ("index", "ascending")])
