"""The events of a binary log, as they come from the server: read by a thread, taken by whoever asks.

The client library waits for the server without end, and a wait that is broken off could lose half an event. So a thread
of the feed's own waits, and puts what it gets where it can be taken from. What is there and not taken yet is bounded;
beyond that the thread reads no further, and the server waits.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tidings.errors import LogUnavailable, TidingsError
from tidings_connectors.mysql.client_library import pymysql
from tidings_connectors.mysql.connection import POSITION_GONE, explained, translating_errors
from tidings_connectors.mysql.event_stream import (
    COMPRESSED_QUERY,
    GTID,
    HEARTBEAT,
    LOAD_QUERY,
    QUERY,
    ROTATE,
    TABLE_MAP,
    XA_PREPARE,
    XID,
    BinlogEvent,
    StreamConnection,
    counted,
    events,
    inflated,
    open_stream,
    statement_of,
    transaction_of,
    xid_of,
)
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState
from tidings_connectors.mysql.options import Place
from tidings_connectors.mysql.rows import DELETE, INSERT, UPDATE, Shape, shape_of
from tidings_connectors.mysql.statements import Table, resolution_of
from tidings_connectors.mysql.table_map import name_of
from tidings_connectors.mysql.values import MISREAD, Unreadable

BUFFER_BYTES = 8 * 2**20
BUFFER_ITEMS = 20_000
PROBE_HEARTBEAT_S = 0.2
STANDALONE_FLAG = 1  # of a transaction that is one statement, and has no end of its own
PREPARES_FLAG = 64  # of what becomes a transaction when another one says so

INSERTS, UPDATES, DELETES = (23, 30, 166, 169), (24, 31, 167, 170), (25, 32, 168, 171)
OPERATIONS = dict.fromkeys(INSERTS, INSERT) | dict.fromkeys(UPDATES, UPDATE) | dict.fromkeys(DELETES, DELETE)
LONG_HEADERS = frozenset((30, 31, 32, 169, 170, 171))
COMPRESSED_ROWS = frozenset(range(166, 172))
STATEMENTS = frozenset((QUERY, LOAD_QUERY, COMPRESSED_QUERY))


class _EveryTable:
    """All tables that there are."""

    def __contains__(self, table: object) -> bool:
        return True


EVERY_TABLE: Container[Table] = _EveryTable()


class Begin(NamedTuple):
    """A transaction begins; or, if it only prepares one, what may become one."""

    gtid: Gtid
    time: int
    prepares: bool = False


class Rows(NamedTuple):
    """Rows of a watched table; `present` says which columns each image has."""

    shape: Shape
    operation: str
    data: bytes
    present: tuple[bytes, ...]


class UnreadRows(NamedTuple):
    """Rows of a watched table that cannot be read, and why."""

    reason: str


class Statement(NamedTuple):
    """A statement that is logged as it was written, run in this database; `alone` if it is a transaction by itself."""

    database: str
    text: str
    alone: bool = False


class Resolution(NamedTuple):
    """The XA transaction of this name, which was prepared before, is committed or rolled back."""

    xid: str
    committed: bool


@dataclass(frozen=True)
class End:
    """The transaction ends; if it is not kept, it never happened."""

    kept: bool = True
    prepared: str | None = None
    """The XA transaction that it has prepared."""


Item: TypeAlias = Begin | Rows | UnreadRows | Statement | Resolution | End


def size_of(item: Item) -> int:
    """About how many bytes an item has."""
    match item:
        case Rows():
            return len(item.data)
        case Statement():
            return len(item.text)
    return 0


class Feed:
    """The items of a log from a GTID state on, without end; what happened to other tables is left out.

    So is all that is in transactions of the domain of `first` before that one: nobody will ask for it, and it may have
    been written when the server was set up otherwise.
    """

    def __init__(self, place: Place, state: GtidState, first: Gtid, watched: Container[Table], server_id: int) -> None:
        self._place = place
        self._first = first
        self._watched = watched
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._closed = False
        self._connections: list[Any] = []
        self._events = events(place, state, server_id, self._connect)
        self._thread = threading.Thread(target=self._run, name="tidings-binlog", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> deque[Item]:
        """All that is there; if nothing is, what comes first within so many seconds, or nothing."""
        with self._changed:
            if not self._items and self._error is None:
                self._changed.wait(timeout)
            if self._items:
                taken, self._items, self._bytes = self._items, deque(), 0
                self._changed.notify_all()
                return taken
            if self._error is not None:
                raise self._error
            return deque()

    def close(self) -> None:
        """Let go of the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connection in self._connections:
                _hang_up(connection)
        self._thread.join()

    def _connect(self, place: Place) -> StreamConnection:
        connection = open_stream(place)
        with self._changed:
            self._connections.append(connection)
            if self._closed:
                _hang_up(connection)
        return connection

    def _run(self) -> None:
        try:
            for item in self._read():
                if not self._put(item):
                    return
        except TidingsError as error:
            self._fail(error)
        except (pymysql.err.MySQLError, OSError) as error:
            self._fail(explained(self._place, error))
        except Exception as error:  # noqa: BLE001 - whatever one stumbles over, the reader must hear of it
            self._fail(_undecodable(self._place, error))
        finally:
            self._events.close()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _put(self, item: Item) -> bool:
        """Put an item where it can be taken from; False if nobody wants it any more."""
        with self._changed:
            if not self._items:
                self._changed.notify_all()
            self._items.append(item)
            self._bytes += size_of(item)
            while (self._bytes > BUFFER_BYTES or len(self._items) > BUFFER_ITEMS) and not self._closed:
                self._changed.wait()
            return not self._closed

    def _read(self) -> Iterator[Item]:
        tables = _Tables(self._watched)
        alone = began = passed = False
        for event in self._events:
            if event.type == GTID:
                gtid, flags = transaction_of(event)
                if began:
                    yield End(kept=False)
                began, alone = True, bool(flags & STANDALONE_FLAG)
                passed = gtid.domain == self._first.domain and gtid.seq < self._first.seq
                yield Begin(gtid, event.time, bool(flags & PREPARES_FLAG))
            elif event.type == ROTATE:
                tables = _Tables(self._watched)
                if began:
                    began = False
                    yield End(kept=False)
            elif event.type == XID:
                began = False
                yield End()
            elif event.type == XA_PREPARE:
                began = False
                yield End(prepared=xid_of(event))
            elif event.type in STATEMENTS:
                database, text = statement_of(event)
                word, resolved = text[:9].upper(), resolution_of(text)
                over = word.startswith("COMMIT") or word == "ROLLBACK"
                if not over and not passed:
                    yield Resolution(*resolved) if resolved else Statement(database, text, alone)
                if over or resolved or alone:
                    began = alone = False
                    yield End(kept=word != "ROLLBACK")
            elif not passed and event.type == TABLE_MAP:
                tables.describe(event.body)
            elif not passed and event.type in OPERATIONS and (item := tables.rows(event)) is not None:
                yield item


