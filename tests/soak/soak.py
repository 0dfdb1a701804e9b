"""A soak: the world, its faults, and those who watch it from outside."""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import checker, plan, resources
from tests.soak.checker import Finding
from tests.soak.history import History, Row
from tests.soak.journal import Follower
from tests.soak.members import Member
from tests.soak.plan import Fault
from tests.soak.progress import CLIENTS, Share, Span
from tests.soak.troubles import Troubles
from tests.soak.world import Shape, World, world

TICK_S = 0.25
SAMPLE_S = 1.0
SAY_S = 5.0
START_S = 300.0  # until everybody has heard something
END_S = 600.0  # until all has arrived, once all is well again

START = "start"

Say = Callable[[str], None]


@dataclass
class Verdict:
    """What came out of a soak."""

    findings: list[Finding] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    acknowledged: int = 0
    unanswered: int = 0

    @property
    def kinds(self) -> set[str]:
        return {one.kind for one in self.findings}


class Soak:
    """One run. Made by `run`."""

    def __init__(self, world: World, within: float, ending: float, say: Say) -> None:
        self._world = world
        self._ending = ending
        self._say = say
        self.history = History()
        self._within = within
        self._share: Share | None = None
        self._followers: dict[Path, Follower] = {}
        self._samples: list[resources.Sample] = []
        self._away: dict[str, list[Span]] = defaultdict(list)
        self._troubles = Troubles(world)
        self._sampled = self._said = 0.0
        self._began = time.monotonic()

    def run(self, kinds: frozenset[str], seconds: float) -> Verdict:
        verdict = Verdict()
        self._world.start_drivers()
        self._until(self._world.drivers_work, START_S / 2, "all pipelines work")
        self._world.start()
        if not self._until(self._all_have_heard, START_S / 2, "all have heard something"):
            verdict.findings = [Finding(START, f"not all have heard something within {START_S:g} s")]
            return verdict
        for kind, reason in self._world.left_out.items():
            if kind in kinds:
                self._say(f"  left out: {kind}, which {reason}")
        self._share = Share(self.history, self._world.audiences, self._world.clients_of, self._within)
        verdict.faults = plan.schedule(self._world.shape.seed, seconds, self._troubles.targets(kinds))
        try:
            self._trouble(verdict.faults, seconds)
        finally:
            self._troubles.heal_all()
        for writer in self._world.writers:
            writer.ask_to_end()
        for writer in self._world.writers:
            writer.end()
        self._until(self._all_has_arrived, self._ending, "all has arrived")
        verdict.acknowledged = len(self.history.acknowledged)
        verdict.unanswered = len(self.history.writes) - verdict.acknowledged
        verdict.findings = self._findings()
        return verdict

    def _trouble(self, planned: list[Fault], seconds: float) -> None:
        self._troubles.begin(planned)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            for fault in self._troubles.step(passed):
                self._say(f"  {self._clock()}  {fault}")
            self._tick()

    def _until(self, holds: Callable[[], bool], limit: float, what: str) -> bool:
        """Go on until something holds; whether it does."""
        began = time.monotonic()
        while not (well := holds()) and time.monotonic() - began < limit:
            self._tick(SAMPLE_S)
        self._say(f"  {self._clock()}  {what if well else f'not {what}'} after {time.monotonic() - began:.0f} s")
        return well

    def _tick(self, pause: float = TICK_S) -> None:
        time.sleep(pause)
        now = time.monotonic()
        if now - self._sampled < SAMPLE_S:
            return
        self._sampled = now
        self._follow()
        self._world.revive()
        pids = {name: member.pid for name, member in self._world.members.items()}
        self._samples += resources.sample({name: pid for name, pid in pids.items() if pid is not None}, now)
        self._note_away(now)
        if self._share is not None:
            self._share.judge(now, self._away)
        if now - self._said >= SAY_S:
            self._said = now
            self._say(f"  {self._clock()}  {self._state()}")

    def _state(self) -> str:
        parts = [f"{len(self.history.acknowledged):,} writes"]
        if self._share is not None and self._share.judged:
            parts.append(f"{self._share.percent:.1f} % of {self._share.judged:,} seen by all within {self._within:g} s")
        parts += [f"{one.kind} {one.target}" for one in self._troubles.under_way]
        return ", ".join(parts)

    def _follow(self) -> None:
        for file in self._world.journals:
            for line in self._followers.setdefault(file, Follower(file)).lines():
                self.history.add(line)

    def _note_away(self, now: float) -> None:
        """Note which applications have nobody who is alive, and whether the clients are."""
        groups: dict[str, list[Member]] = {
            one.application: self._world.subscribers(one.application) for one in self._world.audiences
        }
        if self._world.clients_of is not None:
            groups[CLIENTS] = [self._world.members["clients"]]
        stopped = {one.target for one in self._troubles.under_way if one.kind == plan.STOP}
        for name, members in groups.items():
            if all(member.pid is None or member.name in stopped for member in members):
                spans = self._away[name]
                begin = spans.pop()[0] if spans and now - spans[-1][1] < 3 * SAMPLE_S else now - SAMPLE_S
                spans.append((begin, now))

    def _all_have_heard(self) -> bool:
        heard = {
            (application, one.stream)
            for application, events in self.history.heard.items()
            for one in events[:1000]
            if isinstance(one, Row)
        }
        audiences = {(one.application, one.stream) for one in self._world.audiences}
        clients = 0 if self._world.clients_of is None else self._world.shape.clients
        return audiences <= heard and len(self.history.told) >= clients

    def _all_has_arrived(self) -> bool:
        self._follow()
        wrong = [next(checker.missing(self.history, audience), None) for audience in self._world.audiences]
        if self._world.clients_of is not None:
            wrong.append(next(checker.stale(self.history, self._world.clients_of), None))
        return not any(wrong)

    def _findings(self) -> list[Finding]:
        found = checker.check(self.history, self._world.audiences, self._world.clients_of)
        found += resources.unbounded(self._samples)
        used = resources.disk_bytes(self._world.streams)
        found += resources.unbounded_disk(used, self.history.written_bytes)
        written = f"{self.history.written_bytes // resources.MIB:,} MiB were written"
        self._say(f"most: {resources.largest(self._samples)}; {used // resources.MIB:,} MiB on the disk, {written}")
        for member in self._world.members.values():
            for words in member.unasked:
                self._say(f"{member.name} ended by itself, and was started again: {words}")
        return found

    def _clock(self) -> str:
        passed = int(time.monotonic() - self._began)
        return f"{passed // 60:02}:{passed % 60:02}"


