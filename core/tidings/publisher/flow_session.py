"""One flow on its way from the log to its subscriber: where it stands, and what may be done with it next.

```
IDLE --open--> OPENING --opened--> OPEN --token--> CLOSING --ack--> CLOSED_OFF --closed--> IDLE
                                     \\--parked--> PARKED
```

A flow whose connection breaks is IDLE again, and stands at its datamarker. It is opened again after a pause that grows.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from tidings.applications import Application
from tidings.filters import Filter
from tidings.flows import Flow
from tidings.positions import Position
from tidings.publisher.caravans import Caravan
from tidings.wire.connection import Connection
from tidings.wire.protocol import Message

PAUSE = 0.1  # seconds before a flow that failed is opened again; doubled with each further failure
LASTING = 3  # failures in a row that operators should know of


class State(enum.Enum):
    """What a flow is doing."""

    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED_OFF = "closed off"
    PARKED = "parked"


@dataclass(eq=False)
class Sending:
    """A flow that this publisher owns. `lock` guards it: the one that all flows of its stream share."""

    lock: threading.RLock
    flow: Flow
    epoch: int
    application: Application
    filter: Filter
    marker: Position
    """What is acknowledged and written: where the flow starts again after a fault."""
    sent: Position = field(init=False)
    """Up to where updates were sent, or left out by the filter."""
    state: State = State.IDLE
    turn: int = 0
    """How often the flow was opened in this epoch; answers to an earlier opening are of no interest."""
    connection: Connection | None = None
    subscriber: str | None = None
    """The holder, as ZooKeeper has it."""
    assigned: str | None = None
    """The holder that was written in this epoch."""
    bound: bool = False
    """Whether the holder may have been sent something: then nobody else gets the flow until it has let go."""
    passed_over: int = 0
    """Updates that a realtime application missed while nobody sent the flow, and has yet to be told of."""
    caravan: Caravan | None = None
    """On which the flow rides; none while it has no room for more, or has just been opened."""
    in_flight: deque[tuple[Position, int]] = field(default_factory=deque)
    bytes_in_flight: int = 0
    tokens: deque[Position] = field(default_factory=deque)
    """What the subscriber was asked to acknowledge, and has not yet."""
    token_time: float = 0.0
    since: float = field(default_factory=time.monotonic)
    """When the state was entered, for patience to run out."""
    leaving: bool = False
    """Whether the ownership is to be released once the flow is closed."""
    failures: int = 0
    """How often in a row the flow could not be opened, or broke off before anything was processed."""
    failing_since: float = 0.0
    reason: str = ""
    """Why the flow failed, or is parked."""
    lost: str = ""
    """Which updates the subscriber was told to be lost, if any were while it has had the flow."""
    told: str = ""
    """The reason as operators see it in ZooKeeper."""

    def __post_init__(self) -> None:
        self.sent = self.marker

    @property
    def shard(self) -> int:
        """The flow's shard."""
        return self.flow.shard

    def enter(self, state: State) -> None:
        """Begin to do something else."""
        self.state = state
        self.since = time.monotonic()

    def message(self, kind: str, **more: object) -> Message:
        """A message about this flow."""
        era = {"epoch": self.epoch, "turn": self.turn}
        return {"t": kind, "stream": self.flow.stream, "shard": self.flow.shard, **era, **more}

    def fail(self, reason: str) -> None:
        """Give up this opening, for another one later."""
        self.reason = reason[:500]
        self.failing_since = self.failing_since if self.failures else time.monotonic()
        self.failures += 1
        self.reset()

    def rested(self, longest: float) -> bool:
        """Whether a flow that failed may be tried again; `longest` seconds of a pause are enough."""
        pause = min(longest, PAUSE * 2 ** min(self.failures - 1, 16)) if self.failures else 0.0
        return time.monotonic() - self.since >= pause

    @property
    def trouble(self) -> str:
        """What operators should know of: why the flow is parked, or has failed again and again."""
        lasting = self.failures >= LASTING and self.state is not State.OPEN
        return self.reason if self.state is State.PARKED or lasting else ""

    def reset(self) -> None:
        """The connection is gone, and with it all that was not acknowledged."""
        self.connection = None
        self.sent = self.marker
        self.tokens.clear()
        self.caravan = None
        self.in_flight.clear()
        self.bytes_in_flight = 0
        self.enter(State.IDLE)

    def done(self, position: Position) -> bool:
        """The subscriber has processed all up to here; False if it was not sent that."""
        if position > self.sent:
            return False
        while self.in_flight and self.in_flight[0][0] <= position:
            self.bytes_in_flight -= self.in_flight.popleft()[1]
        return True

    def send_token(self) -> None:
        """Ask for an acknowledgement of all that was sent."""
        assert self.connection is not None
        self.tokens.append(self.sent)
        self.token_time = time.monotonic()
        self.connection.send(self.message("token", position=[self.sent.seq, self.sent.index]))

    def send_loss(self, first: Position, last: Position) -> None:
        """Tell the subscriber that the log does not hold these updates."""
        assert self.connection is not None
        self.connection.send(self.message("loss", first=[first.seq, first.index], last=[last.seq, last.index]))
