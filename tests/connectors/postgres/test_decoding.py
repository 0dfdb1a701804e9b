"""The bulk decoder beside one that takes a message at a time."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import LogUnavailable
from tidings_connectors.postgres.decoding import EPOCH_MICROS, Decoder
from tidings_connectors.postgres.relations import KnownKey

Value = bytes | None | str  # "u" is a value that was not changed
TYPES = [25, 23, 16, 701, 3802]
PRIMARY = {16_384: ["a"], 16_385: ["b", "c"], 16_386: []}


def key_of(oid: int, _: str, columns: Sequence[str]) -> KnownKey:
    return KnownKey(tuple(name for name in columns if name in PRIMARY[oid]))


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def relation(oid: int, table: str, identity: str, columns: list[tuple[str, int, bool]]) -> bytes:
    said = b"".join(bytes([flag]) + text(name) + struct.pack("!Ii", kind, -1) for name, kind, flag in columns)
    return b"R" + struct.pack("!I", oid) + text("public") + text(table) + identity.encode() + _count(columns) + said


def row(values: list[Value]) -> bytes:
    parts = [_count(values)]
    for value in values:
        match value:
            case None:
                parts.append(b"n")
            case str():
                parts.append(b"u")
            case _:
                parts.append(b"t" + struct.pack("!I", len(value)) + value)
    return b"".join(parts)


def _count(items: list[Any]) -> bytes:
    return struct.pack("!h", len(items))


def values_of(kind: int) -> st.SearchStrategy[Value]:
    match kind:
        case 25:
            known: st.SearchStrategy[bytes] = st.text().map(str.encode)
        case 23:
            known = st.integers(-99, 99).map(lambda number: b"%d" % number)
        case 16:
            known = st.sampled_from([b"t", b"f"])
        case 701:
            known = st.sampled_from([b"1.5", b"NaN", b"-Infinity", b"1e+20"])
        case _:
            known = st.sampled_from([b'{"a": 1}', b"null"])
    return st.one_of(known, known, st.none())


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Messages as a server may send them."""
    messages = []
    tables: dict[int, tuple[str, list[tuple[str, int, bool]]]] = {}

    def describe(oid: int) -> None:
        identity = draw(st.sampled_from("dfni"))
        names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
        columns = []
        for name in names:
            flag = identity == "f" or (identity in "di" and draw(st.booleans()))
            columns.append((name, draw(st.sampled_from(TYPES)), flag))
        tables[oid] = identity, columns
        messages.append(relation(oid, f"t{oid}", identity, columns))

    lsn = 1000
    for _ in range(draw(st.integers(0, 4))):
        lsn += draw(st.integers(1, 1000))
        messages.append(b"B" + struct.pack("!qqI", lsn, draw(st.integers(0, 10**15)), 7))
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.sampled_from(sorted(PRIMARY)))
            if oid not in tables or draw(st.integers(0, 5)) == 0:
                describe(oid)
            identity, columns = tables[oid]
            head = struct.pack("!I", oid)
            new = [draw(values_of(kind)) for _, kind, _ in columns]
            old = [draw(values_of(kind)) for _, kind, _ in columns]
            old = [value if flag else None for value, (_, _, flag) in zip(old, columns, strict=True)]
            mark = b"O" if identity == "f" else b"K"
            match draw(st.sampled_from("IIUVDTY")):
                case "I":
                    messages.append(b"I" + head + b"N" + row(new))
                case "U" | "V" as which:
                    lazy = [draw(st.booleans()) and value is not None for value in new]
                    new = ["u" if skip else value for skip, value in zip(lazy, new, strict=True)]
                    before = mark + row(old) if which == "V" else b""
                    messages.append(b"U" + head + before + b"N" + row(new))
                case "D":
                    messages.append(b"D" + head + mark + row(old))
                case "T":
                    others = [other for other in tables if draw(st.booleans())]
                    if others:
                        messages.append(b"T" + struct.pack(f"!iB{len(others)}I", len(others), 0, *others))
                case _:
                    messages.append(b"Y" + head + text("public") + text("mood"))
        messages.append(b"C" + struct.pack("!Bqqq", 0, lsn, lsn + 10, 5))
        lsn += 10
    return messages


