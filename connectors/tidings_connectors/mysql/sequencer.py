"""Transactions of a binary log become changes: rows get their numbers, and so does what is missing."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from tidings.errors import LogUnavailable
from tidings.positions import Position
from tidings_connectors.cdc.changes import Changes
from tidings_connectors.mysql.binlog import Begin, End, Item, Resolution, Rows, Statement, UnreadRows, size_of
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState, after_transaction, seq_in
from tidings_connectors.mysql.options import MysqlOptions
from tidings_connectors.mysql.origin import ReadHistory, ReadTransaction, RowsDigest
from tidings_connectors.mysql.prepared import KEPT_BYTES, Held, PreparedTransactions, Undone
from tidings_connectors.mysql.rows import Change, Draft, Shape, changed, truncated
from tidings_connectors.mysql.statements import filled_table, may_change, may_truncate, savepoint_of, truncated_table
from tidings_connectors.mysql.values import MISREAD

HOLD_BYTES = 2**20  # a transaction is held back until its end has come, unless it is larger than this

logger = logging.getLogger(__name__)


class Loss(NamedTuple):
    """A place in the log where something happened to watched tables, and what is not known."""

    at: Position
    reason: str


class Gathered(NamedTuple):
    """Changes, table by table, and what is missing between them."""

    changes: list[Changes]
    losses: list[Loss]


class Sequencer:
    """Puts numbers on the rows of transactions, and gathers them as changes, table by table."""

    def __init__(self, start: Position, state: GtidState, options: MysqlOptions) -> None:
        self.place = start
        """Everything up to here was gathered, or is no row of ours."""
        self.state = dict(state)
        """The last transaction of each domain that has ended, but for those that were lost and are not told of yet."""
        self.count = 0
        """How many rows are gathered."""
        self.wanted: str | None = None
        """The XA transaction that was committed, and whose rows are to be added next."""
        self.elsewhere: tuple[float, str] | None = None
        """Since when there is something in other domains that is not told of yet, and what."""
        self._start = start
        self._digest: RowsDigest | None = None
        self._rows: ReadTransaction | None = None
        self._ended = dict(state)
        self._options = options
        self._watched = options.watched
        self._prepared = PreparedTransactions()
        self._begun: Begin | None = None
        self._index = 0
        self._held: list[Held] = []
        self._held_bytes = 0
        self._drafts: dict[Shape, Draft] = {}
        self._truncations: list[Changes] = []
        self._losses: list[Loss] = []

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Rows) and self._digest is not None:
            self._digest.add(item)
        match item:
            case Begin():
                self._check_order(item)
                self._begun = item
                self._index = 0
                self._digest = RowsDigest()
            case End():
                self._end(item)
            case Resolution():
                self._resolve(item)
            case _ if self._begun is None or self._passed(self._begun):
                pass
            case _ if self._begun.prepares:
                self._hold(item)
                if self._held_bytes > KEPT_BYTES:
                    self._held = []
            case _ if self._begun.gtid.domain != self._options.domain:
                self._look_elsewhere(item, self._begun)
            case _:
                self._hold(item)
                if self._held_bytes > HOLD_BYTES:
                    self._release()

    @property
    def gtid(self) -> Gtid | None:
        """The transaction that has begun and not ended."""
        return self._begun.gtid if self._begun is not None else None

    @property
    def history(self) -> ReadHistory | None:
        """What was read since the start; None if it is not there yet."""
        last, before = self.state.get(self._options.domain), self._start.seq - 1
        if last is None or last.seq < max(before, 1):
            return None
        return ReadHistory(last, self._rows, before if self._rows is None else self._rows.gtid.seq)

    def gathered(self) -> Gathered:
        """What was gathered."""
        made = [changes for draft in self._drafts.values() if (changes := draft.changes(self._lose_at)) is not None]
        found = Gathered(made + self._truncations, sorted(self._losses))
        self._drafts, self._truncations, self._losses, self.count = {}, [], [], 0
        return found

    def _passed(self, begun: Begin) -> bool:
        return begun.gtid.domain == self._options.domain and begun.gtid.seq < self._start.seq

    def _check_order(self, begun: Begin) -> None:
        last = seq_in(self._ended, begun.gtid.domain)
        if begun.gtid.domain == self._options.domain and begun.gtid.seq <= last:
            raise LogUnavailable(
                f"transaction {begun.gtid} comes after number {last} in the binary log, so that positions have no "
                "order: SET GLOBAL gtid_strict_mode = ON"
            )

    def _hold(self, item: Rows | UnreadRows | Statement) -> None:
        self._held.append(item)
        self._held_bytes += size_of(item)
        if isinstance(item, Statement):
            self._go_back(item.text)

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

    def _resolve(self, item: Resolution) -> None:
        """An XA transaction has ended, so that it is known whether it happened."""
        self._digest = None  # its rows are those of the transaction that prepared it
        held = self._prepared.take(item.xid)
        begun = self._begun
        if not item.committed or begun is None or self._passed(begun):
            return
        if begun.gtid.domain != self._options.domain:
            for one in held or ():
                if not isinstance(one, Undone):
                    self._look_elsewhere(one, begun)
        elif held is None:
            self.wanted = item.xid
        else:
            self._held += held

    def _end(self, end: End) -> None:
        begun, self._begun = self._begun, None
        held, self._held, size, self._held_bytes = self._held, [], self._held_bytes, 0
        if begun is None:
            return
        if not end.kept:
            if self._index and not begun.prepares:
                logger.warning("transaction %s was broken off after %d of its rows were read", begun.gtid, self._index)
            return
        if end.prepared is not None and begun.prepares:
            if not self._passed(begun) and size <= KEPT_BYTES:
                self._prepared.put(end.prepared, held, size)
        else:
            self._held, self._begun = held, begun
            self._release()
            self._begun = None
        self._ended[begun.gtid.domain] = begun.gtid
        if begun.gtid.domain == self._options.domain:
            if digest := str(self._digest or ""):
                self._rows = ReadTransaction(begun.gtid, digest)
            if self.elsewhere is not None and not self._passed(begun):
                self._lose(self.elsewhere[1], begun)
            self.elsewhere = None
            self.place = max(self.place, after_transaction(begun.gtid.seq))
        if self.elsewhere is None:
            self.state = dict(self._ended)

    def _look_elsewhere(self, item: Rows | UnreadRows | Statement, begun: Begin) -> None:
        """A transaction of another domain has no place among ours: what it changed is lost, and is told of with the
        next one of ours."""
        ignored = self._options.other_domains == "ignored" or self.elsewhere is not None
        if ignored or (isinstance(item, Statement) and not self._changes_rows(item)):
            return
        reason = f"transaction {begun.gtid} changed watched tables, in another GTID domain than {self._options.domain}"
        logger.warning("%s", reason)
        self.elsewhere = time.monotonic(), reason

    def _release(self) -> None:
        """Gather what was held back."""
        if not self._held or self._begun is None:
            return
        for item in self._held:
            match item:
                case Rows():
                    self._gather(item, self._begun)
                case Undone():  # it has numbers all the same, so that these do not depend on when it was undone
                    self._index += len(self._changed(Draft(item.rows.shape), item.rows, self._begun))
                case UnreadRows():
                    self._lose(item.reason, self._begun)
                case Statement():
                    self._understand(item, self._begun)
        self._held, self._held_bytes = [], 0
        self.place = max(self.place, Position(self._begun.gtid.seq, self._index - 1))

    def _gather(self, rows: Rows, begun: Begin) -> None:
        draft = self._drafts.get(rows.shape)
        if draft is None:
            draft = self._drafts[rows.shape] = Draft(rows.shape, self._options)
        found = self._changed(draft, rows, begun)
        first, self._index = self._index, self._index + len(found)
        if begun.gtid.seq == self._start.seq and (passed := self._start.index + 1 - first) > 0:
            found, first = found[passed:], first + passed
        draft.add(found, begun.gtid.seq, first, begun.time)
        self.count += len(found)

    def _changed(self, draft: Draft, rows: Rows, begun: Begin) -> list[Change]:
        """What rows say; if they cannot be read, nothing, and they are lost."""
        try:
            return changed(draft, rows.operation, rows.data, *rows.present)
        except MISREAD as error:
            self._lose(f"rows of table {rows.shape.schema}.{rows.shape.table} cannot be read: {error}", begun)
            return []

    def _understand(self, statement: Statement, begun: Begin) -> None:
        table = truncated_table(statement.database, statement.text)
        if table in self._watched and table is not None:
            at = Position(begun.gtid.seq, self._index)
            self._index += 1
            if at > self._start:
                self._truncations.append(truncated(*table, self._options, at.seq, at.index, begun.time))
                self.count += 1
        elif self._changes_rows(statement):
            self._lose(
                f"transaction {begun.gtid} is logged as a statement, and what rows it changed is not known: see that "
                "no session has another binlog_format than ROW",
                begun,
            )

    def _changes_rows(self, statement: Statement) -> bool:
        if statement.alone:
            filled = filled_table(statement.database, statement.text) in self._watched
            return filled or may_truncate(statement.database, statement.text, self._watched)
        return may_change(statement.database, statement.text, self._watched)

    def _lose(self, reason: str, begun: Begin) -> None:
        """There was something here, and it is not known what."""
        self._lose_at(Position(begun.gtid.seq, self._index), reason)
        self._index += 1
        self.count += 1

    def _lose_at(self, at: Position, reason: str) -> None:
        if at > self._start:
            self._losses.append(Loss(at, reason))


def made_by(statement: Statement, savepoint: str) -> bool:
    """Whether a statement makes a savepoint of this name."""
    return savepoint_of(statement.text) == (False, savepoint)
