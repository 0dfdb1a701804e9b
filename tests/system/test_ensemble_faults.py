"""What a process may believe whose server of ZooKeeper has lost its leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ensemble import HOST, SYNC_S, Ensemble
from tidings.coordination.lease import Lease
from tidings.coordination.zookeeper import Coordination
from tidings.testing import eventually


@pytest.mark.slow
def test_a_server_that_has_lost_its_leader_renews_no_lease_though_it_answers_reads(tmp_path: Path) -> None:
    session_timeout = 3.0
    assert session_timeout < SYNC_S / 2
    with Ensemble(tmp_path) as ensemble:
        modes = ensemble.modes()
        address = f"{HOST}:{ensemble.ports[modes.index('follower')]}/prod"
        tree = Coordination(address, session_timeout=session_timeout)
        tree.create({}, "streams")
        reader = Coordination(
            address, session_timeout=session_timeout
        )  # behind whose reads stands no unanswered `sync`
        assert reader.client.get(reader.path("streams"))
        lease = Lease(tree)
        assert lease.valid()
        ensemble.stop(modes.index("leader"))
        eventually(lambda: not lease.valid(), timeout=2 * session_timeout)
        assert reader.client.get(reader.path("streams")), "the server still answers reads"
        lease.close()
        reader.client.stop()
        tree.client.stop()
