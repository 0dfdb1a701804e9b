"""What `pgoutput` sends, decoded for many messages at once.

A message is a tag and its fields. Of a batch of messages only those that say what a table looks like are read one by
one; the transactions' marks and the rows are read column by column over all messages, as numpy and Arrow do it. A
column's texts are never touched by Python: they are cut out of the joined messages by Arrow.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import LogUnavailable
from tidings_connectors.row_mapping import DELETE, INSERT, TRUNCATE, UPDATE, Changes, Column, Kind

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, where PostgreSQL's times begin
KINDS: dict[int, Kind] = {
    16: "boolean",
    20: "integer",
    21: "integer",
    23: "integer",
    26: "integer",
    114: "json",
    700: "number",
    701: "number",
    3802: "json",
}
"""What is more than text, by the type's oid. Decimals are text, so that they keep their digits."""

ODD_NUMBERS = pa.array(["NaN", "Infinity", "-Infinity"])  # no JSON
BEGIN, COMMIT, RELATION, TRUNCATED = map(ord, "BCRT")
INSERTED, UPDATED, DELETED = map(ord, "IUD")
NEW, KEY, NULL, UNCHANGED = map(ord, "NKnu")
ROW_TAGS = b"IUDT"
ROWS = np.zeros(256, bool)
ROWS[list(ROW_TAGS)] = True


class Field(NamedTuple):
    """A column as the server describes it; `identity` if old rows come with it."""

    name: str
    kind: Kind
    identity: bool


@dataclasses.dataclass(frozen=True)
class Relation:
    """A table as the server describes it, before the first row that looks like this."""

    oid: int
    schema: str
    table: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]


KeyOf = Callable[[int], Sequence[str]]
"""The primary key of a table by its oid, for those whose replica identity does not tell it."""


class Batch(NamedTuple):
    """Changes of one table, and the place of each among all changes that were decoded with them."""

    changes: Changes
    order: Ints


