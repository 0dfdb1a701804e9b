"""What must hold of a history, whatever happened to whom. Pure: a history in, findings out.

Lost: an acknowledged write that an application never got. Invented: what nobody wrote, or not so. Repeated: one write
at two positions; a subscriber may well get one position twice. Order: within a flow positions grow, but for what is
repeated after a notice, and none is skipped, not even for a while. Stale: a client that does not know the latest
version.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.soak.history import Audience, History, Notice, Place, Row, Told, Write

LOST, INVENTED, REPEATED, ORDER, STALE = KINDS = ("lost", "invented", "repeated", "order", "stale")


@dataclass(frozen=True)
class Finding:
    """Something that must not be."""

    kind: str
    text: str


def check(history: History, audiences: Sequence[Audience], clients_of: str | None = None) -> list[Finding]:
    """All that is wrong; `clients_of` is the stream whose objects clients register for."""
    found: list[Finding] = []
    for audience in audiences:
        heard = [one for one in history.heard.get(audience.application, []) if one.stream == audience.stream]
        found += missing(history, audience)
        for one in heard:
            if isinstance(one, Notice) and one.lost is not None:
                found.append(Finding(LOST, f"{_of(audience)}: {one.recorder} was told of a loss, {one.lost}"))
        found += _contents(history, audience, [one for one in heard if isinstance(one, Row)])
        found += _order(audience, heard)
    if clients_of is not None:
        found += stale(history, clients_of)
        found += _client_contents(history, clients_of)
    return found


def missing(history: History, audience: Audience) -> Iterator[Finding]:
    """The acknowledged writes that have not come to an application."""
    place = (audience.application, audience.stream)
    for write in history.acknowledged:
        if audience.wants(write) and (*place, write.object, write.number) not in history.first:
            yield Finding(LOST, f"{_of(audience)} never got {_name(write.object)} {write.number}")


def _contents(history: History, audience: Audience, rows: Sequence[Row]) -> Iterator[Finding]:
    at: dict[tuple[int, Place], Row] = {}
    places: dict[tuple[str, int | None], tuple[int, Place]] = {}
    for row in rows:
        what = f"{_of(audience)}: {row.recorder} got {_name(row.object)} {row.number}"
        write = None if row.number is None else history.writes.get((audience.source, row.object, row.number))
        if write is None or not audience.wants(write):
            yield Finding(INVENTED, f"{what}, which nobody wrote")
        elif write.digest != row.digest:
            yield Finding(INVENTED, f"{what}, with another payload than was written")
        where = (row.shard, row.place)
        other = at.setdefault(where, row)
        if (other.object, other.number) != (row.object, row.number):
            yield Finding(INVENTED, f"{what} at {where}, where {_name(other.object)} {other.number} was before")
        if places.setdefault((row.object, row.number), where) != where:
            yield Finding(REPEATED, f"{what} at {where}, and at {places[row.object, row.number]} before")


def _order(audience: Audience, heard: Sequence[Row | Notice]) -> Iterator[Finding]:
    by_shard: dict[int, list[Row | Notice]] = defaultdict(list)
    for one in sorted(heard, key=lambda one: one.time):  # a recorder's own order stays: sorting is stable
        by_shard[one.shard].append(one)
    for shard, events in by_shard.items():
        yield from _order_in_shard(f"{_of(audience)}, shard {shard}", events)
    numbers: dict[str, int] = {}
    first: set[tuple[str, int | None]] = set()
    for row in sorted((one for one in heard if isinstance(one, Row)), key=lambda one: one.time):
        if (row.object, row.number) not in first and row.number is not None:
            first.add((row.object, row.number))
            if row.number < numbers.get(row.object, row.number):
                yield Finding(
                    ORDER, f"{_of(audience)} got {_name(row.object)} {row.number} after {numbers[row.object]}"
                )
            numbers[row.object] = max(row.number, numbers.get(row.object, row.number))


def _order_in_shard(where: str, events: Iterable[Row | Notice]) -> Iterator[Finding]:
    events = list(events)
    wanted = sorted({one.place for one in events if isinstance(one, Row)})
    delivered = 0  # how many of them somebody had, from the first on, without a hole
    standing: dict[str, int] = {}  # the number of the one that comes next at a recorder
    for one in events:
        if isinstance(one, Notice):
            standing.pop(one.recorder, None)
            continue
        number = bisect_left(wanted, one.place)
        stand = standing.get(one.recorder)
        if stand is not None and number != stand:
            yield Finding(ORDER, f"{where}: {one.recorder} has {one.place} after {wanted[stand - 1]}")
        elif number > delivered:
            yield Finding(ORDER, f"{where}: {one.recorder} has {one.place}, and nobody had {wanted[delivered]}")
        standing[one.recorder] = number + 1
        delivered = max(delivered, number + 1)


def stale(history: History, stream: str) -> Iterator[Finding]:
    """The clients that do not know the latest version of an object that they want."""
    latest: dict[str, Write] = {}
    for write in history.acknowledged:
        if write.stream == stream and write.number >= latest.get(write.object, write).number:
            latest[write.object] = write
    for client, names in history.wanted.items():
        told = history.told.get(client, [])
        for name in names & latest.keys():
            if not any(knows(one, latest[name]) for one in told):
                yield Finding(STALE, f"client {client} does not know {_name(name)} {latest[name].number}")


def knows(told: Told, write: Write) -> bool:
    """Whether a client that was told this knows of a write. Who fetches an object finds all that was begun before."""
    if told.object not in (write.object, None):
        return False
    return told.time >= write.tried if told.number is None else told.number >= write.number


def _client_contents(history: History, stream: str) -> Iterator[Finding]:
    for client, told in history.told.items():
        for one in told:
            if one.object is None or one.number is None:
                continue
            what = f"client {client} was told of {_name(one.object)} {one.number}"
            write = history.writes.get((stream, one.object, one.number))
            if write is None:
                yield Finding(INVENTED, f"{what}, which nobody wrote")
            elif one.digest is not None and one.digest != write.digest:
                yield Finding(INVENTED, f"{what}, with another payload than was written")
            if one.object not in history.wanted[client]:
                yield Finding(INVENTED, f"{what}, and never wanted to be")


def _of(audience: Audience) -> str:
    return f"{audience.application} of {audience.stream}"


def _name(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:40]}…"
