"""What `pgoutput` sends, decoded for many messages at once.

A message is a tag and its fields. Of a batch of messages only those that say what a table looks like are read one by
one; the transactions' marks and the rows are read column by column over all messages, as numpy and Arrow do it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import LogUnavailable
from tidings_connectors.cdc.changes import DELETE, INSERT, TRUNCATE, UPDATE, Changes, Column
from tidings_connectors.postgres.columns import NULL, UNCHANGED, Bytes, Ints, Mask, Texts, cut_columns, int32, int64
from tidings_connectors.postgres.relations import KeyOf, Relation, RelationField, as_json, parse_relation

EPOCH_MICROS = 946_684_800_000_000  # from 1970 to 2000, where PostgreSQL's times begin
BEGIN, COMMIT, RELATION, TRUNCATED = map(ord, "BCRT")
INSERTED, UPDATED, DELETED = map(ord, "IUD")
NEW, KEY = map(ord, "NK")
ROW_TAGS = b"IUDT"
ROWS = np.zeros(256, bool)
ROWS[list(ROW_TAGS)] = True


class Batch(NamedTuple):
    """Changes of one table."""

    changes: Changes
    key_known_from: int
    """Of changes in transactions before this place it is not known what the key was."""


class Decoder:
    """Decodes the messages of one replication connection, from its first one on.

    Between two calls it remembers the tables, and how far it is in a transaction that is not over.
    """

    def __init__(
        self, key_of: KeyOf, before_columns: Sequence[str] = (), has_images: Callable[[int], bool] = lambda oid: True
    ) -> None:
        """`before_columns` are those of which it is wanted what they were before. `has_images` is asked of a table, by
        its oid, whether all of its rows are logged as it says itself."""
        self._key_of = key_of
        self._before_columns = before_columns
        self._has_images = has_images
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
        seqs = np.concatenate([[self.seq], int64(data, starts[begins] + 1)])
        times = np.concatenate([[self._time], int64(data, starts[begins] + 9) + EPOCH_MICROS])
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
            made.append(Batch(changes, group.relation.key_known_from))
        self._go_on(data, starts, tags, begins, seqs, times, row_at, counts)
        return made

    def _go_on(
        self,
        data: Bytes,
        starts: Ints,
        tags: Bytes,
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
            self.end = int(int64(data, starts[commits[-1:]] + 10)[0])
        if len(begins) or len(commits):
            self.open = last_begin > (int(commits[-1]) if len(commits) else -1)
        since = row_at[np.searchsorted(row_at, last_begin + 1) :] if len(begins) else row_at
        self.rows = (0 if len(begins) else self.rows) + int(counts[since].sum())
        self.seq, self._time = int(seqs[-1]), int(times[-1])

    def _groups(self, messages: Sequence[bytes], data: Bytes, starts: Ints, tags: Bytes) -> list[_Rows | _Truncations]:
        """The messages with rows, by table, and by what the table looked like at that time."""
        described: dict[int, list[tuple[int, Relation]]] = {}
        for at in np.flatnonzero(tags == RELATION).tolist():
            relation = parse_relation(messages[at], self._key_of)
            if self._before_columns and relation.full and not self._has_images(relation.oid):
                relation = relation.bare()
            described.setdefault(relation.oid, []).append((at, relation))
        row_at = np.flatnonzero(ROWS[tags] & (tags != TRUNCATED))
        oids = int32(data, starts[row_at] + 1)
        groups: list[_Rows | _Truncations] = []
        for oid in np.unique(oids).tolist():
            members = row_at[oids == oid]
            for first, end, relation in self._spans(oid, described, len(messages)):
                part = members[np.searchsorted(members, first) : np.searchsorted(members, end)]
                for its, those in self._by_images(relation, part, data, starts, tags):
                    groups.append(_Rows(its, those, data, starts[those], tags[those], self._before_columns))
        for at in np.flatnonzero(tags == TRUNCATED).tolist():
            count = struct.unpack_from("!i", messages[at], 1)[0]
            truncated = struct.unpack_from(f"!{count}I", messages[at], 6)
            for number, oid in enumerate(truncated):
                spans = self._spans(oid, described, len(messages))
                relation = next(relation for first, end, relation in spans if first <= at < end)
                groups.append(_Truncations(relation, np.array([at]), count, number, self._before_columns))
        for oid, versions in described.items():
            self._relations[oid] = versions[-1][1]
        return groups

    def _by_images(
        self, relation: Relation, at: Ints, data: Bytes, starts: Ints, tags: Bytes
    ) -> Iterator[tuple[Relation, Ints]]:
        """Rows of a table; apart from the others, those that lack an old row though the table says that it has them:
        they were logged by a partition that had none."""
        lacking = np.zeros(len(at), bool)
        if self._before_columns and relation.full:
            lacking = (tags[at] == UPDATED) & (data[starts[at] + 5] == NEW)
        for its, which in ((relation, ~lacking), (relation.bare(), lacking)):
            if which.any():
                yield its, at[which]

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

    def __init__(self, relation: Relation, at: Ints, count: int, number: int, before_columns: Sequence[str]) -> None:
        self.at = at
        self._before_columns = before_columns
        self.counts = np.array([count])
        self.within = np.array([number])
        self.relation = relation

    def make(self, seqs: Ints, indexes: npt.NDArray[np.int32], times: pa.TimestampArray) -> Changes:
        """The change."""
        nothing, unknown = pa.nulls(1, pa.string()), pa.array([True])
        columns = [Column(field.name, nothing, field.kind, unknown) for field in self.relation.fields]
        before = [Column(field.name, nothing) for field, _ in _known_before(self.relation, self._before_columns)]
        return _changes(self.relation, columns, pa.array([TRUNCATE]), seqs, indexes, times, before)


class _Rows:
    """Inserts, updates and deletes of one table, in their order; an update of the key is two changes."""

    within = None

    def __init__(
        self, relation: Relation, at: Ints, data: Bytes, starts: Ints, tags: Bytes, before_columns: Sequence[str]
    ) -> None:
        self.at = at
        self.relation = relation
        self._data = data
        marks = data[starts + 5]
        first, ends = cut_columns(data, starts + 6, len(relation.fields))
        both = np.flatnonzero((tags == UPDATED) & (marks != NEW))  # an old row, and then a new one
        self.counts = np.ones(len(at), np.int64)
        # A column of the identity that comes without an old row is as it was.
        self._before = [(field, first[place]) for field, place in _known_before(relation, before_columns)]
        self._member = np.arange(len(at))
        if len(both) == 0:
            self._values = first
            self._tags, self._by_key = tags, marks == KEY
            return
        second, _ = cut_columns(data, ends[both] + 1, len(relation.fields))
        changed = self._key_changed([one.pick(both) for one in first], second)
        self.counts[both[changed]] = 2
        # Which message each change is of, and whether it is the old row of it or the new one.
        self._member = member = np.repeat(np.arange(len(at)), self.counts)
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

    def _key_changed(self, old: list[Texts], new: list[Texts]) -> Mask:
        changed = np.zeros(len(new[0].kinds) if new else 0, bool)
        for field, before, after in zip(self.relation.fields, old, new, strict=True):
            if field.name in self.relation.key:
                same = pc.equal(before.array(self._data), after.array(self._data))
                both_sent = (after.kinds != UNCHANGED) & (before.kinds != NULL)
                changed |= both_sent & ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return changed

    def make(self, seqs: Ints, indexes: npt.NDArray[np.int32], times: pa.TimestampArray) -> Changes:
        """The changes."""
        columns = []
        for field, texts in zip(self.relation.fields, self._values, strict=True):
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
        return _changes(self.relation, columns, operations, seqs, indexes, times, self._columns_before())

    def _columns_before(self) -> list[Column]:
        if not self._before:
            return []
        renamed = (self._tags == UPDATED) & (self.counts[self._member] == 2)
        nothing = (self._tags == INSERTED) | renamed
        rows = pa.array(self._member, mask=nothing)
        return [
            Column(
                field.name,
                as_json(texts.array(self._data), field.kind).take(rows),
                field.kind,
                pa.array(nothing | (texts.kinds[self._member] == UNCHANGED)),
            )
            for field, texts in self._before
        ]


_OPERATIONS = {DELETED: DELETE, INSERTED: INSERT, UPDATED: UPDATE}
_TAGS = np.array(sorted(_OPERATIONS))
_NAMES = pa.array([_OPERATIONS[tag] for tag in sorted(_OPERATIONS)])


def _changes(
    relation: Relation,
    columns: list[Column],
    operations: pa.StringArray,
    seqs: Ints,
    indexes: npt.NDArray[np.int32],
    times: pa.TimestampArray,
    before: list[Column],
) -> Changes:
    return Changes(relation.schema, relation.table, columns, relation.key, operations, seqs, indexes, times, before)


def _known_before(relation: Relation, names: Sequence[str]) -> Iterator[tuple[RelationField, int]]:
    """Of these columns, those that are known as they were before, and the place of each."""
    for place, field in enumerate(relation.fields):
        if field.identity and field.name in names:
            yield field, place


def _subnumbers(counts: Ints) -> Ints:
    """0 to count - 1 for each count, one after the other.

    >>> _subnumbers(np.array([1, 2, 1])).tolist()
    [0, 0, 1, 0]
    """
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