class Decoder:
    """Decodes the messages of one replication connection, from its first one on.

    Between two calls it remembers the tables, and how far it is in a transaction that is not over.
    """

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self._relations: dict[int, Relation] = {}
        self.open = False
        """Whether a transaction has begun and is not over."""
        self.seq = -1
        """The number of the newest transaction: where its commit is in the WAL."""
        self.rows = 0
        """How many changes of that transaction were decoded."""
        self.end = 0
        """Where the newest commit ends in the WAL."""
        self._time = 0

    def decode(self, messages: Sequence[bytes]) -> list[Batch]:
        """The changes in these messages."""
        if not messages:
            return []
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        starts = np.cumsum(lengths) - lengths
        joined = b"".join([*messages, bytes(8)])  # so that a number can be looked for at the very end
        data = np.frombuffer(joined, np.uint8)
        tags = data[starts]
        groups = self._groups(messages, data, starts, tags)
        row_at = np.flatnonzero(ROWS[tags])
        counts = np.ones(len(messages), np.int64)
        for group in groups:
            counts[group.at] = group.counts
        places = np.cumsum(counts[row_at]) - counts[row_at]

        begins = np.flatnonzero(tags == BEGIN)
        seqs = np.concatenate([[self.seq], _int64(data, starts[begins] + 1)])
        times = np.concatenate([[self._time], _int64(data, starts[begins] + 9) + EPOCH])
        of_row = np.cumsum(tags == BEGIN)[row_at]  # the transaction of each row; 0 is the one that was open before
        first = places[np.searchsorted(of_row, of_row)]
        indexes = places - first + np.where(of_row == 0, self.rows, 0)

        made = []
        for group in groups:
            rows = np.searchsorted(row_at, group.at)
            within = group.within
            pick = np.repeat(rows, group.counts) if within is None else rows
            sub = _subnumbers(group.counts) if within is None else within
            changes = group.make(
                seqs[of_row[pick]],
                (indexes[pick] + sub).astype(np.int32),
                pa.array(times[of_row[pick]]).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
            )
            made.append(Batch(changes, places[pick] + sub))
        self._go_on(data, starts, tags, begins, seqs, times, row_at, counts)
        return made

    def _go_on(
        self,
        data: npt.NDArray[np.uint8],
        starts: Ints,
        tags: npt.NDArray[np.uint8],
        begins: Ints,
        seqs: Ints,
        times: Ints,
        row_at: Ints,
        counts: Ints,
    ) -> None:
        """Remember where the batch ended."""
        commits = np.flatnonzero(tags == COMMIT)
        last_begin = int(begins[-1]) if len(begins) else -1
        if len(commits):
            self.end = int(_int64(data, starts[commits[-1:]] + 10)[0])
        if len(begins) or len(commits):
            self.open = last_begin > (int(commits[-1]) if len(commits) else -1)
        since = row_at[np.searchsorted(row_at, last_begin + 1) :] if len(begins) else row_at
        self.rows = (0 if len(begins) else self.rows) + int(counts[since].sum())
        self.seq, self._time = int(seqs[-1]), int(times[-1])

    def _groups(
        self, messages: Sequence[bytes], data: npt.NDArray[np.uint8], starts: Ints, tags: npt.NDArray[np.uint8]
    ) -> list[_Rows | _Truncations]:
        """The messages with rows, by table, and by what the table looked like at that time."""
        described: dict[int, list[tuple[int, Relation]]] = {}
        for at in np.flatnonzero(tags == RELATION).tolist():
            relation = parse_relation(messages[at], self._key_of)
            described.setdefault(relation.oid, []).append((at, relation))
        row_at = np.flatnonzero(ROWS[tags] & (tags != TRUNCATED))
        oids = _int32(data, starts[row_at] + 1)
        groups: list[_Rows | _Truncations] = []
        for oid in np.unique(oids).tolist():
            members = row_at[oids == oid]
            for first, end, relation in self._spans(oid, described, len(messages)):
                part = members[np.searchsorted(members, first) : np.searchsorted(members, end)]
                if len(part):
                    groups.append(_Rows(relation, part, data, starts[part], tags[part]))
        for at in np.flatnonzero(tags == TRUNCATED).tolist():
            count = struct.unpack_from("!i", messages[at], 1)[0]
            truncated = struct.unpack_from(f"!{count}I", messages[at], 6)
            for number, oid in enumerate(truncated):
                spans = self._spans(oid, described, len(messages))
                relation = next(relation for first, end, relation in spans if first <= at < end)
                groups.append(_Truncations(relation, np.array([at]), count, number))
        for oid, versions in described.items():
            self._relations[oid] = versions[-1][1]
        return groups

    def _spans(
        self, oid: int, described: dict[int, list[tuple[int, Relation]]], end: int
    ) -> Iterator[tuple[int, int, Relation]]:
        """From which message to which one a table looks like what."""
        versions = described.get(oid, [])
        if oid in self._relations:
            versions = [(0, self._relations[oid]), *versions]
        if not versions:
            raise LogUnavailable(f"PostgreSQL sent a row of table {oid} and did not say what that table looks like")
        ends = [at for at, _ in versions[1:]] + [end]
        return ((first, last, relation) for (first, relation), last in zip(versions, ends, strict=True))


class _Truncations:
    """One table of a message that several may have been truncated."""

    def __init__(self, relation: Relation, at: Ints, count: int, number: int) -> None:
        self.at = at
        self.counts = np.array([count])
        self.within = np.array([number])
        self._relation = relation

    def make(self, seqs: Ints, indexes: npt.NDArray[np.int32], times: pa.TimestampArray) -> Changes:
        """The change."""
        nothing, unknown = pa.nulls(1, pa.string()), pa.array([True])
        columns = [Column(field.name, nothing, field.kind, unknown) for field in self._relation.fields]
        return _changes(self._relation, columns, pa.array([TRUNCATE]), seqs, indexes, times)


