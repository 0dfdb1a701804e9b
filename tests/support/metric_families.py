"""Every metric that a process of ours serves, as its collectors declare it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.registry import Collector

from tidings.console.cluster_view import EMPTY
from tidings.console.metrics import ConsoleCollector
from tidings.coordination.health import ZooKeeperCollector
from tidings.metrics import Build, ReadyGauge
from tidings.pipelines.metrics import PipelineCollector
from tidings.publisher.metrics import PublisherCollector
from tidings.subscriber.metrics import SubscriberCollector
from tidings_thialfi.gateway.gauges import GatewayGauges
from tidings_thialfi.gateway.metrics import GatewayMetrics

SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
    "summary": ("_count", "_sum"),
}
"""What the samples of a metric are called, beside its own name."""


def collectors() -> list[Collector]:
    """Those of all processes. None needs anything that runs: they declare every metric, with series or without."""
    gateway = [
        cast(Any, SimpleNamespace(open=0)),
        cast(Any, []),
        cast(Any, SimpleNamespace(unrouted=0, here=(), watchers=())),
        cast(Any, SimpleNamespace(failures=0)),
    ]
    console = [
        cast(Any, SimpleNamespace(view=EMPTY, readings=0, read_seconds=0.0)),
        cast(Any, SimpleNamespace(count=lambda: 0)),
        cast(Any, lambda: 0),
    ]
    return [
        Build(),
        ReadyGauge(list),
        ZooKeeperCollector([]),
        PublisherCollector([]),
        SubscriberCollector([]),
        PipelineCollector({}),
        ConsoleCollector(*console),
        *GatewayMetrics().collectors,
        GatewayGauges(*gateway),
    ]


def families() -> Iterator[Metric]:
    """All metrics."""
    for collector in collectors():
        yield from collector.collect()


def documented_name(family: Metric) -> str:
    """The name as people are told it: that of its samples, if they have one."""
    return family.name + SUFFIXES[family.type][0] if len(SUFFIXES[family.type]) == 1 else family.name


def _gateway_labels() -> dict[str, tuple[str, ...]]:
    counted = [one for one in vars(GatewayMetrics()).values() if isinstance(one, Counter | Histogram)]
    return {one._name: tuple(one._labelnames) for one in counted}


_LABELS = _gateway_labels()


def labels_of(family: Metric) -> tuple[str, ...]:
    """The labels, as they are declared, or as a sample has them."""
    declared = _LABELS.get(family.name) or getattr(family, "_labelnames", None)
    found = declared or next((tuple(sample.labels) for sample in family.samples), ())
    return tuple(label for label in found if label != "le")
