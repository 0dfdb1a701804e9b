"""What Avro writes for the values of a column, made from their texts: for all of a column at once.

A `Write` takes texts and gives bytes; null stays null, and a text that is no value of the type becomes null.

Avro's encoding is small: a whole number is cut into groups of seven bits, and whatever varies in length comes after its
length. So Arrow and numpy write it as they write JSON. A library that is called for each row takes several times as
long.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Write = Callable[[pa.StringArray], pa.BinaryArray]

INT, LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
# From year 1 to year 9999: what databases print in four digits, and Python can read.
DAYS = (-719_162, 2_932_896)
MICROS = (DAYS[0] * 86_400_000_000, (DAYS[1] + 1) * 86_400_000_000 - 1)

# Whatever looks like this is nearly always a value, so that `_cast` seldom has to look for those that are none.
WHOLE = r"^-?[0-9]{1,19}$"
FLOAT = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))$"
BINARY = r"^\\x([0-9a-fA-F]{2})*$"  # as every connector prints it
DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
HOUR = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
ZONE = r"(Z|[+-][0-9]{2}(:[0-9]{2})?)"
UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"

MAX_PRECISION = 76  # that of Arrow's widest decimals, of 32 bytes
NOTHING = pa.scalar(None, pa.binary())


def write_of(form: Mapping[str, Any]) -> Write:
    """How the values of a type are written. A logical type that is not known here is what it is made of."""
    match form["type"], form.get("logicalType"):
        case "boolean", _:
            return _words({"false": b"\0", "f": b"\0", "0": b"\0", "true": b"\1", "t": b"\1", "1": b"\1"})
        case "enum", _:
            return _words(dict(zip(form["symbols"], longs(np.arange(len(form["symbols"]))).to_pylist(), strict=True)))
        case "int", "date":
            return _dates
        case "int", "time-millis":
            return functools.partial(_times, unit=1000)
        case "long", "time-micros":
            return _times
        case "long", "timestamp-millis":
            return functools.partial(_moments, unit=1000)
        case "long", "timestamp-micros":
            return _moments
        case "long", "local-timestamp-millis":
            return functools.partial(_local_moments, unit=1000)
        case "long", "local-timestamp-micros":
            return _local_moments
        case "int", _:
            return functools.partial(_wholes, bounds=INT)
        case "long", _:
            return functools.partial(_wholes, bounds=LONG)
        case "float", _:
            return functools.partial(_floats, to=pa.float32())
        case "double", _:
            return functools.partial(_floats, to=pa.float64())
        case "bytes" | "fixed", "decimal":
            return _decimals(form)
        case "bytes", _:
            return lambda texts: sized(_binary(texts))
        case "fixed", _:
            return _fixed(form["size"])
        case "string", "uuid":
            return lambda texts: sized(_like(texts, UUID))
        case "string", _:
            return sized
    raise ValueError(f"{form['type']!r} is no type that a column can have")


def joined(*parts: Any) -> pa.BinaryArray:
    """The parts of each row as one; null where one of them is null."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()), null_handling="emit_null")


def longs(numbers: pa.Int64Array | npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Whole numbers: those near zero become small ones, seven bits a byte, the first bit says that more follow.

    >>> longs(pa.array([0, -1, 1, 64, None])).to_pylist()
    [b'\\x00', b'\\x01', b'\\x02', b'\\x80\\x01', None]
    """
    given = pa.array(numbers, pa.int64())
    values = pc.fill_null(given, 0).to_numpy()
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = np.ones(len(left), np.int64)
    for bits in range(7, 64, 7):
        sizes += left >= np.uint64(1 << bits)
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at, last = ends - sizes, ends - 1
    while len(at):
        data[at] = (left & np.uint64(0x7F)).astype(np.uint8) | ((at < last) * np.uint8(0x80))
        more = at < last
        at, last, left = at[more] + 1, last[more], left[more] >> np.uint64(7)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    made = pa.BinaryArray.from_buffers(pa.binary(), len(given), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return _valid(given, made)


def sized(values: pa.StringArray | pa.BinaryArray) -> pa.BinaryArray:
    """Texts or bytes, each after its length.

    >>> sized(pa.array(["pen", ""])).to_pylist()
    [b'\\x06pen', b'\\x00']
    """
    values = values.cast(pa.binary())
    return joined(longs(pc.binary_length(values)), values)


def _valid(values: pa.Array, made: pa.BinaryArray) -> pa.BinaryArray:
    """What was made of values; null where they are."""
    return made if values.null_count == 0 else pc.if_else(values.is_valid(), made, NOTHING)


def _flat(data: npt.NDArray[Any], width: int) -> pa.BinaryArray:
    """Bytes, of which each value has so many."""
    buffers = [None, pa.py_buffer(data)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), data.nbytes // width, buffers).cast(pa.binary())


def _words(codes: Mapping[str, bytes]) -> Write:
    words, written = pa.array(codes, pa.string()), pa.array(codes.values(), pa.binary())
    return lambda texts: written.take(pc.index_in(texts, words))


def _like(texts: pa.StringArray, pattern: str) -> pa.StringArray:
    """The texts that look like this, and null for others."""
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, pa.string()))


def _cast(texts: pa.StringArray, to: pa.DataType) -> pa.Array:
    """The texts as values, null where one is none. Arrow casts all or nothing, so the bad ones are closed in on."""
    try:
        return texts.cast(to)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, to)
        half = len(texts) // 2
        return pa.concat_arrays([_cast(texts[:half], to), _cast(texts[half:], to)])


def _between(numbers: pa.Int64Array, bounds: tuple[int, int]) -> pa.Int64Array:
    within = pc.and_(pc.greater_equal(numbers, bounds[0]), pc.less_equal(numbers, bounds[1]))
    return pc.if_else(within, numbers, pa.scalar(None, pa.int64()))


def _wholes(texts: pa.StringArray, bounds: tuple[int, int]) -> pa.BinaryArray:
    return longs(_between(_cast(_like(texts, WHOLE), pa.int64()), bounds))


def _floats(texts: pa.StringArray, to: pa.DataType) -> pa.BinaryArray:
    numbers = _cast(_like(texts, FLOAT), to)
    # A number that is too large is read as infinity; only a text without a digit means it.
    wrong = pc.and_(pc.is_inf(numbers), pc.match_substring_regex(texts, "[0-9]"))
    numbers = pc.if_else(wrong, pa.scalar(None, to), numbers)
    plain = pc.fill_null(numbers, pa.scalar(0, to)).to_numpy().astype(f"<f{to.byte_width}")
    return _valid(numbers, _flat(plain, to.byte_width))


def _decimals(form: Mapping[str, Any]) -> Write:
    """Decimals as whole numbers of their last digit, each in as many bytes as the largest needs."""
    precision, scale = form.get("precision"), form.get("scale", 0)
    if precision is None or precision > MAX_PRECISION:
        raise ValueError(f"a decimal needs 'precision', the number of its digits, of at most {MAX_PRECISION}")
    to, width = pa.decimal256(precision, scale), form.get("size") or (10**precision).bit_length() // 8 + 1
    # Delta's decimals that are next to nothing are printed with an exponent.
    like = rf"^[+-]?(0*[0-9]{{0,{precision - scale}}}(\.[0-9]{{0,{scale}}}0*)?|[0-9.]+[eE][+-]?[0-9]{{1,4}})$"

    def write(texts: pa.StringArray) -> pa.BinaryArray:
        made = _big_endian(_cast(_like(texts, like), to), width)
        return made if form["type"] == "fixed" else sized(made)

    return write


def _big_endian(numbers: pa.Decimal256Array, width: int) -> pa.BinaryArray:
    """The whole numbers that decimals are kept as, in so many bytes each, the first of which has the sign."""
    filled = pc.fill_null(numbers, pa.scalar(decimal.Decimal(0), numbers.type))
    kept = np.frombuffer(filled.buffers()[1], np.uint8, 32 * len(filled), 32 * filled.offset).reshape(-1, 32)
    signs = np.where(kept[:, -1:] & 0x80, np.uint8(0xFF), np.uint8(0))
    data = np.hstack([kept[:, :width], np.repeat(signs, max(0, width - 32), axis=1)])[:, ::-1]
    return _valid(numbers, _flat(np.ascontiguousarray(data), width))


def _bytes(values: Sequence[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def _binary(texts: pa.StringArray) -> pa.BinaryArray:
    return _bytes([None if text is None else bytes.fromhex(text[2:]) for text in _like(texts, BINARY).to_pylist()])


def _fixed(size: Any) -> Write:
    if not isinstance(size, int):
        raise ValueError(f"a fixed needs 'size', a number of bytes, and not {size!r}")

    def write(texts: pa.StringArray) -> pa.BinaryArray:
        values = _binary(texts)
        return pc.if_else(pc.equal(pc.binary_length(values), size), values, NOTHING)

    return write


def _dates(texts: pa.StringArray) -> pa.BinaryArray:
    days = _cast(_like(texts, f"^{DAY}$"), pa.date32()).cast(pa.int32()).cast(pa.int64())
    return longs(_between(days, DAYS))


def _times(texts: pa.StringArray, unit: int = 1) -> pa.BinaryArray:
    # Arrow reads no times of day, so each is made one of the first day.
    return _local_moments(pc.binary_join_element_wise("1970-01-01", _like(texts, f"^{HOUR}$"), " "), unit)


def _local_moments(texts: pa.StringArray, unit: int = 1) -> pa.BinaryArray:
    return _units(_cast(_like(texts, f"^{DAY}[ T]{HOUR}$"), pa.timestamp("us")), unit)


def _moments(texts: pa.StringArray, unit: int = 1) -> pa.BinaryArray:
    return _units(_cast(_like(texts, f"^{DAY}[ T]{HOUR}{ZONE}$"), pa.timestamp("us", "UTC")), unit)


def _units(moments: pa.TimestampArray, unit: int) -> pa.BinaryArray:
    """Moments in units of so many microseconds; one between two of them does not fit."""
    micros = _between(moments.cast(pa.int64()), MICROS)
    units = pc.divide(micros, unit)
    return longs(pc.if_else(pc.equal(pc.multiply(units, unit), micros), units, pa.scalar(None, pa.int64())))
