"""Arrow Flight's messages, as gRPC carries them between publishers and subscribers.

A message is Flight's `FlightData`: the descriptor in the first of an exchange, metadata, and a record batch in Arrow's
IPC format, its header and its body apart. We write and read these ourselves, on gRPC: Flight's own server takes
whatever comes, of any size and before anybody has said who it is, and both its sides decompress and decode what they
are given. Here gRPC bounds a message before it is in memory, and rows are looked at when they are known to be ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

from tidings.updates import SCHEMA
from tidings.wire.protocol import MAX_MESSAGE_BYTES, Message, decode, encode

METHOD = "/arrow.flight.protocol.FlightService/DoExchange"

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # the fields of FlightData
_COMMAND_TYPE, _COMMAND = b"\x08\x02", 2  # of FlightDescriptor: its type is CMD; the command
_CONTINUATION = b"\xff\xff\xff\xff"
_LENGTH_DELIMITED = 2
_SCHEMA_HEADER, _BATCH_HEADER = 1, 3  # the kinds of Arrow's messages


class Frame(NamedTuple):
    """A message and what is beside it, which nobody has looked at yet."""

    message: Message
    header: memoryview
    body: memoryview

    def rows(self) -> pa.RecordBatch | None:
        """The rows beside the message; ValueError unless these are rows of ours that hold what they say.

        Whoever looks at others reads wild memory.
        """
        if not len(self.header):
            return None
        try:
            kind, compressed = _look(self.header)
        except (struct.error, IndexError, OverflowError):
            raise ValueError("rows without a header") from None
        if kind != _BATCH_HEADER or compressed:
            raise ValueError("rows that are compressed, or none")
        if len(self.body) > MAX_MESSAGE_BYTES:
            raise ValueError("rows that are too large")
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(_encapsulated(self.header, self.body)), SCHEMA)
            rows.validate(full=True)
        except (pa.ArrowException, OSError):
            raise ValueError("rows that are broken") from None
        return rows

    def is_schema(self) -> bool:
        """Whether this only says what rows will be like; ValueError if they will not be like ours."""
        try:
            if not len(self.header) or _look(self.header)[0] != _SCHEMA_HEADER:
                return False
        except (struct.error, IndexError, OverflowError):
            raise ValueError("a schema without a header") from None
        try:
            ours = pa.ipc.read_schema(pa.py_buffer(_encapsulated(self.header))).equals(SCHEMA)
        except (pa.ArrowException, OSError):
            ours = False
        if not ours:
            raise ValueError("rows of another schema")
        return True


def pack(message: Message, rows: pa.RecordBatch | None = None) -> bytes:
    """A message as it travels, and its rows."""
    return pack_encoded(encode(message), rows)


def pack_encoded(message: bytes, rows: pa.RecordBatch | None = None) -> bytes:
    """The same for a message that is encoded already."""
    parts = [*_field(_METADATA, message)]
    if rows is not None:
        header, body = _split(rows.serialize())
        parts += [*_field(_HEADER, header), *_field(_BODY, body)]
    return b"".join(parts)


def pack_first(message: Message) -> bytes:
    """The first message of an exchange, which is the command of its descriptor."""
    command = b"".join((_COMMAND_TYPE, *_field(_COMMAND, encode(message))))
    return b"".join(_field(_DESCRIPTOR, command))


def pack_schema() -> bytes:
    """What comes before the first rows: what all are like."""
    return b"".join((*_field(_HEADER, _SCHEMA), *_field(_METADATA, encode({"t": "schema"}))))


def unpack(raw: bytes) -> Frame:
    """A message that has come; ValueError if it is none."""
    fields = _fields(memoryview(raw))
    return Frame(decode(fields.get(_METADATA, b"")), fields.get(_HEADER, _NOTHING), fields.get(_BODY, _NOTHING))


def unpack_first(raw: bytes) -> Message:
    """The first message of an exchange; ValueError if it is none."""
    return decode(_fields(_fields(memoryview(raw)).get(_DESCRIPTOR, _NOTHING)).get(_COMMAND, b""))


def _field(number: int, data: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)), data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(data: memoryview) -> dict[int, memoryview]:
    """The fields of a message of protobuf that hold bytes; of one that comes twice, the last."""
    fields = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        size, at = _read_varint(data, at)  # or the value itself, of a number
        if tag & 7 == _LENGTH_DELIMITED:
            if size > len(data) - at:
                raise ValueError("a message that ends too early")
            fields[tag >> 3] = data[at : at + size]
            at += size
        elif tag & 7 != 0:
            raise ValueError("a message that is none of Flight's")
    return fields


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("a message that ends too early")


def _split(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """The header and the body of a message of Arrow's IPC format."""
    whole = memoryview(message)
    (size,) = struct.unpack_from("<i", whole, 4)
    return whole[8 : 8 + size], whole[8 + size :]


def _encapsulated(header: memoryview, body: memoryview | bytes = b"") -> bytes:
    padding = -len(header) % 8
    return b"".join((_CONTINUATION, struct.pack("<i", len(header) + padding), header, bytes(padding), body))


def _look(header: memoryview) -> tuple[int, bool]:
    """Which kind of message a header of Arrow's is of, and whether its body is compressed."""
    (root,) = struct.unpack_from("<I", header, 0)
    kind_at, about_at = _slot(header, root, 1), _slot(header, root, 2)
    kind = header[kind_at] if kind_at else 0
    if kind != _BATCH_HEADER or not about_at:
        return kind, False
    (offset,) = struct.unpack_from("<I", header, about_at)
    return kind, _slot(header, about_at + offset, 3) != 0


def _slot(header: memoryview, table: int, field: int) -> int:
    """Where a field of a table of a flatbuffer is; 0 if it is not there."""
    (back,) = struct.unpack_from("<i", header, table)
    vtable = table - back
    if vtable < 0:
        raise IndexError("a table before the beginning")
    (size,) = struct.unpack_from("<H", header, vtable)
    at = 4 + 2 * field
    (offset,) = struct.unpack_from("<H", header, vtable + at) if at < size else (0,)
    return table + offset if offset else 0


_NOTHING = memoryview(b"")
_SCHEMA = bytes(_split(SCHEMA.serialize())[0])
