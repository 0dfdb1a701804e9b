"""The values in a row of the binary log, read from their bytes.

The client library can do this too, but not without loss: zero dates and empty sets come out as NULL, sets without their
order, zero timestamps as 1970; and it takes several times as long.

A `Reading` takes one value from the bytes at a place and says where the next one begins; what it takes is as raw as can
be, and `text` makes a column of texts of many of them at once.
"""

from __future__ import annotations

import datetime as dt
import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings_connectors.cdc.changes import Kind
from tidings_connectors.mysql.charsets import Decode, decoder
from tidings_connectors.mysql.client_library import FIELD_TYPE
from tidings_connectors.mysql.table_map import BLOB_COMPRESSED, VARCHAR_COMPRESSED, LoggedColumn

Take = Callable[[bytes, int], tuple[Any, int]]
Text = Callable[[Sequence[Any]], pa.StringArray]

ZLIB_METHOD = 8  # of columns that are compressed
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of so many decimal digits
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - only ever printed


class Unreadable(Exception):
    """Something in the log cannot be read: the message says what, to stand in a sentence."""


MISREAD = (Unreadable, LookupError, ValueError, struct.error, zlib.error)
"""What comes of bytes that are not what they should be."""


class UndecodableValues(Unreadable):
    """Some values of a column are no texts in its character set; `places` says which."""

    def __init__(self, charset: str, places: list[int]) -> None:
        super().__init__(f"has bytes that are no text in its character set, {charset}")
        self.places = places


@dataclass(frozen=True)
class Reading:
    """How the values of one column are read."""

    take: Take
    text: Text
    kind: Kind = "text"


def reading_of(column: LoggedColumn) -> Reading:
    """How to read a column; `Unreadable` if that is not known."""
    detail = column.detail
    match column.type:
        case FIELD_TYPE.TINY | FIELD_TYPE.SHORT | FIELD_TYPE.INT24 | FIELD_TYPE.LONG | FIELD_TYPE.LONGLONG:
            return _integer(column.type, column.unsigned)
        case FIELD_TYPE.YEAR:
            return Reading(lambda data, at: (data[at] + 1900 if data[at] else 0, at + 1), _integers, "integer")
        case FIELD_TYPE.FLOAT:
            return _fixed("<f", functools.partial(_cast, pa.float32()), "number")
        case FIELD_TYPE.DOUBLE:
            return _fixed("<d", functools.partial(_cast, pa.float64()), "number")
        case FIELD_TYPE.NEWDECIMAL:
            return Reading(_decimal(*detail), _texts)
        case FIELD_TYPE.VARCHAR:
            return Reading(_counted(_varchar_width(detail)), decoding(column.charset))
        case FIELD_TYPE.STRING | FIELD_TYPE.VAR_STRING:
            return _string(detail, column.charset)
        case FIELD_TYPE.BLOB:
            return Reading(_counted(detail[0]), decoding(column.charset))
        case FIELD_TYPE.GEOMETRY:
            return Reading(_counted(detail[0]), _hexes)
        case int() as kind if kind == VARCHAR_COMPRESSED:
            return Reading(_compressed(_varchar_width(detail)), decoding(column.charset))
        case int() as kind if kind == BLOB_COMPRESSED:
            return Reading(_compressed(detail[0]), decoding(column.charset))
        case FIELD_TYPE.ENUM:
            return Reading(_enum(detail[1], members_of(column)), _texts)
        case FIELD_TYPE.SET:
            return Reading(_set(detail[1], members_of(column)), _texts)
        case FIELD_TYPE.BIT:
            return Reading(_bit(detail[1] + bool(detail[0]), detail[1] * 8 + detail[0]), _texts)
        case FIELD_TYPE.DATE | FIELD_TYPE.NEWDATE:
            return Reading(_date, _texts)
        case FIELD_TYPE.DATETIME2:
            return Reading(_datetime(detail[0]), _texts)
        case FIELD_TYPE.TIMESTAMP2:
            return Reading(_timestamp(detail[0]), _texts)
        case FIELD_TYPE.TIME2:
            return Reading(_time(detail[0]), _texts)
        case other:
            raise Unreadable(f"has type {other} of the binary log, which is not read")


