"""Where a reader stands: a `Position` in one shard, `Positions` over all shards of a stream.

A position names an update. A reader that stands at a position has seen that update and all before it, so every read is
*after* a position. `START` is before the first update of any shard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidPosition

MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, order=True, slots=True)
class Position:
    """The place of one update in its shard. Ordered by `seq`, then by `index`.

    >>> Position(7) < Position(7, 1) < Position(8)
    True
    >>> Position(7).before
    Position(seq=7, index=-1)
    """

    seq: int
    index: int = 0

    @property
    def before(self) -> Position:
        """Where a reader stands whose next update is the one at this position."""
        return Position(self.seq, self.index - 1)

    def __str__(self) -> str:
        return f"{self.seq}.{self.index}" if self.index else str(self.seq)

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position in a text, as `str` writes it.

        >>> Position.parse("7"), Position.parse("7.2"), Position.parse("-1") == START
        (Position(seq=7, index=0), Position(seq=7, index=2), True)
        """
        match = re.fullmatch(r"(-?[0-9]{1,19})(?:\.(-?[0-9]{1,10}))?", text.strip())
        if not match:
            raise InvalidPosition(f"{text[:40]!r} is no position: write a number, or SEQ.INDEX")
        return cls.from_json([int(match[1]), int(match[2] or 0)])

    def to_json(self) -> int | list[int]:
        """The number alone when the index is 0, as it is in our own logs."""
        return [self.seq, self.index] if self.index else self.seq

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """The position that `to_json` wrote, or that a person did."""
        match value:
            case int(seq) if not isinstance(value, bool):
                position = cls(seq)
            case [int(seq), int(index)]:
                position = cls(seq, index)
            case _:
                raise InvalidPosition(f"{value!r} is no position: write a number, or [seq, index]")
        if not -1 <= position.seq <= MAX_SEQ or not -1 <= position.index < 2**31:
            raise InvalidPosition(f"{value!r} is no position: seq or index is out of range")
        return position


START = Position(-1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a log holds of one shard: the updates after `floor`, up to and including `head`.

    >>> Bounds(floor=Position(4), head=Position(9)).empty
    False
    """

    floor: Position
    head: Position

    @property
    def empty(self) -> bool:
        """Whether the log holds nothing of this shard."""
        return self.head <= self.floor


class Positions(Mapping[int, Position]):
    """A position for each shard; immutable. A shard that is not named stands at `START`.

    >>> here = Positions({0: Position(4), 1: Position(7, 2)})
    >>> str(here)
    '{"0": 4, "1": [7, 2]}'
    >>> Positions.parse(str(here)) == here
    True
    """

    __slots__ = ("_by_shard",)

    def __init__(self, by_shard: Mapping[int, Position] | None = None) -> None:
        self._by_shard: dict[int, Position] = dict(sorted((by_shard or {}).items()))

    def __getitem__(self, shard: int) -> Position:
        return self._by_shard.get(shard, START)

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_shard)

    def __len__(self) -> int:
        return len(self._by_shard)

    def __contains__(self, shard: object) -> bool:
        return shard in self._by_shard

    def __hash__(self) -> int:
        return hash(tuple(self._by_shard.items()))

    def __str__(self) -> str:
        return json.dumps(self.to_json())

    def __repr__(self) -> str:
        return f"Positions({self})"

    def to_json(self) -> dict[str, int | list[int]]:
        """As JSON writes it: shards are keys, and so text."""
        return {str(shard): position.to_json() for shard, position in self._by_shard.items()}

    @classmethod
    def from_json(cls, value: Any) -> Positions:
        """The positions that `to_json` wrote, or that a person did."""
        if not isinstance(value, Mapping):
            raise InvalidPosition(f'{value!r} is no set of positions: write {{"<shard>": <seq>, ...}}')
        return cls({_shard(shard): Position.from_json(position) for shard, position in value.items()})

    @classmethod
    def parse(cls, text: str) -> Positions:
        """The positions in a text of JSON."""
        try:
            value = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            told = f" ({error})" if text.lstrip().startswith("{") else ""
            raise InvalidPosition(
                f'{text[:100]!r} is no set of positions: write {{"<shard>": <seq>, ...}}{told}'
            ) from None
        return cls.from_json(value)


def _shard(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    if isinstance(value, int) and value >= 0:
        return value
    raise InvalidPosition(f"{str(value)[:40]!r} is no shard: shards are numbered from 0")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a shard is named twice")
    return value
