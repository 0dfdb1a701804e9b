"""What Prometheus is told of a process's session with ZooKeeper, and when that makes it unready."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidings.coordination.membership import Membership
from tidings.coordination.session import ZooKeeperSession


class ZooKeeperCollector(Collector):
    """Reads sessions whenever it is asked, and asks ZooKeeper nothing. Of several, the worst is told."""

    def __init__(self, sessions: Collection[ZooKeeperSession]) -> None:
        self._sessions = sessions

    def collect(self) -> Iterable[Metric]:
        """All families, those without a series too."""
        connected = GaugeMetricFamily("tidings_zookeeper_connected", "1 while ZooKeeper is connected.")
        away = GaugeMetricFamily(
            "tidings_zookeeper_away_seconds", "How long ZooKeeper has been away; 0 while it is there."
        )
        back = CounterMetricFamily("tidings_zookeeper_reconnects", "Times that ZooKeeper came back.")
        expired = CounterMetricFamily("tidings_zookeeper_expired_sessions", "Sessions that were over before that.")
        if sessions := list(self._sessions):
            longest = max(one.away_seconds for one in sessions)
            connected.add_metric([], not longest)
            away.add_metric([], longest)
            back.add_metric([], sum(one.reconnects for one in sessions))
            expired.add_metric([], sum(one.expired for one in sessions))
        return [connected, away, back, expired]


def away_too_long(session: ZooKeeperSession, membership: Membership | None = None) -> list[str]:
    """Why a process is not ready: it has no ZooKeeper, or no record there, for longer than its session lives."""
    away = session.away_seconds
    if away > session.session_timeout:
        return [f"ZooKeeper at {session.hosts} is away for {away:,.0f} s"]
    lost = membership.lost_seconds if membership is not None else 0.0
    if lost > session.session_timeout:
        return [f"it could not register in ZooKeeper at {session.hosts} for {lost:,.0f} s: its log says why"]
    return []
