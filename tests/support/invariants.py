"""What must hold of everything that the recorders of one application wrote down, whatever happened to whom.

S: what was delivered was published. D: what was published, and passes the filter, was delivered. O: in order within a
shard; a repeat only from an acknowledged position on, after a new notice; nothing is skipped, not even for a while. F:
epochs never go back, and no two recorders process one shard at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

Row = dict[str, Any]


@dataclass
class Batch:
    """Rows of one shard that a recorder was given at once, and when it was busy with them."""

    recorder: str
    epoch: int
    shard: int
    begin: float
    end: float
    seqs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """A line of a recorder's file that is no row; `numbers` are its last fields."""

    recorder: str
    kind: str
    time: float
    shard: int
    numbers: tuple[int, ...]


@dataclass
class Record:
    """All that the recorders of an application wrote, each in its own order."""

    by_recorder: dict[str, list[Batch | Event]]
    rows: list[tuple[int, int, str, str]]

    @property
    def batches(self) -> list[Batch]:
        return [one for lines in self.by_recorder.values() for one in lines if isinstance(one, Batch)]

    def events(self, kind: str) -> list[Event]:
        found = [one for lines in self.by_recorder.values() for one in lines if isinstance(one, Event)]
        return sorted((one for one in found if one.kind == kind), key=lambda one: one.time)

    def seen(self) -> set[tuple[int, int]]:
        """Shard and seq of all rows that were delivered to anyone."""
        return {(shard, seq) for shard, seq, _, _ in self.rows}


def read(files: Iterable[Path]) -> Record:
    """The recorders' files; the name of a file is its recorder's."""
    by_recorder: dict[str, list[Batch | Event]] = {}
    rows = []
    for path in files:
        lines = by_recorder[path.stem] = []
        batch: Batch | None = None
        for line in path.read_text().split("\n")[:-1] if path.exists() else []:
            kind, when, *fields = line.split(" ")
            time = float(when)
            if kind == "row":
                epoch, shard, seq = map(int, fields[:3])
                rows.append((shard, seq, fields[3], fields[4]))
                if batch is None or (batch.epoch, batch.shard, batch.begin) != (epoch, shard, time):
                    batch = Batch(path.stem, epoch, shard, time, time)
                    lines.append(batch)
                batch.seqs.append(seq)
            elif kind == "end":
                assert batch is not None
                batch.end, batch = time, None
            else:
                shard = int(fields[1] if kind == "token" else fields[0])
                numbers = (int(fields[2]),) if kind == "token" else tuple(map(int, fields[1:]))
                lines.append(Event(path.stem, kind, time, shard, numbers))
    return Record(by_recorder, rows)


def check(
    record: Record, published: pa.Table, *, passes: Callable[[Row], bool] = lambda row: True, complete: bool = True
) -> None:
    """Raise AssertionError, with what broke which invariant, unless S, D, O and F hold.

    `published` is all that the log ever held. `complete` is False for a record that ends before its flows are done.
    """
    rows = published.select(["shard", "seq", "object", "version", "attributes"]).to_pylist()
    for row in rows:
        row["attributes"] = dict(row["attributes"] or ())
    truth = {(row["shard"], row["seq"]): (row["object"], str(row["version"])) for row in rows}
    for shard, seq, name, version in record.rows:
        assert truth.get((shard, seq)) == (name, version), f"S: {shard}/{seq} was never published as {name} {version}"

    wanted: dict[int, list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seq"]):
        if passes(row):
            wanted[row["shard"]].append(row["seq"])
    lost = {(e.shard, seq) for e in record.events("loss") for seq in range(e.numbers[0], e.numbers[1] + 1)}
    seen = record.seen()
    for shard, seqs in wanted.items():
        extra = {seq for at, seq in seen if at == shard} - set(seqs)
        assert not extra, f"the filter keeps {sorted(extra)[:9]} of shard {shard} back, and they were delivered"
        missing = [seq for seq in seqs if (shard, seq) not in seen and (shard, seq) not in lost]
        assert not complete or not missing, f"D: {len(missing)} of shard {shard} are missing: {missing[:9]}"
    for shard in wanted.keys() | {shard for shard, _ in seen}:
        _check_order(record, shard, wanted[shard])
        _check_epochs(record, shard)


def _check_order(record: Record, shard: int, wanted: list[int]) -> None:
    everything = [
        (one.begin if isinstance(one, Batch) else one.time, order, one)
        for lines in record.by_recorder.values()
        for order, one in enumerate(lines)
        if one.shard == shard
    ]
    everything.sort(key=lambda item: item[:2])
    delivered = 0  # how many of the wanted were delivered to anyone, from the first on, without a hole
    restarts = {0}  # how many of the wanted lie before each position that a flow may start from
    standing: dict[str, int | None] = {}
    for _, _, one in everything:
        here = f"recorder {one.recorder}, shard {shard}"
        if isinstance(one, Event):
            if one.kind == "notice":
                standing[one.recorder] = None
            elif one.kind == "loss":
                first, last = one.numbers
                before = bisect_right(wanted, first - 1)
                assert delivered >= before, f"O: {here} loses {first} to {last} before all up to there was delivered"
                delivered = max(delivered, bisect_right(wanted, last))
                standing[one.recorder] = bisect_right(wanted, last)
            elif one.kind == "token":
                upto = bisect_right(wanted, one.numbers[0])
                assert upto <= delivered, f"O: {here} acknowledges {one.numbers[0]} without all that comes before it"
                stand = standing.get(one.recorder)
                assert stand in (None, upto), f"O: {here} stands at {stand}, and acknowledges {upto}"
                restarts.add(upto)
            continue
        assert one.recorder in standing, f"O: {here} has rows without a notice"
        for seq in one.seqs:
            at = bisect_right(wanted, seq) - 1
            stand = standing[one.recorder]
            if stand is None:
                assert at in restarts, f"O: {here} begins at {seq}, which follows no acknowledged position"
            else:
                assert at == stand, f"O: {here} has {seq} after {wanted[stand - 1]}"
            assert at <= delivered, f"O: {here} has {seq}, and nobody had {wanted[delivered]}"
            standing[one.recorder] = at + 1
            delivered = max(delivered, at + 1)


def _check_epochs(record: Record, shard: int) -> None:
    batches = sorted((one for one in record.batches if one.shard == shard), key=lambda one: one.begin)
    for i, one in enumerate(batches[1:]):
        before = batches[i]
        assert one.epoch >= before.epoch, f"F: shard {shard} has epoch {one.epoch} after {before.epoch}"
    busy: Batch | None = None
    for one in batches:
        if busy is not None and one.recorder != busy.recorder:
            together = f"{busy.recorder} and {one.recorder}"
            assert one.begin >= busy.end, f"F: {together} are busy with shard {shard} at once"
        if busy is None or one.end >= busy.end:
            busy = one