def members_of(column: LoggedColumn) -> list[str]:
    """The names of the members of an ENUM or a SET."""
    decode = _decode(column.charset)
    try:
        return [decode(name) for name in column.members]
    except UnicodeDecodeError:
        raise Unreadable(f"has a member that is no text in its character set, {column.charset}") from None


# Taking values


def _integer(kind: int, unsigned: bool) -> Reading:
    if kind == FIELD_TYPE.INT24:
        return Reading(
            lambda data, at: (int.from_bytes(data[at : at + 3], "little", signed=not unsigned), at + 3),
            _integers,
            "integer",
        )
    code = {FIELD_TYPE.TINY: "b", FIELD_TYPE.SHORT: "h", FIELD_TYPE.LONG: "i", FIELD_TYPE.LONGLONG: "q"}[kind]
    text = functools.partial(_cast, pa.uint64()) if unsigned else _integers
    return _fixed("<" + (code.upper() if unsigned else code), text, "integer")


def _fixed(code: str, text: Text, kind: Kind) -> Reading:
    layout = struct.Struct(code)
    unpack, size = layout.unpack_from, layout.size

    def take(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return Reading(take, text, kind)


def _counted(width: int) -> Take:
    """Bytes after their own number."""
    if width == 1:

        def take_short(data: bytes, at: int) -> tuple[bytes, int]:
            end = at + 1 + data[at]
            return data[at + 1 : end], end

        return take_short

    def take(data: bytes, at: int) -> tuple[bytes, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "little")
        return data[start:end], end

    return take


def _varchar_width(detail: bytes) -> int:
    return 2 if int.from_bytes(detail, "little") > 255 else 1


def _compressed(width: int) -> Take:
    """Bytes after their own number; the first says how they are compressed, and how many of them are their size."""
    take = _counted(width)

    def take_inflated(data: bytes, at: int) -> tuple[bytes, int]:
        packed, end = take(data, at)
        if not packed or not packed[0]:
            return packed[1:], end
        if packed[0] >> 4 != ZLIB_METHOD:
            raise Unreadable(f"is compressed by method {packed[0] >> 4}, which is not known")
        start = 1 + (packed[0] & 7)
        size = int.from_bytes(packed[1:start], "big")
        inflater = zlib.decompressobj(-zlib.MAX_WBITS if packed[0] & 8 else zlib.MAX_WBITS)
        value = inflater.decompress(packed[start:], size)
        if len(value) != size:
            raise Unreadable("is compressed, and has another size than it should have")
        return value, end

    return take_inflated


def _string(detail: bytes, charset: str) -> Reading:
    size = (detail[0] << 4 & 0x300 ^ 0x300) + detail[1]  # its upper bits are hidden in the type
    take = _counted(2 if size > 255 else 1)
    if charset != "binary":
        return Reading(take, decoding(charset))
    # Zeros at the end are left out of a BINARY; its length is fixed, so they can be put back.
    return Reading(take, lambda values: _hexes([None if one is None else one.ljust(size, b"\0") for one in values]))


def _decimal(precision: int, scale: int) -> Take:
    """Digits in groups of nine, each group in four bytes, the first and last in fewer; inverted if below zero."""
    (whole, first), (groups, last) = divmod(precision - scale, 9), divmod(scale, 9)
    fields = [first] * bool(first) + [9] * whole + [9] * groups + [last] * bool(last)
    size = sum(DIGIT_BYTES[digits] for digits in fields)
    integral = precision - scale

    def take(data: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(data[at : at + size], "big") ^ (1 << (8 * size - 1))
        negative = number >> (8 * size - 1)
        if negative:
            number ^= (1 << (8 * size)) - 1
        packed, digits, start = number.to_bytes(size, "big"), "", 0
        for count in fields:
            end = start + DIGIT_BYTES[count]
            digits += f"{int.from_bytes(packed[start:end], 'big'):0{count}d}"
            start = end
        text = digits[:integral].lstrip("0") or "0"
        if scale:
            text = f"{text}.{digits[integral:]}"
        return f"-{text}" if negative else text, at + size

    return take


def _enum(width: int, members: Sequence[str]) -> Take:
    names = ["", *members]  # the first is what a value becomes that is no member

    def take(data: bytes, at: int) -> tuple[str, int]:
        return names[int.from_bytes(data[at : at + width], "little")], at + width

    return take


def _set(width: int, members: Sequence[str]) -> Take:
    def take(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + width], "little")
        return ",".join(name for number, name in enumerate(members) if bits >> number & 1), at + width

    return take


def _bit(size: int, bits: int) -> Take:
    def take(data: bytes, at: int) -> tuple[str, int]:
        return f"{int.from_bytes(data[at : at + size], 'big'):0{bits}b}", at + size

    return take


def _date(data: bytes, at: int) -> tuple[str, int]:
    bits = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return f"{bits >> 9:04d}-{bits >> 5 & 15:02d}-{bits & 31:02d}", at + 3


def _datetime(digits: int) -> Take:
    tail = (digits + 1) // 2

    def take(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + 5], "big")
        year, month = divmod(bits >> 22 & 0x1FFFF, 13)
        day, hour, minute, second = bits >> 17 & 31, bits >> 12 & 31, bits >> 6 & 63, bits & 63
        text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
        return text + _fraction(data[at + 5 : at + 5 + tail], digits), at + 5 + tail

    return take


