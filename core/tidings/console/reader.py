"""Reads the cluster, for all who look: again and again while somebody does, seldom otherwise.

When ZooKeeper does not answer, what was known last stays, and is marked with its age.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kazoo.protocol.states import KazooState

from tidings.console.cluster_nodes import ClusterNodes, read_nodes
from tidings.console.cluster_view import EMPTY, ClusterView, problems_of, sent_bytes, stands_of, statuses, totals
from tidings.console.history import WORST_FLOWS, Counters, History, OverviewPoint
from tidings.console.log_watch import LogState, LogWatch
from tidings.console.options import ConsoleOptions
from tidings.errors import ENDING, TidingsError
from tidings.flow_status import FlowStatus, KeptRecords

if TYPE_CHECKING:
    from tidings.catalogue import Catalogue

LOG_BUDGET_S = 1.5  # that a reading waits for logs
MAX_SHARE = 0.2  # of a processor that reading may take: a cluster that is large is read less often

logger = logging.getLogger(__name__)


class ClusterReader:
    """Keeps `view` fresh, in a thread of its own, once it is started."""

    def __init__(self, cluster: Catalogue, options: ConsoleOptions) -> None:
        self.view: ClusterView = EMPTY
        self.history = History()
        self.read_seconds = 0.0
        """How much of a processor the last reading took."""
        self.readings = 0
        self._cluster = cluster
        self.looks_only = self._may_only_look()
        """Whether the cluster, as it was read last, lets our credentials change nothing."""
        self._options = options
        self._changed: Callable[[], None] = lambda: None
        self._logs = LogWatch()
        self._kept: KeptRecords = {}
        self._updates = Counters[str]()
        self._sent = Counters[tuple[str, str]]()
        self._wanted = threading.Event()
        self._first = threading.Event()
        self._closed = False
        self._looked = 0.0
        self._troubled = ""
        self._absent: str | None = None
        """Why ZooKeeper does not answer, as its session tells."""
        self._thread = threading.Thread(target=self._run, name="tidings-console-reader", daemon=True)

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to read; `changed` is called, in some thread, whenever `view` is another."""
        self._changed = changed
        self._cluster.coordination.client.add_listener(self._on_state)
        self._thread.start()

    def look(self) -> None:
        """Somebody looks: keep reading."""
        now = time.monotonic()
        idle = now - self._looked > self._options.looked_at_s
        self._looked = now
        if idle:
            self._wanted.set()

    def refresh_soon(self) -> None:
        """Something was changed: read again now."""
        self._wanted.set()

    def ready(self, timeout: float = 0.0) -> bool:
        """Whether the cluster was read at least once."""
        return self._first.wait(timeout)

    def unready(self) -> list[str]:
        """Why what is shown is not how things are, a reason a line."""
        if self.view.away:
            return [self.view.away]
        return [] if self.ready() else ["the cluster was not read yet"]

    def close(self) -> None:
        """Read no more."""
        self._closed = True
        self._wanted.set()
        self._cluster.coordination.client.remove_listener(self._on_state)
        self._thread.join(self._options.refresh_s)
        self._logs.close()

    @property
    def looked_at(self) -> bool:
        """Whether somebody looks."""
        return time.monotonic() - self._looked <= self._options.looked_at_s

    def _on_state(self, state: str) -> None:
        """The thread that hears from ZooKeeper: it tells, and wakes the one that reads."""
        if state != KazooState.CONNECTED:
            self._absent = f"ZooKeeper at {self._cluster.coordination.hosts} does not answer"
            self._set_away(self._absent)
        else:
            self._absent = None
            self._wanted.set()

    def _set_away(self, reason: str) -> None:
        if self.view.away is None:
            self.view = replace(self.view, version=self.view.version + 1, away=reason)
            self._changed()

    def _run(self) -> None:
        while not self._closed:
            started = time.monotonic()
            try:
                self._read()
                self._troubled = ""
            except ENDING:
                raise
            except BaseException as error:  # whatever is wrong there, the console stays up
                if not isinstance(error, TidingsError) and self._troubled != str(error):
                    logger.warning("the cluster could not be read", exc_info=error)
                self._troubled = str(error)
                self.history.fail()
                self._set_away(str(error) if isinstance(error, TidingsError) else f"{type(error).__name__}: {error}")
            if not self.looked_at:
                self._logs.close()
            least = self._options.refresh_s if self.looked_at else self._options.idle_refresh_s
            rest = max(least - (time.monotonic() - started), self.read_seconds * (1 / MAX_SHARE - 1))
            self._wanted.wait(max(0.05, rest))
            self._wanted.clear()

    def _may_only_look(self) -> bool:
        tree = self._cluster.coordination
        return tree.closed and tree.credentials.role != "operator"

    def _read(self) -> None:
        started = time.thread_time()
        # Each time: a tree that was not there when we came lets everybody do everything, until its maker closes it.
        self.looks_only = self._may_only_look()
        nodes = read_nodes(self._cluster, self._kept)
        logs = self._logs.refresh(nodes.streams, stands_of(nodes), LOG_BUDGET_S)
        self._put(nodes, logs)
        self.read_seconds = time.thread_time() - started
        self.readings += 1
        self._first.set()
        self._changed()

    def _put(self, nodes: ClusterNodes, logs: dict[str, LogState]) -> None:
        flows, now = statuses(nodes, logs), time.time()
        for name, (at, total) in totals(logs).items():
            self._updates.note(name, at, total)
        self._updates.keep(nodes.streams)
        for which, report in nodes.caravans.items():
            if (count := sent_bytes(report)) is not None:
                self._sent.note(which, nodes.time, count)
        self._sent.keep(nodes.caravans)
        rates = {name: self._updates.rate(name, now) for name in nodes.streams}
        sent_rates = [rate for which in nodes.caravans if (rate := self._sent.rate(which, now)) is not None]
        problems = tuple(problems_of(nodes, logs, now))
        speed = sum(sent_rates) if sent_rates else None
        # It may have gone while logs were asked.
        self.view = ClusterView(self.view.version + 1, nodes, logs, flows, rates, speed, problems, self._absent)
        lags = {
            one.flow: (one.lag, one.lag_seconds)
            for one in (*_worst(flows), *(self.view.by_flow.get(flow) for flow in self.history.looked_at()))
            if one is not None
        }
        self.history.add(overview_point(self.view), rates, lags)


def _worst(flows: tuple[FlowStatus, ...]) -> list[FlowStatus]:
    behind = (one for one in flows if one.lag or one.lag_seconds)
    return heapq.nlargest(WORST_FLOWS, behind, key=lambda one: (one.lag_seconds or 0.0, one.lag or 0))


def overview_point(view: ClusterView) -> OverviewPoint:
    """The cluster in four numbers."""
    known = [rate for rate in view.rates.values() if rate is not None]
    seconds = [one.lag_seconds for one in view.flows if one.lag_seconds is not None]
    lags = [one.lag for one in view.flows if one.lag is not None]
    return OverviewPoint(
        round(view.time, 1),
        round(sum(known), 2) if known else None,
        round(max(seconds), 3) if seconds else None,
        sum(lags) if lags else None,
    )
