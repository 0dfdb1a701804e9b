"""Datamarkers: the position up to which a flow's subscriber has acknowledged, kept in ZooKeeper."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidPosition
from tidings.positions import Position


@dataclass(frozen=True, slots=True)
class Datamarker:
    """All updates of the flow up to `position` were processed; written in this epoch, at this time."""

    position: Position
    epoch: int
    time: dt.datetime

    @classmethod
    def now(cls, position: Position, epoch: int) -> Datamarker:
        """A marker of this moment."""
        return cls(position, epoch, dt.datetime.now(dt.UTC))

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper."""
        return {"position": self.position.to_json(), "epoch": self.epoch, "time": self.time.isoformat()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Datamarker:
        """The marker that `to_json` wrote."""
        try:
            time = dt.datetime.fromisoformat(value["time"])
            return cls(Position.from_json(value["position"]), int(value["epoch"]), time)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InvalidPosition(f"{str(value)[:200]} is no datamarker") from None
