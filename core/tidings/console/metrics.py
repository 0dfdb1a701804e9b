"""What Prometheus is told of a console."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidings.console.cluster_view import STATES, ClusterView
from tidings.console.reader import ClusterReader
from tidings.console.sign_in import SignIns
from tidings.coordination.health import ZooKeeperCollector
from tidings.coordination.zookeeper import Coordination
from tidings.metrics import Build, ReadyGauge


class ConsoleCollector(Collector):
    """How flows stand, how many look at them, how old what they see is, and what it costs."""

    def __init__(self, reader: ClusterReader, sign_ins: SignIns, live: Callable[[], int]) -> None:
        self._reader = reader
        self._sign_ins = sign_ins
        self._live = live

    def collect(self) -> Iterator[Metric]:
        """The series, as they are now."""
        view = self._reader.view
        yield GaugeMetricFamily("tidings_console_sign_ins", "Sessions of users.", self._sign_ins.count())
        yield GaugeMetricFamily("tidings_console_live_pages", "Pages that are open.", self._live())
        yield CounterMetricFamily("tidings_console_readings", "Readings of the cluster.", self._reader.readings)
        yield GaugeMetricFamily(
            "tidings_console_reading_cpu_seconds", "What the last one took of a processor.", self._reader.read_seconds
        )
        age = GaugeMetricFamily("tidings_console_view_age_seconds", "How old what is shown is.")
        if view.time:
            age.add_metric([], max(0.0, time.time() - view.time))
        yield age
        yield GaugeMetricFamily("tidings_console_flows", "Flows that are shown.", len(view.flows))
        yield _flows(view)


def _flows(view: ClusterView) -> Metric:
    """Flows that nobody owns are known to no publisher: only who reads the cluster as a whole can tell of them."""
    flows = GaugeMetricFamily("tidings_flows", "Flows of the cluster, by their state.", labels=["application", "state"])
    if view.time and view.away is None:  # else it would be how they were
        for name in view.nodes.applications:
            for state in STATES:
                flows.add_metric([name, state], view.states_by_application[name, state])
    return flows


def console_registry(
    coordination: Coordination, reader: ClusterReader, sign_ins: SignIns, live: Callable[[], int]
) -> CollectorRegistry:
    """All that `/metrics` serves."""
    registry = CollectorRegistry()
    zookeeper = ZooKeeperCollector([coordination])
    for collector in (Build(), ReadyGauge(reader.unready), zookeeper, ConsoleCollector(reader, sign_ins, live)):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry
