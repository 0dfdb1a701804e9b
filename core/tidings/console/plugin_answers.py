"""What plugins tell operators of themselves: functions that entry points of the group `tidings.console` name.

A function takes the cluster and returns a list of mappings, one a thing. It may take long, and fail: it is called in a
thread, not more often than every few seconds, and what it said last is shown with its age.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidings.console.queries import time_text
from tidings.console.workers import WorkerPool
from tidings.errors import TidingsError
from tidings.plugins import installed_names, load

if TYPE_CHECKING:
    from tidings.cluster import Cluster

GROUP = "tidings.console"
FRESH_S = 5.0
MAX_ITEMS = 1000

logger = logging.getLogger(__name__)


@dataclass
class _Said:
    items: list[Any] = field(default_factory=list)
    time: float | None = None
    problem: str | None = None
    pending: asyncio.Future[list[Any]] | None = None


class PluginAnswers:
    """Asks plugins, one call at a time for each. On the event loop."""

    def __init__(self, cluster: Cluster, pool: WorkerPool, budget_s: float) -> None:
        self._cluster = cluster
        self._pool = pool
        self._budget_s = budget_s
        self._said: dict[str, _Said] = {}

    async def answer(self, name: str) -> dict[str, Any] | None:
        """What the plugin of that name says; None if there is none."""
        if name not in installed_names(GROUP):
            return None
        said = self._said.setdefault(name, _Said())
        if said.pending is None and (said.time is None or time.time() - said.time > FRESH_S):
            said.pending = asyncio.ensure_future(self._pool.run(lambda: _asked(name, self._cluster)))
        if said.pending is not None:
            await asyncio.wait([said.pending], timeout=self._budget_s)
            self._take(name, said)
        problems = [said.problem] if said.problem else []
        if said.pending is not None:
            problems.append(f"{name} has not answered yet")
        return {
            "items": said.items[:MAX_ITEMS],
            "as_of": None if said.time is None else time_text(said.time),
            "partial": bool(problems),
            "problems": problems,
        }

    def _take(self, name: str, said: _Said) -> None:
        if said.pending is None or not said.pending.done():
            return
        pending, said.pending = said.pending, None
        error = pending.exception()
        said.problem = None
        if error is None:
            said.items, said.time = pending.result(), time.time()
        elif isinstance(error, TidingsError):
            said.problem = str(error)
        else:
            logger.warning("what plugin %r tells of itself failed", name, exc_info=error)
            said.problem = f"{name} failed with {type(error).__name__}"


def _asked(name: str, cluster: Cluster) -> list[Any]:
    found = load(GROUP, name)(cluster)
    return [dict(one) for one in found if isinstance(one, Mapping)]