class _Rows:
    """Inserts, updates and deletes of one table, in their order; an update of the key is two changes."""

    within = None

    def __init__(
        self,
        relation: Relation,
        at: Ints,
        data: npt.NDArray[np.uint8],
        starts: Ints,
        tags: npt.NDArray[np.uint8],
    ) -> None:
        self.at = at
        self._relation = relation
        self._data = data
        marks = data[starts + 5]
        first, ends = _walk(data, starts + 6, len(relation.fields))
        both = np.flatnonzero((tags == UPDATED) & (marks != NEW))  # an old row, and then a new one
        self.counts = np.ones(len(at), np.int64)
        if len(both) == 0:
            self._values = first
            self._tags, self._by_key = tags, marks == KEY
            return
        second, _ = _walk(data, ends[both] + 1, len(relation.fields))
        changed = self._key_changed([one.pick(both) for one in first], second)
        self.counts[both[changed]] = 2
        # Which message each change is of, and whether it is the old row of it or the new one.
        member = np.repeat(np.arange(len(at)), self.counts)
        old = np.ones(len(at), bool)
        old[both] = False
        is_old = old[member] | ((self.counts[member] == 2) & (_subnumbers(self.counts) == 0))
        place = np.zeros(len(at), np.int64)
        place[both] = np.arange(len(both))
        self._values = [
            one.pick(member).replaced(~is_old, other.pick(place[member[~is_old]]))
            for one, other in zip(first, second, strict=True)
        ]
        self._tags = np.where((self.counts[member] == 2) & is_old, DELETED, tags[member])
        self._by_key = is_old & (marks[member] == KEY)

    def _key_changed(self, old: list[_Texts], new: list[_Texts]) -> Mask:
        changed = np.zeros(len(new[0].kinds) if new else 0, bool)
        for field, before, after in zip(self._relation.fields, old, new, strict=True):
            if field.name in self._relation.key:
                same = pc.equal(before.array(self._data), after.array(self._data))
                said = (after.kinds != UNCHANGED) & (before.kinds != NULL)
                changed |= said & ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return changed

    def make(self, seqs: Ints, indexes: npt.NDArray[np.int32], times: pa.TimestampArray) -> Changes:
        """The changes."""
        columns = []
        for field, texts in zip(self._relation.fields, self._values, strict=True):
            unknown = texts.kinds == UNCHANGED
            if not field.identity:
                unknown |= self._by_key & (self._tags == DELETED)
            columns.append(
                Column(
                    field.name,
                    as_json(texts.array(self._data), field.kind),
                    field.kind,
                    pa.array(unknown) if unknown.any() else None,
                )
            )
        if (self._tags == self._tags[0]).all():
            operations = pa.repeat(pa.scalar(_OPERATIONS[int(self._tags[0])]), len(seqs))
        else:
            operations = _NAMES.take(pa.array(np.searchsorted(_TAGS, self._tags)))
        return _changes(self._relation, columns, operations, seqs, indexes, times)


_OPERATIONS = {DELETED: DELETE, INSERTED: INSERT, UPDATED: UPDATE}
_TAGS = np.array(sorted(_OPERATIONS))
_NAMES = pa.array([_OPERATIONS[tag] for tag in sorted(_OPERATIONS)])


