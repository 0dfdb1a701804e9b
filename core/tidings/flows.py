"""A flow: the updates of one shard of one stream for one application; and where ZooKeeper holds what is known of it.

```
/<root>/flows/<app>/<stream>                     what operators have said of its flows, by shard
/<root>/flows/<app>/<stream>/<shard>/epoch       its data version is the epoch; its data are the last owners
/<root>/flows/<app>/<stream>/<shard>/owner       ephemeral: the publisher that sends the flow
/<root>/flows/<app>/<stream>/<shard>/datamarker  position, epoch, time
/<root>/flows/<app>/<stream>/<shard>/subscriber  which subscriber holds the flow, since which epoch; what is wrong
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tidings.errors import InvalidPosition
from tidings.positions import Position

FlowState = Literal["unassigned", "waiting", "restarting", "running", "paused", "stopped", "failed"]
DRAINS = "drains"
"""Where operators say which publishers are to give their flows away, below the root."""
HISTORY_ENTRIES = 10  # of owners, and of what subscribers met with, that are kept of each flow
MAX_SKIPS = 100  # positions of one flow that may be skipped at a time

NODES = ("epoch", "owner", "datamarker", "subscriber")
"""What every flow has below its place, once it was owned."""


class Flow(NamedTuple):
    """Which flow.

    >>> str(Flow("cache", "contacts", 3))
    'cache/contacts/3'
    """

    application: str
    stream: str
    shard: int

    def __str__(self) -> str:
        return f"{self.application}/{self.stream}/{self.shard}"

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where the flow is in the cluster's tree."""
        return (*self.controls_place, str(self.shard))

    @property
    def controls_place(self) -> tuple[str, str, str]:
        """Where operators' words are, of all flows of its application and stream."""
        return ("flows", self.application, self.stream)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """What operators have said of a flow.

    `pin` is the publisher that is to own it, while that runs. A `paused` flow keeps its owner and its subscriber, and
    nothing is sent; a `stopped` one has no owner. The updates at the positions of `skip` are not sent; these are
    positions in the log of the identity `skip_log`, and mean other updates in one that was made anew since.

    >>> FlowControl.of({"shards": {"3": {"pin": "east-1", "skip": [[7, 2]], "skip_log": "a"}}}, 3).skipped_in("a")
    frozenset({Position(seq=7, index=2)})
    >>> FlowControl.of({"shards": {"3": {"skip": [[7, 2]], "skip_log": "a"}}}, 3).skipped_in("b")
    frozenset()
    """

    pin: str | None = None
    stopped: bool = False
    paused: bool = False
    skip: frozenset[Position] = frozenset()
    skip_log: str | None = None

    def skipped_in(self, log: str | None) -> frozenset[Position]:
        """The positions that are skipped in the log of this identity; None where that is not known."""
        return self.skip if None in (log, self.skip_log) or log == self.skip_log else frozenset()

    @classmethod
    def of(cls, value: Mapping[str, Any] | None, shard: int) -> FlowControl:
        """What is said of a shard by the node of its application and stream; what makes no sense is not said."""
        shards = (value or {}).get("shards")
        said = shards.get(str(shard)) if isinstance(shards, dict) else None
        if not isinstance(said, dict):
            return NO_CONTROL
        pin, skip, log = said.get("pin"), said.get("skip"), said.get("skip_log")
        return cls(
            pin if isinstance(pin, str) else None,
            said.get("stopped") is True,
            said.get("paused") is True,
            _positions(skip) if isinstance(skip, list) else frozenset(),
            log if isinstance(log, str) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """As it is kept in ZooKeeper: every key, None where nothing is said."""
        return {
            "pin": self.pin,
            "stopped": self.stopped or None,
            "paused": self.paused or None,
            "skip": [[one.seq, one.index] for one in sorted(self.skip)] or None,
            "skip_log": self.skip_log if self.skip else None,
        }


NO_CONTROL = FlowControl()


def _positions(values: list[Any]) -> frozenset[Position]:
    found = set()
    for value in values[:MAX_SKIPS]:
        try:
            found.add(Position.from_json(value))
        except InvalidPosition:
            continue  # it would not be sent by any other reading of it either
    return frozenset(found)
