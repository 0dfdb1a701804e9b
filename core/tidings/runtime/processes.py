"""Processes that are kept running on one machine: what each is, and when one that has ended is started again.

A plugin says by an entry point of the group `tidings.processes` which processes a `tidings.yml` needs beside those of
the core. The entry point names a module, or what looks like one, with two functions:

| function | |
| --- | --- |
| `planned(spec, folder, addresses)` | the processes, as `ProcessPlan`; nothing is touched. `next(addresses)` is where \
one may listen |
| `prepare(spec, cluster, folder)` | makes what they need in the cluster and in the folder, if it is not there |
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0  # what has run for so long, and ends, has not failed again


class Tier(enum.IntEnum):
    """Who needs whom: a tier needs those above it, so it starts after them, and ends before them."""

    PUBLISHERS = 0
    PIPELINES = 1
    EDGE = 2
    """What others connect to: gateways, the console."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A process: a `tidings` command with its arguments."""

    name: str
    arguments: tuple[str, ...]
    tier: Tier
    places: tuple[tuple[str, ...], ...] = ()
    """In the cluster's tree: it is ready once there is something at each. The first may say where it listens."""
    tells: str | None = None
    """A pattern of the line by which it says that it listens, and where: it is ready only then."""


class Restarts:
    """How long to wait before a process that has ended is started again: longer and longer while it keeps failing.

    >>> restarts = Restarts()
    >>> [restarts.pause_s(ran_s=0.5) for _ in range(3)], restarts.in_a_row
    ([1.0, 2.0, 4.0], 3)
    >>> restarts.pause_s(ran_s=3600.0), restarts.in_a_row, restarts.total
    (1.0, 1, 4)
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.total = 0

    @property
    def said(self) -> str:
        """How often it has ended, for people."""
        return f"restart {self.total}" + (f", {self.in_a_row} failures in a row" if self.in_a_row > 1 else "")

    def pause_s(self, ran_s: float) -> float:
        """It has ended after so long."""
        self.in_a_row = 1 if ran_s >= STEADY_S else self.in_a_row + 1
        self.total += 1
        return float(min(FIRST_PAUSE_S * 2 ** min(self.in_a_row - 1, 16), LONGEST_PAUSE_S))
