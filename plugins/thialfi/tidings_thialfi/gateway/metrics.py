"""What a gateway counts, for Prometheus. No label names a client or an object."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidings.metrics import Build

LIMITS = (
    *("rate", "connections", "address", "sockets", "polls", "origin", "large", "timeout", "registrations", "slow"),
    *("pace", "bodies"),
    *(f"{scope}-{what}" for scope in ("client", "user", "address", "total") for what in ("entries", "bytes")),
)
REFUSALS = ("malformed", "version", "stale", "forged", "expired", "denied", "revoked", "registration", "unavailable")


class Inner(Collector):
    """A registry within a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """What the inner one holds."""
        return self._registry.collect()


class GatewayMetrics:
    """The counters and gauges of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.messages = self._counter("messages", "Messages from clients that were acted upon.", "channel")
        self.refused = self._counter("refused_messages", "Messages from clients that were not acted upon.", "reason")
        self.limited = self._counter("limited", "What was refused because of a limit.", "limit")
        self.connections = self._counter("accepted_connections", "Connections that were accepted.", "channel")
        self.rows = self._counter("operation_rows", "Rows written into the stream of operations.", "op")
        self.notices = self._counter("notifications", "Notifications on their way to clients.", "outcome")
        self.syncs = Counter(
            "tidings_gateway_sync_requests", "Clients that were asked for a sync.", registry=self.registry
        )
        self.published = Counter(
            "tidings_gateway_published_updates", "Updates taken by /v1/publish.", registry=self.registry
        )
        self.displaced = Counter(
            "tidings_gateway_displaced_sessions",
            "Sessions that ended because their client came on another channel.",
            registry=self.registry,
        )
        self.disconnected = self._counter("disconnected_sessions", "Sessions that an operator has ended.", "reason")
        self.relayed = self._counter("relayed_rows", "Rows for clients of other gateways.", "direction")
        self.durable = Histogram(
            "tidings_gateway_durable_seconds",
            "Time until the rows of a message were durable.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.everything = CollectorRegistry()
        """The same, and what is known of the process."""
        for one in (Build(), Inner(self.registry)):
            self.everything.register(one)
        ProcessCollector(registry=self.everything)
        for limit in LIMITS:
            self.limited.labels(limit)
        for reason in REFUSALS:
            self.refused.labels(reason)

    @property
    def collectors(self) -> list[Collector]:
        """The gateway's own, for a server that adds what is known of the process."""
        return [Inner(self.registry)]

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"tidings_gateway_{name}", about, [label], registry=self.registry)
