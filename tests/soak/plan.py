"""Which faults happen when: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KILL, STOP, CUT, ONE_WAY, ZOOKEEPER, DATABASE, DISK, CLOCK = KINDS = (
    "kill",
    "stop",
    "cut",
    "one-way",
    "zookeeper",
    "database",
    "disk",
    "clock",
)
PAUSE_S = 5.0  # between the beginnings of two faults, in the mean
REST_S = 3.0  # in which nothing else happens to a target
LASTING_S = (0.5, 9.0)
SHIFTS_S = (-3 * 86_400.0, -3600.0, -20.0, 20.0, 3600.0, 3 * 86_400.0)

Targets = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and is well again after a while; `shift` is by how many seconds a clock is set."""

    at: float
    lasting: float
    kind: str
    target: str
    shift: float = 0.0

    def __str__(self) -> str:
        by = f" by {self.shift:+,.0f} s" if self.shift else ""
        return f"{self.kind} {self.target}{by} for {self.lasting:.1f} s"


def schedule(seed: int, seconds: float, targets: Targets) -> list[Fault]:
    """Faults of all kinds that have targets, in the order in which they begin; all are over when the time is.

    Kinds take turns, so that a short run has them all; a target has one fault at a time.
    """
    rng = random.Random(f"faults {seed}")
    kinds = [kind for kind in KINDS if targets.get(kind)]
    planned: list[Fault] = []
    free: dict[str, float] = {}
    turn: list[str] = []
    at = rng.expovariate(1 / PAUSE_S)
    while kinds and at < seconds - LASTING_S[0]:
        if not turn:
            turn = rng.sample(kinds, len(kinds))
        kind = turn.pop()
        target = rng.choice(targets[kind])
        lasting = min(rng.uniform(*LASTING_S), seconds - at)
        shift = rng.choice(SHIFTS_S) if kind == CLOCK else 0.0
        if free.get(target, 0.0) <= at:
            planned.append(Fault(at, lasting, kind, target, shift))
            free[target] = at + lasting + REST_S
        at += rng.expovariate(1 / PAUSE_S)
    return planned