class _Tables:
    """The watched tables that one log has described."""

    def __init__(self, watched: Container[Table]) -> None:
        self._watched = watched
        self._known: dict[bytes, Shape | UnreadRows | None] = {}  # by the bytes that describe them
        self._by_id: dict[bytes, Shape | UnreadRows | None] = {}

    def describe(self, body: bytes) -> None:
        """Take in a description."""
        if body not in self._known:
            self._known[body] = self._described(body)
        self._by_id[body[:6]] = self._known[body]

    def rows(self, event: BinlogEvent) -> Rows | UnreadRows | None:
        """The rows of an event; None if their table is not watched."""
        table = self._by_id.get(event.body[:6])
        if not isinstance(table, Shape):
            return table
        try:
            return _rows(event, table)
        except MISREAD as error:
            return UnreadRows(f"rows of table {table.schema}.{table.table} cannot be read: {error}")

    def _described(self, body: bytes) -> Shape | UnreadRows | None:
        name = name_of(body)
        if (name.schema, name.table) not in self._watched:
            return None
        try:
            return shape_of(name, body)
        except Unreadable as error:
            return UnreadRows(str(error))
        except MISREAD as error:
            return UnreadRows(f"table {name.schema}.{name.table} cannot be read: {error}")


def probe(place: Place, server_id: int) -> None:
    """Raise unless the server sends its binary log to this user."""
    try:
        with translating_errors(place), contextlib.closing(events(place, {}, server_id)) as sent:
            next(sent)
    except LogUnavailable as error:
        if getattr(error, "code", 0) != POSITION_GONE:  # that is only said to those who may read
            raise


def first_gtid(place: Place, state: GtidState, domain: int, server_id: int) -> Gtid | None:
    """The first transaction of a domain after a state, if the log has one."""
    # The server says that there is nothing more by a heartbeat.
    sent = events(place, state, server_id, heartbeat=PROBE_HEARTBEAT_S)
    with contextlib.closing(sent), translating_errors(place):
        for event in sent:
            if event.type == HEARTBEAT:
                break
            if event.type == GTID and (gtid := transaction_of(event).gtid).domain == domain:
                return gtid
    return None


def _rows(event: BinlogEvent, shape: Shape) -> Rows:
    body, at = event.body, 8
    if event.type in LONG_HEADERS:
        at += int.from_bytes(body[at : at + 2], "little")
    count, at = counted(body, at)
    size = (count + 7) >> 3
    present: tuple[bytes, ...] = (body[at : at + size],)
    if event.type in UPDATES:
        present += (body[at + size : at + 2 * size],)
    data = body[at + size * len(present) :]
    return Rows(shape, OPERATIONS[event.type], inflated(data) if event.type in COMPRESSED_ROWS else data, present)


def _undecodable(place: Place, error: Exception) -> LogUnavailable:
    return LogUnavailable(
        f"the binary log of MariaDB at {place} has something that cannot be read: {type(error).__name__}: {error}"
    )


def _hang_up(connection: Any) -> None:
    """Wake the thread that waits for this connection; to close it would not."""
    with contextlib.suppress(OSError, AttributeError):
        connection._sock.shutdown(socket.SHUT_RDWR)
