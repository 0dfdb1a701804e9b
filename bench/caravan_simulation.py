"""Caravans without a log: policies on the same traces, step by step, with the code that publishers use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidings.allocation_policies import AllocationPolicy, Limits, Rider
from tidings.positions import Position
from tidings.publisher.caravans import Caravan, assign


@dataclass(frozen=True)
class Trace:
    """A backlog of which each caravan may read so many updates a second, and how many applications are behind."""

    rows: int
    rate: float
    applications: int = 10

    @property
    def starts(self) -> list[int]:
        """Where the applications are: the first wants all of the log, the last one part of it."""
        return [number * self.rows // self.applications for number in range(self.applications)]

    @property
    def patience(self) -> float:
        """Seconds in which it must be over."""
        return 30 + 5 * self.rows / self.rate


class Outcome(NamedTuple):
    """What catching up took: how many times the log was read, and the seconds that an update waited on average."""

    amplification: float
    latency: float


@dataclass(eq=False)
class Flow:
    """A flow, and how long it had to wait for its updates, in all."""

    name: str
    sent: Position
    caravan: Caravan | None = None
    shard: int = 0
    updates: int = 0
    waited: float = 0.0


@dataclass
class World:
    """A log that grows by `growth` updates a second, and caravans that read `speed` each, or less if limits say so."""

    policy: AllocationPolicy
    limits: Limits
    flows: list[Flow]
    head: int
    growth: float = 0.0
    speed: float = 100_000.0
    now: float = 0.0
    read: int = 0
    caravans: list[Caravan] = field(default_factory=list)
    made: int = 0

    def allocate(self) -> None:
        """Let flows ride as the policy says."""
        riders = {Rider(flow.name, self.head - flow.sent.seq): flow for flow in self.flows}
        groups = [[riders[rider] for rider in group] for group in self.policy(list(riders), self.limits)]
        kept = []
        for caravan, group in assign(groups, self.caravans):
            chosen = caravan or self._new(group)
            kept.append(chosen)
            for flow in group:
                flow.caravan = chosen
        self.caravans = kept

    def step(self, seconds: float) -> None:
        """Let time pass: the log grows, and caravans read."""
        self.now += seconds
        self.head += int(self.growth * seconds)
        lead = max(self.caravans, key=lambda one: one.at[0], default=None)
        leading, trailing = self.limits.allowances(self.speed, len(self.caravans) - 1)
        for caravan in self.caravans:
            start = caravan.at[0].seq
            speed = min(self.speed, leading if caravan is lead else trailing)
            end = min(self.head, start + int(speed * seconds))
            self.read += end - start
            caravan.at[0] = Position(end)
            for flow in self.flows:
                if flow.caravan is caravan and flow.sent.seq < end:
                    count = end - flow.sent.seq
                    # Updates before the head of the beginning were committed then; those after it as it grew.
                    flow.waited += count * self.now
                    flow.updates += count
                    flow.sent = Position(end)

    def settle(self, seconds: float, step: float = 0.25) -> None:
        """Let so much time pass, with an allocation before each step."""
        until = self.now + seconds
        while self.now < until and any(flow.sent.seq < self.head for flow in self.flows):
            self.allocate()
            self.step(step)

    @property
    def latency(self) -> float:
        """Seconds that an update waited, averaged over the updates of a flow and then over flows."""
        waits = [flow.waited / flow.updates for flow in self.flows if flow.updates]
        return sum(waits) / max(1, len(waits))

    def _new(self, group: Sequence[Any]) -> Caravan:
        self.made += 1
        rear = min(flow.sent for flow in group)
        return Caravan(self.made, None, ordered=True, at={0: rear})  # type: ignore[arg-type]  # it reads nothing


def spread(count: int, rows: int) -> list[Flow]:
    """Flows that are behind by equal parts of the log: the first by all of it, the last by one part."""
    return [Flow(f"application-{number}", Position(number * rows // count)) for number in range(count)]


def simulate(policy: AllocationPolicy, caravans: int, trace: Trace) -> Outcome:
    """What it takes to catch up with so many caravans at most."""
    limits = Limits(caravans=caravans, rate=trace.rate)
    world = World(policy, limits, spread(trace.applications, trace.rows), trace.rows, speed=trace.rate)
    world.settle(10_000)
    return Outcome(world.read / trace.rows, world.latency)
