"""What Prometheus is told of a publisher, and whether it is ready: docs/metrics.md has the list.

Everything is read from what the publisher keeps anyway: a scrape asks neither ZooKeeper nor a log, and holds no lock
for longer than it takes to copy a list. Series are by application and stream. By shard there are as many as flows, ten
thousand perhaps, of each; so the lag and the stall of single shards are told on demand only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidings.coordination.health import ZooKeeperCollector, away_too_long
from tidings.coordination.zookeeper import Coordination
from tidings.flows import Flow, FlowState
from tidings.metrics import PROGRESS_TIMEOUT_S, MetricsServer, brief
from tidings.publisher.flow_session import FlowSession
from tidings.publisher.progress import FlowProgress, flow_progress
from tidings.publisher.publisher import Publisher

STATES = tuple(state for state in get_args(FlowState) if state not in ("unassigned", "stopped"))
"""Those of flows that have an owner."""

STARTING = "the publisher is starting"

_FLOW = ["application", "stream"]
_COUNTERS = {
    "taken": ("taken_flows", "Flows that this publisher became the owner of, each in a new epoch."),
    "fenced": ("fenced_flows", "Flows that another publisher had taken when this one was to write something."),
    "restarts": ("restarted_flows", "Times that a flow broke off, to be opened again at its datamarker."),
    "failures": ("failed_flows", "Times that a flow failed: its handler did again and again, and it is parked."),
    "put_aside": ("dead_letters", "Updates at which a handler failed, and that were skipped or kept in a stream."),
    "losses": ("data_losses", "Times that a subscriber was told that updates are lost to it."),
    "updates_sent": ("sent_updates", "Updates sent to subscribers, without those of tidings_publisher_bulk_updates."),
    "bytes_sent": ("sent_bytes", "Bytes of these updates."),
    "updates_skipped": ("skipped_updates", "Updates too old for a realtime application, or skipped by an operator."),
    "datamarkers": ("written_datamarkers", "Datamarkers committed."),
}
"""By the field of `FlowCounters`: the metric, and its help."""


@dataclass
class _FlowGroup:
    """The flows of one application in one stream, or a single one of them."""

    states: Counter[str] = field(default_factory=Counter)
    bytes_in_flight: int = 0
    stalled_seconds: float = 0.0
    lags: list[int | None] = field(default_factory=list)
    ages: list[float] = field(default_factory=list)

    def add(self, session: FlowSession, progress: FlowProgress) -> None:
        """One flow more."""
        self.states[progress.state] += 1
        self.bytes_in_flight += session.bytes_in_flight
        self.stalled_seconds = max(self.stalled_seconds, progress.stalled_seconds)
        self.lags.append(progress.lag)
        if progress.lag_seconds is not None:
            self.ages.append(progress.lag_seconds)

    @property
    def lag(self) -> int | None:
        """The lag of all, if that of each is known."""
        return None if None in self.lags else sum(one or 0 for one in self.lags)


class PublisherCollector(Collector):
    """Reads publishers whenever it is asked; `publishers` may grow and shrink meanwhile.

    With `by_shard`, lags and stalls have a label `shard`.
    """

    def __init__(self, publishers: Collection[Publisher], *, by_shard: bool = False) -> None:
        self._publishers = publishers
        self._by_shard = by_shard

    def collect(self) -> Iterable[Metric]:
        """All families, those without a series too."""
        publishers = list(self._publishers)
        yield from self._counted(publishers)
        yield from self._streams(publishers)
        yield from self._exchanges(publishers)
        yield from self._flows(publishers)

    def _counted(self, publishers: list[Publisher]) -> Iterator[Metric]:
        for counter, (name, about) in _COUNTERS.items():
            family = CounterMetricFamily(f"tidings_publisher_{name}", about, labels=_FLOW)
            for publisher in publishers:
                for key, counters in publisher.counters.all().items():
                    family.add_metric(key, getattr(counters, counter))
            yield family

    def _streams(self, publishers: list[Publisher]) -> Iterator[Metric]:
        labels = ["stream"]
        updates = CounterMetricFamily("tidings_publisher_read_updates", "Updates read from logs.", labels=labels)
        size = CounterMetricFamily("tidings_publisher_read_bytes", "Bytes of these updates.", labels=labels)
        bulk = CounterMetricFamily(
            "tidings_publisher_bulk_updates", "Updates sent by Spark's executors, to all applications.", labels=labels
        )
        caravans = GaugeMetricFamily("tidings_publisher_caravans", "Readers of the log.", labels=labels)
        readable = GaugeMetricFamily("tidings_publisher_log_readable", "0 while the log cannot be read.", labels=labels)
        retained = GaugeMetricFamily(
            "tidings_log_retained_bytes",
            "What a database keeps of its log for the application that is behind all others.",
            labels=_FLOW,
        )
        for publisher in publishers:
            for name, pump in publisher.pumps.items():
                if (kept := pump.retained) is not None:
                    retained.add_metric([kept.flow.application, name], kept.bytes)
                updates.add_metric([name], pump.updates_read)
                size.add_metric([name], pump.bytes_read)
                bulk.add_metric([name], pump.updates_sent_in_bulk)
                caravans.add_metric([name], pump.allocation.caravan_count)
            unreadable = publisher.unreadable
            for name in sorted({*publisher.pumps, *unreadable}):
                readable.add_metric([name], name not in unreadable)
        yield from (updates, size, bulk, caravans, readable, retained)

    def _exchanges(self, publishers: list[Publisher]) -> Iterator[Metric]:
        here = GaugeMetricFamily(
            "tidings_publisher_exchanges", "Subscribers that are connected.", labels=["application"]
        )
        broken = CounterMetricFamily(
            "tidings_publisher_broken_exchanges",
            "Exchanges with subscribers that ended though nobody wanted it.",
            labels=["application"],
        )
        refused = CounterMetricFamily(
            "tidings_publisher_refused_peers", "Peers that wanted to connect and were sent away.", labels=[]
        )
        for publisher in publishers:
            counts = publisher.exchanges
            for application in sorted({*counts, *(name for name, _ in publisher.counters.all())}):
                here.add_metric([application], counts[application])
            for application, count in sorted(publisher.broken_exchanges.items()):
                broken.add_metric([application], count)
            refused.add_metric([], publisher.refused_peers)
        yield from (here, broken, refused)

    def _flows(self, publishers: list[Publisher]) -> Iterator[Metric]:
        by_shard = [*_FLOW, "shard"] if self._by_shard else _FLOW
        flows = GaugeMetricFamily("tidings_publisher_flows", "Flows owned, by their state.", labels=[*_FLOW, "state"])
        in_flight = GaugeMetricFamily(
            "tidings_publisher_in_flight_bytes", "Bytes sent and not processed yet.", labels=_FLOW
        )
        stalled = GaugeMetricFamily(
            "tidings_publisher_stalled_seconds",
            "How long the flow that is stuck the longest has had work and made no progress; 0 if none has.",
            labels=by_shard,
        )
        lag = GaugeMetricFamily(
            "tidings_consumergroup_lag", "Updates that logs hold after the datamarkers of the flows.", labels=by_shard
        )
        seconds = GaugeMetricFamily(
            "tidings_consumergroup_lag_seconds", "The age of the oldest of these updates.", labels=by_shard
        )
        groups: dict[tuple[str, str], _FlowGroup] = {}
        shards: dict[tuple[str, ...], _FlowGroup] = {}
        for publisher in publishers:
            for session, progress in progress_of(publisher):
                application, stream, shard = session.flow
                groups.setdefault((application, stream), _FlowGroup()).add(session, progress)
                if self._by_shard:
                    shards.setdefault((application, stream, str(shard)), _FlowGroup()).add(session, progress)
        for key, group in sorted(groups.items()):
            for state in STATES:
                flows.add_metric([*key, state], group.states[state])
            in_flight.add_metric(key, group.bytes_in_flight)
        for labels, group in sorted((shards if self._by_shard else groups).items()):
            stalled.add_metric(labels, group.stalled_seconds)
            if group.lag is not None:
                lag.add_metric(labels, group.lag)
            if group.ages:
                seconds.add_metric(labels, max(group.ages))
        yield from (flows, in_flight, stalled, lag, seconds)


def progress_of(publisher: Publisher) -> Iterator[tuple[FlowSession, FlowProgress]]:
    """How each flow of a publisher gets on."""
    now, wall = time.monotonic(), time.time()
    for pump in publisher.pumps.values():
        held, unreadable = pump.held, pump.trouble is not None
        for session in pump.sessions():
            known = held.get(session.shard)
            gathers = pump.gathers(session)
            progress = flow_progress(session, known, dense=pump.dense, gathers=gathers, now=now, wall=wall)
            yield session, progress._replace(state="failed", stalled_seconds=0.0) if unreadable else progress


class PublisherHealth:
    """Whether publishers are ready, and whether they live.

    A flow that has work and makes no progress for `progress_timeout` seconds makes its publisher unready, if there is a
    subscriber that holds it. One that waits for a subscriber does not, nor one that has failed, nor one that operators
    have paused: none of them gets better if something is done to the publisher. All are in `tidings_publisher_flows`.
    """

    def __init__(self, publishers: Collection[Publisher], progress_timeout: float = PROGRESS_TIMEOUT_S) -> None:
        self._publishers = publishers
        self._timeout = progress_timeout

    def unready(self) -> list[str]:
        """Why they are not ready, a reason a line; nothing if they are."""
        return [reason for one in self._publishers for reason in self._of(one)] if self._publishers else [STARTING]

    def dead(self) -> list[str]:
        """Why they can only be started anew; nothing if they live."""
        return [f"thread {name} has ended" for publisher in list(self._publishers) for name in publisher.dead_threads]

    def _of(self, publisher: Publisher) -> list[str]:
        if publisher.closing:
            return ["the publisher gives its flows away, to end"]
        reasons = away_too_long(publisher.coordination, publisher.membership)
        reasons += [f"stream {name!r} cannot be read: {why}" for name, why in sorted(publisher.unreadable.items())]
        return [*reasons, *brief(sorted(self._stuck(publisher)), "flows that are stuck")]

    def _stuck(self, publisher: Publisher) -> Iterator[str]:
        for session, progress in progress_of(publisher):
            if progress.stalled_seconds > self._timeout:
                yield _complaint(session.flow, progress, session.problem)


def _complaint(flow: Flow, progress: FlowProgress, problem: str) -> str:
    why = f": {problem}" if problem else ""
    return f"flow {flow} has work, and has made no progress for {progress.stalled_seconds:,.0f} s{why}"


def serve(
    address: tuple[str, int],
    coordination: Coordination,
    publishers: Collection[Publisher],
    *,
    by_shard: bool = False,
    progress_timeout: float = PROGRESS_TIMEOUT_S,
) -> MetricsServer:
    """Serve metrics and health of publishers, whose session this is; the list may change meanwhile."""
    health = PublisherHealth(publishers, progress_timeout)
    collectors = [PublisherCollector(publishers, by_shard=by_shard), ZooKeeperCollector([coordination])]
    return MetricsServer(*address, collectors, health.unready, dead=health.dead)
