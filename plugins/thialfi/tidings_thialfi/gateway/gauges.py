"""How a gateway stands, for Prometheus: read from its parts when someone asks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidings_thialfi.gateway.connection_limits import AddressQuota
from tidings_thialfi.gateway.hooks import Guard
from tidings_thialfi.gateway.routes import Routes
from tidings_thialfi.gateway.sessions import Sessions


class GatewayGauges(Collector):
    """The gauges of one gateway."""

    def __init__(self, limits: AddressQuota, sessions: Sessions, routes: Routes, guard: Guard) -> None:
        self._limits = limits
        self._sessions = sessions
        self._routes = routes
        self._guard = guard

    def collect(self) -> Iterator[Metric]:
        """A sample of each."""
        unacknowledged = sum(len(session.outbox.pending) for session in self._sessions)
        for name, about, value in (
            ("connections", "WebSockets and polls of clients.", self._limits.open),
            ("sessions", "Clients that are online here.", len(self._sessions)),
            ("unrouted_sessions", "Clients whose flow no gateway holds.", self._routes.unrouted),
            ("flows", "Flows of notifications that are here.", len(self._routes.here)),
            ("watched_clients", "Clients of other gateways.", len(self._routes.watchers)),
            (
                "unacknowledged_notifications",
                "Notifications that are kept until they are acknowledged.",
                unacknowledged,
            ),
        ):
            yield GaugeMetricFamily(f"tidings_gateway_{name}", about, value)
        yield CounterMetricFamily(
            "tidings_gateway_hook_failures", "Hooks that failed or were late.", self._guard.failures
        )
