"""The ownership map: which publisher owns which shard of which application, and what has changed in it since.

Publishers keep their place in the list for as long as the layout is the same, those that are gone too, so that a
failover changes only the shards that it concerns. Each has a colour, which all pages take from here. It goes by the
name, so that it is mostly the same after a restart of the console; no two that run share one while there are enough.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidings.console.cluster_view import LETTERS, ClusterView

NOBODY = -1
MAX_GONE = 50  # publishers that are gone, and still have a place in the list
COLOURS = 8  # of the pages' palette; from there on, colours are told apart by the shape of what has them

Row = tuple[str, str]


@dataclass(frozen=True)
class FlowMap:
    """Who owns what. `layout` changes when rows or the places of publishers do; else publishers are only added."""

    version: int
    layout: int
    publishers: tuple[str, ...]
    states: tuple[str, ...]
    colours: tuple[int | None, ...]
    """Of each publisher; None if it is gone, and another has got its colour."""
    rows: tuple[Row, ...]
    owners: tuple[tuple[int, ...], ...]
    letters: tuple[str, ...]

    def to_json(self, application: str | None = None, stream: str | None = None) -> dict[str, Any]:
        """The rows of one application or stream, or all; `row` is the number that events call it by."""
        return {
            "version": self.version,
            "layout": self.layout,
            "publishers": self._publishers(),
            "rows": [
                {"row": number, "application": row[0], "stream": row[1], "owners": list(owners), "states": letters}
                for number, (row, owners, letters) in enumerate(zip(self.rows, self.owners, self.letters, strict=True))
                if application in (None, row[0]) and stream in (None, row[1])
            ],
        }

    def changes(self, since: FlowMap) -> dict[str, Any]:
        """What has changed since another map of this layout; of another layout nothing can be told."""
        found: list[list[int | str]] = []
        if since.layout == self.layout:
            rows = zip(since.owners, self.owners, since.letters, self.letters, strict=True)
            for number, (before, after, old, new) in enumerate(rows):
                if before != after or old != new:
                    found += [
                        [number, shard, after[shard], new[shard]]
                        for shard in range(len(after))
                        if before[shard] != after[shard] or old[shard] != new[shard]
                    ]
        return {
            "version": self.version,
            "since": since.version if since.layout == self.layout else self.version,
            "layout": self.layout,
            "publishers": self._publishers(),
            "changes": found,
            "rows": len(self.rows),
        }

    def _publishers(self) -> list[dict[str, Any]]:
        told = zip(self.publishers, self.states, self.colours, strict=True)
        return [{"name": name, "state": state, "colour": colour} for name, state, colour in told]


NO_MAP = FlowMap(0, 0, (), (), (), (), (), ())


def next_map(view: ClusterView, before: FlowMap) -> FlowMap:
    """The map of this moment, laid out as the one before as far as that can be."""
    cells: dict[Row, list[tuple[str | None, str]]] = {}
    for one in view.flows:  # in the order of shards
        row = cells.setdefault((one.flow.application, one.flow.stream), [])
        row.append((one.owner, LETTERS[one.state]))
    owners = {owner for row in cells.values() for owner, _ in row if owner is not None}
    there = owners | view.nodes.publishers.keys()
    known = list(before.publishers)
    same_rows = tuple(cells) == before.rows and all(
        len(row) == len(letters) for row, letters in zip(cells.values(), before.letters, strict=True)
    )
    gone = [name for name in known if name not in there]
    layout = before.layout
    if not same_rows or len(gone) > MAX_GONE:
        layout += 1
        known = [name for name in known if name in there or len(gone) <= MAX_GONE]
    known += sorted(there - set(known))
    at = {name: place for place, name in enumerate(known)}
    given = dict(zip(before.publishers, before.colours, strict=True))
    colours = next_colours({name: given.get(name) for name in known}, there)
    return FlowMap(
        view.version,
        layout,
        tuple(known),
        tuple(publisher_state(view, name) for name in known),
        tuple(colours[name] for name in known),
        tuple(cells),
        tuple(tuple(NOBODY if owner is None else at[owner] for owner, _ in row) for row in cells.values()),
        tuple("".join(letter for _, letter in row) for row in cells.values()),
    )


def next_colours(given: Mapping[str, int | None], there: Collection[str]) -> dict[str, int | None]:
    """The colours of publishers, of which those that are `there` have to have one; whoever has one keeps it.

    One that is gone keeps it, too, until all colours are given out and another needs it.

    >>> next_colours({"east": None, "west": None}, {"east", "west"})
    {'east': 2, 'west': 3}
    >>> next_colours({"east": 2, "west": 3, "north": None}, {"north"})
    {'east': 2, 'west': 3, 'north': 4}
    """
    colours = dict(given)
    for name in sorted(name for name in there if colours[name] is None):
        first = zlib.crc32(name.encode()) % COLOURS
        wanted = [(first + step) % COLOURS for step in range(COLOURS)]
        used = set(colours.values())
        taken = {colours[other] for other in there}
        colour = next((one for one in wanted if one not in used), None)
        turn = 0
        while colour is None:
            colour = next((one + turn for one in wanted if one + turn not in taken), None)
            turn += COLOURS
        for other, its in colours.items():
            if its == colour:
                colours[other] = None
        colours[name] = colour
    return colours


def publisher_state(view: ClusterView, name: str) -> str:
    """Whether a publisher runs, gives its flows away, or is gone."""
    record = view.nodes.publishers.get(name)
    if record is None:
        return "gone"
    return "draining" if record.get("draining") or name in view.nodes.drained else "running"
