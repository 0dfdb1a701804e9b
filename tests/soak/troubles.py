"""What is done to the world: each fault begins, and is healed by itself when its time is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.soak import plan
from tests.soak.plan import Fault
from tests.soak.world import World

FILLER_BYTES = (2**28, 2**20, 2**12)  # by which a disk is filled, as long as there is room


class Troubles:
    """The faults of a plan, done to a world as time goes by."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._planned: list[Fault] = []
        self._begun: list[Fault] = []

    def targets(self, kinds: frozenset[str]) -> dict[str, list[str]]:
        """To whom each of these kinds of fault can happen here."""
        world, members = self._world, list(self._world.members)
        found = {
            plan.KILL: members,
            plan.STOP: members,
            plan.CUT: list(world.proxies),
            plan.ONE_WAY: list(world.proxies),
            plan.ZOOKEEPER: ["zookeeper"],
            plan.DATABASE: list(world.databases),
            plan.DISK: ["disk"] if world.disk else [],
            plan.CLOCK: [name for name, one in world.members.items() if one.has_clock] if world.clocks else [],
        }
        return {kind: targets for kind, targets in found.items() if kind in kinds}

    def begin(self, planned: list[Fault]) -> None:
        self._planned = list(planned)

    def step(self, passed: float) -> list[Fault]:
        """Begin and heal what is due; the faults that have begun."""
        for fault in [one for one in self._begun if one.at + one.lasting <= passed]:
            self._heal(fault)
        due = [one for one in self._planned if one.at <= passed]
        for fault in due:
            self._planned.remove(fault)
            self._begun.append(fault)
            self._doing(fault)[0]()
        return due

    def heal_all(self) -> None:
        self._planned.clear()
        for fault in list(self._begun):
            self._heal(fault)

    @property
    def under_way(self) -> list[Fault]:
        return list(self._begun)

    def _heal(self, fault: Fault) -> None:
        self._begun.remove(fault)
        self._doing(fault)[1]()

    def _doing(self, fault: Fault) -> tuple[Callable[[], object], Callable[[], object]]:
        """How the fault is begun, and how it is healed."""
        world, name = self._world, fault.target
        if fault.kind in (plan.KILL, plan.STOP):
            member = world.members[name]
            return (member.kill, member.start) if fault.kind == plan.KILL else (member.pause, member.resume)
        if fault.kind in (plan.CUT, plan.ONE_WAY):
            proxy = world.proxies[name]
            return (proxy.cut if fault.kind == plan.CUT else proxy.mute), proxy.heal
        if fault.kind == plan.ZOOKEEPER:
            return world.zookeeper.stop, world.zookeeper.start
        if fault.kind == plan.DATABASE:
            server = world.databases[name]
            return (server.kill if int(fault.at) % 2 else server.stop), server.start
        if fault.kind == plan.DISK:
            return self._fill, self._free
        assert world.clocks
        clocks = world.clocks
        return (lambda: clocks.set(name, fault.shift)), (lambda: clocks.set(name, 0.0))

    @property
    def _filler(self) -> Path:
        return self._world.streams / "filler"

    def _fill(self) -> None:
        with open(self._filler, "wb") as file:
            for size in FILLER_BYTES:
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError:
                    continue

    def _free(self) -> None:
        self._filler.unlink(missing_ok=True)
