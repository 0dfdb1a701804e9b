"""How long a process may believe in its session: never longer than ZooKeeper does."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.support.proxy import Proxy
from tidings.cluster import Cluster
from tidings.coordination.lease import VALID_RATIO, Lease
from tidings.coordination.zookeeper import Coordination
from tidings.testing import eventually

SESSION_TIMEOUT_S = 2.0


def test_a_lease_is_over_before_others_see_that_the_session_is(cluster: Cluster, zookeeper: str) -> None:
    with Proxy(zookeeper) as proxy, contextlib.ExitStack() as closing:
        own = Coordination(f"{proxy.address}{cluster.coordination.root}", session_timeout=SESSION_TIMEOUT_S)
        closing.callback(own.close)
        assert own.create({}, "alive", ephemeral=True)
        lease = Lease(own)
        closing.callback(lease.close)
        assert lease.valid()
        seen: list[bool] = []

        def gone(event: Any) -> None:
            seen.append(lease.valid())

        assert cluster.coordination.client.exists(cluster.coordination.path("alive"), watch=gone)
        proxy.cut()
        eventually(lambda: seen)
    assert seen == [False]


class SlowToAnswer(Coordination):
    """A session with a server that takes its time, by the clock of the one who asks."""

    ANSWER_S = 4.0
    now = 100.0

    def ping(self) -> None:
        super().ping()
        self.now += self.ANSWER_S


def test_a_lease_counts_from_when_it_was_asked_for(cluster: Cluster) -> None:
    with contextlib.closing(SlowToAnswer(cluster.address, session_timeout=10.0)) as own:
        expires = own.now + VALID_RATIO * own.session_timeout
        with contextlib.closing(Lease(own, clock=lambda: own.now)) as lease:
            assert lease.valid()
            own.now = expires
            assert not lease.valid()
