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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tidings.errors import LogUnavailable, TidingsError
from tidings_connectors.mysql.client_library import (
    BinLogStreamReader,
    Connection,
    DeleteRowsEvent,
    FormatDescriptionEvent,
    HeartbeatLogEvent,
    MariadbGtidEvent,
    MysqlPacket,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
    XAPrepareEvent,
    XidEvent,
    pymysql,
)
from tidings_connectors.mysql.connection import POSITION_GONE, explained, number, translating_errors
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState, state_text
from tidings_connectors.mysql.options import Place
from tidings_connectors.mysql.rows import DELETE, INSERT, UPDATE, Shape, shape_of

BUFFER_BYTES = 8 * 2**20
BUFFER_ITEMS = 20_000
HEARTBEAT_INTERVAL_S = 5.0  # after which an idle server says that it is there
SILENCE_TIMEOUT_S = 30  # without a word, after which the connection is taken for dead
STANDALONE_FLAG = 1  # of a transaction that is one statement, and has no end of its own
COMPRESSED_EVENT_TYPES = range(165, 172)  # which the library does not know, and drops
CRC32 = 1

OPERATIONS = {WriteRowsEvent: INSERT, UpdateRowsEvent: UPDATE, DeleteRowsEvent: DELETE}
EVENT_TYPES = [*OPERATIONS, TableMapEvent, MariadbGtidEvent, XidEvent, XAPrepareEvent, QueryEvent]
EVENT_TYPES += [RotateEvent, FormatDescriptionEvent, NotImplementedEvent]


class Begin(NamedTuple):
    """A transaction begins."""

    gtid: Gtid
    time: int


class Rows(NamedTuple):
    """Rows of a watched table; `present` says which columns each image has."""

    shape: Shape
    operation: str
    data: bytes
    present: tuple[bytes, ...]


class Statement(NamedTuple):
    """A statement that is logged as it was written, run in this database."""

    database: str
    text: str


@dataclass(frozen=True)
class End:
    """The transaction ends; if it is not kept, it never happened."""

    kept: bool = True


Item: TypeAlias = Begin | Rows | Statement | End


class Broken(pymysql.err.MySQLError):  # type: ignore[misc]  # the library has no type hints
    """The connection is gone. The client library would make a new one by itself, and begin again where it began."""


class Feed:
    """The items of a log from a GTID state on, without end; what happened to other tables is left out."""

    def __init__(self, place: Place, state: GtidState, watched: frozenset[tuple[str, str]], server_id: int) -> None:
        self._place = place
        self._watched = watched
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._error: Exception | None = None
        self._closed = False
        self._connections: list[Any] = []
        with translating_errors(place):
            self._stream = _stream(
                place,
                state,
                server_id,
                self._connect,
                blocking=True,
                only_events=EVENT_TYPES,
                only_tables={table for _, table in watched},
                only_schemas={database for database, _ in watched},
                slave_heartbeat=HEARTBEAT_INTERVAL_S,
            )
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

    def _connect(self, **settings: Any) -> Any:
        connection = _StreamConnection(**settings)
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
            self._fail(LogUnavailable(f"MariaDB at {self._place} ended the binary log"))
        except TidingsError as error:
            self._fail(error)
        except (pymysql.err.MySQLError, OSError) as error:
            self._fail(explained(self._place, error))
        except Exception as error:  # noqa: BLE001 - whatever the library stumbles over, the reader must hear of it
            self._fail(_undecodable(self._place, error))
        finally:
            with contextlib.suppress(Exception):
                self._stream.close()

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
            if isinstance(item, Rows):
                self._bytes += len(item.data)
            while (self._bytes > BUFFER_BYTES or len(self._items) > BUFFER_ITEMS) and not self._closed:
                self._changed.wait()
            return not self._closed

    def _read(self) -> Iterator[Item]:
        shapes: dict[int, Shape] = {}
        standalone = began = False
        for event in iter(self._stream.fetchone, None):
            kind = type(event)
            if kind in OPERATIONS:
                if (shape := shapes.get(event.table_id)) is not None:
                    yield _rows(event, kind, shape)
            elif kind is MariadbGtidEvent:
                if began:
                    yield End(kept=False)
                began, standalone = True, bool(event.flags & STANDALONE_FLAG)
                yield Begin(Gtid(event.domain_id, event.server_id, event.gtid_seq_no), event.timestamp)
            elif kind is TableMapEvent:
                if (event.schema, event.table) in self._watched:
                    shapes[event.table_id] = shape_of(event)
            elif kind is XidEvent or kind is XAPrepareEvent:
                began = False
                yield End()
            elif kind is QueryEvent:
                word = event.query[:9].upper()
                if standalone or word.startswith(("COMMIT", "XA COMMIT", "XA ROLLBA")) or word == "ROLLBACK":
                    if standalone:
                        yield Statement(event.schema.decode(), event.query)
                    began = standalone = False
                    yield End(kept=word != "ROLLBACK")
                else:
                    yield Statement(event.schema.decode(), event.query)
            elif kind is RotateEvent:
                # Ids of tables are counted anew by a server that was restarted, and that begins a new log.
                shapes = {}
                self._stream.table_map = {}
                if began:
                    began = False
                    yield End(kept=False)
            elif kind is FormatDescriptionEvent:
                _check_checksum(self._place, event)
            elif event.event_type in COMPRESSED_EVENT_TYPES:
                raise LogUnavailable(
                    f"the binary log of MariaDB at {self._place} has compressed events, which the client library "
                    "cannot read: SET GLOBAL log_bin_compress = 'OFF'"
                )