def run(
    shape: Shape,
    folder: Path,
    *,
    kinds: frozenset[str] = frozenset(plan.KINDS),
    within: float = 10.0,
    ending: float = END_S,
    say: Say = print,
) -> Verdict:
    """Soak a new world in this folder under faults of these kinds, and say what goes on and what came out.

    `within` is of the share that is told; what has not arrived `ending` seconds after all is well again is lost. The
    folder stays if something is found.
    """
    with world(shape, folder) as made:
        verdict = Soak(made, within, ending, say).run(kinds, 60 * shape.minutes)
    say(f"{verdict.acknowledged:,} writes were acknowledged, {verdict.unanswered:,} had no answer")
    counts = Counter(one.kind for one in verdict.findings)
    for kinds_of, claim in CLAIMS.items():
        count = sum(counts[kind] for kind in kinds_of)
        say(f"  {claim:<58} {'no: ' + format(count, ',') if count else 'yes'}")
    for kind in counts:
        for one in [one for one in verdict.findings if one.kind == kind][:5]:
            say(f"  {one.kind}: {one.text}")
    if verdict.findings:
        say(f"{folder} has what everybody noted and logged")
    else:
        shutil.rmtree(folder)
    return verdict


CLAIMS = {
    (START,): "everybody came up",
    (checker.LOST,): "nothing lost",
    (checker.INVENTED, checker.REPEATED): "nothing invented, nothing written twice",
    (checker.ORDER,): "order kept",
    (checker.STALE,): "every client knows the latest versions",
    ("disk", *resources.GROWTH): "memory, disk, threads and descriptors bounded",
}
