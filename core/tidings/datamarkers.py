"""Datamarkers: the position up to which a flow's subscriber has acknowledged, kept in ZooKeeper."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from tidings.errors import InvalidPosition
from tidings.positions import Position


@dataclass(frozen=True, slots=True)
class Datamarker:
    """All updates of the flow up to `position` were processed; written in this epoch, at this time.

    `log` says in which log that position is, if it can be told: a log that is made anew has the same ones.
    """

    position: Position
    epoch: int
    time: dt.datetime
    log: str | None = None

    @classmethod
    def now(cls, position: Position, epoch: int, log: str | None = None) -> Datamarker:
        """A marker of this moment."""
        return cls(position, epoch, dt.datetime.now(dt.UTC), log)

    def stands_in(self, log: str | None) -> bool:
        """Whether its position is one in the log of this identity, as far as that is known."""
        return None in (log, self.log) or log == self.log

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper."""
        value = {"position": self.position.to_json(), "epoch": self.epoch, "time": self.time.isoformat()}
        return value if self.log is None else {**value, "log": self.log}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Datamarker:
        """The marker that `to_json` wrote."""
        try:
            time = dt.datetime.fromisoformat(value["time"])
            log = None if value.get("log") is None else str(value["log"])
            return cls(Position.from_json(value["position"]), int(value["epoch"]), time, log)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            raise InvalidPosition(f"{str(value)[:200]} is no datamarker") from None
