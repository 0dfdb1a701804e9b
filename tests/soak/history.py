"""All that is known from outside: what was written, what subscribers got, what clients were told."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.soak.journal import Line

Place = tuple[int, int]
"""A position, `seq` and `index`."""


@dataclass(slots=True)
class Write:
    """One change of one object; `acknowledged` is when, or None if nobody knows whether it was made."""

    stream: str
    object: str
    number: int
    digest: str | None
    tried: float
    acknowledged: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """An update that a subscriber got."""

    time: float
    recorder: str
    stream: str
    shard: int
    place: Place
    object: str
    number: int | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """A flow begins at a subscriber; or `lost` says what it was told is gone."""

    time: float
    recorder: str
    stream: str
    shard: int
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What a client heard of an object; without a number it was told to fetch it, without a name to fetch all."""

    time: float
    client: int
    object: str | None
    number: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Audience:
    """An application that gets the writes of `source` by a stream: all, or those whose number `step` divides."""

    application: str
    stream: str
    source: str
    step: int = 1

    def wants(self, write: Write) -> bool:
        return write.stream == self.source and write.number % self.step == 0


@dataclass
class History:
    """Grows by the lines of journals."""

    writes: dict[tuple[str, str, int], Write] = field(default_factory=dict)
    heard: dict[str, list[Row | Notice]] = field(default_factory=lambda: defaultdict(list))
    wanted: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    told: dict[int, list[Told]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: list[Write] = field(default_factory=list)
    first: dict[tuple[str, str, str, int | None], float] = field(default_factory=dict)
    """When an application first got a write: by application, stream, object and number."""
    written_bytes: int = 0

    def add(self, line: Line) -> None:
        kind, time, *fields = line
        if kind == "try":
            stream, name, number, digest, size = fields
            self.writes[stream, name, number] = Write(stream, name, number, digest, time)
            self.written_bytes += size
        elif kind == "ack":
            stream, name, number = fields
            write = self.writes[stream, name, number]
            write.acknowledged = time
            self.acknowledged.append(write)
        elif kind == "row":
            application, recorder, stream, shard, seq, index, name, number, digest = fields
            self.heard[application].append(Row(time, recorder, stream, shard, (seq, index), name, number, digest))
            self.first.setdefault((application, stream, name, number), time)
        elif kind in ("notice", "loss"):
            application, recorder, stream, shard, *lost = fields
            self.heard[application].append(Notice(time, recorder, stream, shard, *lost))
        elif kind == "wants":
            client, names = fields
            self.wanted[client].update(names)
        else:
            self.told[fields[0]].append(Told(time, *fields))