def _timestamp(digits: int) -> Take:
    """Seconds since 1970, printed in UTC; zero is no time but MariaDB's zero date."""
    tail = (digits + 1) // 2

    def take(data: bytes, at: int) -> tuple[str, int]:
        seconds, end = int.from_bytes(data[at : at + 4], "big"), at + 4 + tail
        fraction = data[at + 4 : end]
        if not seconds and not any(fraction):
            return "0000-00-00 00:00:00" + _fraction(fraction, digits), end
        return f"{_moment(seconds)}{_fraction(fraction, digits)}+00:00", end

    return take


@functools.lru_cache(maxsize=4096)
def _moment(seconds: int) -> str:
    return f"{_EPOCH + dt.timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}"


def _time(digits: int) -> Take:
    tail = (digits + 1) // 2
    size = 3 + tail

    def take(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + size], "big") - (1 << (8 * size - 1))
        sign, bits = ("-", -bits) if bits < 0 else ("", bits)
        whole = bits >> 8 * tail
        fraction = (bits & (1 << 8 * tail) - 1).to_bytes(tail, "big")
        text = f"{sign}{whole >> 12 & 0x3FF:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        return text + _fraction(fraction, digits), at + size

    return take


def _fraction(data: bytes, digits: int) -> str:
    """So many digits of a second, which are stored by twos."""
    return f".{int.from_bytes(data, 'big'):0{2 * len(data)}d}"[: digits + 1] if digits else ""


# Columns of text


def _cast(to: pa.DataType, values: Sequence[Any]) -> pa.StringArray:
    return pa.array(values, to).cast(pa.string())


def _integers(values: Sequence[Any]) -> pa.StringArray:
    return _cast(pa.int64(), values)


def _texts(values: Sequence[Any]) -> pa.StringArray:
    return pa.array(values, pa.string())


def _hexes(values: Sequence[Any]) -> pa.StringArray:
    return pa.array([None if one is None else "\\x" + one.hex() for one in values], pa.string())


def _decode(charset: str) -> Decode:
    decode = decoder(charset)
    if decode is None:
        raise Unreadable(f"has a character set that is not known, {charset}")
    return decode


def decoding(charset: str) -> Text:
    """How bytes become texts: in this character set, as the server names it; in hex, if it is `binary`.

    The texts raise `UndecodableValues` for bytes that are none.
    """
    if charset == "binary":
        return _hexes
    decode = _decode(charset)

    def decoded(values: Sequence[Any]) -> pa.StringArray:
        try:
            if charset.startswith("utf8"):
                return pa.array(values, pa.binary()).cast(pa.string())
            return pa.array([None if one is None else decode(one) for one in values], pa.string())
        except (UnicodeDecodeError, pa.ArrowInvalid):
            raise UndecodableValues(
                charset, [at for at, one in enumerate(values) if not _is_text(one, decode)]
            ) from None

    return decoded


def _is_text(value: bytes | None, decode: Decode) -> bool:
    try:
        return value is None or decode(value) is not None
    except UnicodeDecodeError:
        return False
