"""What each process uses over time, and whether that is bounded: memory, threads, descriptors; and the disk."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.checker import Finding

MIB = 2**20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
WARM_S = 10.0  # of a process's life that say nothing: it loads what it needs
DRIVER_WARM_S = 90.0  # of one with a Spark session: a JVM takes its time, and pools of threads fill
JUDGED_SAMPLES = 9  # of a life; of shorter ones only the ceiling is known
DISK_BASE_BYTES = 1024 * MIB
DISK_FACTOR = (
    12  # bytes on the disk for each that was written: streams made of streams, and files that are kept for an hour
)

DRIVERS = "driver-of-"
GROWTH = {"memory": 768 * MIB, "threads": 200, "descriptors": 150}
"""By how much the least that a process uses late in its life may be above the most that it used early.

delta-rs starts up to some seventy threads when it looks through a log, and lets them go ten seconds later."""
CEILINGS = {"memory": 4096 * MIB, "threads": 1000, "descriptors": 4000}


@dataclass(frozen=True)
class Sample:
    """What a process and those that it has started use at one time."""

    member: str
    pid: int
    time: float
    memory: int
    threads: int
    descriptors: int


def sample(members: Mapping[str, int], time: float) -> Iterator[Sample]:
    """What each group of processes uses now."""
    groups: dict[int, list[Path]] = defaultdict(list)
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and (fields := _stat(place)):
            groups[int(fields[2])].append(place)
    for member, pid in members.items():
        used = [_used(place) for place in groups.get(pid, [])]
        if used:
            yield Sample(member, pid, time, *(sum(column) for column in zip(*used, strict=True)))


def _stat(place: Path) -> list[str]:
    """The fields after the name of the program, or nothing if the process has gone."""
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _used(place: Path) -> tuple[int, int, int]:
    fields = _stat(place)
    try:
        descriptors = len(os.listdir(place / "fd"))
    except OSError:
        return 0, 0, 0
    return (int(fields[21]) * PAGE_BYTES, int(fields[17]), descriptors) if fields else (0, 0, 0)


def disk_bytes(folder: Path) -> int:
    """What is on the disk below a folder."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total


def unbounded(samples: Sequence[Sample]) -> Iterator[Finding]:
    """What a process has more of than it should, or more and more."""
    lives: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for one in samples:
        lives[one.member, one.pid].append(one)
    for (member, _), life in lives.items():
        cold = DRIVER_WARM_S if member.startswith(DRIVERS) else WARM_S
        warm = [one for one in life if one.time >= life[0].time + cold]
        third = len(warm) // 3
        for what, growth in GROWTH.items():
            used = [getattr(one, what) for one in life]
            if max(used) > CEILINGS[what]:
                yield Finding(what, f"{member} has {_amount(what, max(used))}; at most {_amount(what, CEILINGS[what])}")
            if len(warm) >= JUDGED_SAMPLES:
                early = max(getattr(one, what) for one in warm[:third])
                late = min(getattr(one, what) for one in warm[-third:])
                if late - early > growth:
                    yield Finding(
                        what, f"{member} has {_amount(what, early)}, and later never below {_amount(what, late)}"
                    )


def unbounded_disk(used: int, written: int) -> Iterator[Finding]:
    """Whether more is on the disk than what was written explains."""
    if used > DISK_BASE_BYTES + DISK_FACTOR * written:
        yield Finding("disk", f"{used // MIB:,} MiB are on the disk for {written // MIB:,} MiB that were written")


def largest(samples: Sequence[Sample]) -> str:
    """Who has used most of each."""
    if not samples:
        return "nothing was measured"
    most = {what: max(samples, key=lambda one, what=what: getattr(one, what)) for what in GROWTH}  # type: ignore[misc]
    return ", ".join(f"{what} {_amount(what, getattr(one, what))} ({one.member})" for what, one in most.items())


def _amount(what: str, value: int) -> str:
    return f"{value // MIB:,} MiB" if what == "memory" else f"{value:,}"