class Plain:
    """Decodes one message after the other, value by value."""

    def __init__(self) -> None:
        self.tables: dict[int, tuple[str, str, list[tuple[int, str, int]], list[str]]] = {}
        self.seq, self.time, self.index = -1, 0, 0

    def decode(self, message: bytes) -> Iterator[dict[str, Any]]:
        match chr(message[0]):
            case "B":
                self.seq, self.time, _ = struct.unpack_from("!qqI", message, 1)
                self.index = 0
            case "R":
                self._describe(message)
            case "T":
                (count,) = struct.unpack_from("!i", message, 1)
                for oid in struct.unpack_from(f"!{count}I", message, 6):
                    columns = self.tables[oid][2]
                    yield self._change(oid, "truncate", ["u"] * len(columns))
            case "I":
                (oid,) = struct.unpack_from("!I", message, 1)
                yield self._change(oid, "insert", self._row(message, 6)[0])
            case "D":
                (oid,) = struct.unpack_from("!I", message, 1)
                yield self._change(oid, "delete", self._old(oid, message)[0])
            case "U":
                yield from self._update(message)

    def _update(self, message: bytes) -> Iterator[dict[str, Any]]:
        (oid,) = struct.unpack_from("!I", message, 1)
        if message[5:6] == b"N":
            yield self._change(oid, "update", self._row(message, 6)[0])
            return
        raw, at = self._row(message, 6)
        new, _ = self._row(message, at + 1)
        filled = [
            before if value == "u" and before is not None else value for before, value in zip(raw, new, strict=True)
        ]
        names = [name for _, name, _ in self.tables[oid][2]]
        key = self.tables[oid][3]
        pairs = [pair for name, *pair in zip(names, raw, new, strict=True) if name in key]
        if any(after != "u" and before is not None and before != after for before, after in pairs):
            yield self._change(oid, "delete", self._old(oid, message)[0])
        yield self._change(oid, "update", filled)

    def _old(self, oid: int, message: bytes) -> tuple[list[Value], int]:
        values, at = self._row(message, 6)
        if message[5:6] == b"K":
            flags = [flag for flag, _, _ in self.tables[oid][2]]
            values = [value if flag else "u" for flag, value in zip(flags, values, strict=True)]
        return values, at

    def _describe(self, message: bytes) -> None:
        (oid,) = struct.unpack_from("!I", message, 1)
        schema, table, rest = message[5:].split(b"\0", 2)
        identity = chr(rest[0])
        (count,) = struct.unpack_from("!h", rest, 1)
        at, columns = 3, []
        for _ in range(count):
            end = rest.index(b"\0", at + 1)
            columns.append((rest[at], rest[at + 1 : end].decode(), struct.unpack_from("!I", rest, end + 1)[0]))
            at = end + 9
        names = [name for _, name, _ in columns]
        flagged = [name for flag, name, _ in columns if flag]
        key = [name for name in names if name in PRIMARY[oid]] if identity in "fn" else flagged
        self.tables[oid] = schema.decode(), table.decode(), columns, key

    def _row(self, message: bytes, at: int) -> tuple[list[Value], int]:
        (count,) = struct.unpack_from("!h", message, at)
        at += 2
        values: list[Value] = []
        for _ in range(count):
            kind = message[at : at + 1]
            at += 1
            if kind == b"t":
                (size,) = struct.unpack_from("!I", message, at)
                values.append(message[at + 4 : at + 4 + size])
                at += 4 + size
            else:
                values.append("u" if kind == b"u" else None)
        return values, at

    def _change(self, oid: int, operation: str, values: list[Value]) -> dict[str, Any]:
        schema, table, columns, key = self.tables[oid]
        made = {
            "table": f"{schema}.{table}",
            "key": tuple(key),
            "operation": operation,
            "place": (self.seq, self.index),
            "time": self.time + EPOCH_MICROS,
            "values": {name: shown(value, kind) for (_, name, kind), value in zip(columns, values, strict=True)},
        }
        self.index += 1
        return made


def shown(value: Value, kind: int) -> str | None:
    if not isinstance(value, bytes):
        return "unknown" if value else None
    plain = value.decode()
    if kind == 16:
        return {"t": "true", "f": "false"}[plain]
    return f'"{plain}"' if kind == 701 and plain in ("NaN", "-Infinity") else plain


def in_bulk(decoder: Decoder, messages: list[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for changes, _ in decoder.decode(messages):
        columns = {}
        for column in changes.columns:
            values = column.values.to_pylist()
            unknown = column.unknown.to_pylist() if column.unknown is not None else [False] * len(values)
            columns[column.name] = ["unknown" if lost else one for one, lost in zip(values, unknown, strict=True)]
        for at in range(len(changes)):
            made = {
                "table": f"{changes.schema}.{changes.table}",
                "key": tuple(changes.key),
                "operation": changes.operations[at].as_py(),
                "place": (int(changes.seqs[at]), int(changes.indexes[at])),
                "time": changes.times[at].value,
                "values": {name: values[at] for name, values in columns.items()},
            }
            found.append(made)
    found.sort(key=lambda made: made["place"])
    return found


@given(logs(), st.lists(st.integers(0, 60)))
def test_many_messages_at_once_give_what_one_after_the_other_does(messages: list[bytes], cuts: list[int]) -> None:
    plain = Plain()
    expected = [change for message in messages for change in plain.decode(message)]
    decoder = Decoder(key_of)
    found: list[dict[str, Any]] = []
    edges = sorted({0, len(messages), *(cut for cut in cuts if cut < len(messages))})
    for first, last in itertools.pairwise(edges):
        part = messages[first:last]
        found += in_bulk(decoder, part)
        assert decoder.open == (part[-1][:1] != b"C")
        assert (decoder.seq, decoder.rows) == (
            (found[-1]["place"][0], found[-1]["place"][1] + 1)
            if found and found[-1]["place"][0] == decoder.seq
            else (decoder.seq, 0)
        )
    assert found == expected


def test_a_row_of_a_table_that_nobody_described_is_an_error() -> None:
    with pytest.raises(LogUnavailable, match="did not say what that table looks like"):
        Decoder(key_of).decode([b"B" + bytes(20), b"I" + struct.pack("!I", 5) + b"N" + row([b"1"])])


def test_nothing_decodes_to_nothing() -> None:
    decoder = Decoder(key_of)
    assert decoder.decode([]) == []
    assert decoder.decode([b"B" + struct.pack("!qqI", 77, 0, 1)]) == []
    assert (decoder.open, decoder.seq, decoder.rows) == (True, 77, 0)
    assert decoder.decode([b"C" + struct.pack("!Bqqq", 0, 77, 99, 0)]) == []
    assert (decoder.open, decoder.end) == (False, 99)
