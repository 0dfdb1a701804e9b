"""The values in a row of the binary log, read from their bytes.

The client library can do this too, but not without loss: zero dates and empty sets come out as NULL, sets without their
order, zero timestamps as 1970; and it takes several times as long. So it reads events, and we read what is in them.

A `Reading` takes one value from the bytes at a place and says where the next one begins; what it takes is as raw as can
be, and `text` makes a column of texts of many of them at once.
"""

from __future__ import annotations

import datetime as dt
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings.errors import LogUnavailable
from tidings_connectors.cdc.changes import Kind
from tidings_connectors.mysql.client_library import FIELD_TYPE

Take = Callable[[bytes, int], tuple[Any, int]]
Text = Callable[[Sequence[Any]], pa.StringArray]

ENCODINGS = {
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1252": "cp1252",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8_r": "koi8_r",
    "koi8_u": "koi8_u",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8": "utf_8",
}
"""MariaDB's character sets, as the client library calls them, and Python's names for them."""

DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of so many decimal digits
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - only ever printed


@dataclass(frozen=True)
class Reading:
    """How the values of one column are read."""

    take: Take
    text: Text
    kind: Kind = "text"


def reading_of(column: Any) -> Reading:
    """How to read a column that the client library has described."""
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
            return Reading(_decimal(column.precision, column.decimals), _texts)
        case FIELD_TYPE.VARCHAR | FIELD_TYPE.VAR_STRING:
            return Reading(_counted(2 if column.max_length > 255 else 1), decoding(column.character_set_name))
        case FIELD_TYPE.STRING:
            return _string(column)
        case FIELD_TYPE.BLOB:
            return Reading(_counted(column.length_size), decoding(column.character_set_name))
        case FIELD_TYPE.GEOMETRY:
            return Reading(_counted(column.length_size), _hexes)
        case FIELD_TYPE.ENUM:
            return Reading(_enum(column.size, column.enum_values or []), _texts)
        case FIELD_TYPE.SET:
            return Reading(_set(column.size, column.set_values or []), _texts)
        case FIELD_TYPE.BIT:
            return Reading(_bit(column.bytes, column.bits), _texts)
        case FIELD_TYPE.DATE | FIELD_TYPE.NEWDATE:
            return Reading(_date, _texts)
        case FIELD_TYPE.DATETIME2:
            return Reading(_datetime(column.fsp), _texts)
        case FIELD_TYPE.TIMESTAMP2:
            return Reading(_timestamp(column.fsp), _texts)
        case FIELD_TYPE.TIME2:
            return Reading(_time(column.fsp), _texts)
        case other:
            raise LogUnavailable(f"column {column.name!r} has type {other} of the binary log, which is not read yet")


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


def _string(column: Any) -> Reading:
    take = _counted(2 if column.max_length > 255 else 1)
    if not _is_binary(column.character_set_name):
        return Reading(take, decoding(column.character_set_name))
    # Zeros at the end are left out of a BINARY; its length is fixed, so they can be put back.
    size = column.max_length
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
    # The library gives "" for a member that is not UTF-8; its number says more.
    names = [name or str(number) if number else "" for number, name in enumerate(members)]

    def take(data: bytes, at: int) -> tuple[str, int]:
        number = int.from_bytes(data[at : at + width], "little")
        return names[number] if number < len(names) else str(number), at + width

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


def _is_binary(charset: str | None) -> bool:
    return charset is None or charset == "binary"


def decoding(charset: str | None) -> Text:
    """How bytes become texts: in this character set, as the client library calls it; in hex, if it is none."""
    if _is_binary(charset):
        return _hexes
    encoding = ENCODINGS.get(charset or "")

    def decoded(values: Sequence[Any]) -> pa.StringArray:
        if encoding == "utf_8":
            try:
                return pa.array(values, pa.binary()).cast(pa.string())
            except pa.ArrowInvalid:
                pass
        return pa.array([None if one is None else _decoded(one, encoding) for one in values], pa.string())

    return decoded


def _decoded(value: bytes, encoding: str | None) -> str:
    """The text; if it is none in that encoding, or the encoding is one that Python does not have, the bytes in hex."""
    try:
        return value.decode(encoding) if encoding else "\\x" + value.hex()
    except UnicodeDecodeError:
        return "\\x" + value.hex()
