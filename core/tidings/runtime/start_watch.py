"""Whether processes have come up, and where they listen, as ZooKeeper or their own lines say."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidings.errors import TidingsError
from tidings.runtime.log_lines import LogLine, Tell, own_line
from tidings.runtime.processes import ProcessPlan, Tier

if TYPE_CHECKING:
    from tidings.coordination.zookeeper import Coordination

PROGRESS_INTERVAL_S = 5.0


class StartWatch:
    """Looks for processes until all are there, and tells now and then who is waited for."""

    def __init__(self, plans: Sequence[ProcessPlan], tree: Coordination, tell: Tell) -> None:
        self.addresses: dict[str, str | None] = {}
        """Where those that are there listen, by name."""
        self._missing = list(plans)
        self._tree = tree
        self._tell = tell
        self._began = self._told = time.monotonic()

    def hear(self, line: LogLine) -> None:
        """A process has printed this."""
        for plan in self._missing:
            if plan.name == line.process and plan.tells and (found := re.search(plan.tells, line.text)):
                self.addresses[plan.name] = found[1]

    def reached(self) -> bool:
        """True once: when all are there."""
        if not self._missing and self._told:
            self._told = 0.0
            return True
        self._missing = [plan for plan in self._missing if not self._is_there(plan)]
        now = time.monotonic()
        if self._missing and now - self._told > PROGRESS_INTERVAL_S:
            self._told = now
            spark = "; Spark takes a while" if any(plan.tier is Tier.PIPELINES for plan in self._missing) else ""
            names = ", ".join(plan.name for plan in self._missing)
            self._tell(own_line("up", "INFO", f"waits for {names} ({now - self._began:.0f} s{spark})"))
        return False

    def _is_there(self, plan: ProcessPlan) -> bool:
        if plan.tells and plan.name not in self.addresses:
            return False
        try:
            records = [self._tree.read(*place) for place in plan.places]
        except TidingsError:  # ZooKeeper is away, and comes back; what makes no sense is told by who wrote it
            return False
        if any(record is None for record in records):
            return False
        first = next(iter(records), None) or {}
        self.addresses.setdefault(plan.name, first.get("address") or first.get("url"))
        return True