def probe(place: Place, server_id: int) -> None:
    """Raise unless the server sends its binary log to this user."""
    with contextlib.closing(_stream(place, {}, server_id, _StreamConnection, only_events=[RotateEvent])) as stream:
        try:
            with translating_errors(place):
                stream.fetchone()
        except LogUnavailable as error:
            if getattr(error, "code", 0) != POSITION_GONE:  # that is only said to those who may read
                raise


def first_gtid(place: Place, state: GtidState, domain: int, server_id: int) -> Gtid | None:
    """The first transaction of a domain after a state, if the log has one."""
    # The server says that there is nothing more by a heartbeat. It could be asked to end the connection instead; but
    # the library sends a byte too many with its request, and a connection that ends with a byte unread takes along what
    # was on its way.
    events = [MariadbGtidEvent, HeartbeatLogEvent]
    stream = _stream(place, state, server_id, _StreamConnection, True, only_events=events, slave_heartbeat=0.2)
    with contextlib.closing(stream), translating_errors(place):
        for event in iter(stream.fetchone, None):
            if isinstance(event, HeartbeatLogEvent):
                break
            if event.domain_id == domain:
                return Gtid(event.domain_id, event.server_id, event.gtid_seq_no)
    return None


class _StreamConnection(Connection):  # type: ignore[misc]  # the library has no type hints
    """A connection that, when it breaks, says so in a way that the client library does not take care of."""

    def __init__(self, db: str | None = None, **settings: Any) -> None:
        super().__init__(database=db, **settings)

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        try:
            return super()._read_packet(packet_type)
        except pymysql.err.OperationalError as error:
            if number(error) in (2006, 2013):
                raise Broken(*error.args) from error
            raise


def _stream(
    place: Place, state: GtidState, server_id: int, connect: Callable[..., Any], blocking: bool = False, **options: Any
) -> Any:
    timeouts = {"connect_timeout": 10, "read_timeout": SILENCE_TIMEOUT_S, "write_timeout": SILENCE_TIMEOUT_S}
    return BinLogStreamReader(
        connection_settings={**place.settings(), **timeouts},
        server_id=server_id,
        auto_position=state_text(state),
        is_mariadb=True,
        blocking=blocking,
        pymysql_wrapper=connect,
        # A table's form is kept by its id, which is another after each change; what a rotation means is our business.
        freeze_schema=True,
        filter_non_implemented_events=False,
        enable_logging=False,
        **options,
    )


def _rows(event: Any, kind: type, shape: Shape) -> Rows:
    present: tuple[bytes, ...] = (event.columns_present_bitmap,)
    if kind is UpdateRowsEvent:
        present += (event.columns_present_bitmap2,)
    data = event.packet.read(event.event_size - event.packet.read_bytes)
    return Rows(shape, OPERATIONS[kind], data, present)


def _check_checksum(place: Place, event: Any) -> None:
    if event.checksum_algorithm != CRC32:
        raise LogUnavailable(
            f"a part of the binary log of MariaDB at {place} was written without checksums, and the client library "
            "misreads it: SET GLOBAL binlog_checksum = 'CRC32', and to go on without that part, "
            "PURGE BINARY LOGS BEFORE NOW()"
        )


def _undecodable(place: Place, error: Exception) -> LogUnavailable:
    return LogUnavailable(
        f"the binary log of MariaDB at {place} has something that cannot be read: {type(error).__name__}: {error}"
    )


def _hang_up(connection: Any) -> None:
    """Wake the thread that waits for this connection; to close it would not."""
    with contextlib.suppress(OSError, AttributeError):
        connection._sock.shutdown(socket.SHUT_RDWR)
