"""The MySQL/MariaDB log: the changes of tables, read from the server's row-based binary log. MariaDB only, so far.

Address: `mysql:mysql://user@host:3306/database`. The options of the stream say which tables are watched, and what
becomes of their rows; see `options` and `cdc.mapping`.

A position is a GTID: the same on a primary and on its replicas, so that a reader can go on at another server. It is
never a file and an offset, which differ from server to server.

What a binary log does not tell: that a column is JSON, which in MariaDB is text; what an `ALTER TABLE ... TRUNCATE
PARTITION` removed; and what foreign keys with `ON DELETE CASCADE` and the like did to other tables.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from tidings.errors import LogMismatch, LogUnavailable
from tidings.logs import Reader, Retained
from tidings.positions import Bounds, Position, Positions
from tidings_connectors.cdc import base
from tidings_connectors.cdc.base import TailedLogBase
from tidings_connectors.mysql.binlog import EVERY_TABLE, Feed, first_gtid
from tidings_connectors.mysql.connection import POSITION_GONE, MysqlConnection, ServerError
from tidings_connectors.mysql.mariadb_gtid import (
    Gtid,
    GtidState,
    after_transaction,
    check_held,
    parse_state,
    seq_in,
)
from tidings_connectors.mysql.options import MysqlOptions, Place, place_of
from tidings_connectors.mysql.origin import (
    MysqlNewest,
    ReadHistory,
    ReadTransaction,
    check_newest,
    check_origin,
    read_transaction,
    transaction_with_rows,
)
from tidings_connectors.mysql.preflight import check_order, check_server
from tidings_connectors.mysql.prepared import find_prepared
from tidings_connectors.mysql.reader import MysqlReader
from tidings_connectors.mysql.snapshot import MysqlTables
from tidings_connectors.mysql.statements import Table
from tidings_connectors.mysql.tables import check_tables

if TYPE_CHECKING:
    from tidings.stream_definition import StreamDefinition

BOUNDS_MAX_AGE_S = 0.2  # for which they are not asked for again
REMEMBERED_STATES = 64  # of those that readers have met
REPLICATION_PATIENCE_S = 10.0  # with a replica that is to prove itself, and is not as far yet
REPLICATION_POLL_INTERVAL_S = 0.1
FIRST_GENERATED_SERVER_ID = 2**31  # people number theirs from 1

_readers = itertools.count()
_salt = os.urandom(8).hex()


class MysqlLog(TailedLogBase):
    """A `TailedLog` over the binary log. Made by `create` and `open`."""

    def __init__(self, place: Place, stream: StreamDefinition, options: MysqlOptions) -> None:
        super().__init__(stream, options)
        self.options = options
        self.shards = stream.shards
        self.stream_name = stream.name
        self._place = place
        self._connection = MysqlConnection(place)
        self._lock = threading.Lock()
        self._log: tuple[float, Bounds] | None = None
        self._bounds: dict[int, Bounds] = {}
        self._known: dict[int, GtidState] = {}
        self._first: tuple[str, Gtid] | None = None
        self._history: ReadHistory | None = None
        self._rows_read: ReadTransaction | None = None
        self._feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        self._tables = MysqlTables(self._connection, options, lambda: self._logged(0))
        self._use_snapshots(self._tables, stream.name)

    def __repr__(self) -> str:
        return f"MysqlLog({self.stream_name!r}, {str(self._place)!r})"

    @classmethod
    def create(cls, location: str, stream: StreamDefinition) -> MysqlLog:
        """There is nothing to make but a snapshot, if one is wanted: the server has the log."""
        return cls._made(location, stream, cls._begin)

    @classmethod
    def preflight(cls, location: str, stream: StreamDefinition) -> dict[str, Any] | None:
        """As `tidings.log_checks` has it; the newest transaction is looked for only if a replica is to be proven."""
        with contextlib.closing(cls._made(location, stream, cls._check_tables)) as log:
            return log.origin_now() if stream.replicas else None

    @classmethod
    def claims(cls, location: str, stream: StreamDefinition) -> set[str]:
        """As `tidings.log_checks` has it: each table of a domain."""
        with contextlib.closing(cls._unopened(location, stream)) as log:
            domain = f" in domain {log.options.domain}" if log.options.domain else ""
            return {f"table {name} of MariaDB at {log._place}{domain}" for name in log.options.tables}

    @classmethod
    def open(cls, location: str, stream: StreamDefinition) -> MysqlLog:
        return cls._made(location, stream, cls._resume_snapshot)

    @classmethod
    def _unopened(cls, location: str, stream: StreamDefinition) -> MysqlLog:
        options = base.options_of(MysqlOptions, stream, "MariaDB")
        return cls(place_of(location, options), stream, options)

    @classmethod
    def _made(cls, location: str, stream: StreamDefinition, begin: Callable[[MysqlLog], None]) -> MysqlLog:
        log = cls._unopened(location, stream)
        with contextlib.ExitStack() as failed:
            failed.callback(log.close)
            check_server(log._connection, log._server_id())
            begin(log)
            failed.pop_all()
        return log

    def _begin(self) -> None:
        check_order(self._connection)
        self._check_tables()
        self._take_snapshot()

    def _check_tables(self) -> None:
        check_tables(self._connection, self.options, self.stream_name)
        if self._snapshot is not None:
            self._tables.check()  # even if one is only taken when something is lost: that is too late to be told

    def bounds(self) -> dict[int, Bounds]:
        """What is held. Where there is a snapshot, it begins there: what came before in the server's log is in it."""
        return self._held(BOUNDS_MAX_AGE_S)

    def reader(self) -> Reader:
        return self._reader_with_snapshot(MysqlReader(self))

    def confirm(self, upto: Positions) -> None:
        """The server keeps its log by its own rules (`binlog_expire_logs_seconds`); a snapshot is ours."""
        self._release_snapshots(upto)

    def retained(self, slowest: Position) -> Retained | None:
        """The binary logs from the one on that has what comes next for the slowest; the server keeps them if it does
        not purge them by its own rules."""
        number, files, _ = self._log_before(slowest.seq)
        return Retained(sum(size for _, size in files[number:]))

    def origin(self) -> dict[str, Any] | None:
        """None until readers have come by something; and of rows nothing, until they have met some."""
        with self._lock:
            history, rows = self._history, self._rows_read
        if history is None:
            return None
        found = {"last": str(history.last), "quiet": str(history.quiet)}
        return found if rows is None else {**found, "rows_of": str(rows.gtid), "rows": rows.rows}

    def origin_now(self) -> dict[str, Any] | None:
        """What the log is known by if nobody has read it yet: its newest transaction; None if there is none."""
        return self.origin() or self._newest()

    @classmethod
    def prove(cls, location: str, stream: StreamDefinition, known: Mapping[str, Any], passed: Positions) -> None:
        with contextlib.closing(cls._unopened(location, stream)) as log:
            check_server(log._connection, log._server_id())
            if "newest" in known:
                log._check_newest(MysqlNewest(known["newest"], known["whole"]))
                return
            read = max((at.seq - (at.index < 0) for at in passed.values()), default=0)
            check_origin(log._place, known, read, log._held_transaction, log._with_rows)

    def distance(self, after: Position, upto: Position) -> int:
        """In transactions."""
        return upto.seq - after.seq

    def close(self) -> None:
        """Let go of all connections, those of readers too."""
        with self._lock:
            feeds = list(self._feeds)
        for feed in feeds:
            feed.close()
        super().close()
        self._connection.close()

    def _newest(self) -> dict[str, Any] | None:
        held = self._logged(0)
        seq = held.head.seq - 1
        found = self._transaction(seq, whole=True) if held.floor < held.head else None
        return None if found is None else MysqlNewest(str(found.gtid), found.rows)._asdict()

    def _check_newest(self, known: MysqlNewest) -> None:
        (gtid,) = parse_state(known.newest).values()
        deadline = time.monotonic() + REPLICATION_PATIENCE_S
        while after_transaction(gtid.seq) > self._logged(0).head and time.monotonic() < deadline:
            time.sleep(REPLICATION_POLL_INTERVAL_S)
        check_newest(self._place, known, self._held_transaction(gtid.seq, whole=True))

    def _held_transaction(self, seq: int, *, whole: bool = False) -> ReadTransaction | None:
        """A transaction of the log."""
        self._check_held(seq)
        return self._transaction(seq, whole=whole)

    def _check_held(self, seq: int) -> None:
        """Raise if the log does not come to a transaction, or does not hold it any more."""
        held = self._logged(0)
        if after_transaction(seq) > held.head:
            raise LogMismatch(
                f"the binary log of MariaDB at {self._place} ends with transaction {held.head.seq - 1}, and the stream "
                f"is at {seq}: wait until it is as far; if it is another server, or an older copy, make a new stream"
            )
        if seq < held.floor.seq:
            raise LogMismatch(
                f"the binary log of MariaDB at {self._place} begins with transaction {held.floor.seq}, so that nothing "
                f"proves that it has {seq}, which the stream has read: make a new stream"
            )

    def _with_rows(self, after: int, upto: int) -> ReadTransaction | None:
        """The first transaction with rows after the one of this number, up to that one."""
        if after >= upto:
            return None
        self._check_held(after + 1)
        feed, _ = self.open_feed(after + 1)
        with contextlib.closing(feed):
            return transaction_with_rows(feed, self.options.domain, upto)

    def _transaction(self, seq: int, *, whole: bool = False) -> ReadTransaction | None:
        feed, _ = self.open_feed(seq, EVERY_TABLE if whole else self.options.watched)
        with contextlib.closing(feed):
            return read_transaction(feed, self.options.domain, seq, whole=whole)

    # What readers need

    def open_feed(self, seq: int, watched: Container[Table] | None = None) -> tuple[Feed, GtidState]:
        """The log from this transaction on, or from one before it, and the state that it comes after."""
        check_server(self._connection, self._server_id())  # it may be set up otherwise by now
        with self._lock:
            known = max((number for number in self._known if number < max(seq, 1)), default=-1)
            state = self._known.get(known)
        if state is None or known < seq - 1:
            written = self._state_before(seq)
            state = written if state is None or seq_in(written, self.options.domain) > known else state
        if seq_in(state, self.options.domain) >= max(seq, 1):
            raise ServerError(f"MariaDB at {self._place} has just purged transaction {seq}", POSITION_GONE)
        return self._feed(state, Gtid(self.options.domain, 0, seq), watched), state

    def open_prepared(self, xid: str, end: Gtid) -> Feed | None:
        """The log from where an XA transaction was prepared; None if that is gone."""
        place = find_prepared(self._place, self._files(), self._state_at, xid, end, self._server_id)
        return None if place is None else self._feed(place.state, place.gtid)

    def _feed(self, state: GtidState, first: Gtid, watched: Container[Table] | None = None) -> Feed:
        feed = Feed(self._place, state, first, watched or self.options.watched, self._server_id())
        with self._lock:
            self._feeds.add(feed)
        return feed

    def remember(self, state: GtidState) -> None:
        """A state that a reader has met: the server knows it."""
        seq = seq_in(state, self.options.domain)
        if not seq:
            return
        with self._lock:
            self._known.pop(seq, None)
            self._known[seq] = dict(state)
            while len(self._known) > REMEMBERED_STATES:
                del self._known[next(iter(self._known))]

    def note_history(self, history: ReadHistory) -> None:
        """What a reader has come by; of several, what the farthest has."""
        with self._lock:
            if self._history is None or history.last.seq >= self._history.last.seq:
                self._history = history
            if history.rows and (self._rows_read is None or history.rows.gtid.seq >= self._rows_read.gtid.seq):
                self._rows_read = history.rows

    def forget(self) -> None:
        """The server does not know what readers have met."""
        with self._lock:
            self._known.clear()
            self._history = self._rows_read = None

    def check(self, after: Positions) -> None:
        check_held(self.stream_name, self._bounds_with_snapshot(self._logged(0)), after)

    # What the server says

    def _held(self, age: float) -> dict[int, Bounds]:
        """The bounds of all shards, not older than so many seconds: of the log, and of the snapshot before it."""
        held = self._bounds_from_snapshot(self._logged(age))
        with self._lock:
            if self._bounds.get(0) != held:
                self._bounds = dict.fromkeys(range(self.shards), held)
            return self._bounds

    def _logged(self, age: float) -> Bounds:
        """What the server's own log holds."""
        with self._lock:
            known = self._log
        if known is not None and time.monotonic() < known[0] + age:
            return known[1]
        asked = time.monotonic()
        domain = self.options.domain
        ((written, replicated),) = self._connection.ask("SELECT @@GLOBAL.gtid_binlog_pos, @@GLOBAL.gtid_slave_pos")
        # A replica that has just been made from a copy has nothing in its log, and still stands where the copy stood.
        last = seq_in(parse_state(written), domain) or seq_in(parse_state(replicated), domain)
        held = Bounds(after_transaction(min(self._last_gone(last), last)), after_transaction(last))
        with self._lock:
            self._log = asked, held
        return held

    def _last_gone(self, last: int) -> int:
        """The newest transaction of our domain that the log does not hold any more, or never did."""
        file, state = self._oldest()
        domain = self.options.domain
        if domain in state:
            return state[domain].seq
        # Nothing of the domain was before this log. That does not mean that it holds its first transaction: the log of
        # a server that was made from a copy begins anywhere.
        if self._first is None or self._first[0] != file or self._first[1].seq > last:
            first = first_gtid(self._place, state, domain, self._server_id()) if last else None
            if first is None:
                return last
            self._first = file, first
        return self._first[1].seq - 1

    def _files(self) -> list[str]:
        return [name for name, _ in self._sizes()]

    def _sizes(self) -> list[tuple[str, int]]:
        """The binary logs, the oldest first, with their bytes."""
        return [(row[0], int(row[1])) for row in self._connection.ask("SHOW BINARY LOGS")]

    def _state_at(self, file: str) -> GtidState | None:
        """The state at the beginning of a log; None if it was purged."""
        ((text,),) = self._connection.ask("SELECT BINLOG_GTID_POS(%s, 4)", file)
        return None if text is None else parse_state(text)

    def _oldest(self) -> tuple[str, GtidState]:
        for _ in range(10):
            file = self._files()[0]
            if (state := self._state_at(file)) is not None:
                return file, state
        raise LogUnavailable(f"MariaDB at {self._place} purges its binary logs faster than they can be looked at")

    def _state_before(self, seq: int) -> GtidState:
        """The state at the beginning of the newest log that does not begin after this transaction.

        If there are other domains, not after the one before it either: what is lost between the two is told with this.
        """
        ((written,),) = self._connection.ask("SELECT @@GLOBAL.gtid_binlog_pos")
        if self.options.other_domains == "lost" and parse_state(written).keys() - {self.options.domain}:
            seq -= 1
        return self._log_before(seq)[2]

    def _log_before(self, seq: int) -> tuple[int, list[tuple[str, int]], GtidState]:
        """Which is the newest log that does not begin after this transaction, all logs, and the state at its
        beginning."""
        files = self._sizes()
        _, found = self._oldest()
        low, high = 0, len(files)  # the log that is looked for is one of these
        while high - low > 1:
            middle = (low + high) // 2
            state = self._state_at(files[middle][0])
            if state is None or seq_in(state, self.options.domain) < seq:
                low, found = middle, found if state is None else state
            else:
                high = middle
        return low, files, found

    # Smaller things

    def _server_id(self) -> int:
        """A number that no other reader has: a server ends the older of two that have the same."""
        number = next(_readers)
        if self.options.server_id is not None:
            return self.options.server_id + number % 1000
        name = f"{self.stream_name}/{socket.gethostname()}/{os.getpid()}/{_salt}/{number}"
        return FIRST_GENERATED_SERVER_ID + xxhash.xxh3_64_intdigest(name.encode()) % (FIRST_GENERATED_SERVER_ID - 1)
