"""What Prometheus is told of subscribers, and whether they are ready: docs/metrics.md has the list.

A service that has a registry of its own registers the collectors there:

    from prometheus_client import REGISTRY
    REGISTRY.register(SubscriberCollector([subscriber]))
    REGISTRY.register(ZooKeeperCollector([cluster.coordination]))

Series are by application and stream, and by callback; never by flow, update or object.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tidings.coordination.health import ZooKeeperCollector, away_too_long
from tidings.coordination.zookeeper import Coordination
from tidings.metrics import PROGRESS_TIMEOUT_S, MetricsServer, brief
from tidings.subscriber.subscriber import Subscriber
from tidings.subscriber.workers import HeldFlow

STARTING = "the subscriber is starting"
STATES = ("running", "failed")
_FLOW = ["application", "stream"]


@dataclass
class _HeldGroup:
    """The flows of one stream that are here."""

    states: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    stalled_seconds: float = 0.0

    def add(self, held: HeldFlow, now: float, wall: float) -> None:
        """One flow more."""
        self.states["failed" if held.parked else "running"] += 1
        self.updates += held.updates_queued
        self.bytes += held.bytes_queued
        self.oldest_seconds = max(self.oldest_seconds, _oldest_seconds(held, wall))
        self.stalled_seconds = max(self.stalled_seconds, stalled_seconds(held, now))


def stalled_seconds(held: HeldFlow, now: float) -> float:
    """How long there has been something to do for a flow, and nothing of it was finished."""
    return max(0.0, now - held.progressed) if held.busy else 0.0


def _oldest_seconds(held: HeldFlow, wall: float) -> float:
    """The age of the first update that is not processed; 0 if there is none, or its time is not known."""
    rows = held.current
    if rows is None:
        try:
            rows = next((one.rows for one in held.todo if one.rows is not None), None)
        except RuntimeError:  # it has changed meanwhile: then it goes on
            return 0.0
    time = rows.batch["time"][0].as_py() if rows is not None and rows.num_rows else None
    return 0.0 if time is None else max(0.0, wall - time.timestamp())


class SubscriberCollector(Collector):
    """Reads subscribers whenever it is asked; `subscribers` may grow and shrink meanwhile."""

    def __init__(self, subscribers: Collection[Subscriber]) -> None:
        self._subscribers = subscribers

    def collect(self) -> Iterable[Metric]:
        """All families, those without a series too."""
        applications: dict[str, list[Subscriber]] = defaultdict(list)
        for one in list(self._subscribers):
            applications[one.application].append(one)
        yield from _flows(applications)
        yield from _counted(applications)
        yield from _callbacks(applications)
        yield from _exchanges(applications)


def _flows(applications: dict[str, list[Subscriber]]) -> Iterator[Metric]:
    flows = GaugeMetricFamily("tidings_subscriber_flows", "Flows held, by their state.", labels=[*_FLOW, "state"])
    updates = GaugeMetricFamily(
        "tidings_subscriber_queued_updates", "Updates that have come and wait for the handler.", labels=_FLOW
    )
    size = GaugeMetricFamily("tidings_subscriber_queued_bytes", "Bytes of these updates.", labels=_FLOW)
    oldest = GaugeMetricFamily(
        "tidings_subscriber_oldest_update_seconds",
        "The age of the oldest update that has come and is not processed; 0 if there is none.",
        labels=_FLOW,
    )
    stalled = GaugeMetricFamily(
        "tidings_subscriber_stalled_seconds",
        "How long the flow that is stuck the longest has had something to do and got no further; 0 if none has.",
        labels=_FLOW,
    )
    now, wall = time.monotonic(), time.time()
    for application, subscribers in applications.items():
        known = {stream for one in subscribers for stream in list(one.counters.streams)}
        groups = {stream: _HeldGroup() for stream in sorted(known)}
        for held in (held for one in subscribers for held in one.held):
            groups.setdefault(held.flow.stream, _HeldGroup()).add(held, now, wall)
        for stream, group in groups.items():
            key = [application, stream]
            for state in STATES:
                flows.add_metric([*key, state], group.states[state])
            updates.add_metric(key, group.updates)
            size.add_metric(key, group.bytes)
            oldest.add_metric(key, group.oldest_seconds)
            stalled.add_metric(key, group.stalled_seconds)
    yield from (flows, updates, size, oldest, stalled)


def _counted(applications: dict[str, list[Subscriber]]) -> Iterator[Metric]:
    processed = CounterMetricFamily("tidings_subscriber_processed_updates", "Updates processed.", labels=_FLOW)
    failed = CounterMetricFamily(
        "tidings_subscriber_failed_flows",
        "Times that a flow failed: the handler did again and again, and it is parked.",
        labels=_FLOW,
    )
    for application, subscribers in applications.items():
        for stream in sorted({stream for one in subscribers for stream in list(one.counters.streams)}):
            known = [one.counters.streams[stream] for one in subscribers]
            processed.add_metric([application, stream], sum(one.updates for one in known))
            failed.add_metric([application, stream], sum(one.failures for one in known))
    yield from (processed, failed)


def _callbacks(applications: dict[str, list[Subscriber]]) -> Iterator[Metric]:
    labels = ["application", "callback"]
    calls = HistogramMetricFamily(
        "tidings_subscriber_handler_seconds", "How long calls of the handler took.", labels=labels
    )
    failures = CounterMetricFamily(
        "tidings_subscriber_handler_failures", "Calls of the handler that raised, to be made again.", labels=labels
    )
    for application, subscribers in applications.items():
        for callback in sorted({name for one in subscribers for name in list(one.counters.callbacks)}):
            known = [one.counters.callbacks[callback] for one in subscribers]
            each = [one.buckets for one in known]
            buckets = [(bound, sum(one[place][1] for one in each)) for place, (bound, _) in enumerate(each[0])]
            calls.add_metric([application, callback], buckets, sum(one.sum for one in known))
            failures.add_metric([application, callback], sum(one.failures for one in known))
    yield from (calls, failures)


def _exchanges(applications: dict[str, list[Subscriber]]) -> Iterator[Metric]:
    labels = ["application"]
    here = GaugeMetricFamily("tidings_subscriber_exchanges", "Publishers that it is connected with.", labels=labels)
    away = GaugeMetricFamily(
        "tidings_subscriber_unreachable_publishers", "Publishers that should be, and cannot be reached.", labels=labels
    )
    broken = CounterMetricFamily(
        "tidings_subscriber_broken_exchanges",
        "Exchanges with publishers that ended though we did not want it, or could not be begun.",
        labels=labels,
    )
    load = GaugeMetricFamily(
        "tidings_subscriber_load_ratio", "The part of the time that workers were busy lately.", labels=labels
    )
    for application, subscribers in applications.items():
        here.add_metric([application], sum(one.dialer.exchanges for one in subscribers))
        away.add_metric([application], max(len(one.dialer.troubles) for one in subscribers))
        broken.add_metric([application], sum(one.dialer.broken_exchanges for one in subscribers))
        load.add_metric([application], max(one.load for one in subscribers))
    yield from (here, away, broken, load)


class SubscriberHealth:
    """Whether subscribers are ready, and whether they live.

    A flow with something to do, of which nothing is finished for `progress_timeout` seconds, makes its subscriber
    unready: the handler is stuck, or slow. One that has failed does not: it would fail again after a
    restart. It is in `tidings_subscriber_flows`.
    """

    def __init__(self, subscribers: Collection[Subscriber], progress_timeout: float = PROGRESS_TIMEOUT_S) -> None:
        self._subscribers = subscribers
        self._timeout = progress_timeout

    def unready(self) -> list[str]:
        """Why they are not ready, a reason a line; nothing if they are."""
        return [reason for one in self._subscribers for reason in self._of(one)] if self._subscribers else [STARTING]

    def dead(self) -> list[str]:
        """Why they can only be started anew; nothing if they live."""
        return [f"thread {name} has ended" for one in list(self._subscribers) for name in one.dead_threads]

    def _of(self, subscriber: Subscriber) -> list[str]:
        if subscriber.closing:
            return ["the subscriber has its flows moved, to end"]
        reasons = away_too_long(subscriber.coordination, subscriber.membership)
        troubles = subscriber.dialer.lasting_troubles(self._timeout)
        reasons += [f"publisher {name} cannot be reached: {why}" for name, why in sorted(troubles.items())]
        return [*reasons, *brief(sorted(self._stuck(subscriber)), "flows that are stuck")]

    def _stuck(self, subscriber: Subscriber) -> Iterator[str]:
        now = time.monotonic()
        for held in subscriber.held:
            if (stalled := stalled_seconds(held, now)) > self._timeout:
                yield f"flow {held.flow} has something to do, and got no further for {stalled:,.0f} s"


def serve(
    address: tuple[str, int],
    coordination: Coordination,
    subscribers: Collection[Subscriber],
    *,
    progress_timeout: float = PROGRESS_TIMEOUT_S,
) -> MetricsServer:
    """Serve metrics and health of subscribers, whose session this is; the list may change meanwhile."""
    health = SubscriberHealth(subscribers, progress_timeout)
    collectors = [SubscriberCollector(subscribers), ZooKeeperCollector([coordination])]
    return MetricsServer(*address, collectors, health.unready, dead=health.dead)