class _Texts(NamedTuple):
    """One column of many rows: what kind of value each is, and where its text is in the messages."""

    kinds: npt.NDArray[np.uint8]
    starts: Ints
    ends: Ints

    def pick(self, rows: Ints) -> _Texts:
        return _Texts(self.kinds[rows], self.starts[rows], self.ends[rows])

    def replaced(self, where: Mask, others: _Texts) -> _Texts:
        """With other values in some places, but for those that are not said there and are here."""
        said = (others.kinds != UNCHANGED) | (self.kinds[where] == NULL)
        at = np.flatnonzero(where)[said]
        kinds, starts, ends = self.kinds.copy(), self.starts.copy(), self.ends.copy()
        kinds[at], starts[at], ends[at] = others.kinds[said], others.starts[said], others.ends[said]
        return _Texts(kinds, starts, ends)

    def array(self, data: npt.NDArray[np.uint8]) -> pa.StringArray:
        """The texts; null where there is none.

        They come in the order of the messages. So the messages as a whole are cut into texts and what is between them,
        and the texts are taken: Arrow copies each with one move.
        """
        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.string())
        cuts = np.empty(2 * count, np.int32)
        cuts[0::2], cuts[1::2] = self.starts, self.ends
        pieces = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(cuts), pa.py_buffer(data))
        none = (self.kinds == NULL) | (self.kinds == UNCHANGED)
        return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=none if none.any() else None))


def parse_relation(message: bytes, key_of: KeyOf) -> Relation:
    """The table that a message describes."""
    (oid,) = struct.unpack_from("!I", message, 1)
    schema, at = _text(message, 5)
    table, at = _text(message, at)
    identity, count = struct.unpack_from("!ch", message, at)
    at += 3
    fields = []
    for _ in range(count):
        name, end = _text(message, at + 1)
        (kind,) = struct.unpack_from("!I", message, end)
        fields.append(Field(name, KINDS.get(kind, "text"), bool(message[at] & 1)))
        at = end + 8
    if identity in (b"f", b"n"):  # all columns are marked, or none: neither says what the key is
        named = set(key_of(oid))
        key = tuple(field.name for field in fields if field.name in named)
    else:
        key = tuple(field.name for field in fields if field.identity)
    return Relation(oid, schema or "pg_catalog", table, tuple(fields), key)


def _walk(data: npt.NDArray[np.uint8], starts: Ints, count: int) -> tuple[list[_Texts], Ints]:
    """The columns of many rows, and where each row ends in the messages."""
    columns = []
    at = starts + 2  # after the number of columns
    for _ in range(count):
        kinds = data[at]
        there = (kinds != NULL) & (kinds != UNCHANGED)
        first = at + 1 + 4 * there
        last = first + np.where(there, _int32(data, at + 1), 0) if not there.all() else first + _int32(data, at + 1)
        columns.append(_Texts(kinds, first, last))
        at = last
    return columns, at


def as_json(values: pa.StringArray, kind: Kind) -> pa.StringArray:
    """Values as JSON has them, if they are more than text."""
    if kind == "boolean":
        return pc.if_else(pc.equal(values, "t"), "true", "false")
    if kind == "number":
        odd = pc.is_in(values, ODD_NUMBERS)
        if pc.any(odd).as_py():
            return pc.if_else(odd, pc.binary_join_element_wise('"', values, '"', ""), values)
    return values


def _changes(
    relation: Relation,
    columns: list[Column],
    operations: pa.StringArray,
    seqs: Ints,
    indexes: npt.NDArray[np.int32],
    times: pa.TimestampArray,
) -> Changes:
    return Changes(relation.schema, relation.table, columns, relation.key, operations, seqs, indexes, times)


def _subnumbers(counts: Ints) -> Ints:
    """0 to count - 1 for each count, one after the other.

    >>> _subnumbers(np.array([1, 2, 1])).tolist()
    [0, 0, 1, 0]
    """
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _int64(data: npt.NDArray[np.uint8], at: Ints) -> Ints:
    return _numbers(data, at, 8, ">i8")


def _int32(data: npt.NDArray[np.uint8], at: Ints) -> Ints:
    return _numbers(data, at, 4, ">u4")


def _numbers(data: npt.NDArray[np.uint8], at: Ints, size: int, form: str) -> Ints:
    """The numbers at these places."""
    windows = np.lib.stride_tricks.sliding_window_view(data, size)
    found: Any = windows[at].view(form).reshape(len(at))
    return found.astype(np.int64)  # type: ignore[no-any-return]


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
