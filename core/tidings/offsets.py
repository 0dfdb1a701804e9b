"""Spark's offsets in a stream: where a query stands, and in which log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidPosition
from tidings.positions import Positions

LOG = "log"  # beside the shards, which are numbers


@dataclass(frozen=True, slots=True)
class Offset:
    """Positions, and the identity of the log that they are in; None if that cannot be told, or was not said.

    >>> Offset.from_json({"0": 22, "1": -1, "log": "7d0c"})
    Offset(positions=Positions({"0": 22, "1": -1}), log='7d0c')
    """

    positions: Positions
    log: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {**self.positions.to_json(), **({} if self.log is None else {LOG: self.log})}

    @classmethod
    def from_json(cls, value: Any) -> Offset:
        """The offset that `to_json` wrote."""
        if not isinstance(value, Mapping):
            raise InvalidPosition(f"{value!r} is no offset in a stream")
        log = value.get(LOG)
        positions = Positions.from_json({shard: at for shard, at in value.items() if shard != LOG})
        return cls(positions, None if log is None else str(log))

    @classmethod
    def parse(cls, text: str) -> Offset:
        """The offset in a text of JSON."""
        try:
            return cls.from_json(json.loads(text))
        except ValueError:
            raise InvalidPosition(f"{text[:100]!r} is no offset in a stream") from None
