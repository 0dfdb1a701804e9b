"""Predicates, covering, policies and tombstones, put together in memory, keep what the model promises."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.plugins.gc_tombstones.model import Event, Part, Refused, Says, Walk
from tests.support.filter_cases import NOON, table, update
from tidings.errors import InvalidFilter
from tidings.tombstones import NO_TOMBSTONES, Tombstones, settle, trim
from tidings.updates import SCHEMA
from tidings_gc_tombstones.covering import GcEvent, check_covering, gc_events
from tidings_gc_tombstones.keys import keys_of
from tidings_gc_tombstones.policies import policies_of
from tidings_gc_tombstones.predicates import Predicate

KEEP = 6


class InMemory:
    """A shard in a table: each collection looks at all of it."""

    def __init__(self, collect: dict[str, Any]) -> None:
        self.policies = policies_of(collect)
        self.rows: pa.Table = SCHEMA.empty_table()
        self.seqs = 0

    def publish(self, event: Event) -> int:
        time = NOON + dt.timedelta(seconds=self.seqs)
        attributes = None
        if event.collects is not None:
            attributes = {"collects": event.collects}
            try:
                predicate = Predicate.parse(event.collects)
                self.policies.check(predicate)
                check_covering(GcEvent(0, self.seqs, time, predicate), self.rows)
            except InvalidFilter as error:
                raise Refused(str(error)) from None
        row = update(
            seq=self.seqs, kind=event.kind, object=event.object, time=time, version=event.number, attributes=attributes
        )
        self.rows = pa.concat_tables([self.rows, table([row])])
        self.seqs += 1
        return self.seqs - 1

    def collect(self) -> None:
        self.rows = settle(self.rows, self.explicit() | self.keyed() | self.prefix())

    def explicit(self) -> Tombstones:
        found = NO_TOMBSTONES
        for event in gc_events(self.rows) if self.policies.explicit_events else []:
            found |= self.chosen(event.matching().mask(self.rows).to_numpy(zero_copy_only=False))
        return found

    def keyed(self) -> Tombstones:
        if self.policies.key is None:
            return NO_TOMBSTONES
        keys, collecting = keys_of(self.rows, self.policies.key).to_pylist(), self.policies.collects(self.rows)
        newest = {key: at for at, key in enumerate(keys) if collecting[at]}
        return self.chosen(np.array([newest.get(key, -1) > at for at, key in enumerate(keys)], np.bool_))

    def prefix(self) -> Tombstones:
        if not self.seqs:
            return NO_TOMBSTONES
        # As the log has it: what has become a tombstone is as old as what it stands for.
        seqs = self.rows["seq"].to_numpy()
        count = self.policies.obsolete(seqs, 1000 * seqs, head=self.seqs - 1, now_ms=1000 * (self.seqs - 1))
        return self.chosen(np.arange(len(seqs)) < count)

    def chosen(self, mask: np.ndarray) -> Tombstones:
        rows = self.rows.filter(pa.array(mask & (self.rows["kind"].to_numpy() != "tombstone")))
        return Tombstones.at(rows["shard"].to_numpy(), rows["seq"].to_numpy())

    def read(self, after: int) -> Sequence[Event]:
        return [
            Event(row["kind"], row["object"], seq=row["seq"], range=row["range"], number=row["version"])
            if row["kind"] != "tombstone"
            else Event("tombstone", seq=row["seq"], range=row["range"])
            for row in trim(self.rows, [after], [self.seqs]).to_pylist()
        ]


class WalkInMemory(Walk):
    """Of a system whose policies are these."""

    collect_by: dict[str, Any]

    def begin(self) -> InMemory:
        return InMemory(self.collect_by)

    def implied(self, event: Event, seq: int) -> Says | None:
        """What the design says of each policy."""
        parts = []
        by = self.collect_by
        if event.collects is None and ("latest_per_key" in by or ("temporary_keys" in by and event.kind == "gc")):
            parts.append(Part(frozenset({event.object})))
        if "keep_last" in by:
            parts.append(Part(below=seq - by["keep_last"] + 1))
        if "max_age" in by:
            parts.append(Part(below=seq - KEEP))
        return Says(tuple(parts)) if parts else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "collect",
    [
        {"events": True},
        {"latest_per_key": True},
        {"latest_per_key": True, "events": True},
        {"temporary_keys": True},
        {"temporary_keys": True, "events": True},
        {"latest_per_key": True, "temporary_keys": True, "keep_last": KEEP, "events": True},
        {"keep_last": KEEP},
        {"keep_last": KEEP, "events": True},
        {"max_age": f"PT{KEEP}S", "events": True},
        {"max_age": f"PT{KEEP}S", "keep_last": KEEP, "temporary_keys": True},
    ],
    ids=" ".join,
)
def test_each_combination_of_policies_keeps_the_promises(collect: dict[str, Any]) -> None:
    class This(WalkInMemory):
        collect_by = collect
        explicit = "events" in collect
        deletes = True

    run_state_machine_as_test(This, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
