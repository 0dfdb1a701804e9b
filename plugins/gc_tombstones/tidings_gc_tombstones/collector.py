"""The collector: finds the updates of a stream that are obsolete, and has the log put tombstones in their place.

It goes through the log step by step. A step reads what is new, finds the earlier updates of the same keys by the index,
asks the policies, and is one commit of the log; so its cost follows what is new, and not what is held. The index is
written after the commit, and the commit names the step: if they do not belong together, because the log was restored or
the index was lost, the collector begins again with the oldest update.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import operator
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InvalidFilter, InvalidOption
from tidings.log_reading import ends
from tidings.logs import CollectableLog, Transaction
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.tombstones import NO_TOMBSTONES, Tombstones
from tidings.updates import SCHEMA, TOMBSTONE
from tidings_gc_tombstones import spark_history
from tidings_gc_tombstones.covering import GcEvent, explicit_rows, gc_event
from tidings_gc_tombstones.index import NO_PLACES, KeyIndex, KeyPlaces
from tidings_gc_tombstones.keys import DEFAULT_KEY, column_of, keys_of
from tidings_gc_tombstones.matching import EventMatcher, Matched, RefusedEvent
from tidings_gc_tombstones.policies import blaming, policies_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION = "tidings.collection"
STEP_ROWS = 1_000_000
STEP_BYTES = 256 * 2**20  # of rows without their payloads, which a step holds in memory
HISTORY_ROWS = 5_000_000  # that were never collected: worth a Spark job
STEP_EVENTS = 64  # explicit gc events of a shard in a step: each may need a look at all that is held
PREFIX_ROWS = 20_000  # that are read at a time, from where the oldest updates are that are not collected
MAX_REFUSED = 100  # gc events that a report names

Integers = npt.NDArray[np.int64]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """What a step found: tombstones by policy, and what the index is to learn."""

    upto: Integers
    prefix: Integers
    by_policy: Mapping[str, Tombstones] = field(default_factory=dict)
    refused: tuple[RefusedEvent, ...] = ()
    read_rows: int = 0
    seconds: float = 0.0
    after: int = -1  # the log's last transaction, when the step began
    places: KeyPlaces = NO_PLACES
    marks: KeyPlaces = NO_PLACES
    taken: KeyPlaces = NO_PLACES  # what explicit gc events collect

    @property
    def gone(self) -> Tombstones:
        """What any policy says."""
        return functools.reduce(operator.or_, self.by_policy.values(), NO_TOMBSTONES)


class Collector:
    """Collects one stream. A context manager; one at a time: a second one takes over from the first.

    `passed` tells what all flows have passed, for a stream whose policies protect them.
    """

    def __init__(
        self,
        stream: StreamDefinition,
        log: CollectableLog,
        passed: Callable[[], Positions] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.stream = stream
        self.policies = policies_of(stream.collect)
        if not self.policies.named:
            raise InvalidOption(
                f"stream {stream.name!r} is not collected: give it policies, as in latest_per_key: true"
            )
        if self.policies.protect_flows and passed is None:
            raise InvalidOption(f"stream {stream.name!r} protects flows, and nobody tells what they have passed")
        self._log = log
        self._passed = passed
        self._clock = clock
        self._key = self.policies.key or (DEFAULT_KEY if self.policies.explicit_events else None)
        self._index = KeyIndex(log.collection_folder)

    def close(self) -> None:
        """Let go of the index."""
        self._index.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, spark: Callable[[], SparkSession] | None = None) -> Iterator[Collection]:
        """Collect what is obsolete, a step at a time, up to where the log ends when this begins.

        A large history that was never collected is left to Spark, if there is one.
        """
        self._index.take_over()
        self._check_key()
        end = self._end()
        while True:
            by_spark = spark and not self._seen() and self._is_large(end)
            step = self._first_step(end, spark()) if spark and by_spark else self._step(end, STEP_ROWS)
            self._commit(step)
            yield step
            if np.all(step.upto >= end):
                return

    def plan(self, spark: Callable[[], SparkSession] | None = None) -> Collection:
        """What would be collected now. Where there is much to look at, that is left to Spark, if there is one."""
        self._index.check()
        self._check_key()
        end = self._end()
        return self._first_step(end, spark()) if spark and self._is_large(end) else self._step(end, None)

    def _check_key(self) -> None:
        """Refuse a key if updates have collected others by one that lacks a part of it: what collects those updates now
        need not match these others.
        """
        former, key = self._former_key, self.policies.key
        if former is not None and key is not None and not {*map(column_of, key)} <= {*map(column_of, former)}:
            raise InvalidOption(
                f"stream {self.stream.name!r} was collected by the key {', '.join(former)}, and cannot be by "
                f"{', '.join(key)}, since what the one has collected updates of the other do not match: give it a key "
                "of these parts or fewer, or publish into a new stream"
            )

    @property
    def _former_key(self) -> tuple[str, ...] | None:
        """The key by which updates have collected others, as far as the index knows."""
        former = self._index.note.get("collected_by")
        return None if former is None else tuple(former)

    def _is_large(self, end: Integers) -> bool:
        """Whether there is more to read than an index would be of use for."""
        return self._key is not None and int((end - self._reached(self._floors())).sum()) >= HISTORY_ROWS

    def _reached(self, floors: Integers) -> Integers:
        """Up to where the index has seen all that is held."""
        return np.maximum(np.array(self._seen().get("upto", floors.tolist()), np.int64), floors)

    # What the index has seen

    def _seen(self) -> dict[str, Any]:
        """What the index has seen; nothing, if it is not that of the log as it is, or the policies are others now."""
        note = self._index.note
        if note.get("policies") != self._named_policies:
            return {}
        return note if self._log.last_transaction(APPLICATION) in (note["step"], note.get("next")) else {}

    @property
    def _named_policies(self) -> dict[str, Any]:
        named: dict[str, Any] = json.loads(json.dumps(dict(self.stream.collect)))
        return {name: value for name, value in named.items() if name in self.policies.named}

    def _commit(self, step: Collection) -> None:
        note, former = self._seen(), self._former_key
        by_key = any(step.by_policy[name].count for name in self.policies.keyed)
        cost = {"time": int(self._clock()), "seconds": round(step.seconds, 3), "read": step.read_rows}
        gone = step.gone
        if note and not step.read_rows and not gone.count:
            self._index.update(NO_PLACES, NO_PLACES, NO_PLACES, {**note, **cost})
            return
        number = secrets.randbits(62)
        if note:
            self._index.update(NO_PLACES, NO_PLACES, NO_PLACES, {**note, "next": number})
        elif self._index.note:
            logger.info("stream %r: its index is not that of the log and the policies: made anew", self.stream.name)
            self._index.clear({"collected_by": former})
        self._log.collect(gone, Transaction(APPLICATION, number), step.after)
        refused = [*note.get("refused", []), *([one.shard, one.seq, one.reason] for one in step.refused)]
        now = {
            "step": number,
            "policies": self._named_policies,
            "upto": step.upto.tolist(),
            "prefix": step.prefix.tolist(),
            "collected_by": self.policies.key if by_key else former,
            "refused": refused[-MAX_REFUSED:],
            "refused_count": note.get("refused_count", 0) + len(step.refused),
            **cost,
        }
        self._index.update(step.places, step.marks, step.taken, now)

    def _end(self) -> Integers:
        heads = {shard: bounds.head for shard, bounds in self._log.bounds().items()}
        if self.policies.protect_flows and self._passed is not None:
            passed = self._passed()
            heads = {shard: min(head, passed[shard]) if shard in passed else head for shard, head in heads.items()}
        return _seqs(heads)

    # A step

    def _floors(self) -> Integers:
        return _seqs({shard: bounds.floor for shard, bounds in self._log.bounds().items()})

    def _first_step(self, end: Integers, spark: SparkSession) -> Collection:
        """All that there is, by Spark."""
        began, last = time.monotonic(), self._log.last_transaction(APPLICATION)
        floors = self._floors()
        rows = self._log.scan(spark, _positions(floors), _positions(end))
        by_policy, places = spark_history.obsolete(
            rows, self.policies.keyed, self._key or DEFAULT_KEY, self._log.collection_folder
        )
        refused: tuple[RefusedEvent, ...] = ()
        if self.policies.explicit_events:
            matched = self._by_events(spark_history.explicit_rows_of(rows), places, indexed=False)
            by_policy["events"], refused = matched.gone, matched.refused
            places = places.take(~matched.gone.covers(places.shard, places.seq))
        size = int((end - floors).sum())
        return self._finished(began, last, floors, end, floors, by_policy, refused, size, places)

    def _step(self, end: Integers, limit: int | None) -> Collection:
        began, last = time.monotonic(), self._log.last_transaction(APPLICATION)
        note = self._seen()
        floors = self._floors()
        prefix = np.maximum(np.array(note.get("prefix", floors.tolist()), np.int64), floors)
        if self._key is None:
            return self._finished(began, last, floors, end, prefix, {}, (), 0)
        self._index.pass_over(prefix)
        upto, rows = self._read(self._reached(floors), end, limit)
        places = KeyPlaces.of(rows, keys_of(rows, self._key))
        by_policy, marks = self._by_key(rows, places, self._index.find(places) if note else NO_PLACES)
        matched = Matched()
        if self.policies.explicit_events:
            matched = self._by_events(rows, places, indexed=bool(note))
            by_policy["events"] = matched.gone
            places = places.take(~matched.gone.covers(places.shard, places.seq))
        found = (places, marks, matched.places)
        return self._finished(began, last, floors, upto, prefix, by_policy, matched.refused, len(rows), *found)

    def _finished(
        self,
        began: float,
        after: int,
        floors: Integers,
        upto: Integers,
        prefix: Integers,
        by_policy: dict[str, Tombstones],
        refused: tuple[RefusedEvent, ...],
        read_rows: int,
        places: KeyPlaces = NO_PLACES,
        marks: KeyPlaces = NO_PLACES,
        taken: KeyPlaces = NO_PLACES,
    ) -> Collection:
        """The step, with what is obsolete because it is old."""
        if self.policies.prefixes:
            oldest, prefix, looked_at = self._by_prefix(prefix, upto, by_policy)
            by_policy |= oldest
            read_rows += looked_at
        by_policy = {name: gone.within(floors, upto - 1) for name, gone in by_policy.items()}
        seconds = time.monotonic() - began
        return Collection(upto, prefix, by_policy, refused, read_rows, seconds, after, places, marks, taken)

    def _read(self, after: Integers, end: Integers, limit: int | None) -> tuple[Integers, pa.Table]:
        """The next updates, without their payloads, and up to where: fewer than the limit, if they are large."""
        while True:
            reached = _seqs(self._log.reach(_positions(after), limit))
            upto = np.maximum(after, np.minimum(reached, end))
            found, size = [SCHEMA.empty_table()], 0
            for rows in self._log.updates(_positions(after), _positions(upto)):
                found.append(rows)
                size += rows.nbytes
                if limit is not None and limit > 1 and size > STEP_BYTES:
                    break
            else:
                rows = pa.concat_tables(found)
                return (upto, rows) if limit is None else _upto_events(upto, rows)
            limit = max(1, limit // 4)

    def _by_key(self, rows: pa.Table, new: KeyPlaces, earlier: KeyPlaces) -> tuple[dict[str, Tombstones], KeyPlaces]:
        """What the new updates collect of their keys, by policy; and up to where everything of a key is collected."""
        keyed = keys_of(rows, self._key or ()).is_valid().to_numpy(zero_copy_only=False)
        every = earlier + new
        groups = every.groups()
        latest = np.full(groups.max(initial=-1) + 1, -1, np.int64)
        found: dict[str, Tombstones] = {}
        for name, policy in self.policies.keyed.items():
            with blaming(name):
                collecting = np.flatnonzero(policy.collects(rows)[keyed]) + len(earlier)
            last = np.full(len(latest), -1, np.int64)
            np.maximum.at(last, groups[collecting], every.seq[collecting])
            obsolete = every.seq < last[groups]
            found[name] = Tombstones.at(every.shard[obsolete], every.seq[obsolete])
            latest = np.maximum(latest, last)
        return found, every.take(every.seq == latest[groups])

    def _by_events(self, rows: pa.Table, new: KeyPlaces, *, indexed: bool) -> Matched:
        """What the explicit gc events among these updates collect; those that the stream does not take are refused."""
        taken, refused = list[GcEvent](), list[RefusedEvent]()
        for row in explicit_rows(rows):
            try:
                event = gc_event(row)
                self.policies.check(event.predicate, self._former_key)
                taken.append(event)
            except (InvalidFilter, InvalidOption) as error:
                refused.append(RefusedEvent(row["shard"], row["seq"], str(error)))
        matcher = EventMatcher(self._log, self._index, self._key or DEFAULT_KEY, indexed)
        return Matched(refused=tuple(refused)) + matcher.match(taken, new)

    def _by_prefix(
        self, prefix: Integers, upto: Integers, by_others: Mapping[str, Tombstones]
    ) -> tuple[dict[str, Tombstones], Integers, int]:
        """The oldest updates that are obsolete, by policy; up to where each shard is; and how many were looked at.

        What others collect in this step is passed over, as what was collected before is.
        """
        others = functools.reduce(operator.or_, by_others.values(), NO_TOMBSTONES)
        now_ms = int(self._clock() * 1000)
        gone = dict.fromkeys(self.policies.prefixes, NO_TOMBSTONES)
        reached = {name: prefix.copy() for name in self.policies.prefixes}
        looked_at = 0
        at = np.where(prefix < upto, prefix, upto)
        while np.any(at < upto):
            rows = self._log.tail(_positions(np.where(at < upto, at, _heads(self._log))), PREFIX_ROWS)
            if not len(rows):
                break
            looked_at += len(rows)
            shards, seqs = rows["shard"].to_numpy(), rows["seq"].to_numpy()
            held = pc.not_equal(rows["kind"], TOMBSTONE).to_numpy(zero_copy_only=False) & ~others.covers_rows(rows)
            times_ms = _times_ms(rows, held, now_ms)
            for shard, last in ends(rows).items():
                mine = np.flatnonzero((shards == shard) & (seqs <= upto[shard]))
                going_on = False
                for name, policy in self.policies.prefixes.items():
                    with blaming(name):
                        count = policy.obsolete(seqs[mine], times_ms[mine], int(upto[shard]), now_ms)
                    if count and reached[name][shard] >= at[shard]:
                        old = mine[:count]
                        reached[name][shard] = seqs[old[-1]]
                        gone[name] |= Tombstones.at(shards[old][held[old]], seqs[old][held[old]])
                        going_on |= count == len(mine)
                at[shard] = last.seq if going_on and last.seq < upto[shard] else upto[shard]
        return gone, np.maximum.reduce([prefix, *reached.values()]), looked_at


def _upto_events(upto: Integers, rows: pa.Table) -> tuple[Integers, pa.Table]:
    """So much of a step that no shard has more explicit gc events in it than are worth a commit."""
    cut = upto.copy()
    events = explicit_rows(rows)
    for shard, some in itertools.groupby(sorted((row["shard"], row["seq"]) for row in events), lambda one: one[0]):
        seqs = [seq for _, seq in some]
        if len(seqs) > STEP_EVENTS:
            cut[shard] = seqs[STEP_EVENTS - 1]
    if np.array_equal(cut, upto):
        return upto, rows
    return cut, rows.filter(pa.array(rows["seq"].to_numpy() <= cut[rows["shard"].to_numpy()]))


def _times_ms(rows: pa.Table, held: npt.NDArray[np.bool_], now_ms: int) -> Integers:
    """When each was committed, by its own word; one that does not say it is taken to be young, and a tombstone old."""
    times = pc.cast(pc.cast(rows["time"], pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    known = np.minimum(pc.fill_null(times, now_ms).to_numpy(), now_ms)
    return np.where(held, known, 0)


def _heads(log: CollectableLog) -> Integers:
    return _seqs({shard: bounds.head for shard, bounds in log.bounds().items()})


def _seqs(positions: Mapping[int, Position]) -> Integers:
    return np.array([positions[shard].seq for shard in sorted(positions)], np.int64)


def _positions(seqs: Integers) -> Positions:
    return Positions({shard: Position(seq) for shard, seq in enumerate(seqs.tolist())})
