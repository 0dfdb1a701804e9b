"""The collector on a real log keeps what the paper promises, in any order of events, collections and readers."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.plugins.gc_tombstones.model import Event, Refused
from tests.plugins.gc_tombstones.test_parts_beside_model import KEEP, WalkInMemory
from tests.support.filter_cases import NOON
from tidings.errors import InvalidFilter
from tidings.log_reading import ends
from tidings.positions import Position, Positions
from tidings.stream_definition import StreamDefinition
from tidings.updates import SCHEMA, from_rows
from tidings_connectors.delta.log import DeltaLog
from tidings_gc_tombstones.collector import Collector
from tidings_gc_tombstones.events import gc_events


class RealLog:
    """A stream of one shard, in a Delta log; each update is a second younger than the one before."""

    def __init__(self, folder: Path, collect: dict[str, Any]) -> None:
        self.stream = StreamDefinition("contacts", 1, f"delta:{folder}", collect=collect)
        self.log = DeltaLog.create(str(folder), self.stream)
        self.seqs = 0

    @property
    def now(self) -> dt.datetime:
        return NOON + dt.timedelta(seconds=self.seqs)

    def publish(self, event: Event) -> int:
        attributes = None
        if event.collects is not None:
            attributes = {"collects": event.collects}
            try:
                gc_events(self.stream, self.log, event.collects)
            except InvalidFilter as error:
                raise Refused(str(error)) from None
        row = {"object": event.object, "kind": event.kind, "version": event.number, "attributes": attributes}
        appended = self.log.append(from_rows([{**row, "time": self.now}]))
        assert appended is not None
        self.seqs += 1
        return int(appended.seqs[0])

    def collect(self) -> None:
        newest = NOON + dt.timedelta(seconds=max(0, self.seqs - 1))
        with Collector(self.stream, self.log, clock=newest.timestamp) as collector:
            assert [one for step in collector.run() for one in step.refused] == []

    def read(self, after: int) -> Sequence[Event]:
        reads = [SCHEMA.empty_table()]
        at = Position(after)
        while len(rows := self.log.tail(Positions({0: at}), 5)):
            reads.append(rows)
            at = ends(rows)[0]
        return [
            Event(row["kind"], row["object"], seq=row["seq"], range=row["range"], number=row["version"])
            if row["kind"] != "tombstone"
            else Event("tombstone", seq=row["seq"], range=row["range"])
            for row in pa.concat_tables(reads).to_pylist()
        ]


class WalkRealLog(WalkInMemory):
    """Of a log and a collector; files are rewritten, indexes lost, and readers opened anew in between."""

    def begin(self) -> RealLog:  # type: ignore[override]
        self.folder = Path(tempfile.mkdtemp())
        self.real = RealLog(self.folder / "log", self.collect_by)
        return self.real

    @rule()
    def compact(self) -> None:
        self.real.log.compact()

    @rule()
    def open_anew(self) -> None:
        self.real.log.close()
        self.real.log = DeltaLog.open(str(self.folder / "log"), self.real.stream)

    @rule(really=st.sampled_from([True, False, False, False]))
    def lose_the_index(self, really: bool) -> None:
        if really:
            shutil.rmtree(self.real.log.collection_folder, ignore_errors=True)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.real.log.close()
            shutil.rmtree(self.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "collect",
    [
        {"events": True},
        {"latest_per_key": True, "events": True},
        {"temporary_keys": True, "events": True},
        {"latest_per_key": True, "temporary_keys": True, "keep_last": KEEP, "events": True},
        {"max_age": f"PT{KEEP}S", "events": True},
    ],
    ids=" ".join,
)
def test_each_combination_of_policies_keeps_the_promises_on_a_real_log(collect: dict[str, Any]) -> None:
    class This(WalkRealLog):
        collect_by = collect
        explicit = "events" in collect
        deletes = True

    run_state_machine_as_test(This, settings=settings(max_examples=12, stateful_step_count=30, deadline=None))
