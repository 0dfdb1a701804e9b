"""The events of a binary log as the server sends them: a connection, a request, and bytes that are cut into events.

The client library could do this, too. But it stumbles over events that nobody wants, which are in the log of a server
that was set up otherwise before. So nothing is looked into here that was not asked for.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from tidings.errors import LogUnavailable
from tidings_connectors.mysql.client_library import Connection, MysqlPacket, pymysql
from tidings_connectors.mysql.connection import number, open_session
from tidings_connectors.mysql.mariadb_gtid import Gtid, GtidState, state_text
from tidings_connectors.mysql.options import Place

HEARTBEAT_INTERVAL_S = 5.0  # after which an idle server says that it is there
SILENCE_TIMEOUT_S = 30  # without a word, after which the connection is taken for dead

QUERY, ROTATE, FORMAT, XID, LOAD_QUERY, TABLE_MAP, HEARTBEAT, XA_PREPARE, GTID = 2, 4, 15, 16, 18, 19, 27, 38, 162
COMPRESSED_QUERY = 165

COM_BINLOG_DUMP = 18
OK_AND_HEADER = struct.Struct("<xIBIIIH")
QUERY_HEADER = struct.Struct("<IIBHH")
GTID_BODY = struct.Struct("<QIB")
CRC32 = 1
LOAD_HEADER_BYTES = 13  # of a LOAD DATA, between the header of a statement and the statement
ZLIB_WINDOW = 15


class BinlogEvent(NamedTuple):
    """An event: its type, when it was written and by which server, and what is in it."""

    type: int
    time: int
    server: int
    body: bytes


class BegunTransaction(NamedTuple):
    """What the event that begins a transaction says of it."""

    gtid: Gtid
    flags: int


class Broken(pymysql.err.MySQLError):  # type: ignore[misc]  # the library has no type hints
    """The connection is gone."""


class StreamConnection(Connection):  # type: ignore[misc]  # the library has no type hints
    """A connection that events are read from; when it breaks, it says so in a way that nobody takes care of."""

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        try:
            return super()._read_packet(packet_type)
        except pymysql.err.OperationalError as error:
            if number(error) in (2006, 2013):
                raise Broken(*error.args) from error
            raise


def open_stream(place: Place) -> StreamConnection:
    """A connection for events."""
    return open_session(place, StreamConnection, read_timeout=SILENCE_TIMEOUT_S, write_timeout=SILENCE_TIMEOUT_S)


def events(
    place: Place,
    state: GtidState,
    server_id: int,
    connect: Callable[[Place], StreamConnection] = open_stream,
    heartbeat: float = HEARTBEAT_INTERVAL_S,
) -> Generator[BinlogEvent, None, None]:
    """The events after a GTID state, without end; the connection is made for the first, and ends with the iterator."""
    connection = connect(place)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET @master_binlog_checksum = @@GLOBAL.binlog_checksum, @mariadb_slave_capability = 4, "
                "@slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0, @slave_connect_state = %s, "
                "@master_heartbeat_period = %s",
                (state_text(state), int(heartbeat * 1e9)),
            )
            cursor.execute("SELECT @@GLOBAL.binlog_checksum")
            ((checksum,),) = cursor.fetchall()
        connection._execute_command(COM_BINLOG_DUMP, struct.pack("<IHI", 4, 0, server_id))
        tail = 0 if checksum == "NONE" else 4
        while not (packet := connection._read_packet()).is_eof_packet():
            data = packet.get_all_data()
            time, kind, server, *_ = OK_AND_HEADER.unpack_from(data)
            if kind == FORMAT:  # which has a checksum itself, whatever it says of those that follow
                tail = 4 if data[-5] == CRC32 else 0
                yield BinlogEvent(kind, time, server, data[OK_AND_HEADER.size : -4])
            else:
                yield BinlogEvent(kind, time, server, data[OK_AND_HEADER.size : len(data) - tail])
        raise LogUnavailable(f"MariaDB at {place} ended the binary log")
    finally:
        connection._force_close()


def transaction_of(event: BinlogEvent) -> BegunTransaction:
    """The transaction that an event of type GTID begins."""
    seq, domain, flags = GTID_BODY.unpack_from(event.body)
    return BegunTransaction(Gtid(domain, event.server, seq), flags)


def statement_of(event: BinlogEvent) -> tuple[str, str]:
    """The database in which a statement was run, and the statement."""
    _, _, schema_size, _, status_size = QUERY_HEADER.unpack_from(event.body)
    start = QUERY_HEADER.size + (LOAD_HEADER_BYTES if event.type == LOAD_QUERY else 0) + status_size
    end = start + schema_size
    text = event.body[end + 1 :]
    if event.type == COMPRESSED_QUERY:
        text = inflated(text)
    return event.body[start:end].decode(), text.decode("utf-8", "backslashreplace")


def xid_of(event: BinlogEvent) -> str:
    """The name of the XA transaction that an event of type XA_PREPARE prepares, as statements have it."""
    form, global_size, branch_size = struct.unpack_from("<III", event.body, 1)
    name = event.body[13 : 13 + global_size + branch_size]
    return f"X'{name[:global_size].hex()}',X'{name[global_size:].hex()}',{form}"


def file_of(event: BinlogEvent) -> str:
    """The log that comes after an event of type ROTATE."""
    return event.body[8:].decode()


def inflated(data: bytes) -> bytes:
    """What was compressed for the log: after how many bytes the size has, and the size."""
    start = 1 + (data[0] & 7)
    size = int.from_bytes(data[1:start], "big")
    return zlib.decompressobj(ZLIB_WINDOW).decompress(data[start:], size)


def counted(data: bytes, at: int) -> tuple[int, int]:
    """A number as the protocol has it, and where the next thing begins."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
